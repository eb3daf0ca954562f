"""SmoothCache (Liu et al.): a schedule from one calibration run."""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.runtime.executor import Executor
from tenuto.runtime.residual import Branch
from tenuto.scheduling.making import check_budget
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.rivals.common import RivalGeneration, schedule_for

MAX_SKIP = 3  # the most steps in a row that are skipped

Drifts = Mapping[str, NDArray[np.float64]]  # for each kind of unit: [distance − 1, step]; NaN beyond the last step


def smooth_cache(
    model: Model,
    steps: int,
    threshold: float,
    calibrate: Callable[[Executor], object] | Drifts,
    *,
    max_skip: int = MAX_SKIP,
) -> Schedule:
    """SmoothCache's schedule: each kind of unit skips as many steps as its drift allows, and holds its branch.

    threshold  how far a branch may have drifted at the last step at which it is held; 0 computes everything that drifts
    calibrate  a function that generates in `steps` steps with the executor it receives; or the result of `drifts`
    max_skip   how many steps in a row may be skipped
    """
    if not threshold >= 0:
        raise UsageError(f"The threshold is a relative error, not negative, and {threshold} is no such number.")
    return _smooth(model, _drifts(model, steps, calibrate, max_skip), threshold, max_skip)


def smooth_cache_at(
    model: Model,
    steps: int,
    budget: float,
    calibrate: Callable[[Executor], object] | Drifts,
    *,
    max_skip: int = MAX_SKIP,
) -> Schedule:
    """`smooth_cache` at the threshold whose budget is nearest to `budget`; if two are equally near, at the lower one.

    The schedule changes only where the threshold passes a measured drift. A higher threshold may also raise the budget,
    so every measured drift is tried as a threshold. The calibration runs once.
    """
    check_budget(budget)
    found = _drifts(model, steps, calibrate, max_skip)
    values = np.concatenate([drift[np.isfinite(drift)] for drift in found.values()])
    sizes = Counter(unit.kind for unit in model.units)

    def off(threshold: float) -> float:
        shares = {kind: smooth_row(drift, threshold).mean() for kind, drift in found.items()}
        return abs(sum(float(shares[kind]) * n for kind, n in sizes.items()) / len(model.units) - budget)

    thresholds = [0.0, *np.unique(values).tolist()]
    return _smooth(model, found, min(thresholds, key=lambda one: (round(off(one), 12), one)), max_skip)


def drifts(
    model: Model, steps: int, calibrate: Callable[[Executor], object], *, max_skip: int = MAX_SKIP
) -> dict[str, NDArray[np.float64]]:
    """The mean relative change of the branches of each kind within 1, 2, … steps, measured in a calibration run.

    ‖F(s) − F(s + k)‖₁ / ‖F(s + k)‖₁ of the whole batch, averaged over the units of a kind: [k − 1, s].
    """
    mean = unit_drifts(model, steps, calibrate, max_skip=max_skip)
    kinds = np.array([unit.kind for unit in model.units])
    result = {str(kind): mean[kinds == kind].mean(axis=0) for kind in dict.fromkeys(kinds)}
    for drift in result.values():
        for k in range(max_skip):
            drift[k, max(0, steps - 1 - k) :] = np.nan
    return result


def unit_drifts(
    model: Model, steps: int, calibrate: Callable[[Executor], object], *, max_skip: int = MAX_SKIP
) -> NDArray[np.float64]:
    """The same change for each single unit: [unit, k − 1, s], zero where there is no step s + k."""
    if steps < 1 or max_skip < 1:
        raise UsageError(f"There must be a step to take and one to skip, not {steps} and {max_skip}.")
    recording = _Recording(model, steps, max_skip)
    calibrate(recording)
    if not recording.runs or any(run.step + 1 != steps for run in recording.runs):
        taken = ", ".join(str(run.step + 1) for run in recording.runs) or "no"
        raise UsageError(f"The calibration was to take {steps} steps with the executor it was given, and took {taken}.")
    return recording.totals / len(recording.runs)


def smooth_row(drift: NDArray[np.float64], threshold: float) -> NDArray[np.bool_]:
    """[step]: whether it is computed. After a computed step, as many steps are skipped as the drift allows.

    As in the published code, only the drift at the last skipped step counts, and the last step is always computed.
    """
    max_skip, steps = drift.shape
    row = np.zeros(steps, dtype=bool)
    step = 0
    while step < steps:
        row[step] = True
        step += 1 + next((k for k in range(max_skip, 0, -1) if drift[k - 1, step] <= threshold), 0)
    row[-1] = True
    return row


def _drifts(
    model: Model, steps: int, calibrate: Callable[[Executor], object] | Drifts, max_skip: int
) -> Mapping[str, NDArray[np.float64]]:
    if not isinstance(calibrate, Mapping):
        return drifts(model, steps, calibrate, max_skip=max_skip)
    if set(calibrate) != {unit.kind for unit in model.units} or any(
        drift.shape[1] != steps or len(drift) < max_skip for drift in calibrate.values()
    ):
        raise UsageError(f"These drifts are not of {model.name} at {steps} steps and up to {max_skip} skipped ones.")
    return {kind: drift[:max_skip] for kind, drift in calibrate.items()}


def _smooth(model: Model, found: Drifts, threshold: float, max_skip: int) -> Schedule:
    rows = {kind: smooth_row(drift, threshold) for kind, drift in found.items()}
    active = np.array([rows[unit.kind] for unit in model.units])
    return schedule_for(model, active, "branch", {"name": "smooth_cache", "threshold": threshold, "max_skip": max_skip})


class _Recording(Executor):
    """Full inference that records how far every branch has moved since the previous steps."""

    def __init__(self, model: Model, steps: int, max_skip: int) -> None:
        super().__init__(model.network, None, mode="skip")
        self.rows = {unit.name: i for i, unit in enumerate(model.units)}
        self.totals = np.zeros((len(model.units), max_skip, steps))  # [unit, distance − 1, step], over all runs
        self.runs: list[_Recorded] = []

    def start(self) -> Any:
        self.runs.append(_Recorded(self))
        return self.runs[-1]


class _Recorded(RivalGeneration):
    def __init__(self, recording: _Recording) -> None:
        super().__init__(recording)
        self._rows, self._totals = recording.rows, recording.totals
        self._last: dict[str, deque[Tensor]] = {}  # branches of the last steps, newest first

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        steps = self._totals.shape[2]
        if self.step + 1 >= steps:
            raise UsageError(f"The calibration was to take {steps} steps, and takes more.")
        output = super().__call__(*inputs, **named)
        if self.step + 1 == steps:
            self._last.clear()
        return output

    def residual(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        value = branch()
        last = self._last.setdefault(unit, deque(maxlen=self._totals.shape[1]))
        size = value.float().abs().sum().clamp_min(torch.finfo(torch.float32).tiny)  # a branch may be zero
        for k, before in enumerate(last, 1):
            off = (before.float() - value.float()).abs().sum() / size
            self._totals[self._rows[unit], k - 1, self.step - k] += off.item()
        last.appendleft(value)
        return h + (value if gate is None else gate() * value)
