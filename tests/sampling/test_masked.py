"""The masked sampler writes, token for token, what the published loop writes; and it refuses what makes no sense."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.models.llada import LLaDA, LLaDAConfig, units
from tenuto.runtime.executor import Executor
from tenuto.sampling.masked import MaskedSampling, generate_tokens, most_confident
from tenuto.scheduling.schedule import Schedule
from tests.models.test_llada import TINY, make_network

MASK, EOS = TINY.mask_token_id, TINY.eos_token_id
PROMPTS = [[2, 3, 4, 5, 6], [7, 8], [9, 10, 11, 12, 13, 14, 15], [16, 17, 18]]


@pytest.fixture(scope="module")
def network() -> LLaDA:
    return make_network(seed=3)


@torch.no_grad()
def naive(network: LLaDA, prompt: Sequence[int], sampling: MaskedSampling, seed: int) -> list[int]:
    """The published `generate`, one row at a time, with logits everywhere and a loop for every choice."""
    generator = torch.Generator().manual_seed(seed)
    x = list(prompt) + [MASK] * sampling.length
    blocks = sampling.length // sampling.block_length
    steps = sampling.steps // blocks
    for block in range(blocks):
        inside = range(len(prompt) + block * sampling.block_length, len(prompt) + (block + 1) * sampling.block_length)
        base, remainder = divmod(sum(x[i] == MASK for i in inside), steps)
        for step in range(steps):
            logits = network(torch.tensor([x]))[0]
            if sampling.guidance > 0:
                blind = network(torch.tensor([[MASK] * len(prompt) + x[len(prompt) :]]))[0]
                logits = blind + (sampling.guidance + 1) * (logits - blind)
            noisy = logits.double().exp()
            if sampling.temperature > 0:
                shape = (sampling.block_length, logits.shape[1])
                noise = torch.rand(shape, dtype=torch.float64, generator=generator)
                noisy[inside.start : inside.stop] /= (-torch.log(noise)) ** sampling.temperature
            noisy[:, MASK] = -1
            guesses = noisy.argmax(-1).tolist()
            if sampling.remasking == "random":
                confidence = torch.rand(sampling.block_length, generator=generator).tolist()
            else:
                confidence = [logits[i].softmax(-1)[guesses[i]].item() for i in inside]
            masked = [i for i in inside if x[i] == MASK]
            masked.sort(key=lambda i: (-confidence[i - inside.start], i))
            for i in masked[: base + (step < remainder)]:
                x[i] = guesses[i]
    return x[len(prompt) :]


@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS])
@pytest.mark.parametrize("guidance", [0.0, 1.5])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("remasking", ["low_confidence", "random"])
@pytest.mark.parametrize(("steps", "length", "block"), [(12, 12, 12), (6, 12, 4), (5, 12, 12), (3, 12, 4)])
def test_tokens_are_those_of_the_published_loop(
    network: LLaDA,
    prompts: list[list[int]],
    guidance: float,
    temperature: float,
    remasking: Any,
    steps: int,
    length: int,
    block: int,
) -> None:
    sampling = MaskedSampling(steps, length, block, temperature, guidance, remasking, seed=11, stop_at_eos=False)
    written = generate_tokens(network, prompts, sampling=sampling)
    assert written.tolist() == [naive(network, prompt, sampling, 11 + row) for row, prompt in enumerate(prompts)]


def test_results_do_not_depend_on_the_batch(network: LLaDA) -> None:
    options: dict[str, Any] = {"steps": 6, "length": 12, "block_length": 6, "temperature": 1.0, "seed": 4}
    together = generate_tokens(network, PROMPTS, **options)
    assert torch.equal(generate_tokens(network, PROMPTS, batch=1, **options), together)
    assert torch.equal(generate_tokens(network, PROMPTS, batch=3, **options), together)


def test_every_step_is_one_evaluation_of_the_block_alone(network: LLaDA) -> None:
    calls: list[tuple[torch.Size, Any, Any]] = []

    class Watched(LLaDA):
        def forward(self, tokens: Tensor, *args: Any, **named: Any) -> Tensor:
            calls.append((tokens.shape, named["positions"].tolist(), named["attention_mask"]))
            return super().forward(tokens, *args, **named)

    watched = Watched(TINY)
    watched.load_state_dict(network.state_dict())
    seen: list[int] = []
    generate_tokens(watched, PROMPTS[:2], steps=4, length=8, block_length=4, stop_at_eos=False, progress=seen.append)
    asked = [positions for _, positions, _ in calls]
    assert [len(row) for positions in asked for row in positions] == [4, 4, 2, 2, 4, 4, 2, 2]
    assert all(5 <= place <= 8 for positions in asked[:2] for row in positions for place in row)
    assert all(9 <= place <= 12 for positions in asked[2:] for row in positions for place in row)
    assert all(shape == (2, 13) for shape, _, _ in calls)
    assert calls[0][2].tolist() == [[True] * 13, [False] * 3 + [True] * 10]
    assert seen == [2] * 4
    calls.clear()
    generate_tokens(watched, [PROMPTS[0]] * 2, steps=1, length=4, block_length=4, guidance=1.0)
    assert calls[0][0] == (4, 9) and calls[0][2] is None


def schedule_for(config: LLaDAConfig, active: np.ndarray) -> Schedule:
    listed = units(config)
    return Schedule(
        units=tuple(unit.name for unit in listed),
        active=active,
        flops=tuple(unit.flops for unit in listed),
        predict="constant",
        keep="update",
        model="tiny",
        fingerprint="sha256:0",
    )


def test_a_full_schedule_changes_nothing_and_a_sparse_one_something(network: LLaDA) -> None:
    options: dict[str, Any] = {"steps": 8, "length": 8, "block_length": 4}
    everything = np.ones((6, 8), dtype=bool)
    full = generate_tokens(network, PROMPTS, **options)
    assert torch.equal(generate_tokens(Executor(network, schedule_for(TINY, everything)), PROMPTS, **options), full)
    once = everything.copy()
    once[:, 1:] = False
    assert not torch.equal(generate_tokens(Executor(network, schedule_for(TINY, once)), PROMPTS, **options), full)


def test_a_schedule_for_other_steps_is_refused(network: LLaDA) -> None:
    executor = Executor(network, schedule_for(TINY, np.ones((6, 5), dtype=bool)))
    with pytest.raises(UsageError, match="5 steps"):
        generate_tokens(executor, PROMPTS, steps=8, length=8, block_length=4)


class Scripted(torch.nn.Module):
    """Writes end-of-text at the places given by row, and 5 elsewhere; the further left the surer."""

    def __init__(self, ends: list[int]) -> None:
        super().__init__()
        self.config, self.ends, self.calls = TINY, ends, 0
        self.nothing = torch.nn.Parameter(torch.zeros(()))

    def forward(self, tokens: Tensor, residual: Any, attention_mask: Any, positions: Tensor) -> Tensor:
        self.calls += 1
        at = positions - 2  # prompts are of two tokens
        ended = at >= torch.tensor(self.ends)[:, None]
        logits = torch.zeros(*ended.shape, TINY.embedding_size)
        return logits.scatter(2, torch.where(ended, EOS, 5)[..., None], 5.0)


def test_writing_stops_between_blocks_once_every_row_has_ended() -> None:
    options: dict[str, Any] = {"steps": 16, "length": 16, "block_length": 4}
    both = Scripted([2, 5])
    written = generate_tokens(both, [[2, 3], [4, 6]], **options)  # type: ignore[arg-type]
    assert both.calls == 8
    assert written.tolist() == [[5] * 2 + [EOS] * 14, [5] * 5 + [EOS] * 11]
    one = Scripted([2, 99])
    generate_tokens(one, [[2, 3], [4, 6]], **options)  # type: ignore[arg-type]
    assert one.calls == 16
    patient = Scripted([2, 5])
    same = generate_tokens(patient, [[2, 3], [4, 6]], stop_at_eos=False, **options)  # type: ignore[arg-type]
    assert patient.calls == 16 and torch.equal(same, written)


def test_of_equally_confident_guesses_the_left_ones_are_written() -> None:
    assert most_confident(torch.full((1, 5), 0.5), 2).tolist() == [[0, 1]]
    assert most_confident(torch.tensor([[0.5, 0.9, 0.5, 0.5, 0.6]]), 3).tolist() == [[1, 4, 0]]


def test_logits_are_asked_for_only_where_something_can_still_be_written(network: LLaDA) -> None:
    asked: list[tuple[int, ...]] = []

    class Watched(Executor):
        def start(self) -> Any:
            evaluate = super().start()

            def watched(tokens: Tensor, **named: Any) -> Tensor:
                positions = named["positions"]
                asked.append(tuple(positions.shape))
                assert (tokens.gather(1, positions) == MASK).all()
                return evaluate(tokens, **named)

            return watched

    generate_tokens(Watched(network), PROMPTS[:2], steps=4, length=8, block_length=4, stop_at_eos=False)
    assert asked == [(2, 4), (2, 2), (2, 4), (2, 2)]


def test_shares_are_even_and_the_remainder_comes_first() -> None:
    assert MaskedSampling(steps=5, length=12, block_length=12).writes == (3, 3, 2, 2, 2)
    assert MaskedSampling(steps=6, length=12, block_length=4).writes == (2, 2)
    assert MaskedSampling().writes == (1,) * 32


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"length": 10, "block_length": 4}, "multiple of block_length"),
        ({"steps": 3, "length": 8, "block_length": 4}, "shared equally among 2 blocks"),
        ({"steps": 16, "length": 8, "block_length": 4}, "more than the 8 tokens"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"length": 2.5}, "length must be a whole number, not 2.5"),
        ({"steps": "4"}, "steps must be a whole number, not '4'"),
        ({"seed": 2**70}, "seed must lie between"),
        ({"temperature": -1.0}, "temperature"),
        ({"guidance": float("nan")}, "Guidance"),
        ({"remasking": "high_confidence"}, "low_confidence, margin, entropy, random"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MaskedSampling(**wrong)


def test_requests_that_make_no_sense_are_refused(network: LLaDA) -> None:
    options: dict[str, Any] = {"steps": 4, "length": 4, "block_length": 4}
    with pytest.raises(UsageError, match="No prompt"):
        generate_tokens(network, [], **options)
    with pytest.raises(UsageError, match="not 20"):
        generate_tokens(network, [[20]], **options)
    with pytest.raises(UsageError, match="more than the 32"):
        generate_tokens(network, [[2] * 29], **options)
    with pytest.raises(UsageError, match="not both"):
        generate_tokens(network, PROMPTS, sampling=MaskedSampling(), steps=4)


def test_an_empty_prompt_is_a_prompt(network: LLaDA) -> None:
    written = generate_tokens(network, [[], [3, 4]], steps=4, length=4, block_length=4)
    assert written.shape == (2, 4) and not (written == MASK).any()


@pytest.mark.gpu
def test_nothing_in_the_loop_waits_for_the_device():
    network = make_network().cuda()
    seen = []

    def watch(rows):
        seen.append(rows)
        # Preparing the prompts and fetching the result may wait; between the first step and the last nothing may.
        torch.cuda.set_sync_debug_mode("error" if len(seen) < 8 else "default")

    try:
        for options in ({}, {"temperature": 0.7, "remasking": "random"}, {"guidance": 1.0}):
            seen.clear()
            generate_tokens(
                network,
                [[1, 2, 3], [4, 5]],
                steps=8,
                length=16,
                block_length=8,
                stop_at_eos=False,
                progress=watch,
                **options,
            )
    finally:
        torch.cuda.set_sync_debug_mode("default")
