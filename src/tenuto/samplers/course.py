"""What the sample that comes out owes to the output of each step: as one number a step, found by asking the solver.

Solvers without randomness add outputs up. Give one an output that is 1 at a single step and 0 at all others, and what
comes out is how much that step counts. Who has a course can make up at a later step for what an earlier one got wrong
(tenuto.extrapolation).

A solver that remembers outputs (of several steps: DPM-Solver++, UniPC, PNDM) has none: it would take what is made up
for the next step's, too, which was measured to do more harm than good.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

Course = tuple[float, ...]  # one number for each step
LIMITS = ("clip_sample", "thresholding")  # settings with which an output is not simply added
TOLERANCE = 1e-3  # of what all outputs together give, from the sum of what each gives


def course_of(solver: Any, timesteps: Sequence[Any] | Tensor | None = None) -> Course | None:
    """The course of a diffusers scheduler over its timesteps, or over those given.

    None where outputs do not simply add up, for they are clipped, joined by random numbers, or remembered. The
    scheduler is left as it is, and so are torch's random numbers; of the device that its timesteps lie on, nothing is
    asked but those.
    """
    if any(getattr(solver, "config", {}).get(limit) for limit in LIMITS):
        return None
    try:
        with torch.random.fork_rng(devices=[]):
            return _asked(solver, timesteps)
    except Exception:  # a solver may be anything, and one that asks for more is not one of these
        return None


def _asked(solver: Any, timesteps: Sequence[Any] | Tensor | None) -> Course | None:
    probe = deepcopy(solver)
    for name, value in vars(probe).items():
        if isinstance(value, Tensor):
            setattr(probe, name, value.cpu())
    probe.is_scale_input_called = True  # or some complain that their input was not scaled
    times = torch.as_tensor(probe.timesteps if timesteps is None else timesteps).cpu()
    steps = len(times)
    outputs = torch.cat([torch.eye(steps), torch.ones(1, steps)])  # [each by itself and all of them, step]
    sample = torch.zeros(steps + 1, 1, 1, 1)
    for step, (time, output) in enumerate(zip(times, outputs.T, strict=True)):
        before = sample
        # Of the class, for the scheduler's own may have been wrapped by whoever watches it.
        sample = type(probe).step(probe, output.view(-1, 1, 1, 1), time, sample, return_dict=False)[0]
        if not _alike(before[:step], sample[:step]):
            return None
    *each, together = sample.flatten().double().tolist()
    adds_up = abs(sum(each) - together) <= TOLERANCE * max(map(abs, each), default=0.0)
    one_way = all(count > 0 for count in each) or all(count < 0 for count in each)
    return tuple(each) if adds_up and one_way else None


def _alike(before: Tensor, after: Tensor) -> bool:
    """Whether all of them, which were given no output now, became the same multiple of what they were."""
    if len(before) < 2:
        return True
    return torch.allclose(after * before[-1], after[-1] * before, rtol=TOLERANCE, atol=0)
