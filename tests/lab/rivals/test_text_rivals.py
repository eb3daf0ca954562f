"""Rivals for text write what loops written from their published code write, one row and one position at a time."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.text_ways import early
from tenuto.models.llada import LLaDA, LLaDAConfig, units
from tenuto.runtime.executor import Executor
from tenuto.sampling.masked import MaskedSampling, generate_tokens
from tenuto.scheduling.rewrite import rewrite
from tenuto.scheduling.units import Unscored
from tenuto_lab.rivals.text import fast_dllm, rules
from tests.models.test_llada import TINY, make_network
from tests.sampling.test_parallel import Plainly

MASK = TINY.mask_token_id
PROMPTS = [[2, 3, 4, 5, 6], [7, 8], [9, 10, 11, 12, 13, 14, 15]]
LONG = LLaDAConfig(**{**vars(TINY), "max_sequence_length": 64})


@pytest.fixture(scope="module")
def network() -> LLaDA:
    return make_network(LONG, seed=3)


@torch.no_grad()
def published(
    network: LLaDA, prompt: list[int], length: int, block: int, threshold: float | None, at: Callable[..., list[int]]
) -> tuple[list[int], int, float]:
    """A published loop: `at` says which positions step i of a block computes. Tokens, evaluations and work."""
    x = prompt + [MASK] * length
    cached, evaluations, work = Plainly(network), 0, 0.0
    for first in range(len(prompt), len(x), block):
        i, history = 0, [list(x)]
        while MASK in x[first : first + block]:
            computed = sorted(at(x, history, first, i))
            logits = cached(x, computed)
            found = []
            for place in range(first, min(first + block, len(x))):
                if x[place] == MASK:
                    allowed = logits[place].clone()
                    likely = logits[place].softmax(-1)
                    allowed[MASK] = -torch.inf
                    token = int(allowed.argmax())
                    found.append((float(likely[token]), place, token))
            found.sort(key=lambda one: (-one[0], one[1]))
            history.append(list(x))
            for rank, (likely_one, place, token) in enumerate(found):
                if rank == 0 or (threshold is not None and likely_one >= threshold):
                    x[place] = token
            evaluations += 1
            work += len(computed) / len(x)
            i += 1
    return x[len(prompt) :], evaluations, work


def prefix(x: list[int], history: Any, first: int, i: int) -> list[int]:
    return list(range(0 if i == 0 else first, len(x)))


def dual(x: list[int], history: Any, first: int, i: int) -> list[int]:
    return list(range(len(x))) if i == 0 else list(range(first, first + 4))


def dkv(x: list[int], history: list[list[int]], first: int, i: int) -> list[int]:
    if i <= 1 or i % 3 == 0:
        return list(range(len(x)))
    before = history[-1]  # as the last evaluation saw the text
    return [place for place in range(len(x)) if before[place] == MASK]


CASES = [
    (rules.fast_dllm(dual=False), prefix),
    (rules.fast_dllm(dual=True), dual),
    (rules.dkv_cache(3), dkv),
    (rules.Rule("full", rules.everything), lambda x, *_: list(range(len(x)))),
]


@pytest.mark.parametrize("threshold", [None, 0.15])
@pytest.mark.parametrize(("rule", "at"), CASES, ids=lambda one: getattr(one, "name", ""))
def test_rules_write_what_published_loops_write(
    network: LLaDA, rule: rules.Rule, at: Any, threshold: float | None
) -> None:
    sampling = MaskedSampling(12, 12, 4, stop_at_eos=False, parallel=threshold)
    found = rules.write(network, PROMPTS, sampling, rule)
    for row, prompt in enumerate(PROMPTS):
        tokens, evaluations, work = published(network, prompt, 12, 4, threshold, at)
        assert found.tokens[row].tolist() == tokens
        assert found.evaluations[row] == evaluations and float(found.work[row]) == pytest.approx(work)


def test_a_rule_may_have_longer_blocks_and_the_last_one_is_then_shorter(network: LLaDA) -> None:
    def block_of_eight(x: list[int], history: Any, first: int, i: int) -> list[int]:
        return list(range(0 if i == 0 else first, len(x) if i == 0 else min(first + 8, len(x))))

    sampling = MaskedSampling(12, 12, 4, stop_at_eos=False, parallel=0.15)
    found = rules.write(network, PROMPTS, sampling, rules.in_blocks(rules.fast_dllm(dual=True), 8))
    for row, prompt in enumerate(PROMPTS):
        tokens, evaluations, work = published(network, prompt, 12, 8, 0.15, block_of_eight)
        assert found.tokens[row].tolist() == tokens
        assert found.evaluations[row] == evaluations and float(found.work[row]) == pytest.approx(work)


@pytest.mark.parametrize("both", [False, True])
def test_fast_dllms_own_loop_is_its_rule(network: LLaDA, both: bool) -> None:
    prompts = torch.tensor([PROMPTS[0], PROMPTS[2][:5]])
    for everywhere in (True, False):
        found = fast_dllm.write(network, prompts, 12, 4, fast_dllm.above(0.15), both, everywhere)
        for prompt in prompts.tolist():
            # Alone, because in a batch a row waits for the others before it goes on to the next block.
            alone = fast_dllm.write(network, torch.tensor([prompt]), 12, 4, fast_dllm.above(0.15), both, everywhere)
            assert alone.tokens[0].tolist() == published(network, prompt, 12, 4, 0.15, dual if both else prefix)[0]
        assert found.tokens.shape == (2, 12) and not (found.tokens == MASK).any()


def test_our_rule_is_the_products(network: LLaDA) -> None:
    subject = Unscored("tiny", "llada", units(LONG))
    sure = make_network(LONG, seed=9)  # sure of its tokens, so that some of its caches fail their checks
    sure.parts()[3].weight *= 8
    prompts = [*PROMPTS, *([2 + (5 * i + 3 * j) % 18 for j in range(4 + i % 3)] for i in range(8))]
    ways: list[tuple[LLaDA, Any, float, bool]] = [
        (one, every, threshold, sliding)
        for one, threshold in ((network, 0.15), (sure, 0.5))
        for every in (3, 12, "early", "checked")
        for sliding in (False, True)
    ]
    for network, every, threshold, sliding in ways:
        sampling = MaskedSampling(12, 12, 4, parallel=threshold, sliding=sliding)
        executor = Executor(network, rewrite(subject, 12, every=every, rows="block"))
        expected = generate_tokens(executor, prompts, sampling=sampling)
        when = {"early": early, "checked": early}.get(every, every)
        rule = rules.ours(when, window=4 if sliding else None, lean=True)
        found = rules.write(network, prompts, sampling, rules.checked(rule, "") if every == "checked" else rule)
        for one, other in zip(found.tokens.tolist(), expected.tolist(), strict=True):
            end = other.index(TINY.eos_token_id) if TINY.eos_token_id in other else 12
            assert one[:end] == other[:end]


def test_full_inference_in_a_window_goes_on_behind_an_unfinished_block(network: LLaDA) -> None:
    sampling = MaskedSampling(12, 12, 4, stop_at_eos=False, parallel=0.05)
    block = rules.write(network, PROMPTS[:1], sampling, rules.Rule("full", rules.everything))
    window = rules.write(network, PROMPTS[:1], sampling, rules.all_in_window(8))
    assert int(window.evaluations) < int(block.evaluations) and float(window.work) == float(window.evaluations)


def test_a_lean_step_computes_what_was_written_and_the_masks_alone(network: LLaDA) -> None:
    sampling = MaskedSampling(8, 8, 4, stop_at_eos=False, parallel=1.0)  # one token an evaluation
    lean = rules.write(network, PROMPTS[:1], sampling, rules.ours(10**6, lean=True))
    # Everything; then 3 masks and one token written, 2 and one, 1 and one; the last token of the block and 3 masks of
    # the next (four are computed at most); and again.
    total = len(PROMPTS[0]) + 8
    assert float(lean.work) == pytest.approx(1 + (4 + 3 + 2 + 4 + 4 + 3 + 2) / total)


@pytest.mark.parametrize("again", ["block", "everything"])
def test_a_finished_block_is_computed_once_more(network: LLaDA, again: Any) -> None:
    """Beside a loop in plain Python: one token an evaluation, and what the rule says where a block begins."""
    prompt, length, block = PROMPTS[0], 8, 4
    x, cached, work = prompt + [MASK] * length, Plainly(network), 0.0
    written: list[int] = []
    for step in range(length):
        first = len(prompt) + step // block * block
        masks = [place for place in range(first, first + block) if x[place] == MASK]
        computed = written[-1:] + masks if len(masks) < block else written[-1:] + masks[: block - 1]
        if step == 0 or (again == "everything" and step % block == 0):
            computed = list(range(len(x)))
        elif step % block == 0:
            computed = list(range(first - block, first + block))
        logits = cached(x, sorted(computed))
        found = []
        for place in set(masks) & set(computed):
            likely = logits[place].softmax(-1)
            logits[place][MASK] = -torch.inf
            token = int(logits[place].argmax())
            found.append((float(likely[token]), -place, token))
        _, place, token = max(found)
        x[-place] = token
        written.append(-place)
        work += len(computed) / len(x)
    sampling = MaskedSampling(length, length, block, stop_at_eos=False)
    done = rules.write(network, [prompt], sampling, rules.ours(10**6, lean=True, again=again))
    assert done.tokens[0].tolist() == x[len(prompt) :] and float(done.work) == pytest.approx(work)


def test_everything_is_computed_after_so_many_tokens(network: LLaDA) -> None:
    sampling = MaskedSampling(8, 8, 4, stop_at_eos=False)  # one token an evaluation
    found = rules.write(network, PROMPTS[:2], sampling, rules.ours(10**6, lean=True, after=2))
    same = rules.write(network, PROMPTS[:2], sampling, rules.ours(2, lean=True))
    assert torch.equal(found.tokens, same.tokens) and torch.equal(found.work, same.work)
    # Where an evaluation writes several tokens, the two rules part.
    sampling = MaskedSampling(8, 8, 4, stop_at_eos=False, parallel=0.05)
    found = rules.write(network, PROMPTS[:1], sampling, rules.ours(10**6, lean=True, after=1))
    every = rules.write(network, PROMPTS[:1], sampling, rules.Rule("", rules.everything))
    assert torch.equal(found.tokens, every.tokens) and torch.equal(found.work, every.work)


def test_the_window_slides_over_blocks(network: LLaDA) -> None:
    seen: list[Tensor] = []
    rule = rules.elastic(5)

    def watched(state: rules.State) -> Tensor:
        seen.append(rule.computed(state))
        return seen[-1]

    sampling = MaskedSampling(12, 12, 4, stop_at_eos=False)
    found = rules.write(network, PROMPTS[:1], sampling, rules.Rule("", watched, rule.candidates))
    assert seen[0].all() and found.evaluations.tolist() == [12]
    assert int(seen[1].sum()) == 6  # five masks, and the token just written
    assert seen[1][0, 5:].nonzero()[:, 0].tolist() == list(range(6))


def plain_dllm_cache(network: LLaDA, texts: list[list[int]], width: int, periods: tuple[int, int], ratio: float) -> Any:
    """Written from the published hook: logits of each text in turn, position by position."""
    kept: dict[Any, Any] = {}
    embedding, blocks, norm, head = network.parts()
    c = network.config
    for step, x in enumerate(texts):
        n = len(x)
        h = [embedding(torch.tensor(token)) for token in x]
        for layer, block in enumerate(blocks):
            prompt = step % periods[0] == 0 or layer == 0
            answer = step % periods[1] == 0 or layer == 0
            chosen = set(range(width)) if prompt else set()
            if answer:
                chosen |= set(range(width, n))
            else:
                turned = []
                for i in range(width, n):
                    value = block.v_proj(block.attn_norm(h[i]))
                    turned.append((float(torch.cosine_similarity(value, kept[layer, "v", i], dim=0)), i))
                    kept[layer, "v", i] = value
                chosen |= {i for _, i in sorted(turned)[: int((n - width) * ratio)]}
            queries = {}
            for i in chosen:
                normed = block.attn_norm(h[i])
                queries[i] = block.q_proj(normed)
                kept[layer, "k", i], kept[layer, "v", i] = block.k_proj(normed), block.v_proj(normed)
            for i in chosen:
                heads = []
                for one in range(c.n_heads):
                    mine = slice(one * c.head_dim, (one + 1) * c.head_dim)
                    q = Plainly._turned(queries[i][None, None, mine], [i], c)[0, 0]
                    keys = [Plainly._turned(kept[layer, "k", j][None, None, mine], [j], c)[0, 0] for j in range(n)]
                    weights = (torch.stack(keys) @ q / c.head_dim**0.5).softmax(0)
                    heads.append(weights @ torch.stack([kept[layer, "v", j][mine] for j in range(n)]))
                kept[layer, "attention", i] = block.attn_out(torch.cat(heads))
            h = [h[i] + kept[layer, "attention", i] for i in range(n)]
            for i in chosen:
                y = block.ff_norm(h[i])
                kept[layer, "mlp", i] = block.ff_out(torch.nn.functional.silu(block.ff_proj(y)) * block.up_proj(y))
            h = [h[i] + kept[layer, "mlp", i] for i in range(n)]
    return torch.stack([head(norm(one)) for one in h])


def test_dllm_cache_computes_what_the_published_hook_computes(network: LLaDA) -> None:
    from tenuto_lab.rivals.text.dllm_cache import DLLMCache

    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(2, 20, (13,), generator=generator).tolist()]
    for i in range(6):  # a few tokens change from one evaluation to the next
        texts.append([*texts[-1][: 5 + i], 2 + i, *texts[-1][6 + i :]])
    cache = DLLMCache(4, 3, 0.5)
    with torch.no_grad():
        for text in texts:
            asked = torch.arange(13)[None]
            found, _ = cache(network, torch.tensor([text]), 5, None, asked, lambda logits: logits)
        expected = plain_dllm_cache(network, texts, 5, (4, 3), 0.5)
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-5)
    sampling = MaskedSampling(12, 12, 4, parallel=0.15, stop_at_eos=False)
    full = rules.write(network, PROMPTS, sampling, rules.Rule("full", rules.everything))
    always = rules.write(network, PROMPTS, sampling, rules.dllm_cache(1, 1))
    assert torch.equal(always.tokens, full.tokens) and always.work.tolist() == pytest.approx(full.work.tolist())
    seldom = rules.write(network, PROMPTS, sampling, rules.dllm_cache(8, 4))
    assert (seldom.work / seldom.evaluations < 1).all()


def test_held_units_are_computed_with_everything_only(network: LLaDA) -> None:
    names = [unit.name for unit in units(LONG)]
    sampling = MaskedSampling(12, 12, 4, parallel=0.15, stop_at_eos=False)
    plain = rules.write(network, PROMPTS, sampling, rules.ours(4), len(names))
    none = rules.write(network, PROMPTS, sampling, rules.ours(4, frozenset({"nothing"})), len(names))
    assert torch.equal(none.tokens, plain.tokens)
    half = rules.write(network, PROMPTS, sampling, rules.ours(4, frozenset(names[::2])), len(names))
    assert not torch.equal(half.tokens, plain.tokens)
    assert (half.work / half.evaluations).mean() < (plain.work / plain.evaluations).mean()


@pytest.mark.parametrize(
    "rule",
    [
        *(rule for rule, _ in CASES),
        rules.elastic(4),
        rules.dllm_cache(8, 4),
        rules.ours(early, name="ours, everything early", lean=True),
        rules.ours(10**6, frozenset({"blocks.0.attn"}), "held"),
    ],
    ids=lambda rule: rule.name,
)
def test_rows_whose_text_has_ended_are_dropped_and_nothing_else_changes(
    network: LLaDA, rule: rules.Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = MaskedSampling(12, 12, 4, stop_at_eos=False, parallel=0.18)
    computed = []
    monkeypatch.setattr(rules, "indices", lambda flags, of=rules.indices: computed.append(len(flags)) or of(flags))
    dropped = rules.write(network, PROMPTS, sampling, rule, 4)
    assert min(computed) < 3, "no row was dropped"
    monkeypatch.setattr(rules, "DROPPED", 0.0)
    kept = rules.write(network, PROMPTS, sampling, rule, 4)
    assert dropped.tokens.tolist() == kept.tokens.tolist()
    assert dropped.evaluations.tolist() == kept.evaluations.tolist()
    assert dropped.work.tolist() == pytest.approx(kept.work.tolist())
