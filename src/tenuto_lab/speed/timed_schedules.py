"""The schedules that are timed, for units whose weights may not be here."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tenuto.errors import UsageError
from tenuto.scheduling.making import make
from tenuto.scheduling.schedule import Keep, Predict, Schedule
from tenuto.scheduling.units import Granularity, Unit, Unscored, block_of
from tenuto_lab.scoring.scores import Scores, normalised
from tenuto_lab.units.lifetimes import lifetime_pattern, lifetimes_at, refresh_pattern, tau_for_budget


def everything(units: Sequence[Unit], steps: int) -> Schedule:
    return _schedule(units, np.ones((len(units), steps), dtype=bool), "constant", "update")


def refreshed(
    units: Sequence[Unit], steps: int, every: int, predict: Predict = "linear", keep: Keep = "branch"
) -> Schedule:
    return _schedule(units, refresh_pattern(len(units), steps, every), predict, keep)


def scattered_lifetimes(units: Sequence[Unit], steps: int, budget: float, seed: int = 0) -> Schedule:
    """The paper's kind of schedule. Uniformly random scores give as many different lifetimes as possible."""
    scores = np.random.default_rng(seed).uniform(size=len(units)).tolist()
    last = np.array(lifetimes_at(scores, steps, tau_for_budget(scores, steps, budget)))
    return _schedule(units, lifetime_pattern(last, steps), "constant", "update")


def spectral_lifetimes(
    units: Sequence[Unit], steps: int, budget: float, known: Scores, granularity: Granularity = "block"
) -> Schedule:
    """The paper's schedule for units whose weights are not here, by the scores of a smaller model of the same layout.

    A unit gets the score that the smaller model has at the same depth, among units of the same kind. By blocks, the
    branches of a block share the sum.
    """
    raw = np.zeros(len(units))
    for kind in {unit.kind for unit in units}:
        mine = [i for i, unit in enumerate(units) if unit.kind == kind]
        theirs = [unit.raw for unit in known.units if unit.kind == kind]
        if not theirs:
            raise UsageError(f"{known.model} has no unit of the kind {kind}, so it tells nothing about these units.")
        raw[mine] = np.interp(np.linspace(0, 1, len(mine)), np.linspace(0, 1, len(theirs)), theirs)
    names = [block_of(unit.name) if granularity == "block" else unit.name for unit in units]
    totals: dict[str, float] = {}
    for name, q in zip(names, raw.tolist(), strict=True):
        totals[name] = totals.get(name, 0.0) + q
    scores = dict(zip(totals, normalised(list(totals.values())), strict=True))
    tau = tau_for_budget(list(scores.values()), steps, budget)
    last = np.array(lifetimes_at([scores[name] for name in names], steps, tau))
    return _schedule(units, lifetime_pattern(last, steps), "constant", "update")


def _schedule(units: Sequence[Unit], active: Any, predict: Predict, keep: Keep) -> Schedule:
    return make(Unscored("timing", "any", tuple(units)), active, predict, keep, {"name": "timing"})
