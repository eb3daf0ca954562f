"""Rankings to compare the score with. Each orders the units by a different number; all share one set of lifetimes.

A ranking gives every unit a number. The lifetimes of the paper's schedule are sorted and assigned to the units in the
order of these numbers. So two rankings differ only in which unit has which lifetime, not in the work, and not in how
many units are computed at any step.

By blocks, a block's number is the mean over its units, and the units of a block get one lifetime.

A unit's number is the mean over its weight matrices. Depth is the index of a unit, counted from the input; reversed
depth is the ranking by depth with orientation −1.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tenuto.errors import UsageError
from tenuto.scheduling.making import make
from tenuto.scheduling.schedule import Keep, Predict, Schedule
from tenuto.scheduling.units import block_of
from tenuto_lab.scoring.scores import Scores, UnitScore
from tenuto_lab.scoring.spectrum import Spectrum
from tenuto_lab.units.lifetimes import MIN_LIFETIME, lifetime_pattern, lifetimes

Statistic = Literal[
    "random", "depth", "frobenius", "spectral_norm", "stable_rank", "frobenius_stable_rank", "scr", "score"
]
STATISTICS: tuple[Statistic, ...] = get_args(Statistic)

# Statistics of one matrix.
OF_A_MATRIX: Mapping[str, Callable[[Spectrum], float]] = {
    "frobenius": lambda matrix: matrix.frobenius,
    "spectral_norm": lambda matrix: matrix.spectral_norm,
    "stable_rank": lambda matrix: matrix.stable_rank,
    "frobenius_stable_rank": lambda matrix: matrix.frobenius * matrix.stable_rank,
    "scr": lambda matrix: matrix.scr,
}


def statistic_of(scores: Scores, statistic: Statistic, seed: int = 0) -> NDArray[np.float64]:
    """[unit]: the number that a ranking gives to each unit; only the random ranking uses `seed`."""
    if statistic not in STATISTICS:
        raise UsageError(f"Units are ranked by one of {', '.join(STATISTICS)}, not by {statistic!r}.")
    if statistic == "random":
        places = _places(scores)
        return np.random.default_rng(seed).permutation(places.max() + 1)[places].astype(np.float64)
    if statistic == "depth":
        return np.arange(len(scores.units), dtype=np.float64)
    if statistic == "score":
        return np.array([unit.score for unit in scores.units])
    return np.array([_mean(unit, OF_A_MATRIX[statistic]) for unit in scores.units])


def ranked_lifetimes(
    scores: Scores,
    steps: int,
    ranking: Statistic,
    budget: float | None = None,
    seed: int = 0,
    *,
    orientation: int = 1,
    tau: float | None = None,
    min_lifetime: float = MIN_LIFETIME,
    predict: Predict = "constant",
    keep: Keep = "update",
) -> Schedule:
    """The lifetimes of the paper's schedule at this budget or τ, assigned in the order of a ranking.

    orientation  1: a larger number gives a longer lifetime; −1: a shorter one (see probing.sensitivity.orientation)
    """
    values = statistic_of(scores, ranking, seed)
    policy: dict[str, object] = {"name": "ranked_lifetimes", "ranking": ranking, "orientation": orientation}
    if ranking == "random":
        policy["seed"] = seed
    return _given_out(scores, steps, values, policy, orientation, budget, tau, min_lifetime, predict, keep)


def lifetimes_by(
    scores: Scores,
    steps: int,
    values: Sequence[float] | NDArray[np.float64],
    name: str,
    budget: float,
) -> Schedule:
    """The same lifetimes in the order of measured numbers; `name` says what the numbers are."""
    policy: dict[str, object] = {"name": "ranked_lifetimes", "ranking": name, "orientation": 1}
    numbers = np.asarray(values, dtype=np.float64)
    return _given_out(scores, steps, numbers, policy, 1, budget)


def in_order(lives: Sequence[int], values: NDArray[np.float64]) -> NDArray[np.int_]:
    """The same lifetimes: the least value gets the shortest. Of units with equal values, the first lives longer."""
    order = sorted(range(len(values)), key=lambda i: (values[i], -i))
    given: NDArray[np.int_] = np.empty(len(values), dtype=np.int_)
    given[order] = sorted(lives)
    return given


def _given_out(
    scores: Scores,
    steps: int,
    values: NDArray[np.float64],
    policy: dict[str, object],
    orientation: int,
    budget: float | None,
    tau: float | None = None,
    min_lifetime: float = MIN_LIFETIME,
    predict: Predict = "constant",
    keep: Keep = "update",
) -> Schedule:
    if orientation not in (1, -1):
        raise UsageError(f"A ranking is oriented by 1 or −1, not by {orientation}.")
    if values.shape != (len(scores.units),) or not np.isfinite(values).all():
        raise UsageError(f"A ranking needs a finite number for each of the {len(scores.units)} units.")
    spectral = lifetimes(scores, steps, tau=tau, budget=budget, min_lifetime=min_lifetime)
    places = _places(scores)  # the row of each unit: its own, or its block's
    of_places = [np.flatnonzero(places == place) for place in range(places.max() + 1)]
    lives = [spectral.lifetimes[units[0]] for units in of_places]
    given = in_order(lives, orientation * np.array([values[units].mean() for units in of_places]))[places]
    policy |= {
        key: spectral.policy[key] for key in ("tau", "budget", "min_lifetime", "granularity") if key in spectral.policy
    }
    return make(scores, lifetime_pattern(given, steps), predict, keep, policy, fingerprint=scores.fingerprint)


def _places(scores: Scores) -> NDArray[np.int_]:
    """[unit]: the index of what has a lifetime of its own, the unit or its block, in the order they run."""
    if scores.granularity == "branch":
        return np.arange(len(scores.units))
    known: dict[str, int] = {}
    return np.array([known.setdefault(block_of(unit.name), len(known)) for unit in scores.units])


def _mean(unit: UnitScore, statistic: Callable[[Spectrum], float]) -> float:
    matrices = [matrix for part in unit.components for matrix in part.spectra.values()]
    if not matrices:
        raise UsageError(f"The scores say nothing of the weights of {unit.name}: score the model again.")
    return float(np.mean([statistic(matrix) for matrix in matrices]))
