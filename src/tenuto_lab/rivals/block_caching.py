"""Block Caching (Wimbauer et al. 2024): a unit is computed again when its changes have added up to a threshold.

One calibrating run measures the changes.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.runtime.executor import Executor
from tenuto.scheduling.making import check_budget
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.rivals.common import schedule_for
from tenuto_lab.rivals.smooth_cache import unit_drifts

Changes = NDArray[np.float64]  # [unit, step]: by how much a unit changes from this step to the next, relative


def block_cache(
    model: Model, steps: int, threshold: float, calibrate: Callable[[Executor], object] | Changes
) -> Schedule:
    """Block Caching: a unit is computed when the changes since it was computed last add up to more than the threshold.

    The published blocks are a UNet's residual and transformer blocks; these are our units, its residual branches. Its
    second part, scales and shifts that are trained to mend what is held, is left out: nothing is trained here.

    threshold  0 computes every unit that changes
    calibrate  runs generations of so many steps with the executor it is given; or what `changes` gave
    """
    if not threshold >= 0:
        raise UsageError(f"The threshold is a relative change, not negative, and {threshold} is no such number.")
    found = _changes(model, steps, calibrate)
    active = np.array([block_cache_row(row, threshold) for row in found])
    return schedule_for(model, active, "branch", {"name": "block_cache", "threshold": threshold})


def block_cache_at(
    model: Model, steps: int, budget: float, calibrate: Callable[[Executor], object] | Changes
) -> Schedule:
    """The same at the threshold whose budget is nearest to `budget`; of two as near, the lower. Calibrated once.

    The higher the threshold, the later every refresh: the budget never grows with it, and changes only where it
    passes a sum of successive changes.
    """
    check_budget(budget)
    found = _changes(model, steps, calibrate)
    sums = np.cumsum(np.pad(found[:, : steps - 1], ((0, 0), (1, 0))), axis=1)  # of the changes before each step
    later, earlier = np.triu_indices(steps, 1)[::-1]
    thresholds = np.unique(np.append(sums[:, later] - sums[:, earlier], 0.0))
    thresholds = thresholds[thresholds >= 0] + 1e-12  # which rounding must not put below the sum it is

    def share(threshold: float) -> float:
        return float(np.mean([block_cache_row(row, threshold) for row in found]))

    low, high = 0, len(thresholds) - 1  # the first threshold whose budget is at most what is wanted
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if share(thresholds[middle]) <= budget else (middle + 1, high)
    nearest = thresholds[max(0, low - 1) : low + 1].tolist()
    chosen = min(nearest, key=lambda threshold: (round(abs(share(threshold) - budget), 12), threshold))
    return block_cache(model, steps, chosen, found)


def changes(model: Model, steps: int, calibrate: Callable[[Executor], object]) -> Changes:
    """‖F(s) − F(s + 1)‖₁ / ‖F(s + 1)‖₁ of every unit's branch F, over the calibrating runs: [unit, step]."""
    return unit_drifts(model, steps, calibrate, max_skip=1)[:, 0]


def block_cache_row(change: NDArray[np.float64], threshold: float) -> NDArray[np.bool_]:
    """Which steps of a unit are computed, from its changes between steps."""
    row = np.zeros(len(change), dtype=bool)
    row[0], total = True, 0.0
    for step in range(1, len(change)):
        total += change[step - 1]
        if total > threshold:
            row[step], total = True, 0.0
    return row


def _changes(model: Model, steps: int, calibrate: Callable[[Executor], object] | Changes) -> Changes:
    if not isinstance(calibrate, np.ndarray):
        return changes(model, steps, calibrate)
    if calibrate.shape != (len(model.units), steps):
        raise UsageError(f"These changes are not of {model.name} at {steps} steps.")
    return calibrate
