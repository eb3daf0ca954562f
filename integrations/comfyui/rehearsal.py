"""What a sampler will do, found out before the sampling: it is run with a made-up model, which costs no evaluation.

ComfyUI's samplers are functions that call a model. Nothing says how often they call it, at which noise levels, whether
they add noise, or whether they choose their steps by the values that they see. So each sampler is run three times with
made-up predictions, which tells all of this for every sampler, those of other node packs included.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Run = Callable[[Callable[[Tensor, float], Tensor], int], Any]


@dataclass(frozen=True)
class Rehearsal:
    sigmas: tuple[float, ...]  # the noise level of each evaluation, in the order of the evaluations
    in_full_because: str  # why predicted values cannot serve this sampler; "" if they can


def rehearse(run: Run) -> Rehearsal:
    """run(model, change) runs the sampler with a made-up model, and with `change` added to its seed."""
    sigmas, sample = _seen(run, 0.0, 0)
    if _seen(run, 1.0, 0)[0] != sigmas:
        return Rehearsal(sigmas, "this sampler chooses its steps by what it sees, so they are not known beforehand")
    if not torch.equal(_seen(run, 0.0, 1)[1], sample):
        return Rehearsal(sigmas, "this sampler adds noise at its steps, and a prediction cannot see that noise")
    return Rehearsal(sigmas, "")


def _seen(run: Run, wave: float, change: int) -> tuple[tuple[float, ...], Tensor]:
    """(the noise level of each evaluation, the sample that the last one was given). wave: how the predictions vary."""
    sigmas: list[float] = []
    last = torch.zeros(0)

    def model(x: Tensor, sigma: float) -> Tensor:
        nonlocal last
        sigmas.append(sigma)
        last = x
        return torch.full_like(x, wave * math.cos(7 * math.log(sigma + 1e-3)))

    run(model, change)
    return tuple(sigmas), last


def level_of(timestep: Any) -> float:
    return float(timestep.flatten()[0]) if isinstance(timestep, Tensor) else float(timestep)
