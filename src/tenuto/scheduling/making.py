"""What all policies share: checking the request, and making the schedule."""

import numpy as np
from numpy.typing import NDArray

from tenuto.errors import UsageError, check_whole
from tenuto.scheduling.schedule import Keep, Predict, Rows, Schedule
from tenuto.scheduling.units import Subject

MOST_STEPS = 10_000


def check_request(steps: int, budget: float | None = None) -> None:
    check_whole("The number of steps", steps, most=MOST_STEPS)
    if budget is not None:
        check_budget(budget)


def check_budget(budget: float) -> None:
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget <= 1:
        raise UsageError(f"A budget is a share of the work, above 0 and at most 1, not {budget!r}.")


def make(
    subject: Subject,
    active: NDArray[np.bool_],
    predict: Predict,
    keep: Keep,
    policy: dict[str, object],
    *,
    rows: Rows = "none",
    blocks: int = 1,
    corrected: bool = False,
    ahead: bool = False,
    fingerprint: str | None = None,
) -> Schedule:
    """fingerprint: of the weights whose scores decided; None if no score was read, so that any weights fit."""
    return Schedule(
        units=tuple(unit.name for unit in subject.units),
        active=active,
        flops=tuple(unit.flops for unit in subject.units),
        predict=predict,
        keep=keep,
        model=subject.model,
        fingerprint=fingerprint,
        policy=policy,
        rows=rows,
        blocks=blocks,
        corrected=corrected,
        ahead=ahead,
    )
