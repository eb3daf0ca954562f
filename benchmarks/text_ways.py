"""The ways of writing that benchmarks.text_frontier compares: ours, published caches, and the paper's lifetimes.

Each cache comes with parallel decoding, at several thresholds, and alone (one token an evaluation). The paper's idea is
there twice: as lifetimes of units over the steps, by branch and by block; and as a choice of units inside a block step,
by the spectral score, by the reversed score, and by several random orders.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import tenuto
from tenuto.models import Model
from tenuto.runtime.executor import Executor
from tenuto.sampling.masked import MaskedSampling, generate_tokens
from tenuto.scheduling.rewrite import full_steps
from tenuto.scheduling.units import block_of
from tenuto_lab.rivals.text import rules
from tenuto_lab.scoring.scores import Granularity, Scores
from training.evaluate_llada import until_end
from training.evaluate_small_llada import BLOCK

THRESHOLDS = (0.9, 0.95, 0.97, 0.99, 0.8)
FACTORS = (0.5, 1.0)
WINDOW = 32
WIDE_BLOCK = 32
BUDGETS = (0.75, 0.9, 0.5)  # of the unit-steps that the paper's lifetimes compute
LEFT_OUT = (0.25, 0.5)  # of the branches or layers, inside a block step
ORDERS = 3  # random ones beside the spectral one and its reverse
NEVER = 10**6
FULL = "full inference"
ALONE = "parallel decoding alone"


@dataclass(frozen=True)
class Way:
    """One way of writing; ways of one method differ in thresholds and periods."""

    method: str
    name: str
    write: Callable[[Model, list[list[int]], int], tuple[list[list[int]], list[float], list[float]]]


def by_rule(method: str, rule: rules.Rule, units: int = 0, **rate: float) -> Way:
    """rate: parallel=… or factor=…; without it, one token at a time"""

    def write(model: Model, prompts: list[list[int]], length: int) -> Any:
        network: Any = model.network
        sampling = MaskedSampling(length, length, BLOCK, **rate)  # type: ignore[arg-type]
        found = rules.write(network, prompts, sampling, rule, units)
        return found.tokens.tolist(), found.evaluations.tolist(), found.work.tolist()

    told = ", ".join(f"{name} {value:g}" for name, value in rate.items()) or "one token a step"
    return Way(method, f"{rule.name}; {told}", write)


def by_lifetimes(scores: Scores, budget: float, granularity: Granularity) -> Way:
    """The paper's static lifetimes: each unit is computed until its lifetime ends, then held."""

    def write(model: Model, prompts: list[list[int]], length: int) -> Any:
        schedule = tenuto.schedule(scores, length, policy="lifetimes", budget=budget, granularity=granularity)
        executor = Executor(model.network, schedule, mode="skip")
        tokens = generate_tokens(executor, prompts, steps=length, length=length, block_length=BLOCK, batch=len(prompts))
        ends = [len(until_end(row)) + 1 for row in tokens.tolist()]
        steps = [min(-(-end // BLOCK) * BLOCK, length) for end in ends]  # it stops between blocks
        shares = schedule.active.mean(axis=0).cumsum()
        return tokens.tolist(), [float(one) for one in steps], [float(shares[one - 1]) for one in steps]

    name = f"lifetimes by {granularity}, {budget:.0%} of the {granularity}-steps; one token a step"
    return Way(f"the paper's lifetimes by {granularity}", name, write)


def orders(scores: Scores, by_layer: bool) -> dict[str, list[frozenset[str]]]:
    """Orders in which units, or whole layers, are left out, the first first: by score, reversed, and at random."""
    total: dict[str, float] = {}
    members: dict[str, set[str]] = {}
    for unit in scores.units:
        key = block_of(unit.name) if by_layer else unit.name
        total[key] = total.get(key, 0.0) + unit.raw
        members.setdefault(key, set()).add(unit.name)
    lowest = sorted(total, key=lambda key: total[key])
    every = {"of lowest score": lowest, "of highest score": lowest[::-1]}
    for seed in range(ORDERS):
        every[f"of random order {seed + 1}"] = random.Random(seed).sample(sorted(total), len(total))
    return {name: [frozenset(members[key]) for key in order] for name, order in every.items()}


def selections(scores: Scores) -> dict[str, frozenset[str]]:
    """Units that block steps leave out, by what they are called."""
    found = {}
    for by_layer in (False, True):
        for name, order in orders(scores, by_layer).items():
            for share in LEFT_OUT:
                count = round(share * len(order))
                what = f"{count} of {len(order)} {'layers' if by_layer else 'branches'} {name}"
                found[what] = frozenset().union(*order[:count])
    return found


def early(evaluation: int) -> bool:
    """Everything at the first four evaluations and at the powers of two. With a check this is the default."""
    return bool(full_steps(np.array(evaluation), "early"))


def doubling(evaluation: int) -> bool:
    return evaluation & (evaluation - 1) == 0 or evaluation == 0


def geometric(second: int, factor: int, evaluation: int) -> bool:
    """Everything at 0, at a second evaluation, and at the second one times each power of a factor."""
    return evaluation == 0 or evaluation in [second * factor**power for power in range(10)]


def eight_first(evaluation: int) -> bool:
    """Everything at the first eight evaluations, and at the powers of two."""
    return bool(full_steps(np.array(evaluation), "careful"))


def always(evaluation: int) -> bool:
    return True


def every_second(evaluation: int) -> bool:
    return evaluation % 2 == 0


def until(last: int, evaluation: int) -> bool:
    return evaluation <= last


RARELY = {  # full evaluations early and then ever more rarely, by what they are called
    "everything at 0 to 4, 8, 16, …": early,
    "everything at 0, 1, 2, 4, 8, …": doubling,
    "everything at 0 to 8, 16, 32, …": eight_first,
}


def caches() -> dict[str, list[rules.Rule]]:
    """The caches of each method, the most promising setting first."""
    default = rules.checked(rules.ours(early, lean=True), "everything at 0 to 4, 8, 16, … and after a failed check")
    return {
        "ours": [
            *(rules.ours(full, name=name, lean=True) for name, full in RARELY.items()),
            *(rules.ours(every, name=f"everything every {every}", lean=True) for every in (8, 16, 4, 2)),
            rules.ours(NEVER, name="everything once", lean=True),
            *(
                rules.in_blocks(rules.ours(full, name=name, lean=True), WIDE_BLOCK)
                for name, full in RARELY.items()
                if full is not doubling
            ),
        ],
        "Fast-dLLM, dual cache": [rules.fast_dllm(True), rules.in_blocks(rules.fast_dllm(True), WIDE_BLOCK)],
        "Fast-dLLM, prefix cache": [rules.fast_dllm(False), rules.in_blocks(rules.fast_dllm(False), WIDE_BLOCK)],
        "dKV-Cache": [rules.dkv_cache(8), rules.dkv_cache(4), rules.dkv_cache(2)],  # every 1 is no cache
        "dLLM-Cache": [rules.dllm_cache(25, 4), rules.dllm_cache(25, 2)],
        "Elastic-Cache's window": [rules.elastic(32), rules.elastic(16)],
        "ours, sliding": [
            *(
                rules.ours(full, name=f"a sliding window of 32, {name}", window=32, lean=True)
                for name, full in RARELY.items()
            ),
            *(
                rules.ours(every, name=f"a sliding window of {window}, everything {told}", window=window, lean=True)
                for window, every, told in (
                    *((32, 8, "every 8"), (32, 16, "every 16"), (32, NEVER, "once")),
                    *((16, 8, "every 8"), (16, NEVER, "once")),
                )
            ),
        ],
        "ours, finished blocks again": [
            rules.ours(NEVER, name="everything once, a finished block again", lean=True, again="block"),
            rules.ours(8, name="everything every 8, a finished block again", lean=True, again="block"),
            rules.ours(NEVER, name="everything when a block begins", lean=True, again="everything"),
        ],
        "ours, checked": [default, rules.in_blocks(default, WIDE_BLOCK)],
        "ours, checked more rarely": [
            rules.checked(rules.ours(full, lean=True), f"everything at {told}, … and after a failed check")
            for told, full in (
                ("0, 1, 2, 4, 8", doubling),
                ("0, 1, 3, 9", partial(geometric, 1, 3)),
                ("0, 1, 4, 16", partial(geometric, 1, 4)),
                ("0, 1, 6, 36", partial(geometric, 1, 6)),
                ("0, 1, 8, 64", partial(geometric, 1, 8)),
                ("0, 2, 8, 32", partial(geometric, 2, 4)),
                ("0, 4, 32", partial(geometric, 4, 8)),
            )
        ],
        "ours, the prompt cached": [
            rules.ours(always, name=f"the whole answer always, the prompt {when}", prompt=now)
            for when, now in (
                ("at 0 to 4, 8, 16, …", early),
                ("at 0 to 8, 16, 32, …", eight_first),
                ("every 2", every_second),
                ("once", partial(until, 0)),
            )
        ],
        "ours, the prompt rarely": [
            rules.ours(
                early,
                name=f"the prompt at {'0' if last == 0 else f'0 to {last}'}, the answer at 0 to 4, 8, 16, …",
                lean=True,
                prompt=partial(until, last),
            )
            for last in (3, 2, 1, 0)
        ],
        "ours, by tokens written": [
            rules.ours(NEVER, name=f"everything after {tokens} tokens", lean=True, after=tokens) for tokens in (4, 8, 2)
        ],
    }


def ways(model: Model) -> list[Way]:
    """The most telling ones first, because time may run out: one setting of each method, then the others."""
    scores = tenuto.score(model)
    full = rules.Rule("everything computed", rules.everything)
    methods = caches()
    each = [by_rule(method, some[0], parallel=0.9) for method, some in methods.items()]
    more = [by_rule(method, rule, parallel=0.9) for method, some in methods.items() for rule in some[1:]]
    without = [
        by_rule(
            f"ours without {name}",
            rules.ours(8, held, f"everything every 8, block steps without {name}", lean=True),
            len(model.units),
            parallel=0.9,
        )
        for name, held in selections(scores).items()
    ]
    first = without[:: len(LEFT_OUT)][: 2 + ORDERS]  # a quarter of the branches, by every order
    alone = [by_rule(f"{method}, alone", some[0]) for method, some in methods.items()]  # one token at a time: slow
    lifetimes = [by_lifetimes(scores, budget, by) for budget in BUDGETS for by in ("branch", "block")]
    return [
        by_rule(FULL, full),
        by_rule(ALONE, full, parallel=0.9),
        by_rule("parallel decoding alone, in a window", rules.all_in_window(WINDOW), parallel=0.9),
        *each,
        *first,
        *lifetimes[:2],
        *more,
        *(way for way in without if way not in first),
        *(by_rule(ALONE, full, parallel=one) for one in THRESHOLDS[1:]),
        *_in_turn(lifetimes[2:], alone),
        *at_thresholds(methods, THRESHOLDS[1:]),
        *(
            by_rule("parallel decoding alone, in a window", rules.all_in_window(WINDOW), parallel=one)
            for one in THRESHOLDS[1:]
        ),
        *(by_rule(ALONE, rules.in_blocks(full, WIDE_BLOCK), parallel=one) for one in (0.9, *THRESHOLDS[1:])),
        *(by_rule("the factor rule alone", full, factor=one) for one in FACTORS),
        *(by_rule("ours, by the factor rule", methods["ours"][0], factor=one) for one in FACTORS),
    ]


def at_thresholds(methods: dict[str, list[rules.Rule]], thresholds: Sequence[float]) -> list[Way]:
    return [
        by_rule(method, rule, parallel=threshold)
        for threshold in thresholds
        for method, some in methods.items()
        for rule in some
    ]


def _in_turn(one: list[Way], other: list[Way]) -> list[Way]:
    """Both lists, one from each in turn."""
    paired = [way for pair in zip(one, other, strict=False) for way in pair]
    return [*paired, *one[len(other) :], *other[len(one) :]]
