"""Does the score predict what it costs to freeze a unit? One-unit freeze errors, correlations and regressions.

errors = freeze_errors(model, lifetimes_at(values, steps, 1.0), sample)
spearman(values, errors.errors)             # the paper's correlation
depth_regression(scores, errors.errors)     # what SCR explains beside depth, kind and Frobenius norm
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tenuto.deciding import subject_of
from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.runtime.compilation import computed
from tenuto.runtime.executor import Executor
from tenuto.runtime.residual import Branch, plain
from tenuto.scheduling.making import make
from tenuto_lab.candidates.ranked_lifetimes import statistic_of
from tenuto_lab.judging.least_squares import least_squares, rank_correlation
from tenuto_lab.probing.trajectory import Sample, Trajectory, record, relative
from tenuto_lab.scoring.scores import Scores
from tenuto_lab.units.lifetimes import lifetime_pattern

Of = Literal["outputs", "sample"]
Values = Sequence[float] | NDArray[np.float64]

# ----------------------------------------------------------------------------------------------------- freeze errors


@dataclass(frozen=True, eq=False)
class FreezeErrors:
    """What it costs to freeze each unit alone."""

    units: tuple[str, ...]
    last: tuple[int, ...]  # the last step, counted from 1, at which each unit was computed
    errors: NDArray[np.float64]  # [unit], relative; NaN where the unit was never frozen
    of: Of


def freeze_errors(
    model: Model,
    last: Sequence[int],
    sample: Sample,
    *,
    of: Of = "outputs",
    progress: Callable[[str], object] = lambda unit: None,
) -> FreezeErrors:
    """The error of freezing each unit alone after its last step, while all other units are computed at every step.

    last      the last computed step of each unit, counted from 1. At the paper's operating point,
              `lifetimes_at(values, steps, 1.0)`, a unit with a high score is frozen for few steps or none, and this
              alone makes its error small. The same last step for all units compares the units themselves
    sample    generates with the executor it receives; if `of` is "sample", it must return what it generated
    of        outputs: ‖ε̂ − ε‖ / ‖ε‖ of the network's output, at the states of the full run, averaged over the steps at
              which the unit is frozen. sample: the same error of the final sample of a run with the unit frozen
    progress  called with the name of each unit when the unit is done
    """
    names = tuple(unit.name for unit in model.units)
    if len(last) != len(names) or min(last) < 1:
        raise UsageError(f"Each of the {len(names)} units needs a last step, counted from 1.")
    if of not in ("outputs", "sample"):
        raise UsageError(f"Errors are of outputs or of the sample, not of {of!r}.")
    trajectories = record(model.network, sample)
    errors = np.full(len(names), np.nan)
    full = sample(Executor(model.network)) if of == "sample" else None
    for i, name in enumerate(names):
        if last[i] < len(trajectories[0]):
            if of == "outputs":
                errors[i] = np.mean([_output_errors(model, name, last[i], one) for one in trajectories])
            else:
                errors[i] = _sample_error(model, i, last[i], len(trajectories[0]), sample, full)
        progress(name)
    return FreezeErrors(names, tuple(int(step) for step in last), errors, of)


@torch.no_grad()
def _output_errors(model: Model, name: str, last: int, trajectory: Trajectory) -> float:
    frozen = _OneFrozen(name)
    trajectory[last - 1].again(model.network, frozen)
    errors = [relative(one.again(model.network, frozen), one.output) for one in trajectory[last:]]
    return float(np.mean(errors))


class _OneFrozen:
    """A residual that computes one unit only at its first call and then holds the unit's update."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._held: Tensor | None = None

    def __call__(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        if unit != self._unit:
            return plain(unit, h, branch, gate)
        if self._held is None:
            after, self._held = computed(h, branch, gate, "update")
            return after
        return h + self._held


def _sample_error(model: Model, unit: int, last: int, steps: int, sample: Sample, full: object) -> float:
    lives = np.full(len(model.units), steps)
    lives[unit] = last
    policy: dict[str, object] = {"name": "one_frozen", "unit": model.units[unit].name, "last": last}
    schedule = make(subject_of(model), lifetime_pattern(lives, steps), "constant", "update", policy)
    given = sample(Executor(model.network, schedule, mode="skip"))
    if not isinstance(given, Tensor) or not isinstance(full, Tensor):
        raise UsageError("To measure samples, `sample` must give what it generated, as a tensor.")
    return relative(given, full)


# ------------------------------------------------------------------------------------------------------ correlations


@dataclass(frozen=True)
class Correlation:
    rho: float  # Spearman's; NaN if one of the two does not vary
    p: float
    n: int  # number of pairs in which both values are finite


def spearman(a: Values, b: Values) -> Correlation:
    """Rank correlation of two values per unit, over the units that have both values."""
    first, second = _pairs(a, b)
    if len(first) < 3:
        raise UsageError(f"There is no correlation of {len(first)} pairs; at least 3 are needed.")
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return Correlation(np.nan, np.nan, len(first))
    return Correlation(*rank_correlation(first, second), len(first))


@dataclass(frozen=True)
class Orientation:
    """The direction in which a ranking is used, and why."""

    sign: int  # 1: a larger number means a longer lifetime; −1: a shorter one
    correlation: Correlation  # with the measured errors


def orientation(values: Values, errors: Values) -> Orientation:
    """The direction of a ranking: the sign of its correlation with the measured errors; 1 without a correlation."""
    found = spearman(values, errors)
    return Orientation(-1 if found.rho < 0 else 1, found)


def scr_and_stable_rank(scores: Scores) -> Correlation:
    """The rank correlation of SCR and stable rank over the units."""
    return spearman(statistic_of(scores, "scr"), statistic_of(scores, "stable_rank"))


# -------------------------------------------------------------------------------------------------------- regression


@dataclass(frozen=True)
class Coefficient:
    """The coefficient of a standardised regressor; for a kind of unit, the difference from the omitted kind."""

    name: str
    beta: float
    error: float
    low: float  # of the 95 % interval
    high: float
    p: float


@dataclass(frozen=True)
class Regression:
    coefficients: tuple[Coefficient, ...]  # scr, depth, frobenius, and one for each kind of unit but the first
    r2_depth: float  # with depth as the only regressor
    r2_full: float
    n: int

    def __getitem__(self, name: str) -> Coefficient:
        return next(one for one in self.coefficients if one.name == name)


def depth_regression(scores: Scores, errors: Values) -> Regression:
    """Ordinary least squares of freeze error on SCR, depth, kind of unit and Frobenius norm, all standardised.

    Units without an error are left out. If a regressor does not vary among the other units, a UsageError names it.
    """
    measured = np.asarray(errors, dtype=np.float64)
    if measured.shape != (len(scores.units),):
        raise UsageError(f"There must be an error for each of the {len(scores.units)} units, not {measured.shape}.")
    kept = np.isfinite(measured)
    columns = {name: statistic_of(scores, name)[kept] for name in ("scr", "depth", "frobenius")}  # type: ignore[arg-type]
    standard = {name: _standardised(column, name) for name, column in columns.items()}
    kinds = np.array([unit.kind for unit in scores.units])[kept]
    dummies = {f"kind {kind}": (kinds == kind).astype(float) for kind in list(dict.fromkeys(kinds))[1:]}
    y = _standardised(measured[kept], "the freeze error")
    names = [*standard, *dummies]
    if len(y) <= len(names) + 1:
        raise UsageError(f"{len(y)} units with an error are too few for {len(names)} regressors.")
    full = least_squares(y, [*standard.values(), *dummies.values()])
    coefficients = tuple(
        Coefficient(name, float(full.beta[i]), float(full.error[i]), float(full.low[i]), float(full.high[i]), full.p[i])
        for i, name in enumerate(names, 1)  # after the constant
    )
    return Regression(coefficients, least_squares(y, [standard["depth"]]).r2, full.r2, len(y))


def _standardised(values: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    spread = values.std() if len(values) else 0.0
    if spread == 0:
        raise UsageError(f"{name} does not vary among the units, so nothing can be told by it.")
    standard: NDArray[np.float64] = (values - values.mean()) / spread
    return standard


def _pairs(a: Values, b: Values) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise UsageError(f"Numbers of shapes {first.shape} and {second.shape} do not make pairs.")
    both = np.isfinite(first) & np.isfinite(second)
    return first[both], second[both]
