"""LLaDA: the network equals an independent one in float64, and its units are its residual branches, each once."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import tenuto
from tenuto.errors import CheckpointError
from tenuto.models.architecture import ConfigError
from tenuto.models.llada import ARCHITECTURE, LLaDA, LLaDAConfig, from_published, units
from tenuto.runtime.compilation import compiling, plainly
from tenuto.runtime.keys import Keys
from tenuto.runtime.residual import Branch, plain

TINY = LLaDAConfig(
    d_model=16,
    n_layers=3,
    n_heads=4,
    n_kv_heads=4,
    mlp_hidden_size=24,
    vocab_size=20,
    embedding_size=20,
    max_sequence_length=32,
    rope_theta=100.0,
    mask_token_id=0,
    eos_token_id=1,
)
GROUPED = LLaDAConfig(**{**vars(TINY), "n_kv_heads": 2})

# The config.json that LLaDA-8B was published with.
PUBLISHED: dict[str, Any] = {
    "activation_type": "silu",
    "alibi": False,
    "alibi_bias_max": 8.0,
    "architectures": ["LLaDAModelLM"],
    "attention_dropout": 0.0,
    "attention_layer_norm": False,
    "attention_layer_norm_with_affine": True,
    "auto_map": {"AutoConfig": "configuration_llada.LLaDAConfig", "AutoModel": "modeling_llada.LLaDAModelLM"},
    "bias_for_layer_norm": False,
    "block_group_size": 1,
    "block_type": "llama",
    "d_model": 4096,
    "embedding_dropout": 0.0,
    "embedding_size": 126464,
    "eos_token_id": 126081,
    "flash_attention": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "init_cutoff_factor": None,
    "init_device": "meta",
    "init_fn": "mitchell",
    "init_std": 0.02,
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "mask_token_id": 126336,
    "max_sequence_length": 4096,
    "mlp_hidden_size": 12288,
    "mlp_ratio": 4,
    "model_type": "llada",
    "multi_query_attention": None,
    "n_heads": 32,
    "n_kv_heads": 32,
    "n_layers": 32,
    "pad_token_id": 126081,
    "precision": "amp_bf16",
    "residual_dropout": 0.0,
    "rms_norm_eps": 1e-05,
    "rope": True,
    "rope_full_precision": True,
    "rope_theta": 500000.0,
    "scale_logits": False,
    "transformers_version": "4.46.3",
    "use_cache": False,
    "vocab_size": 126464,
    "weight_tying": False,
}


def make_network(config: LLaDAConfig = TINY, seed: int = 0) -> LLaDA:
    """With weights large enough that every part matters."""
    generator = torch.Generator().manual_seed(seed)
    network = LLaDA(config).eval().requires_grad_(False)
    for parameter in network.parameters():
        scale = parameter.shape[-1] ** -0.5 if parameter.dim() == 2 else 0.3
        parameter.copy_(scale * torch.randn(parameter.shape, generator=generator) + (parameter.dim() == 1))
    return network


def some_tokens(rows: int = 2, length: int = 9) -> Tensor:
    return torch.randint(20, (rows, length), generator=torch.Generator().manual_seed(1))


def reference(network: LLaDA, tokens: list[int]) -> Tensor:
    """The published definition, in float64 and in loops, for one row."""
    c = network.config
    w = {key.removeprefix("model.transformer."): value.double().numpy() for key, value in network.state_dict().items()}
    n, d_h = len(tokens), c.d_model // c.n_heads

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return weight * x / np.sqrt((x**2).mean(-1, keepdims=True) + c.rms_norm_eps)

    def rope(x: np.ndarray) -> np.ndarray:  # [n, d_h]
        out = np.empty_like(x)
        for position in range(n):
            for i in range(d_h // 2):
                angle = position * c.rope_theta ** (-2 * i / d_h)
                a, b = x[position, i], x[position, i + d_h // 2]
                out[position, i] = a * math.cos(angle) - b * math.sin(angle)
                out[position, i + d_h // 2] = b * math.cos(angle) + a * math.sin(angle)
        return out

    h = w["wte.weight"][tokens]
    for layer in range(c.n_layers):
        block = f"blocks.{layer}."
        part = {key.removeprefix(block): value for key, value in w.items() if key.startswith(block)}
        x = norm(h, part["attn_norm.weight"])
        q, k, v = (x @ part[f"{name}_proj.weight"].T for name in "qkv")
        heads = []
        for head in range(c.n_heads):
            shared = head // (c.n_heads // c.n_kv_heads)
            mine, theirs = slice(head * d_h, (head + 1) * d_h), slice(shared * d_h, (shared + 1) * d_h)
            scores = rope(q[:, mine]) @ rope(k[:, theirs]).T / math.sqrt(d_h)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(weights / weights.sum(-1, keepdims=True) @ v[:, theirs])
        h = h + np.concatenate(heads, axis=1) @ part["attn_out.weight"].T
        x = norm(h, part["ff_norm.weight"])
        gate = x @ part["ff_proj.weight"].T
        h = h + (gate / (1 + np.exp(-gate)) * (x @ part["up_proj.weight"].T)) @ part["ff_out.weight"].T
    return torch.from_numpy(norm(h, w["ln_f.weight"]) @ w["ff_out.weight"].T)


@pytest.mark.parametrize("config", [TINY, GROUPED])
def test_logits_equal_an_independent_implementation_in_float64(config: LLaDAConfig) -> None:
    network, tokens = make_network(config), some_tokens()
    expected = torch.stack([reference(network, row) for row in tokens.tolist()])
    torch.testing.assert_close(network(tokens).double(), expected, rtol=1e-4, atol=1e-5)


def test_a_padded_prompt_gives_the_logits_of_an_unpadded_one() -> None:
    network, tokens = make_network(), some_tokens(length=7)
    padded = torch.cat([torch.full((2, 4), 5), tokens], dim=1)
    real = torch.arange(11) >= 4
    logits = network(padded, attention_mask=real.expand(2, -1))
    torch.testing.assert_close(logits[:, 4:], network(tokens), rtol=1e-4, atol=1e-5)
    other = torch.cat([torch.full((2, 4), 9), tokens], dim=1)
    assert torch.equal(network(other, attention_mask=real.expand(2, -1))[:, 4:], logits[:, 4:])


def test_rows_may_be_padded_differently() -> None:
    network, tokens = make_network(), some_tokens(rows=2, length=8)
    real = torch.arange(8) >= torch.tensor([[0], [3]])
    logits = network(tokens, attention_mask=real)
    torch.testing.assert_close(logits[:1], network(tokens[:1]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits[1:, 3:], network(tokens[1:, 3:]), rtol=1e-4, atol=1e-5)


def test_attention_looks_both_ways() -> None:
    network, tokens = make_network(), some_tokens(rows=1)
    changed = tokens.clone()
    changed[0, -1] = (tokens[0, -1] + 1) % 20
    assert not torch.allclose(network(tokens)[0, 0], network(changed)[0, 0])


def test_positions_choose_rows_of_the_logits() -> None:
    network, tokens = make_network(), some_tokens()
    some = network(tokens, positions=torch.tensor([6, 2]))
    torch.testing.assert_close(some, network(tokens)[:, [6, 2]], rtol=1e-5, atol=1e-6)


def test_half_precision_keeps_its_type() -> None:
    assert make_network().bfloat16()(some_tokens()).dtype == torch.bfloat16


def test_every_residual_addition_goes_through_the_seam_once() -> None:
    network, tokens, seen = make_network(), some_tokens(), []

    def recording(unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        seen.append(unit)
        assert gate is None
        return plain(unit, h, branch)

    assert torch.equal(network(tokens, recording), network(tokens))
    assert seen == [unit.name for unit in units(TINY)]
    assert seen[:3] == ["blocks.0.attn", "blocks.0.mlp", "blocks.1.attn"]


def test_without_any_update_only_the_embedding_and_the_head_are_left() -> None:
    network, tokens = make_network(), some_tokens()
    transformer = network.model["transformer"]
    logits = network(tokens, lambda unit, h, branch, gate=None: h)
    torch.testing.assert_close(logits, transformer.ff_out(transformer.ln_f(transformer.wte(tokens))))


def test_units_are_scored_by_every_matrix_of_the_blocks_and_nothing_else() -> None:
    state = LLaDA(TINY).state_dict()
    scored = [key for unit in units(TINY) for key in unit.tensors()]
    assert len(scored) == len(set(scored))
    assert set(scored) == {key for key, value in state.items() if ".blocks." in key and value.dim() == 2}
    assert not {"model.transformer.ff_out.weight", "model.transformer.wte.weight"} & set(scored)


def test_units_say_what_they_are_made_of() -> None:
    attention, mlp = units(TINY)[:2]
    assert attention.kind == "attention" and attention.components[0].head_dim == 4
    assert mlp.kind == "mlp"
    block = "model.transformer.blocks.0"
    assert mlp.components[0].matrices["w1"].keys == (f"{block}.ff_proj.weight", f"{block}.up_proj.weight")
    n, d, hidden = 32, 16, 24
    assert attention.flops == 2 * n * 4 * d * d + 2 * 2 * n * n * d
    assert mlp.flops == 2 * n * 3 * d * hidden


def test_the_8b_model_has_the_published_size_and_names() -> None:
    config = from_published(PUBLISHED)
    assert config == LLaDAConfig()
    with torch.device("meta"):
        network = LLaDA(config)
    state = network.state_dict()
    assert len(state) == 291
    assert sum(value.numel() for value in state.values()) == 8_015_581_184
    assert len(units(config)) == 64
    assert state[ARCHITECTURE.signatures[0]].shape == (126464, 4096)
    layers = ("attn_norm", "q_proj", "k_proj", "v_proj", "attn_out", "ff_norm", "ff_proj", "up_proj", "ff_out")
    names = {f"model.transformer.blocks.{i}.{layer}.weight" for i in range(32) for layer in layers}
    assert set(state) == names | {f"model.transformer.{name}.weight" for name in ("wte", "ln_f", "ff_out")}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("alibi", True),
        ("include_bias", True),
        ("block_type", "sequential"),
        ("activation_type", "swiglu"),
        ("layer_norm_type", "default"),
        ("weight_tying", True),
        ("rope", False),
        ("multi_query_attention", True),
        ("d_model", "4096"),
        ("sliding_window", 128),
    ],
)
def test_published_configs_of_other_networks_are_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        from_published({**PUBLISHED, key: value})


def test_null_in_a_published_config_means_as_the_other() -> None:
    nulls = {"n_kv_heads": None, "embedding_size": None, "mlp_hidden_size": None, "_name_or_path": "x"}
    config = from_published({**PUBLISHED, **nulls, "n_heads": 16, "vocab_size": 126400})
    assert (config.n_kv_heads, config.embedding_size, config.mlp_hidden_size) == (16, 126400, 16384)


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_layers": 0},
        {"n_heads": 3},
        {"n_heads": 16, "n_kv_heads": 16},
        {"n_kv_heads": 3},
        {"embedding_size": 19},
        {"mask_token_id": 20},
        {"eos_token_id": 0},
        {"rope_theta": 0.0},
    ],
)
def test_configs_that_no_network_can_have_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LLaDAConfig(**{**vars(TINY), **wrong})


def test_a_bare_file_asks_for_its_config() -> None:
    with pytest.raises(ConfigError, match="config.json"):
        ARCHITECTURE.infer_config({ARCHITECTURE.signatures[0]: (20, 16)})


def test_initial_weights_make_a_quiet_network() -> None:
    network = LLaDA(TINY)
    network.initialize_weights()
    assert network(some_tokens()).abs().max() < 1


@pytest.mark.parametrize("config", [TINY, GROUPED])
def test_joined_matrices_change_nothing_and_take_no_memory(config: LLaDAConfig) -> None:
    network, tokens = make_network(config), some_tokens()
    names, expected = set(network.state_dict()), network(tokens)
    network.fuse()
    block = network.parts()[1][0]
    assert block.qkv.data_ptr() == block.q_proj.weight.data_ptr()
    assert block.gate_up.data_ptr() == block.ff_proj.weight.data_ptr()
    assert set(network.state_dict()) == names
    joined = block.qkv
    network.fuse()
    assert block.qkv is joined  # joined once
    torch.testing.assert_close(network(tokens), expected)
    with_keys = network(tokens, memory=(Keys(), None))
    torch.testing.assert_close(with_keys, expected)


def test_joined_matrices_follow_the_weights() -> None:
    network, tokens = make_network(), some_tokens()
    network.fuse()
    other = make_network(seed=9)
    network.load_state_dict(other.state_dict())
    torch.testing.assert_close(network(tokens, memory=(Keys(), None)), other(tokens))
    copied = copy.deepcopy(network)
    copied.parts()[1][0].q_proj.weight.data = torch.zeros(16, 16)
    assert not torch.allclose(copied(tokens, memory=(Keys(), None)), network(tokens))
    assert copied.parts()[1][0].qkv is None
    assert network.double().parts()[1][0].qkv is None  # converted weights lie elsewhere


@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_with_a_cache_is_the_same_block_by_block_and_across_blocks(compiled: bool) -> None:
    network, tokens = make_network(GROUPED), some_tokens()
    rows = torch.tensor([[3, 5, 4], [8, 0, 2]])

    def block_by_block(unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        return h + branch()

    expected_keys, found_keys = Keys(), Keys()
    for keys in (expected_keys, found_keys):
        network(tokens, memory=(keys, None))
    changed = (tokens + 1) % 20
    expected = network(changed, residual=block_by_block, memory=(expected_keys, rows))
    with compiling(compiled):
        found = network(changed, residual=plainly, memory=(found_keys, rows))
    torch.testing.assert_close(found, expected)
    for block in network.parts()[1]:
        for one, other in zip(found_keys.of(block.name), expected_keys.of(block.name), strict=True):
            torch.testing.assert_close(one, other)


def test_llada2_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llada2_moe", "num_experts": 256}))
    save_file({"model.word_embeddings.weight": torch.zeros(4, 4)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="mixture of experts"):
        tenuto.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")  # the reason is known before any tensor is read
    with pytest.raises(CheckpointError, match="mixture of experts"):
        tenuto.load(tmp_path)
