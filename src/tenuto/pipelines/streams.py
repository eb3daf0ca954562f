"""The samples of one generation: one stream for each scheduler that the loop steps.

If the loop plans its remaining steps anew (another expert takes over, the batch changes), new streams begin. The
streams before them are freed, but what they corrected and how far they strayed still counts.
"""

import math
from typing import Any

from tenuto.runtime.stepping import Stepping


class Streams:
    def __init__(self) -> None:
        self._plans: list[dict[int, Stepping]] = [{}]  # by scheduler; the present plan is the last

    def __len__(self) -> int:
        """The number of streams since the last plan."""
        return len(self._plans[-1])

    def of(self, scheduler: Any) -> Stepping | None:
        """The stream through a scheduler, since the last plan."""
        return self._plans[-1].get(id(scheduler))

    def begin(self, scheduler: Any, stream: Stepping) -> None:
        self._plans[-1][id(scheduler)] = stream

    def end(self) -> None:
        """What was kept belongs to another network or batch, and is freed; the errors so far remain."""
        self.forget()
        if self._plans[-1]:
            self._plans.append({})

    def forget(self) -> None:
        """Free what is kept."""
        for stream in self._plans[-1].values():
            stream.forget()

    @property
    def corrects(self) -> bool:
        return any(one.corrects for plan in self._plans for one in plan.values())

    @property
    def uncorrected_because(self) -> str:
        reasons = [one.uncorrected_because for plan in self._plans for one in plan.values()]
        return next((one for one in reasons if one), "")

    @property
    def most_bytes(self) -> int:
        """The most that was kept at once."""
        return max(sum(one.most_bytes for one in plan.values()) for plan in self._plans)

    @property
    def estimated(self) -> float | None:
        """The estimated distance of the result to the full run, in dB; None if it cannot be told.

        The errors of successive plans add up. Streams of one plan are different samples: the worst counts.
        """
        known = [[one.estimated for one in plan.values() if one.estimated is not None] for plan in self._plans]
        return together([min(one) for one in known if one])


def together(decibels: list[float]) -> float | None:
    """The distance after several errors, in dB, each of which is given in dB; None if there is none."""
    error = sum(10 ** (-one / 10) for one in decibels)
    return None if not decibels else -10 * math.log10(error) if error else math.inf
