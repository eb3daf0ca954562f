"""Unequal shares: units with a high rank are computed more often than the others.

anchors    refreshes all units together, and the highest-ranked units (half of the work) once more in between
allocated  gives each unit its own period, from the theorem's bound Σ score · age under a budget of FLOPs

Use these to try a ranking. In all measurements, refreshing all units together was the better default
(docs/schedules.md): when a fresh unit runs among stale units, its input stream belongs to no step.
"""

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tenuto.errors import UsageError
from tenuto.scheduling.making import check_request, make
from tenuto.scheduling.refresh import BUDGET
from tenuto.scheduling.schedule import Keep, Predict, Schedule
from tenuto_lab.scoring.scores import Scores
from tenuto_lab.units.lifetimes import refresh_pattern

Ranking = Literal["spectral", "spectral within type", "random", "early", "late", "cheap"]


def ranked(scores: Scores, by: Ranking, seed: int = 0) -> list[int]:
    """The indices of the units, the highest rank first."""
    units = scores.units
    if by not in get_args(Ranking):
        raise UsageError(f"Units are ranked by one of {', '.join(get_args(Ranking))}, not by {by!r}.")
    if by == "random":
        return np.random.default_rng(seed).permutation(len(units)).tolist()
    if by in ("early", "late"):
        return list(range(len(units)))[:: 1 if by == "early" else -1]
    values = [unit.score for unit in units]
    if by == "cheap":
        values = [unit.score / unit.flops for unit in units]
    if by == "spectral within type":
        most = {unit.kind: max(other.score for other in units if other.kind == unit.kind) for unit in units}
        values = [unit.score / (most[unit.kind] or 1.0) for unit in units]
    return sorted(range(len(units)), key=lambda i: -values[i])


def anchors(
    scores: Scores,
    steps: int,
    *,
    every: int | None = None,
    budget: float | None = None,
    share: float = 0.5,
    ranking: Ranking = "spectral",
    closing: int = 0,
    seed: int = 0,
    predict: Predict = "linear",
    keep: Keep = "branch",
) -> Schedule:
    """Computes all units at every R-th step; half-way, the highest-ranked again, up to `share` of the FLOPs."""
    check_request(steps, budget)
    if not 0 <= share <= 1:
        raise UsageError(f"The share of the work to refresh more often lies between 0 and 1, not at {share}.")
    order, flops = ranked(scores, ranking, seed), np.array([unit.flops for unit in scores.units])
    reached = np.cumsum(flops[order]) <= share * flops.sum() + 1e-9
    more = np.zeros(len(order), dtype=bool)
    more[np.array(order)[reached]] = True

    def pattern(period: int) -> NDArray[np.bool_]:
        base = refresh_pattern(len(order), steps, period, closing)
        between = np.arange(steps) % period == max(1, period // 2)
        return base | (more[:, None] & between[None])

    if every is None:
        wanted = BUDGET if budget is None else budget
        cost = flops / flops.sum()
        every = min(
            range(2, max(3, steps)), key=lambda period: (abs(float(cost @ pattern(period).mean(1)) - wanted), period)
        )
    policy = {"name": "anchors", "every": every, "share": share, "ranking": ranking, "budget": budget}
    return make(scores, pattern(every), predict, keep, policy, fingerprint=scores.fingerprint)


def allocated(
    scores: Scores,
    steps: int,
    *,
    budget: float = BUDGET,
    ranking: Ranking = "spectral",
    predict: Predict = "linear",
    keep: Keep = "branch",
) -> Schedule:
    """Refreshes each unit at even intervals, so often that Σ score · age is minimal under the budget of FLOPs.

    With n refreshes, the mean age of a unit is about T / 2n, so n ∝ √(score / cost), within [1, T], is the minimum.
    The ranking "spectral within type" first divides each score by the highest score of the unit's type.
    """
    check_request(steps, budget)
    units = scores.units
    worth = np.array([max(unit.score, 1e-6) for unit in units])
    if ranking == "spectral within type":
        most = {unit.kind: max(other.score for other in units if other.kind == unit.kind) for unit in units}
        worth = np.array([max(unit.score / (most[unit.kind] or 1.0), 1e-6) for unit in units])
    elif ranking != "spectral":
        raise UsageError(f"Work is allocated by 'spectral' or 'spectral within type', not by {ranking!r}.")
    cost = np.array([unit.flops for unit in units])
    cost = cost / cost.sum()
    low, high = 0.0, 1e9  # bisection for the factor before √(score / cost)
    for _ in range(100):
        middle = (low + high) / 2
        spent = cost @ np.clip(middle * np.sqrt(worth / cost), 1, steps) / steps
        low, high = (middle, high) if spent < budget else (low, middle)
    counts = np.clip(np.round(low * np.sqrt(worth / cost)), 1, steps).astype(int)
    active = np.zeros((len(units), steps), dtype=bool)
    for row, count in zip(active, counts, strict=True):
        row[np.unique(np.floor(np.arange(count) * steps / count).astype(int))] = True
    policy = {"name": "allocated", "budget": budget, "ranking": ranking}
    return make(scores, active, predict, keep, policy, fingerprint=scores.fingerprint)
