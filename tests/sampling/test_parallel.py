"""Parallel decoding writes, token for token, what a naive loop writes: one row at a time, with lists."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.models.dream import Dream
from tenuto.models.dream import units as dream_units
from tenuto.models.language import LanguageNetwork
from tenuto.models.llada import LLaDA, units
from tenuto.runtime.executor import Executor
from tenuto.sampling import prompts
from tenuto.sampling.guesses import Likeliest, accepted
from tenuto.sampling.masked import MaskedSampling, generate_tokens, write_tokens
from tenuto.sampling.prompts import memory_needed, refuse_if_too_large
from tenuto.sampling.trust import Said, change
from tenuto.sampling.window import packing
from tenuto.scheduling.rewrite import Every, rewrite
from tenuto.scheduling.units import Unscored
from tests.models.test_dream import TINY as DREAM
from tests.models.test_llada import TINY, make_network

MASK, EOS = TINY.mask_token_id, TINY.eos_token_id
PROMPTS = [[2, 3, 4, 5, 6], [7, 8], [9, 10, 11, 12, 13, 14, 15], [16, 17, 18]]
LLADA_UNITS = Unscored("tiny", "llada", units(TINY))
DREAM_UNITS = Unscored("tiny", "dream", dream_units(DREAM))


@pytest.fixture(scope="module")
def network() -> LLaDA:
    return make_network(seed=3)


@pytest.fixture(scope="module")
def sure() -> LLaDA:
    """A network that is sure of its tokens, so that some of its caches fail their checks."""
    made = make_network(seed=9)
    made.parts()[3].weight *= 8
    return made


@pytest.fixture(scope="module")
def dream() -> Dream:
    generator = torch.Generator().manual_seed(5)
    made = Dream(DREAM).eval().requires_grad_(False)
    for parameter in made.parameters():
        scale = parameter.shape[-1] ** -0.5 if parameter.dim() == 2 else 0.3
        parameter.copy_(scale * torch.randn(parameter.shape, generator=generator) + (parameter.dim() == 1))
    return made


class Plainly:
    """The network at some positions of one row, every other position's keys and values as they were last computed."""

    def __init__(self, network: LanguageNetwork) -> None:
        self.network = network
        self.kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def __call__(self, tokens: list[int], at: Sequence[int]) -> dict[int, Tensor]:
        embedding, blocks, norm, head = self.network.parts()
        c = self.network.config
        h = embedding(torch.tensor([tokens[i] for i in at]))
        for layer, block in enumerate(blocks):
            x = block.attn_norm(h)
            q, k, v = (one(x).view(len(at), -1, c.head_dim) for one in (block.q_proj, block.k_proj, block.v_proj))
            q, k = self._turned(q, at, c), self._turned(k, at, c)
            self.kept |= {(layer, i): (k[row], v[row]) for row, i in enumerate(at)}
            keys = torch.stack([self.kept[layer, j][0] for j in range(len(tokens))])
            values = torch.stack([self.kept[layer, j][1] for j in range(len(tokens))])
            seen = []
            for one in range(c.n_heads):
                shared = one // (c.n_heads // c.n_kv_heads)
                weights = (q[:, one] @ keys[:, shared].T / math.sqrt(c.head_dim)).softmax(-1)
                seen.append(weights @ values[:, shared])
            h = h + block.attn_out(torch.cat(seen, 1))
            x = block.ff_norm(h)
            h = h + block.ff_out(torch.nn.functional.silu(block.ff_proj(x)) * block.up_proj(x))
        return dict(zip(at, head(norm(h)), strict=True))

    @staticmethod
    def _turned(x: Tensor, at: Sequence[int], c: Any) -> Tensor:
        half = c.head_dim // 2
        angles = (torch.tensor(at)[:, None] * c.rope_theta ** (-2 * torch.arange(half) / c.head_dim))[:, None]
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


@torch.no_grad()
def naive(
    network: LanguageNetwork, prompt: list[int], sampling: MaskedSampling, seed: int, every: Every | None = None
) -> tuple[list[int], int]:
    """What is written and how many evaluations it takes. every: the period of full evaluations with a KV cache."""
    named = {"early": {0, 1, 2, 3, 4, 8, 16, 32}, "careful": {*range(9), 16, 32}, "checked": {0, 1, 2, 3, 4, 8, 16, 32}}
    full = named[every] if isinstance(every, str) else set(range(0, sampling.length, every or 1))
    generator = torch.Generator().manual_seed(seed)
    start, size, shift = len(prompt), sampling.block_length, network.shift
    x = list(prompt) + [MASK] * sampling.length
    seeing, unseeing = Plainly(network), Plainly(network)
    stale: set[int] = set()
    trusts = True

    def wanted() -> list[int]:
        end = x.index(EOS, start) if sampling.stop_at_eos and EOS in x[start:] else len(x)
        return [i for i in range(start, end) if x[i] == MASK]

    def writes(at: list[int], inside: list[int]) -> tuple[dict[int, int], dict[int, tuple[int, float]]]:
        """What an evaluation at these positions writes; and what it predicts at every mask, and how likely that is."""
        logits = seeing(x, at)
        if sampling.guidance:
            blind = unseeing([MASK] * start + x[start:], at)
            logits = {i: blind[i] + (sampling.guidance + 1) * (logits[i] - blind[i]) for i in at}
        noise = None
        if sampling.temperature:
            noise = torch.rand((size, len(logits[at[0]])), dtype=torch.float64, generator=generator)
        found = []  # (confidence, place, token, probability)
        for i in inside:
            if x[i] != MASK or i - shift not in at:
                continue
            here = logits[i - shift]
            noisy = here.double().exp()
            if noise is not None:
                noisy = noisy / (-noise[inside.index(i)].log()) ** sampling.temperature
            noisy[MASK] = -1
            token, likely = int(noisy.argmax()), here.softmax(-1)
            confidence = float(likely[token])
            if sampling.remasking == "entropy":
                tempered = (here / (sampling.temperature or 1.0)).softmax(-1)
                confidence = float((tempered * (tempered + 1e-10).log()).sum())
            found.append((confidence, i, token, float(likely[token])))
        if not found:  # everything that was computed had been written by the last evaluation
            return {}, {}
        surest = max(found, key=lambda one: (one[0], -one[1]))
        chosen = {surest[1]: surest[2]}
        if sampling.parallel is not None:
            chosen |= {i: token for _, i, token, p in found if p >= sampling.parallel}
        else:
            assert sampling.factor is not None
            for n, (_, i, token, p) in enumerate(sorted(found, key=lambda one: (-one[3], one[1])), start=1):
                if p < 1 - sampling.factor / (n + 1):
                    break
                chosen[i] = token
        return chosen, {i: (token, p) for _, i, token, p in found}

    evaluations = 0
    while wanted():
        first = start + (wanted()[0] - start) // size * size
        inside = list(range(first, first + size))
        if sampling.sliding:
            inside = [i for i in range(start, len(x)) if x[i] == MASK][:size]
        at = list(range(len(x)))
        needed = [i - shift for i in inside if x[i] == MASK and i - shift not in stale]
        few = (sorted(stale) + needed)[: max(size, 2) + shift]
        cached: dict[int, tuple[int, float]] = {}
        if every == "checked" and trusts and evaluations in full and evaluations > 0:
            state = generator.get_state()
            cached = writes(few, inside)[1]
            generator.set_state(state)
        if evaluations not in full and trusts:
            at = few
        stale -= set(at)
        evaluations += 1
        chosen, here = writes(at, inside)
        apart = []
        for i, (token, p) in cached.items():
            other, q = here[i]
            apart.append(abs(p - q) if token == other else max(p - min(q, 1 - q), q - min(p, 1 - p)))
        trusts = trusts and sum(apart) <= 0.02 * len(apart)
        for i, token in chosen.items():
            x[i] = token
        stale |= set(chosen)
    written = x[start:]
    if sampling.stop_at_eos and EOS in written:
        written = [*written[: written.index(EOS)], *[EOS] * (len(written) - written.index(EOS))]
    return written, evaluations


def kept(network: LanguageNetwork, every: Every, length: int) -> Executor:
    subject = DREAM_UNITS if isinstance(network, Dream) else LLADA_UNITS
    return Executor(network, rewrite(subject, length, every=every, rows="block"))


RULES: list[dict[str, Any]] = [{"parallel": 0.15}, {"parallel": 1.0}, {"parallel": 0.05}, {"factor": 1.6}]
WAYS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8},
    {"guidance": 1.5},
    {"remasking": "entropy"},
    {"temperature": 0.5, "guidance": 0.5, "stop_at_eos": False},
    {"sliding": True},
    {"sliding": True, "temperature": 0.5, "guidance": 0.5, "stop_at_eos": False},
]


@pytest.mark.parametrize("family", ["network", "sure", "dream"])
@pytest.mark.parametrize("every", [None, 3, 12, "early", "careful", "checked"])
@pytest.mark.parametrize(("rule", "way"), [*((RULES[0], way) for way in WAYS), *((rule, {}) for rule in RULES[1:])])
def test_tokens_are_those_of_a_naive_loop(
    family: str, every: Every | None, way: dict[str, Any], rule: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    network = request.getfixturevalue(family)
    sampling = MaskedSampling(steps=12, length=12, block_length=4, seed=11, **way, **rule)
    model = network if every is None else kept(network, every, 12)
    written = generate_tokens(model, PROMPTS, sampling=sampling)
    expected = [naive(network, prompt, sampling, 11 + row, every)[0] for row, prompt in enumerate(PROMPTS)]
    assert written.tolist() == expected


def test_the_rules_differ_and_fewer_evaluations_are_taken(network: LLaDA) -> None:
    taken = {}
    for threshold in (0.05, 0.2, 1.0):
        sampling = MaskedSampling(steps=12, length=12, block_length=4, parallel=threshold, stop_at_eos=False)
        steps = list(write_tokens(network, PROMPTS[:1], sampling=sampling))
        taken[threshold] = len(steps)
        assert len(steps) == naive(network, PROMPTS[0], sampling, 0)[1]
        assert sum(len(step.of(0)) for step in steps) == 12
    assert taken[1.0] == 12 and taken[0.05] == 3 and 3 < taken[0.2] < 12


@pytest.mark.parametrize(
    ("family", "every", "threshold"), [("network", None, 0.15), ("network", 4, 0.15), ("sure", "checked", 0.6)]
)
def test_results_do_not_depend_on_the_batch_and_rows_go_at_their_own_pace(
    family: str, every: Every | None, threshold: float, request: pytest.FixtureRequest
) -> None:
    network = request.getfixturevalue(family)
    model = network if every is None else kept(network, every, 12)
    options: dict[str, Any] = {"steps": 12, "length": 12, "block_length": 4, "parallel": threshold, "temperature": 0.7}
    together = generate_tokens(model, PROMPTS, **options)
    assert torch.equal(generate_tokens(model, PROMPTS, batch=1, **options), together)
    assert torch.equal(generate_tokens(model, PROMPTS, batch=3, **options), together)
    options |= {"temperature": 0.0, "stop_at_eos": False}
    steps = list(write_tokens(model, PROMPTS, sampling=MaskedSampling(**options)))
    blocks = [{min(step.of(row)) // 4 for row in range(4) if step.of(row)} for step in steps]
    assert any(len(at) > 1 for at in blocks)


def test_a_row_whose_cache_fails_its_check_uses_it_no_more_and_the_others_do(
    sure: LLaDA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So rows with and without a cache are in one batch; what they write does not depend on that."""
    from tenuto.sampling import parallel
    from tenuto.sampling.trust import Trust

    made = []

    class Told(Trust):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(parallel, "Trust", Told)
    prompts = [[2 + (5 * i + 3 * j) % 18 for j in range(4 + i % 3)] for i in range(8)]
    sampling = MaskedSampling(16, 16, 4, parallel=0.5, stop_at_eos=False)
    steps = list(write_tokens(kept(sure, "checked", 16), prompts, sampling=sampling))
    (trust,) = made
    assert trust.broken and not trust.all_broken and 0 < int(trust.rows.sum()) < len(prompts)
    assert all(step.whole for step in steps), "the rows without a cache compute everything"
    for row, prompt in enumerate(prompts):
        expected, _ = naive(sure, prompt, sampling, row, "checked")
        assert [
            token for _, token in sorted({k: v for one in steps for k, v in one.of(row).items()}.items())
        ] == expected


def test_a_check_measures_how_far_the_probabilities_of_the_predicted_tokens_are_apart() -> None:
    def said(*masks: tuple[int, int, float], masked: bool = True) -> Said:
        """An evaluation of one row that predicts, at each of these places, a token with a probability."""
        place, token, likely = (torch.tensor([one]) for one in zip(*masks, strict=True))
        return Said(place, torch.full_like(place, masked, dtype=torch.bool), token, likely, place > 99)

    one = said((0, 7, 0.6), (1, 8, 0.9))
    assert float(change(one, said((0, 7, 0.5), (1, 8, 0.9)))) == pytest.approx(0.1 / 2)
    assert float(change(one, said((1, 9, 0.7)))) == pytest.approx(0.9 - 0.3)  # at most 0.3 are left for the token 8
    assert float(change(one, said((0, 9, 0.2)))) == pytest.approx(0.6 - 0.2)  # token 7 is not more likely than 9
    assert float(change(one, said((2, 9, 0.7)))) == 0, "no place is common"
    assert float(change(one, said((0, 9, 0.9), masked=False))) == 0, "the token is written already"


class Scripted(torch.nn.Module):
    """Is sure of end-of-text at one place of each row and of 5 before it, and of nothing behind it."""

    def __init__(self, ends: list[int]) -> None:
        super().__init__()
        self.config, self.ends, self.calls = TINY, ends, 0
        self.nothing = torch.nn.Parameter(torch.zeros(()))

    def forward(self, tokens: Tensor, residual: Any, attention_mask: Any, positions: Tensor) -> Tensor:
        self.calls += 1
        logits = torch.zeros(*positions.shape, 20)
        for row, end in enumerate(self.ends):
            for i, place in enumerate((positions[row] - 2).tolist()):
                if place <= end:
                    logits[row, i, EOS if place == end else 5] = 20.0
        return logits


def test_end_of_text_ends_a_row_inside_a_block() -> None:
    options: dict[str, Any] = {"steps": 16, "length": 16, "block_length": 8, "parallel": 0.9}
    scripted = Scripted([2, 9])
    written = generate_tokens(scripted, [[3, 4], [3, 4]], **options)  # type: ignore[arg-type]
    assert written.tolist() == [[5, 5] + [EOS] * 14, [5] * 9 + [EOS] * 7]
    assert scripted.calls == 2  # one for each block of the longer row
    scripted.calls = 0
    generate_tokens(scripted, [[3, 4], [3, 4]], **options, stop_at_eos=False)  # type: ignore[arg-type]
    assert scripted.calls > 10


def test_only_a_block_is_computed_between_full_evaluations(network: LLaDA) -> None:
    computed = []

    class Watched(LLaDA):
        def forward(self, tokens: Tensor, memory: Any = None, **named: Any) -> Any:  # type: ignore[override]
            rows = memory[1]
            computed.append(tokens.shape[1] if rows is None else rows.shape[1])
            return super().forward(tokens, memory=memory, **named)

    watched = Watched(TINY)
    watched.load_state_dict(network.state_dict())
    options: dict[str, Any] = {"steps": 12, "length": 12, "block_length": 4, "parallel": 1.0, "stop_at_eos": False}
    generate_tokens(kept(watched, 6, 12), PROMPTS[:1], **options)
    assert computed == [17, 4, 4, 4, 4, 4, 17, 4, 4, 4, 4, 4]


@pytest.mark.parametrize("every", [6, "checked"])
def test_a_graphs_inputs_keep_their_shapes(network: LLaDA, monkeypatch: pytest.MonkeyPatch, every: Every) -> None:
    """On a GPU every evaluation has the same shapes; here the loop is told that it is on one."""
    from tenuto.sampling import parallel

    shapes = set()

    class Watched(LLaDA):
        def forward(self, tokens: Tensor, memory: Any = None, **named: Any) -> Any:  # type: ignore[override]
            if memory is not None:  # a row without a cache is computed beside the graphs
                rows = memory[1]
                shapes.add((tokens.shape, named["positions"].shape, None if rows is None else rows.shape))
            return super().forward(tokens, memory=memory, **named)

    watched = Watched(TINY)
    watched.load_state_dict(network.state_dict())
    options: dict[str, Any] = {"steps": 12, "length": 12, "block_length": 4, "parallel": 0.2}
    expected = generate_tokens(kept(network, every, 12), PROMPTS, **options)
    monkeypatch.setattr(parallel, "on_host", lambda device: False)
    assert torch.equal(generate_tokens(kept(watched, every, 12), PROMPTS, **options), expected)
    assert len(shapes) == 2  # a full evaluation and one of a block


def test_positions_of_a_large_batch_are_packed_into_one_of_seven_sizes() -> None:
    from tenuto.sampling.parallel import tier

    sizes = {tier(needed, 1024) for needed in range(1025)}
    assert sizes == {256, 384, 512, 640, 768, 896, 1024}
    assert all(tier(needed, most) >= needed for most in (128, 264, 1024) for needed in range(most + 1))
    slots, starts = packing(torch.tensor([2, 0, 3]), 4)
    assert starts.tolist() == [0, 2, 2, 5] and slots[:5].tolist() == [0, 1, 8, 9, 10]


def test_the_host_learns_one_evaluation_late() -> None:
    from tenuto.sampling.parallel import Late

    late = Late(torch.device("cpu"), delay=1, event=lambda: None)
    # One row: its place, its token, whether it was written, and whether the row has ended.
    assert list(late.tell(torch.tensor([[3, 7, 1, 0]]))) == [] and not late.all_ended
    (told,) = late.tell(torch.tensor([[4, 7, 1, 1]]))
    assert told.places.tolist() == [[3]] and not late.all_ended
    (told,) = late.tell(torch.tensor([[5, 7, 0, 1]]))
    assert told.places.tolist() == [[4]] and late.all_ended
    assert [told.chosen.tolist() for told in late.rest()] == [[[False]]]


def test_reading_within_the_evaluation_changes_nothing(network: LLaDA) -> None:
    tokens = torch.tensor([PROMPTS[0] + [MASK] * 6])
    guesses, likely = network(tokens, read=Likeliest(MASK))
    logits = network(tokens)
    allowed = logits.clone()
    allowed[..., MASK] = -torch.inf
    assert torch.equal(guesses, allowed.argmax(-1))
    torch.testing.assert_close(likely, logits.softmax(-1).gather(-1, guesses[..., None])[..., 0])


def test_the_factor_rule_is_the_published_inequality() -> None:
    likely = torch.tensor([[0.99, 0.5, 0.97, 0.7, 0.96]])
    masked = torch.tensor([[True, True, True, True, False]])
    sampling = MaskedSampling(steps=8, length=8, block_length=8, factor=0.1)
    # (n + 1) (1 − p) ≤ factor: 2 · 0.01 holds, 3 · 0.03 holds, 4 · 0.3 does not.
    assert accepted(likely, likely, masked, sampling).tolist() == [[True, False, True, False, False]]
    assert accepted(likely, likely, torch.zeros_like(masked), sampling).sum() == 0
    # At least the surest, and the surest is what the family's own rule says.
    unsure = torch.full_like(likely, 0.1)
    rule = torch.tensor([[-3.0, -1.0, -2.0, -4.0, 0.0]])
    assert accepted(rule, unsure, masked, sampling).tolist() == [[False, True, False, False, False]]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"parallel": 0.0}, "above 0 and is at most 1, not 0.0"),
        ({"parallel": 1.5}, "at most 1, not 1.5"),
        ({"parallel": float("nan")}, "at most 1, not nan"),
        ({"factor": 0.0}, "positive number"),
        ({"factor": float("inf")}, "positive number"),
        ({"parallel": 0.9, "factor": 1.0}, "not both"),
        ({"parallel": 0.9, "steps": 6}, "leave the steps out"),
        ({"parallel": 0.9, "remasking": "random"}, "cannot be random"),
        ({"parallel": 0.9, "block_length": 5}, "blocks of 5"),
        ({"sliding": True}, "goes with parallel decoding"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        MaskedSampling(**{"steps": 12, "length": 12, "block_length": 4, **options})


def test_schedules_that_do_not_go_with_it_are_refused(network: LLaDA) -> None:
    options: dict[str, Any] = {"steps": 12, "length": 12, "block_length": 4, "parallel": 0.9}
    with pytest.raises(UsageError, match="rows='block'"):
        generate_tokens(Executor(network, rewrite(LLADA_UNITS, 12, every=2, rows="written")), PROMPTS, **options)
    with pytest.raises(UsageError, match="for 6 steps"):
        generate_tokens(Executor(network, rewrite(LLADA_UNITS, 6, every=2, rows="block")), PROMPTS, **options)
    with pytest.raises(UsageError, match="more than the 32"):
        generate_tokens(network, [[2] * 30], **options)


def test_a_batch_that_does_not_fit_is_refused_with_what_it_needs() -> None:
    from tenuto.models.llada import LLaDAConfig

    needed = memory_needed(LLaDAConfig(), 32, 768, 32, 2)
    keys = 32 * 768 * 2 * 32 * 4096 * 2
    assert keys < needed < 3 * keys
    refuse_if_too_large(32, 768, needed, needed)
    with pytest.raises(UsageError, match="batch of 32 texts of 768 tokens needs about .* take a smaller batch"):
        refuse_if_too_large(32, 768, needed, needed - 1)


def test_a_batch_must_fit_into_the_memory_of_the_host_too(network: LLaDA, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prompts.free_memory(torch.device("meta")) is None
    monkeypatch.setattr(prompts, "free_memory", lambda device: 1000)
    monkeypatch.setattr(network, "forward", None)  # nothing may be computed
    with pytest.raises(UsageError, match="batch of 1 texts of 14 tokens needs about .* take a smaller batch"):
        generate_tokens(network, [[2, 3]], steps=12, length=12, block_length=4, parallel=0.5)


@pytest.mark.gpu
@pytest.mark.parametrize("way", [{}, {"temperature": 0.8}, {"guidance": 1.5}, {"sliding": True}], ids=str)
def test_on_a_gpu_graphs_write_what_a_cpu_writes(network: LLaDA, way: dict[str, Any]) -> None:
    sampling = MaskedSampling(steps=12, length=12, block_length=4, parallel=0.15, **way)
    expected = generate_tokens(kept(network, 6, 12), PROMPTS, sampling=sampling)
    there = make_network(seed=3).cuda()
    executor = Executor(there, kept(network, 6, 12).schedule)
    for _ in range(2):  # recorded, then replayed
        assert torch.equal(generate_tokens(executor, PROMPTS, sampling=sampling), expected)
    assert executor.stages.graphs == 2


@pytest.mark.gpu
def test_on_a_gpu_packed_positions_give_the_same_text(monkeypatch: pytest.MonkeyPatch) -> None:
    from tenuto.models.llada import LLaDAConfig
    from tenuto.sampling import parallel

    config = LLaDAConfig(128, 3, 4, 4, 256, 200, 200, 512, mask_token_id=0, eos_token_id=1)
    torch.manual_seed(0)
    there = LLaDA(config)
    there.initialize_weights()
    for parameter in there.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.15)
    there = there.to("cuda", torch.bfloat16).eval().requires_grad_(False)
    there.fuse()
    prompts = [[2 + (7 * i + 3 * j) % 190 for j in range(20)] for i in range(6)]
    subject = Unscored("small", "llada", units(config))
    sampling = MaskedSampling(64, 64, 32, parallel=0.1, stop_at_eos=False)
    found = []
    for many in (128, 10**9):
        monkeypatch.setattr(parallel, "MANY", many)
        executor = Executor(there, rewrite(subject, 64, every=64, rows="block"))
        first = generate_tokens(executor, prompts, sampling=sampling)
        assert torch.equal(generate_tokens(executor, prompts, sampling=sampling), first)  # replayed
        found.append(first)
    same = float((found[0] == found[1]).float().mean())
    assert same > 0.5, f"{same:.0%} of the tokens are the same"  # one that differs by rounding changes later ones
