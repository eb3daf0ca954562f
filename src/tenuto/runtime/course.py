"""The course of a solver: how much the output of each step counts in the final sample, one number for each step.

A solver without randomness adds outputs up. Give the solver an output that is 1 at a single step and 0 at all others:
the final sample is how much that step counts. With these numbers, a later step can correct the error of an earlier step
(tenuto.runtime.prediction).

A solver that remembers the outputs of several steps (DPM-Solver++, UniPC, PNDM) has no course: it would remember the
corrected output and apply the correction again at the next step. Measurements showed more harm than good.
"""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tenuto.errors import first_line
from tenuto.scheduling.schedule import Schedule

LIMITS = ("clip_sample", "thresholding")  # settings under which a solver does not simply add outputs
TOLERANCE = 1e-3  # relative, where two results must agree


@dataclass(frozen=True)
class Course:
    """How much the output of each step counts in the final sample; or why this is unknown."""

    weights: tuple[float, ...] | None  # one for each step
    why_not: str = ""

    def after(self, step: int) -> "Course":
        """The course of the steps from this one on."""
        return self if self.weights is None else Course(self.weights[step:])


class NoCourse(Exception):
    """Outputs do not simply add up."""


def course_of(solver: Any, timesteps: Sequence[Any] | Tensor | None = None) -> Course:
    """The course of a diffusers scheduler over its timesteps, or over those given.

    The scheduler and torch's random numbers stay as they are: a copy of the scheduler runs on the CPU.
    """
    name = type(solver).__name__
    for limit in LIMITS:
        if getattr(solver, "config", {}).get(limit):
            return Course(None, f"{name} clips its estimate of the sample ({limit})")
    try:
        with torch.random.fork_rng(devices=[]):
            return Course(_asked(solver, timesteps))
    except NoCourse as error:
        return Course(None, f"{name} {error}")
    except Exception as error:  # a solver may be of any class and may require anything
        return Course(None, f"{name} cannot be asked how it adds outputs up ({first_line(error)})")


def course_for(schedules: Iterable[Schedule | None], scheduler: Any, steps: int, first: int = 0) -> Course | None:
    """The course of `steps` steps of a scheduler, from timestep `first` on. None if no schedule needs it."""
    asked = any(one is not None and one.corrected and not one.active.all() for one in schedules)
    if not asked:
        return None
    timesteps = getattr(scheduler, "timesteps", None)
    if timesteps is None or len(timesteps) < first + steps:
        return Course(None, f"{type(scheduler).__name__} has fewer timesteps than the loop")
    return course_of(scheduler, timesteps[first : first + steps])


def adds_noise(solver: Any) -> bool:
    """Whether a scheduler's steps draw random numbers, so that two runs give different samples.

    The output of a network follows the sample, so it jumps from step to step with that noise and cannot be predicted.
    If a scheduler cannot be probed, it is assumed to add no noise.
    """
    try:
        (one, times), (other, _) = _probe(solver, None), _probe(solver, None)
        first, second = torch.zeros(2, 1, 1, 2, 2)
        with torch.random.fork_rng(devices=[]):
            for seed, time in enumerate(times):
                torch.manual_seed(2 * seed)
                first = type(one).step(one, torch.zeros_like(first), time, first, return_dict=False)[0]
                torch.manual_seed(2 * seed + 1)
                second = type(other).step(other, torch.zeros_like(second), time, second, return_dict=False)[0]
                if not torch.equal(first, second):
                    return True
    except Exception:  # a scheduler may require arguments that are not given here
        return False
    return False


def _probe(solver: Any, timesteps: Sequence[Any] | Tensor | None) -> tuple[Any, Tensor]:
    """A copy of a solver that runs on the CPU, and the timesteps to run it through."""
    probe = deepcopy(solver)
    for name, value in vars(probe).items():
        if isinstance(value, Tensor):
            setattr(probe, name, value.cpu())
    probe.is_scale_input_called = True  # otherwise some solvers warn that their input was not scaled
    return probe, torch.as_tensor(probe.timesteps if timesteps is None else timesteps).cpu()


def _asked(solver: Any, timesteps: Sequence[Any] | Tensor | None) -> tuple[float, ...]:
    probe, times = _probe(solver, timesteps)
    steps = len(times)
    outputs = torch.cat([torch.eye(steps), torch.ones(1, steps)])  # [each step's output alone, then all together; step]
    sample = torch.zeros(steps + 1, 1, 1, 1)
    for step, (time, output) in enumerate(zip(times, outputs.T, strict=True)):
        before = sample
        # The class's `step`, because an enabled pipeline wraps the `step` of the instance.
        sample = type(probe).step(probe, output.view(-1, 1, 1, 1), time, sample, return_dict=False)[0]
        if not _alike(before[:step], sample[:step]):
            raise NoCourse("remembers the outputs of earlier steps, or adds random numbers")
    *each, together = sample.flatten().double().tolist()
    if abs(sum(each) - together) > TOLERANCE * max(map(abs, each), default=0.0):
        raise NoCourse("does not add outputs up")
    if not (all(count > 0 for count in each) or all(count < 0 for count in each)):
        raise NoCourse("adds some outputs and subtracts others")
    return tuple(each)


def _alike(before: Tensor, after: Tensor) -> bool:
    """Whether this step, with an output of zero, multiplied all these samples by the same factor."""
    if len(before) < 2:
        return True
    return torch.allclose(after * before[-1], after[-1] * before, rtol=TOLERANCE, atol=0)
