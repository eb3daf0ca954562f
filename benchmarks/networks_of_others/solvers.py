"""The strong solvers of diffusers over a network's own noise levels: the rivals of a schedule with as many evaluations.

Karras levels lie between the levels that a network was trained with. diffusers rounds their times to whole timesteps;
here the network is told the exact time, because rounded times would handicap the rivals.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from diffusers import DDIMScheduler, DEISMultistepScheduler, DPMSolverMultistepScheduler, UniPCMultistepScheduler

from benchmarks.networks_of_others.case import Case

Solver = Callable[[Case], Any]  # a scheduler for a network
FEWER = "DDIM"


@cache
def with_exact_times(kind: type) -> type:
    """The scheduler, with the times of its noise levels interpolated and not rounded."""

    class Exact(kind):  # type: ignore[misc]
        def set_timesteps(self, num_inference_steps: int, device: Any = None, **options: Any) -> None:
            super().set_timesteps(num_inference_steps, device=device, **options)
            kept = self.alphas_cumprod.double().cpu().numpy()
            known = np.log((1 - kept) / kept) / 2  # log σ/α of each level, rising
            wanted = np.log(self.sigmas[: len(self.timesteps)].double().cpu().numpy())
            self.timesteps: Any = torch.from_numpy(np.interp(wanted, known, np.arange(len(kept)))).float().to(device)

    Exact.__name__ = kind.__name__
    return Exact


def solver(kind: type, **options: Any) -> Solver:
    def scheduler(case: Case) -> Any:
        return case.scheduler(with_exact_times(kind), **options)

    return scheduler


SOLVERS: Mapping[str, Solver] = {
    FEWER: lambda case: case.scheduler(DDIMScheduler),
    "UniPC 2": solver(UniPCMultistepScheduler),
    "UniPC 2, Karras": solver(UniPCMultistepScheduler, use_karras_sigmas=True),
    "UniPC 3, Karras": solver(UniPCMultistepScheduler, use_karras_sigmas=True, solver_order=3),
    "DPM-Solver++ 2": solver(DPMSolverMultistepScheduler),
    "DPM-Solver++ 2, Karras": solver(DPMSolverMultistepScheduler, use_karras_sigmas=True),
    "DPM-Solver++ 3, Karras": solver(DPMSolverMultistepScheduler, use_karras_sigmas=True, solver_order=3),
    "DEIS 2": solver(DEISMultistepScheduler),
}
UNCLIPPED: Mapping[str, Solver] = {  # tried as well where the network's own sampler clips
    "UniPC 2, Karras, not clipped": solver(UniPCMultistepScheduler, use_karras_sigmas=True, thresholding=False),
    "DPM-Solver++ 2, Karras, not clipped": solver(
        DPMSolverMultistepScheduler, use_karras_sigmas=True, thresholding=False
    ),
}


def solvers_for(case: Case) -> Mapping[str, Solver]:
    return {**SOLVERS, **UNCLIPPED} if case.clipped else SOLVERS
