"""A loop that takes only some timesteps of its scheduler is given the noise levels of these, or is refused."""

from typing import Any

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DiffusionPipeline,
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    PNDMScheduler,
)
from torch import Tensor

import tenuto
from tenuto.errors import UsageError
from tenuto.pipelines.timesteps import place_of
from tests.helpers.denoisers import inputs, make
from tests.helpers.pipelines import BETAS, QUIET, draw, tiny
from tests.pipelines.test_running import Small, ddim

pytestmark = QUIET


@torch.no_grad()
def over(network: Any, scheduler: Any, timesteps: Any) -> Tensor:
    x = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    for t in timesteps:
        x = scheduler.step(network(x, t), t, x).prev_sample
    return x


def levels_of(run: Any) -> list[tuple[float, float]]:
    return [(round(a, 4), round(s, 4)) for a, s in run.last.nature.levels.mixed]


@pytest.mark.parametrize("kind", [DDIMScheduler, DPMSolverMultistepScheduler])
@pytest.mark.parametrize(("first", "last"), [(0, 15), (5, 20), (9, 24)])
@pytest.mark.parametrize("told", [True, False])
def test_a_part_of_the_timesteps_has_its_own_noise_levels(kind: Any, first: int, last: int, told: bool) -> None:
    network, scheduler = Small(), kind(**BETAS, **({"clip_sample": False} if kind is DDIMScheduler else {}))
    scheduler.set_timesteps(24)
    with tenuto.running(network, scheduler, evaluations=24) as run:
        over(network, scheduler, scheduler.timesteps)
        every = levels_of(run)
    scheduler.set_timesteps(24)
    full = over(network, scheduler, scheduler.timesteps[first:last])
    scheduler.set_timesteps(24)
    with tenuto.running(network, scheduler, steps=last - first if told else None, evaluations=10) as run:
        held = over(network, scheduler, scheduler.timesteps[first:last])
        summary = tenuto.summary(run)
    assert levels_of(run)[: last - first] == every[first:last]
    assert summary.corrected and 0 < float((held - full).abs().max()) < 0.05 * float(full.abs().max())
    if told:
        assert (summary.steps, summary.computed) == (15, 10)


def test_a_loop_that_takes_more_steps_than_it_was_said_to_is_refused() -> None:
    network, scheduler = Small(), ddim(50)
    for options in ({"budget": 0.25}, {"every": 4, "predict": "constant"}):
        with (
            tenuto.running(network, scheduler, steps=30, **options),
            pytest.raises(UsageError, match="goes on after the 30 steps .* has 50 timesteps. Leave steps out"),
        ):
            over(network, scheduler, scheduler.timesteps)
    known, text = make("sd1"), inputs("sd1", batch=1)["encoder_hidden_states"]
    with (
        tenuto.running(known, scheduler, steps=30, every=4, keep="branch"),
        pytest.raises(UsageError, match="goes on after the 30 steps"),
    ):
        over(lambda x, t: known(x, t, encoder_hidden_states=text).sample, scheduler, scheduler.timesteps)
    with tenuto.running(network, scheduler, steps=25), pytest.raises(UsageError, match="goes on after the 25 steps"):
        over(network, scheduler, scheduler.timesteps)
    with tenuto.running(network, scheduler, steps=25, evaluations=8) as run:  # but the same part may come again
        first = over(network, scheduler, scheduler.timesteps[:25])
        network.calls = 0
        assert torch.equal(over(network, scheduler, scheduler.timesteps[:25]), first)
        assert network.calls == 8 == tenuto.summary(run).computed
    full = over(network, scheduler, scheduler.timesteps)
    with tenuto.running(network, scheduler, steps=30, budget=1.0):  # and nothing is wrong if nothing is held
        assert torch.equal(over(network, scheduler, scheduler.timesteps), full)


@pytest.mark.parametrize("chosen", [slice(None, None, 2), slice(None, None, -1)])
def test_a_loop_that_leaves_timesteps_out_or_goes_back_is_refused_or_computed_in_full(chosen: slice) -> None:
    network, scheduler = Small(), ddim(48)
    taken = list(scheduler.timesteps)[chosen]
    with tenuto.running(network, scheduler), pytest.raises(UsageError, match="number .* where number .* should follow"):
        over(network, scheduler, taken)
    full = over(network, scheduler, taken)
    with tenuto.running(network, scheduler, budget=1.0):
        assert torch.equal(over(network, scheduler, taken), full)


def test_a_loop_that_was_left_early_is_not_mistaken_for_the_next_one() -> None:
    """Without new timesteps nobody can know that a generation begins until the scheduler is stepped."""
    network, scheduler = Small(), ddim(50)
    with tenuto.running(network, scheduler, budget=0.25):
        over(network, scheduler, scheduler.timesteps[:7])
        with pytest.raises(UsageError, match="Call set_timesteps before every generation"):
            over(network, scheduler, scheduler.timesteps)
        scheduler.set_timesteps(50)
        first = over(network, scheduler, scheduler.timesteps)
    with tenuto.running(network, scheduler, budget=0.25):
        assert torch.equal(over(network, scheduler, scheduler.timesteps), first)


@pytest.mark.parametrize("scheduler", [DDIMScheduler(**BETAS, clip_sample=False), PNDMScheduler(**BETAS)])
def test_a_pipeline_that_stops_early_has_the_levels_of_its_first_timesteps(scheduler: Any) -> None:
    """These schedulers have no begin index, so the pipeline does not say which of the timesteps it leaves out."""
    pipe: DiffusionPipeline = tiny("sdxl")
    pipe.scheduler = scheduler
    options: dict[str, Any] = {"denoising_end": 0.5, "output_type": "latent", "steps": 50}
    full = draw(pipe, "sdxl", **options)
    with tenuto.accelerated(pipe, 1.0):
        assert torch.equal(draw(pipe, "sdxl", **options), full)
    with tenuto.accelerated(pipe, evaluations=12):
        held = draw(pipe, "sdxl", **options)
        assert tenuto.summary(pipe).corrected and tenuto.summary(pipe).computed == 12
        signal, noise = pipe._tenuto.last.nature.levels.mixed[0]
    assert noise > 10 * signal  # the beginning is noise
    assert float((held - full).abs().max()) < 0.02 * float(full.abs().max())
    assert torch.equal(draw(pipe, "sdxl", **options), full)


def test_a_timestep_is_found_by_its_memory_or_its_value() -> None:
    flow = FlowMatchEulerDiscreteScheduler()
    flow.set_timesteps(10)
    times = flow.timesteps
    assert place_of(times[4], flow, 0) == 4 == place_of(times[2:][2].expand(3), flow, 0)
    assert place_of(float(times[4]), flow, 0) == 4 == place_of(times[4].clone()[None], flow, 0)
    assert place_of(-1.0, flow, 0) is None and place_of(times[:3], flow, 0) is None
    flow.timesteps = times.to("meta")  # of which no value can be read, as on a GPU none is
    assert place_of(flow.timesteps[4], flow, 0) == 4 and place_of(times[4], flow, 0) is None
    pndm = PNDMScheduler(skip_prk_steps=True)
    pndm.set_timesteps(10)
    assert int(pndm.timesteps[1]) == int(pndm.timesteps[2])
    assert place_of(int(pndm.timesteps[1]), pndm, 2) == 2 and place_of(int(pndm.timesteps[1]), pndm, 5) == 1
