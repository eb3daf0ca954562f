"""The paper's schedules: each unit is computed until its lifetime ends, and then held for good.

S_ℓ = max{S_min, ⌈T min(1, Λ̂_ℓ / τ)⌉}. Use this policy only to repeat the paper. On trained networks, such a schedule
destroys the picture at a third of the work (docs/schedules.md), with every ranking of the units.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tenuto.errors import UsageError, is_number
from tenuto.scheduling.making import check_request, make
from tenuto.scheduling.schedule import Keep, Predict, Schedule
from tenuto.scheduling.units import Granularity, block_of
from tenuto_lab.scoring.scores import Scores, at_granularity

TAU = 1.0  # the paper's untuned operating point
MIN_LIFETIME = 0.1  # S_min as a share of T


def lifetimes(
    scores: Scores,
    steps: int,
    *,
    tau: float | None = None,
    budget: float | None = None,
    min_lifetime: float = MIN_LIFETIME,
    predict: Predict = "constant",
    keep: Keep = "update",
    granularity: Granularity | None = None,
) -> Schedule:
    """The paper's schedule, from τ or from a budget; a budget selects the τ that comes nearest to it.

    granularity  branch: each residual branch has its own lifetime. block: the branches of a block share one score and
                 one lifetime, and a budget counts block-steps, as the paper does. By default that of the scores
    """
    check_request(steps, budget)
    if tau is not None and budget is not None:
        raise UsageError("Give tau or a budget, not both: one follows from the other.")
    if not is_number(min_lifetime) or not 0 <= min_lifetime <= 1:
        raise UsageError(f"The minimum lifetime is a share of the steps, between 0 and 1, not {min_lifetime}.")
    scores = at_granularity(scores, granularity or scores.granularity)
    values = [unit.score for unit in scores.units]
    if budget is not None:
        tau = tau_for_budget(counted_scores(scores), steps, budget, min_lifetime)
    tau = TAU if tau is None else tau
    if not is_number(tau) or not 0 < tau < math.inf:
        raise UsageError(f"tau must be positive and finite, not {tau}.")
    last = np.array(lifetimes_at(values, steps, tau, min_lifetime))
    active = lifetime_pattern(last, steps)
    policy: dict[str, object] = {"name": "lifetimes", "tau": tau, "budget": budget, "min_lifetime": min_lifetime}
    if scores.granularity == "block":
        policy["granularity"] = "block"
    return make(scores, active, predict, keep, policy, fingerprint=scores.fingerprint)


def counted_scores(scores: Scores) -> list[float]:
    """The scores that a budget counts: one for each branch, or one for each block."""
    if scores.granularity == "branch":
        return [unit.score for unit in scores.units]
    return list({block_of(unit.name): unit.score for unit in scores.units}.values())


def lifetime_pattern(last: NDArray[np.int_], steps: int) -> NDArray[np.bool_]:
    """[unit, step]: each unit is computed until its last step, counted from 1."""
    pattern: NDArray[np.bool_] = np.arange(1, steps + 1)[None, :] <= last[:, None]
    return pattern


def lifetimes_at(scores: Sequence[float], steps: int, tau: float, min_lifetime: float = MIN_LIFETIME) -> list[int]:
    """S_ℓ = max{S_min, ⌈T min(1, Λ̂_ℓ / τ)⌉}, at least one step."""
    shortest = max(1, math.ceil(_exact(steps * min_lifetime)))  # S_min
    return [max(shortest, math.ceil(_exact(steps * min(1.0, score / tau)))) for score in scores]


def tau_for_budget(scores: Sequence[float], steps: int, budget: float, min_lifetime: float = MIN_LIFETIME) -> float:
    """The τ whose lifetimes come nearest to `budget`; of two equally near, the one that computes more.

    Σ S_ℓ never grows with τ, and falls only where some T Λ̂_ℓ / τ is a whole number. The search covers these τ, which
    give every achievable sum, so the answer is exact.
    """
    breakpoints = {steps * score / whole for score in scores if score > 0 for whole in range(1, steps + 1)}
    candidates = sorted(breakpoints) or [TAU]
    wanted = budget * len(scores) * steps

    def unit_steps(tau: float) -> int:
        return sum(lifetimes_at(scores, steps, tau, min_lifetime))

    low, high = 0, len(candidates) - 1  # the first candidate whose sum is at most `wanted`
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if unit_steps(candidates[middle]) <= wanted else (middle + 1, high)
    nearest = candidates[max(0, low - 1) : low + 1]
    return min(nearest, key=lambda tau: (abs(unit_steps(tau) - wanted), tau))


def with_fewer_lifetimes(schedule: Schedule, most: int) -> Schedule:
    """The schedule with at most `most` different lifetimes: the nearest two are merged until they are few enough.

    When two lifetimes are merged, the units of the rarer one take the more common one, or the longer one if both are
    equally common. This changes the fewest unit-steps.
    """
    if most < 1:
        raise UsageError(f"At least one lifetime must remain, not {most}.")
    _check_lifetimes(schedule)
    last = np.array(schedule.lifetimes)
    while len(values := np.unique(last)) > most:
        counts = [int((last == value).sum()) for value in values]
        costs = [
            int(later - earlier) * min(counts[i], counts[i + 1]) for i, (earlier, later) in enumerate(pairwise(values))
        ]
        i = costs.index(min(costs))
        rarer, commoner = (i + 1, i) if counts[i] > counts[i + 1] else (i, i + 1)
        last[last == values[rarer]] = values[commoner]
    policy = {**schedule.policy, "lifetimes_at_most": most}
    return replace(schedule, active=lifetime_pattern(last, schedule.steps), policy=policy)


def with_neighbours_alike(schedule: Schedule, size: int) -> Schedule:
    """The schedule with neighbouring units in groups of `size`; each unit gets the mean lifetime of its group.

    Neighbours that are held together are kept as one sum, so this needs fewer buffers. The work stays the same, up to
    rounding.
    """
    _check_lifetimes(schedule)
    last = np.array(schedule.lifetimes)
    for first in range(0, len(last), size):
        group = slice(first, first + size)
        last[group] = max(1, round(float(last[group].mean())))
    policy = {**schedule.policy, "neighbours_alike": size}
    return replace(schedule, active=lifetime_pattern(last, schedule.steps), policy=policy)


def is_of_lifetimes(schedule: Schedule) -> bool:
    """Whether every unit is computed up to some step and held for good after it."""
    return bool((schedule.active == lifetime_pattern(np.array(schedule.lifetimes), schedule.steps)).all())


def _check_lifetimes(schedule: Schedule) -> None:
    if not is_of_lifetimes(schedule):
        raise UsageError("Only schedules of lifetimes can be merged; this one refreshes units after holding them.")


def _exact(product: float) -> float:
    """The product without the rounding error that would raise its ceiling by one (100 · 0.07 = 7.000000000000001)."""
    return round(product, 9)


def refresh_pattern(units: int, steps: int, every: int, closing: int = 0) -> NDArray[np.bool_]:
    """[unit, step]: all units together, at every R-th step and at the last steps."""
    step = np.arange(steps)
    return np.tile((step % every == 0) | (step >= steps - closing), (units, 1))
