"""Dream: the network is Qwen2 with full attention, predictions come from one position before, schedules work on it."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import tenuto
from tenuto.errors import CheckpointError
from tenuto.models.architecture import ConfigError
from tenuto.models.dream import ARCHITECTURE, Dream, DreamConfig, from_published, units
from tenuto.models.tokenizer import load_tokenizer
from tenuto.runtime.executor import Executor
from tenuto.runtime.residual import plain
from tenuto.sampling.masked import MaskedSampling, RowsOf, generate_tokens
from tenuto.scheduling.rewrite import rewrite
from tenuto.scheduling.schedule import Schedule

SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 20,
    "max_position_embeddings": 32,
    "rope_theta": 100.0,
    "rms_norm_eps": 1e-6,
}
TINY = DreamConfig(**SIZES, mask_token_id=0, eos_token_id=1)
PROMPTS = [[2, 3, 4, 5, 6], [7, 8, 9, 10, 11]]
# The config.json that Dream-7B was published with.
PUBLISHED: dict[str, Any] = {
    "architectures": ["DreamModel"],
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_dream.DreamConfig", "AutoModel": "modeling_dream.DreamModel"},
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "initializer_range": 0.02,
    "intermediate_size": 18944,
    "mask_token_id": 151666,
    "max_position_embeddings": 131072,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "pad_token_id": 151643,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.46.2",
    "use_cache": True,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}


@pytest.fixture(scope="module")
def network() -> Dream:
    """With weights large enough that every part matters."""
    generator = torch.Generator().manual_seed(3)
    made = Dream(TINY).eval().requires_grad_(False)
    for name, parameter in made.named_parameters():
        scale = parameter.shape[-1] ** -0.5 if parameter.dim() == 2 else 0.3
        parameter.copy_(scale * torch.randn(parameter.shape, generator=generator) + ("norm" in name))
    return made


def some_tokens(rows: int = 2, length: int = 9, seed: int = 1) -> Tensor:
    return torch.randint(2, 20, (rows, length), generator=torch.Generator().manual_seed(seed))


def made_by_qwen2(network: Dream, tokens: Tensor, real: Tensor | None = None) -> Tensor:
    """What transformers' Qwen2 computes with these weights when every token sees every real one; not yet shifted."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen2Config(**SIZES, tie_word_embeddings=False, attn_implementation="eager")
    if hasattr(config, "rope_parameters"):  # since transformers 5
        config.rope_parameters = {"rope_type": "default", "rope_theta": SIZES["rope_theta"]}
    qwen = transformers.Qwen2ForCausalLM(config).eval()
    qwen.load_state_dict(network.state_dict())
    real = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
    seen = torch.zeros(len(tokens), 1, tokens.shape[1], tokens.shape[1])
    seen = seen.masked_fill(~real[:, None, None, :], torch.finfo(torch.float32).min)
    places = (real.cumsum(1) - 1).clamp(min=0)
    logits: Tensor = qwen(tokens, attention_mask=seen, position_ids=places, use_cache=False).logits
    return logits


def shifted(logits: Tensor) -> Tensor:
    """As Dream's sampler does it."""
    return torch.cat([logits[:, :1], logits[:, :-1]], dim=1)


@torch.inference_mode()
def test_the_network_is_qwen2_that_looks_both_ways(network):
    tokens = some_tokens()
    want = shifted(made_by_qwen2(network, tokens))
    torch.testing.assert_close(network(tokens), want, rtol=1e-4, atol=1e-5)
    some = torch.tensor([[0, 3, 8], [1, 7, 4]])
    torch.testing.assert_close(
        network(tokens, positions=some), want[torch.arange(2)[:, None], some], rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(network(tokens, positions=torch.tensor([5, 2])), want[:, [5, 2]], rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_padding_on_the_left_changes_nothing(network):
    tokens, real = some_tokens(), torch.ones(2, 9, dtype=torch.bool)
    real[0, :4] = False
    padded = network(tokens, attention_mask=real)
    torch.testing.assert_close(padded[1:], shifted(made_by_qwen2(network, tokens, real))[1:], rtol=1e-4, atol=1e-5)
    # Of a row that begins later, the first real token is predicted where it is, as if nothing had been there.
    torch.testing.assert_close(padded[:1, 4:], network(tokens[:1, 4:]), rtol=1e-4, atol=1e-5)


def test_units_are_the_residual_branches_each_once_and_scored_by_their_tensors(network):
    seen: list[str] = []

    def residual(unit, h, branch, gate=None):
        seen.append(unit)
        return plain(unit, h, branch, gate)

    network(some_tokens(), residual=residual)
    assert seen == [unit.name for unit in units(TINY)] == [f"layers.{i}.{b}" for i in range(3) for b in ("attn", "mlp")]
    state = network.state_dict()
    named = {key for unit in units(TINY) for key in unit.tensors()}
    blocks = {key for key in state if key.startswith("model.layers.") and key.endswith("proj.weight")}
    assert named == blocks


def test_published_configs_are_understood_and_others_refused():
    assert from_published(PUBLISHED) == DreamConfig()
    assert DreamConfig().max_sequence_length == 2048
    assert from_published({**PUBLISHED, "num_key_value_heads": None}).num_key_value_heads == 28
    with torch.device("meta"):
        state = Dream(DreamConfig()).state_dict()
    assert state["model.layers.27.self_attn.k_proj.bias"].shape == (512,)
    wrongs = [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"hidden_size": 3585}, "hidden_size 3585"),
        ({"num_key_value_heads": 3}, "num_attention_heads 28 is not a multiple of num_key_value_heads 3"),
        ({"experts": 8}, "unknown argument.*experts"),
    ]
    for wrong, message in wrongs:
        with pytest.raises(ConfigError, match=message):
            from_published({**PUBLISHED, **wrong})


# Sampling


def by_hand(network: Dream, prompt: list[int], sampling: MaskedSampling) -> list[int]:
    """Dream's loop for one row without randomness, on Qwen2's logits; each step writes an even share."""
    x = torch.tensor([prompt + [TINY.mask_token_id] * sampling.length])
    for first in range(len(prompt), x.shape[1], sampling.block_length):
        for count in sampling.writes:
            likely = shifted(made_by_qwen2(network, x))[0].softmax(-1)
            best = likely.clone()
            best[:, TINY.mask_token_id] = 0  # which is never an answer
            top = likely.sort(-1, descending=True).values
            sure = {
                "low_confidence": best.amax(-1),
                "margin": top[:, 0] - top[:, 1],
                "entropy": (likely * (likely + 1e-10).log()).sum(-1),
            }[sampling.remasking]
            block = range(first, first + sampling.block_length)
            left = sorted((i for i in block if x[0, i] == TINY.mask_token_id), key=lambda i: -float(sure[i]))
            for i in left[:count]:
                x[0, i] = best[i].argmax()
    return x[0, len(prompt) :].tolist()


@pytest.mark.parametrize("remasking", ["low_confidence", "margin", "entropy"])
@pytest.mark.parametrize("block", [8, 4])
@torch.inference_mode()
def test_tokens_are_those_of_the_published_loop(network, remasking, block):
    sampling = MaskedSampling(4, 8, block, remasking=remasking, stop_at_eos=False)
    prompts = [PROMPTS[0], [9, 2], [4]]
    assert generate_tokens(network, prompts, sampling=sampling).tolist() == [
        by_hand(network, prompt, sampling) for prompt in prompts
    ]


def test_results_do_not_depend_on_the_batch(network):
    prompts = [[], *PROMPTS, [3]]
    options: dict[str, Any] = {"steps": 4, "length": 8, "block_length": 4, "temperature": 1.0, "remasking": "entropy"}
    together = generate_tokens(network, prompts, **options)
    assert torch.equal(generate_tokens(network, prompts, batch=1, **options), together)


def test_a_nucleus_leaves_the_likeliest():
    from tenuto.sampling.masked import nucleus

    logits = torch.tensor([[[0.1, 0.5, 0.25, 0.15]]]).log()
    finite = nucleus(logits, MaskedSampling(top_p=0.7)).isfinite()
    assert finite.tolist() == [[[False, True, True, False]]]
    assert torch.equal(nucleus(logits, MaskedSampling()), logits)
    cold = nucleus(logits, MaskedSampling(top_p=0.7, temperature=0.1)).isfinite()
    assert cold.tolist() == [[[False, True, False, False]]]


# Schedules


def schedule(steps=8, every=4, rows="written", keep="update") -> Schedule:
    names, flops = zip(*((unit.name, unit.flops) for unit in units(TINY)), strict=True)
    active = np.tile(np.arange(steps) % every == 0, (len(names), 1))
    return Schedule(names, active, flops, "constant", keep, "toy", "sha256:0", {}, rows)


@torch.inference_mode()
def test_held_units_are_computed_at_the_rows_and_nowhere_else(network):
    wanted, kept = schedule(), {}
    generation = Executor(network, wanted).start()
    generator = torch.Generator().manual_seed(0)
    for step in range(8):
        tokens = some_tokens(length=12, seed=step)
        rows = torch.stack([torch.randperm(12, generator=generator)[:3] for _ in range(2)])

        def residual(unit, h, branch, gate=None, rows=rows, step=step):
            fresh = branch()
            if wanted.active[0, step]:
                kept[unit] = fresh
            else:
                for row in range(2):
                    kept[unit][row, rows[row]] = fresh[row, rows[row]]
            return h + kept[unit]

        want = network(tokens, residual=residual)
        torch.testing.assert_close(generation(tokens, rows=rows), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padded", [False, True])
@torch.inference_mode()
def test_with_kept_keys_some_positions_are_all_that_is_looked_at(network, padded):
    """And it is what computing everything else again would give, for nothing changes there."""
    tokens = some_tokens(length=12, seed=5)
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[0, :3] = not padded
    named = {"attention_mask": mask if padded else None}
    rows = torch.arange(5, 10).expand(2, -1)  # a block of four, and where its first is predicted
    by_units, by_keys = (Executor(network, schedule(rows="block", keep=keep)).start() for keep in ("update", "keys"))
    for step in range(8):
        if step % 4:
            tokens[:, 5 + step % 4] = step
        positions = torch.tensor([[6, 9], [7, 8]])
        want = by_units(tokens, rows=rows, positions=positions, **named)
        torch.testing.assert_close(by_keys(tokens, rows=rows, positions=positions, **named), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", ["written", "block", "generated"])
@pytest.mark.parametrize("prompts", [PROMPTS, [[], [2, 3]], [[]]])
def test_with_nothing_held_the_text_is_that_of_the_full_run(network, rows, prompts):
    options: dict[str, Any] = {"steps": 8, "length": 8, "block_length": 4}
    full = generate_tokens(network, prompts, **options)
    for keep in ("update",) if rows == "written" else ("update", "keys"):
        executor = Executor(network, schedule(every=1, rows=rows, keep=keep))
        assert torch.equal(generate_tokens(executor, prompts, **options), full)
        held = generate_tokens(Executor(network, schedule(rows=rows, keep=keep)), prompts, **options)
        assert held.shape == full.shape and (held != TINY.mask_token_id).all()


@pytest.mark.parametrize("rows", ["block", "generated"])
@pytest.mark.parametrize("guidance", [0.0, 1.0])
def test_text_is_the_same_whether_updates_or_keys_are_kept(network, rows, guidance):
    options: dict[str, Any] = {"steps": 8, "length": 8, "block_length": 4, "guidance": guidance}
    updates, keys = (
        generate_tokens(Executor(network, schedule(rows=rows, keep=keep)), PROMPTS, **options)
        for keep in ("update", "keys")
    )
    assert torch.equal(updates, keys)


def test_a_block_begins_where_its_first_token_is_predicted():
    sampling = MaskedSampling(steps=8, length=8, block_length=4)
    options = {"width": 5, "batch": 1, "device": torch.device("cpu"), "shift": 1}
    assert RowsOf(schedule(rows="block"), sampling, **options).next(9).tolist() == [[8, 9, 10, 11, 12]]
    assert RowsOf(schedule(rows="generated"), sampling, **options).next(9).tolist() == [list(range(4, 13))]


@pytest.mark.gpu
@pytest.mark.parametrize("keep", ["update", "keys"])
def test_graphs_write_what_skipping_writes(network, keep):
    torch.backends.cuda.matmul.allow_tf32 = False
    there = Dream(TINY).eval().requires_grad_(False)
    there.load_state_dict(network.state_dict())
    there.cuda()
    options: dict[str, Any] = {"steps": 8, "length": 8, "block_length": 4}
    want = generate_tokens(Executor(there, schedule(rows="block", keep=keep), mode="skip"), PROMPTS, **options)
    executor = Executor(there, schedule(rows="block", keep=keep), mode="jagged")
    for _ in range(2):  # recorded, replayed
        assert torch.equal(generate_tokens(executor, PROMPTS, **options), want)


# Checkpoints


@pytest.fixture
def directory(tmp_path, network):
    """As it is published: config.json with its own names, tokens in vocab.json and merges.txt."""
    config = {**PUBLISHED, **SIZES, "mask_token_id": 0, "eos_token_id": 1, "model_type": "Dream"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({key: value.contiguous() for key, value in network.state_dict().items()}, tmp_path / "model.safetensors")
    return tmp_path


def test_a_checkpoint_is_loaded_scored_and_scheduled(directory, network):
    model = tenuto.load(str(directory))
    assert model.architecture is ARCHITECTURE
    assert torch.equal(model.network(some_tokens()), network(some_tokens()))
    scores = tenuto.score(str(directory))
    assert [unit.name for unit in scores.units] == [unit.name for unit in units(TINY)]
    made = tenuto.schedule(scores, steps=8, budget=0.5, blocks=2)
    assert made == rewrite(scores, 8, budget=0.5, blocks=2) and made.keep == "keys"
    everything = tenuto.schedule(scores, steps=8, budget=1.0, blocks=2)
    options: dict[str, Any] = {"steps": 8, "length": 8, "block_length": 4}
    full = generate_tokens(model.network, PROMPTS, **options)
    assert torch.equal(generate_tokens(Executor(model.network, everything), PROMPTS, **options), full)


def test_a_missing_tensor_is_named(directory, network):
    state = {key: value for key, value in network.state_dict().items() if "1.self_attn.q_proj.bias" not in key}
    save_file(state, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.self_attn\.q_proj\.bias"):
        tenuto.load(str(directory))


def test_its_tokenizer_is_qwen2s(tmp_path):
    transformers = pytest.importorskip("transformers")
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("a", "n"), ("an", "d"), ("Ġ", "t"), ("Ġt", "w"), ("Ġtw", "o")]
    words = [*letters, *("".join(pair) for pair in pairs)]
    (tmp_path / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in pairs))
    plain_token = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    added = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
    config = {
        "added_tokens_decoder": {str(len(words) + i): {"content": one, **plain_token} for i, one in enumerate(added)},
        "eos_token": added[0],
        "chat_template": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = load_tokenizer(tmp_path)
    theirs = transformers.Qwen2TokenizerFast.from_pretrained(tmp_path)
    for text in ("one and two\n\n  12 e\u0301t\u00e9's", "and two <|mask|> and", "DON'T   stop\r\n"):
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text), skip_special_tokens=True)
    said = [{"role": "user", "content": "two"}]
    assert ours.encode(said) == ours.encode("two", chat=True)
    assert ours.encode(said)[0] == len(words) + 1
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
