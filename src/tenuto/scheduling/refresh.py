"""Pictures: the network evaluated at some steps, and what it gave extrapolated in between.

It is evaluated at every R-th step; once more near the beginning, where there is nothing yet to extrapolate from; and at
the last few steps, where the noise falls fastest. This is the default.
"""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tenuto.errors import UsageError
from tenuto.scheduling.making import check_request, make
from tenuto.scheduling.schedule import Keep, Predict, Schedule
from tenuto.scoring.units import Subject

BUDGET = 0.25
CLOSING = 3  # steps at the end that compute everything
MANY = 10  # refreshes, from which on those are a small part of the work
FEW = 6  # refreshes, below which a line is the most that can be laid through them


def refresh(
    subject: Subject,
    steps: int,
    *,
    every: int | None = None,
    budget: float | None = None,
    opening: bool | None = None,
    closing: int | None = None,
    predict: Predict | None = None,
    keep: Keep | None = None,
    correction: bool | None = None,
) -> Schedule:
    """Every unit computed at steps 1, 1+R, 1+2R, … and at the last `closing` ones.

    every, budget  R, or the budget whose R is nearest
    opening        whether it is computed once more half-way to the second refresh, before which there is nothing to
                   extrapolate from; by default where refreshes are many
    closing        by default three; one where refreshes are few and those would be a large part of the work (but where
                   units are held, an opening one instead), and none where there are so few that they had better be
                   spread evenly
    predict        by default cubic, through the last four refreshes; quadratic, or linear, where refreshes are few
    keep           by default the network's output, which takes no memory to speak of and no time at all in between.
                   branch and update keep every unit by itself, which preserves more detail where refreshes are few and
                   takes longer
    correction     whether a refresh makes up for what was extrapolated since the last one; by default where the output
                   is kept. It takes a sampler that can say how it adds outputs up, as those without randomness can
    """
    check_request(steps, budget)
    if every is not None and budget is not None:
        raise UsageError("Give the refresh period or a budget, not both: one follows from the other.")
    if closing is not None and not 0 <= closing <= steps:
        raise UsageError(f"Between 0 and all {steps} of the last steps can be computed, not {closing}.")
    keep = keep or "output"
    if every is None:
        every = period_for_budget(steps, BUDGET if budget is None else budget, opening, closing, keep)
    if every < 1:
        raise UsageError(f"The refresh period must be at least 1 step, not {every}.")
    first, last = _ends(steps, every, opening, closing, keep)
    active = refresh_pattern(len(subject.units), steps, every, last, first)
    policy = {"name": "refresh", "every": every, "opening": first, "closing": last, "budget": budget}
    corrected = keep == "output" if correction is None else correction
    return make(subject, active, predict or degree_for(steps, every), keep, policy, corrected=corrected)


def refresh_pattern(units: int, steps: int, every: int, closing: int = 0, opening: bool = False) -> NDArray[np.bool_]:
    """[unit, step]: all units computed together at every R-th step, at the last ones, and half-way to the second."""
    step = np.arange(steps)
    computed = (step % every == 0) | (step >= steps - closing) | (opening & (step == every // 2))
    return np.tile(computed, (units, 1))


def _ends(steps: int, every: int, opening: bool | None, closing: int | None, keep: Keep) -> tuple[bool, int]:
    """How it begins and ends where nobody says."""
    refreshes = math.ceil(steps / every)
    many, few = refreshes >= MANY, FEW <= refreshes < MANY
    begins = (many or (few and keep != "output")) and every > 2
    ends = CLOSING if many else int(few and keep == "output")
    return begins if opening is None else opening, ends if closing is None else closing


def like(schedule: Schedule, every: int, predict: Predict | None = None) -> Schedule:
    """The default kind of schedule for the same model and steps, at this period."""
    opening, closing = _ends(schedule.steps, every, None, None, "output")
    active = refresh_pattern(len(schedule.units), schedule.steps, every, closing, opening)
    policy = {"name": "refresh", "every": every, "opening": opening, "closing": closing, "budget": None}
    predict = predict or degree_for(schedule.steps, every)
    return replace(schedule, active=active, predict=predict, keep="output", policy=policy, rows="none", corrected=True)


def degree_for(steps: int, every: int) -> Predict:
    """By a polynomial of as high a degree as the distance between refreshes bears."""
    refreshes = math.ceil(steps / every)
    return "cubic" if refreshes >= MANY else "quadratic" if refreshes >= FEW else "linear"


def period_for_budget(
    steps: int, budget: float, opening: bool | None = None, closing: int | None = None, keep: Keep = "output"
) -> int:
    """The refresh period R whose share of the steps is nearest to `budget`; of two as near, the shorter."""

    def share(every: int) -> float:
        first, last = _ends(steps, every, opening, closing, keep)
        return float(refresh_pattern(1, steps, every, last, first).mean())

    return min(range(1, steps + 1), key=lambda every: (abs(share(every) - budget), every))
