"""Block Caching (Wimbauer et al. 2024): a unit is computed again when its summed changes exceed a threshold.

A calibration run measures the changes.
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

Changes = NDArray[np.float64]  # [unit, step]: relative change of a unit's branch from this step to the next


def block_cache(
    model: Model, steps: int, threshold: float, calibrate: Callable[[Executor], object] | Changes
) -> Schedule:
    """Block Caching: a unit is computed when the sum of its changes since its last refresh exceeds the threshold.

    The published method caches a UNet's residual and transformer blocks; here our units, the residual branches, are
    cached. The published method also trains scales and shifts that correct the cached values. That part is left out.

    threshold  0 computes every unit that changes
    calibrate  a function that generates in `steps` steps with the executor it receives; or the result of `changes`
    """
    if not threshold >= 0:
        raise UsageError(f"The threshold is a relative change, not negative, and {threshold} is no such number.")
    found = _changes(model, steps, calibrate)
    active = np.array([block_cache_row(row, threshold) for row in found])
    return schedule_for(model, active, "branch", {"name": "block_cache", "threshold": threshold})


def block_cache_at(
    model: Model, steps: int, budget: float, calibrate: Callable[[Executor], object] | Changes
) -> Schedule:
    """`block_cache` at the threshold whose budget is nearest to `budget`; if two are equally near, at the lower one.

    A higher threshold delays every refresh, so the budget never grows with the threshold. The budget changes only
    where the threshold passes a sum of successive changes. The calibration runs once.
    """
    check_budget(budget)
    found = _changes(model, steps, calibrate)
    sums = np.cumsum(np.pad(found[:, : steps - 1], ((0, 0), (1, 0))), axis=1)  # sum of the changes before each step
    later, earlier = np.triu_indices(steps, 1)[::-1]
    thresholds = np.unique(np.append(sums[:, later] - sums[:, earlier], 0.0))
    thresholds = thresholds[thresholds >= 0] + 1e-12  # so that rounding puts no threshold below its own sum

    def share(threshold: float) -> float:
        return float(np.mean([block_cache_row(row, threshold) for row in found]))

    low, high = 0, len(thresholds) - 1  # bisection: the first threshold whose budget is at most `budget`
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if share(thresholds[middle]) <= budget else (middle + 1, high)
    nearest = thresholds[max(0, low - 1) : low + 1].tolist()
    chosen = min(nearest, key=lambda threshold: (round(abs(share(threshold) - budget), 12), threshold))
    return block_cache(model, steps, chosen, found)


def changes(model: Model, steps: int, calibrate: Callable[[Executor], object]) -> Changes:
    """‖F(s) − F(s + 1)‖₁ / ‖F(s + 1)‖₁ of every unit's branch F, averaged over the calibration runs: [unit, step]."""
    return unit_drifts(model, steps, calibrate, max_skip=1)[:, 0]


def block_cache_row(change: NDArray[np.float64], threshold: float) -> NDArray[np.bool_]:
    """[step]: whether the unit is computed, decided from its changes between steps."""
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
