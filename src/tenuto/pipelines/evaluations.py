"""What one call of a denoiser did, and how long it took."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tenuto.scheduling.schedule import Schedule


@dataclass(frozen=True)
class Evaluation:
    """One call of a denoiser within a generation; `began` and `ended` are seconds, or events on a GPU."""

    step: int
    denoiser: str
    schedule: Schedule | None  # of units; None: the whole network is computed or held
    place: int  # among the schedule's steps
    computed: bool
    began: Any
    ended: Any

    @property
    def seconds(self) -> float:
        if isinstance(self.began, float):
            return float(self.ended - self.began)
        self.ended.synchronize()
        return float(self.began.elapsed_time(self.ended)) / 1000

    def computes(self, units: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """[unit]: whether the unit is computed. If the denoiser's units are not listed: one mark for all of them."""
        if self.schedule is None:
            return np.full(max(1, units), self.computed)
        marks = self.schedule.active[:, self.place]
        return marks if units else marks[:1]


def moment(on: torch.device | None) -> Any:
    """The current time: seconds of the host's clock, or an event in the GPU's queue. The host does not wait for it."""
    if on is None or on.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(on))
    return event
