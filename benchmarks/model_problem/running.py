"""Runs the engine, with diffusers' own schedulers, on the exact denoiser of a mixture."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
)
from torch import Tensor

from benchmarks.model_problem.mixture import Mixture
from tenuto.runtime.levels import nature_of
from tenuto.runtime.stepping import Stepping
from tenuto.scheduling.placement import MANY, asked_ahead, placed

SCALED: dict[str, Any] = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}
SCHEDULERS: Mapping[str, Callable[[], Any]] = {
    "DDIM, linear": lambda: DDIMScheduler(clip_sample=False),
    "DDIM, scaled linear": lambda: DDIMScheduler(**SCALED, clip_sample=False, steps_offset=1),
    "DDIM, cosine": lambda: DDIMScheduler(beta_schedule="squaredcos_cap_v2", clip_sample=False),
    "flow matching": lambda: FlowMatchEulerDiscreteScheduler(shift=3.0),
    "Euler": lambda: EulerDiscreteScheduler(**SCALED, timestep_spacing="trailing"),
    "DPM-Solver++ Karras": lambda: DPMSolverMultistepScheduler(**SCALED, use_karras_sigmas=True),
    "UniPC": lambda: UniPCMultistepScheduler(**SCALED, timestep_spacing="trailing"),
}


@torch.inference_mode()
def drawn(mixture: Mixture, name: str, steps: int, evaluations: int | None = None, ahead: bool = False) -> Tensor:
    """Samples of so many steps.

    evaluations  how many of the steps are evaluated; None: all, without Tenuto
    ahead        whether the first evaluation may ask about a later noise level
    """
    scheduler = SCHEDULERS[name]()
    scheduler.set_timesteps(steps)
    nature = nature_of(scheduler)
    assert nature.levels is not None, f"the noise levels of {name} are known"
    levels = nature.levels
    x = mixture.noise * getattr(scheduler, "init_noise_sigma", 1.0)

    def network(x: Tensor, level: int) -> Tensor:
        (signal, noise), (p, q) = levels.mixed[level], levels.estimated[level]
        return (mixture.clean(x, signal, noise) - p * x) / q

    scheduler.is_scale_input_called = True  # the mixture is asked by its noise level, so no input needs a scale
    stepping, asked = None, 0
    if evaluations is not None:
        ahead = ahead and evaluations < MANY
        chosen = placed(steps, evaluations, levels.log_snr, ahead).tolist()
        asked = asked_ahead(chosen, levels.log_snr) if ahead else 0
        stepping = Stepping(scheduler, nature, chosen, 2, True, None, True, asked)
    for step, t in enumerate(scheduler.timesteps):

        def take(output: Tensor, sample: Tensor, t: Any = t) -> Any:
            return scheduler.step(output, t, sample, return_dict=False)

        if stepping is None:
            x = take(network(x, step), x)[0]
        elif chosen[step]:
            output = network(stepping.asked_with(step, x), step or asked)
            x = stepping.refresh(step, take, output, x)[0]
        else:
            x = stepping.hold(step, take, x)[0]
    return x
