"""Every deterministic scheduler of the installed diffusers that can step a plain sample: corrected, or the reason."""

import inspect
import re
from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor, nn

import tenuto
from tenuto.runtime.levels import Nature, nature_of

STEPS, EVALUATIONS = 30, 12
WHY = "evaluates twice at one noise level|the noise levels of .* are not known"


class Ideal(nn.Module):
    """The best denoiser of pixels that are −½ or ½, about: smooth, so that a correction knows better."""

    def __init__(self, nature: Nature) -> None:
        super().__init__()
        self.levels = nature.levels

    def forward(self, sample: Tensor, step: int) -> Tensor:
        if self.levels is None:
            return torch.tanh(sample)
        (a, s), (p, q) = self.levels.mixed[step], self.levels.estimated[step]
        clean = 0.5 * torch.tanh(0.5 * a * sample / (s * s + 0.2 * a * a))
        return (clean - p * sample) / q


def deterministic() -> dict[str, Any]:
    found = {}
    for name in dir(diffusers):
        kind = getattr(diffusers, name)
        if not name.endswith("Scheduler") or not inspect.isclass(kind):
            continue
        try:
            scheduler = made(kind)
            sample = torch.zeros(1, 1, 2, 2)
            scheduler.step(sample, scheduler.timesteps[0], sample)
        except Exception:  # it needs arguments, a library that is not here, or more than an output and a sample
            continue
        if not nature_of(made(kind)).adds_noise:
            found[name] = kind
    return found


def made(kind: Any) -> Any:
    scheduler = kind()
    scheduler.set_timesteps(STEPS)
    return scheduler


def drawn(kind: Any, **asked: Any) -> tuple[Tensor, Any]:
    scheduler = made(kind)
    nature = nature_of(scheduler)
    network = Ideal(nature)
    first = (0.0, 1.0) if nature.levels is None else nature.levels.mixed[0]
    x = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * sum(one * one for one in first) ** 0.5
    scheduler.is_scale_input_called = True
    with torch.no_grad(), tenuto.running(network, scheduler, **asked) as run:
        for step, time in enumerate(scheduler.timesteps):
            x = scheduler.step(network(x, step), time, x, return_dict=False)[0]
    return x, tenuto.summary(run)


FOUND = deterministic()


def test_the_schedulers_that_people_use_are_among_those_that_are_tried() -> None:
    names = "DDIM EulerDiscrete DPMSolverMultistep UniPCMultistep DEISMultistep PNDM LMSDiscrete FlowMatchEulerDiscrete"
    assert {f"{name}Scheduler" for name in [*names.split(), "HeunDiscrete", "KDPM2Discrete", "IPNDM"]} <= set(FOUND)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FOUND)
def test_every_scheduler_is_corrected_without_harm_or_it_is_said_why_it_is_not(name: str) -> None:
    full, _ = drawn(FOUND[name], budget=1.0)
    (right, told), (raw, _) = (drawn(FOUND[name], evaluations=EVALUATIONS, correction=one) for one in (True, False))
    assert told.computed == EVALUATIONS
    if not told.corrected:
        assert told.uncorrected_because and re.search(WHY, told.uncorrected_because)
        return
    near, far = ((one - full).square().mean() for one in (right, raw))
    assert near < 1.3 * far  # with DPM-Solver++ singlestep, uncorrected predictions are a little nearer
