"""What one call of a denoiser did, and how long it took."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True)
class Evaluation:
    """One call of a denoiser within a generation; `began` and `ended` are seconds, or events on a GPU."""

    step: int
    denoiser: str
    units: NDArray[np.bool_] | None  # [unit]: whether it was computed; None: the whole network was computed or held
    computed: bool
    began: Any
    ended: Any

    @property
    def seconds(self) -> float:
        if isinstance(self.began, float):
            return float(self.ended - self.began)
        self.ended.synchronize()
        return float(self.began.elapsed_time(self.ended)) / 1000

    def computes(self, units: int) -> NDArray[np.bool_]:
        """[unit]: whether the unit is computed. If the denoiser's units are not listed: one mark for all of them."""
        if self.units is None:
            return np.full(max(1, units), self.computed)
        return self.units if units else self.units[:1]


def moment(on: torch.device | None) -> Any:
    """The current time: seconds of the host's clock, or an event in the GPU's queue. The host does not wait for it."""
    if on is None or on.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(on))
    return event
