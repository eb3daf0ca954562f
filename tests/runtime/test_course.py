"""A sampler's course: what each step counts, asked of the solver itself, or why outputs do not simply add up."""

import re

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    HeunDiscreteScheduler,
    PNDMScheduler,
    UniPCMultistepScheduler,
)

from tenuto.runtime.course import course_of


def solver(kind, steps=10, **config):
    made = kind(**config)
    made.set_timesteps(steps)
    return made


def test_ddim_adds_as_much_noise_as_there_is_less_of_it():
    ddim = solver(DDIMScheduler, clip_sample=False)
    kept = torch.cat([ddim.alphas_cumprod[ddim.timesteps], torch.ones(1)]).double()
    levels = ((1 - kept) / kept).sqrt()
    assert course_of(ddim).weights == pytest.approx(levels.diff().tolist(), rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (DDIMScheduler, {"clip_sample": False, "prediction_type": "v_prediction"}),
        (EulerDiscreteScheduler, {}),
        (EulerDiscreteScheduler, {"prediction_type": "v_prediction"}),
        (FlowMatchEulerDiscreteScheduler, {"shift": 3.0}),
    ],
)
def test_a_course_tells_what_comes_out_of_any_outputs(kind, config):
    asked, generator = solver(kind, **config), torch.Generator().manual_seed(0)
    course = course_of(asked).weights
    outputs = torch.randn(10, 1, 1, 1, 5, generator=generator)
    sample = torch.zeros(1, 1, 1, 5)
    for time, output in zip(asked.timesteps, outputs, strict=True):
        sample = asked.step(output, time, sample, return_dict=False)[0]
    expected = (torch.tensor(course).view(-1, 1, 1, 1, 1) * outputs).sum(dim=0)
    torch.testing.assert_close(sample, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (DDIMScheduler, "DDIMScheduler clips its estimate of the sample"),  # by default
        (DDPMScheduler, "DDPMScheduler clips"),
        (DPMSolverMultistepScheduler, "DPMSolverMultistepScheduler remembers"),
        (EulerAncestralDiscreteScheduler, "EulerAncestralDiscreteScheduler remembers .* or adds random numbers"),
        (HeunDiscreteScheduler, "HeunDiscreteScheduler"),
        (PNDMScheduler, "PNDMScheduler"),
        (UniPCMultistepScheduler, "UniPCMultistepScheduler remembers"),
    ],
)
def test_clipped_random_and_remembered_outputs_have_no_course_and_say_why(kind, why):
    before = torch.get_rng_state()
    course = course_of(solver(kind))
    assert course.weights is None and re.match(why, course.why_not)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_solver_is_left_as_it_is():
    asked, fresh = (solver(EulerDiscreteScheduler) for _ in range(2))
    course_of(asked)
    x, output = torch.randn(1, 1, 2, 2), torch.randn(1, 1, 2, 2)
    for time in fresh.timesteps:
        one, other = (each.step(output, time, x, return_dict=False)[0] for each in (asked, fresh))
        assert torch.equal(one, other)


def test_the_last_steps_of_a_loop_that_leaves_out_the_first():
    whole = course_of(solver(DDIMScheduler, clip_sample=False)).weights
    part = solver(DDIMScheduler, clip_sample=False)
    assert course_of(part, part.timesteps[-4:]).weights == pytest.approx(whole[-4:], rel=1e-4)
