"""What all policies share: the checks of what was asked for, and the making of the schedule."""

import numpy as np
from numpy.typing import NDArray

from tenuto.errors import UsageError
from tenuto.schedules import Hold, Reuse, Rows, Schedule
from tenuto.scores import Scores


def check(steps: int, budget: float | None) -> None:
    if steps < 1:
        raise UsageError(f"A schedule needs at least one step, not {steps}.")
    if budget is not None:
        check_budget(budget)


def check_budget(budget: float) -> None:
    if not 0 < budget <= 1:
        raise UsageError(f"A budget is a share of the work, above 0 and at most 1, not {budget}.")


def make(
    scores: Scores,
    active: NDArray[np.bool_],
    reuse: Reuse,
    hold: Hold,
    policy: dict[str, object],
    rows: Rows = "none",
    corrected: bool = False,
) -> Schedule:
    return Schedule(
        units=tuple(unit.name for unit in scores.units),
        active=active,
        flops=tuple(unit.flops for unit in scores.units),
        reuse=reuse,
        hold=hold,
        model=scores.model,
        fingerprint=scores.fingerprint,
        policy=policy,
        rows=rows,
        corrected=corrected,
    )
