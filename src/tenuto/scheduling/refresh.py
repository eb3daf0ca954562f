"""For pictures: evaluate the network at some steps, and extrapolate in between.

The network is evaluated at every R-th step; once more near the beginning, because there is nothing yet to extrapolate
from; and at the last few steps, because the noise falls fastest there. This is the default.
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
MANY = 10  # refreshes; with so many or more, the closing steps are a small part of the work
FEW = 6  # refreshes; with fewer, extrapolation is linear


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
    """Every unit is computed at steps 1, 1+R, 1+2R, … and at the last `closing` steps.

    every, budget  the period R, or a budget, which selects the R nearest to it
    opening        whether to compute once more half-way to the second refresh, because before it there is only one
                   value to extrapolate from. By default with 10 refreshes or more; with 6 to 9, only if units are kept
    closing        how many of the last steps to compute. By default three with 10 refreshes or more; with 6 to 9, one,
                   or none if units are kept; with fewer, none, because few refreshes are better spread evenly
    predict        by default cubic, through the last four refreshes; quadratic with 6 to 9 refreshes, linear with fewer
    keep           by default the network's output, which takes little memory, and almost no time at steps in between.
                   branch and update keep every unit by itself: this preserves more detail if refreshes are few, but
                   takes longer
    correction     whether a refresh corrects what was extrapolated since the last refresh; by default if the output is
                   kept. The sampler needs a course (tenuto.runtime.course)
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
    """[unit, step]: all units together, at every R-th step, at the last steps, and half-way to the second refresh."""
    step = np.arange(steps)
    computed = (step % every == 0) | (step >= steps - closing) | (opening & (step == every // 2))
    return np.tile(computed, (units, 1))


def _ends(steps: int, every: int, opening: bool | None, closing: int | None, keep: Keep) -> tuple[bool, int]:
    """Whether there is an opening step, and how many closing steps; None selects the default."""
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
    """The degree of the polynomial: the more refreshes, the higher."""
    refreshes = math.ceil(steps / every)
    return "cubic" if refreshes >= MANY else "quadratic" if refreshes >= FEW else "linear"


def period_for_budget(
    steps: int, budget: float, opening: bool | None = None, closing: int | None = None, keep: Keep = "output"
) -> int:
    """The refresh period R whose share of the steps is nearest to `budget`; of two equally near, the shorter."""

    def share(every: int) -> float:
        first, last = _ends(steps, every, opening, closing, keep)
        return float(refresh_pattern(1, steps, every, last, first).mean())

    return min(range(1, steps + 1), key=lambda every: (abs(share(every) - budget), every))
