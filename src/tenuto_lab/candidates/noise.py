"""Refreshes placed by the sampler's own noise levels.

With the default's extrapolation this policy loses: uneven gaps between refreshes cost more than better places gain.
"""

from collections.abc import Sequence

import numpy as np

from tenuto.errors import UsageError
from tenuto.scheduling.making import check_request, make
from tenuto.scheduling.refresh import BUDGET
from tenuto.scheduling.schedule import Keep, Predict, Schedule
from tenuto.scoring.units import Subject


def by_noise(
    subject: Subject,
    steps: int,
    levels: Sequence[float],
    *,
    budget: float = BUDGET,
    evenness: float = 0.5,
    predict: Predict = "linear",
    keep: Keep = "branch",
) -> Schedule:
    """Spreads refreshes evenly over a mixture of step number and noise level.

    levels    one number per step, growing along the trajectory: the logarithm of the signal-to-noise ratio
    evenness  1 spreads the refreshes over the steps alone, 0 over the levels alone
    """
    check_request(steps, budget)
    if len(levels) != steps:
        raise UsageError(f"There must be a noise level for each of the {steps} steps, not {len(levels)}.")
    if not 0 <= evenness <= 1:
        raise UsageError(f"The evenness lies between 0 and 1, not at {evenness}.")
    way = np.asarray(levels, dtype=np.float64)
    way = (way - way[0]) / ((way[-1] - way[0]) or 1.0) * (steps - 1)
    way = evenness * np.arange(steps) + (1 - evenness) * way
    count = min(steps, max(1, round(budget * steps)))
    targets = np.arange(count) * way[-1] / max(1, count - 1)
    chosen = {0, *(int(np.abs(way - target).argmin()) for target in targets)}
    while len(chosen) < count:  # two targets fell on one step: halve the widest gap
        ends = [*sorted(chosen), steps]
        start = max(range(len(ends) - 1), key=lambda i: ends[i + 1] - ends[i])
        chosen.add((ends[start] + ends[start + 1]) // 2)
    active = np.tile(np.isin(np.arange(steps), list(chosen)), (len(subject.units), 1))
    return make(subject, active, predict, keep, {"name": "noise", "budget": budget, "evenness": evenness})
