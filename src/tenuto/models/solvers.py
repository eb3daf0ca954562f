"""The solvers that our own sampler offers: diffusers' schedulers with the noise levels a model was trained with."""

from functools import lru_cache
from typing import Any, Literal

from tenuto.errors import UsageError
from tenuto.models.architecture import NoiseLevels
from tenuto.runtime.levels import Nature, nature_of

Solver = Literal["ddim", "dpm++"]


def solver_for(noise: NoiseLevels, steps: int, solver: Solver = "ddim") -> Any:
    """The scheduler, with its timesteps set. For a flow, Euler's method stands in for DDIM."""
    if noise.flow:
        return _euler(noise, steps, solver)
    from diffusers import DDIMScheduler, DPMSolverMultistepScheduler

    levels = {
        "num_train_timesteps": noise.timesteps,
        "beta_start": noise.start,
        "beta_end": noise.end,
        "beta_schedule": noise.schedule,
    }
    made = (
        DDIMScheduler(**levels, clip_sample=False, steps_offset=noise.offset, set_alpha_to_one=noise.ends_clean)
        if solver == "ddim"
        else DPMSolverMultistepScheduler(**levels, algorithm_type="dpmsolver++", solver_order=2)
    )
    made.set_timesteps(steps)
    timesteps = [int(t) for t in made.timesteps]
    # If steps do not divide the timesteps evenly, diffusers may begin far below pure noise or repeat a timestep.
    begins_early = timesteps[0] < 0.8 * noise.timesteps * (steps > 5)
    if len(set(timesteps)) < len(timesteps) or begins_early or timesteps[0] >= noise.timesteps:
        raise UsageError(
            f"{steps} steps of {solver} would begin at timestep {timesteps[0]} of {noise.timesteps} "
            "or repeat some; take a number of steps that divides the timesteps, such as 50, 100, 250 or 500."
        )
    return made


def _euler(noise: NoiseLevels, steps: int, solver: Solver) -> Any:
    """A flow in even steps from all noise to none."""
    import numpy as np
    from diffusers import FlowMatchEulerDiscreteScheduler

    if solver != "ddim":
        raise UsageError(f"This network predicts a flow, which is drawn by Euler's method; leave out {solver}.")
    made = FlowMatchEulerDiscreteScheduler(num_train_timesteps=noise.timesteps, shift=1.0)
    made.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps))
    return made


@lru_cache(maxsize=64)
def nature_for(noise: NoiseLevels, steps: int, solver: Solver = "ddim") -> Nature:
    """What is known of a solver before it runs: its noise levels."""
    return nature_of(solver_for(noise, steps, solver))
