"""Every denoiser class of the installed diffusers, held in a plain loop; and the main schedulers."""

import warnings
from typing import Any

import diffusers
import pytest
import torch
from diffusers.utils import is_torchvision_available

import tenuto
from tests.helpers.every_denoiser import KNOWN, Loop, denoiser_names

STEPS, EVALUATIONS = 8, 4
NEAR = 0.25  # of the full result: these networks are random, and the steps few
NOT_BUILT = {  # what the loop of this test cannot run, and why
    "DreamLiteTransformer2DModel": "its pipeline uses the UNet; this class is only a part of that UNet",
    "MotionAdapter": "no denoiser: weights that AnimateDiff loads into a UNet",
    "RFD4ProteinaTransformer": "needs the features that its pipeline computes from a protein",
    "SanaWMLTX2RefinerTransformer3DModel": "needs the key-value cache that its pipeline fills",
    "WanAnimate2Transformer3DModel": "needs the key-value cache that its pipeline fills",
}
SCHEDULERS: dict[str, dict[str, Any]] = {
    "FlowMatchEulerDiscreteScheduler": {},
    "EulerDiscreteScheduler": {},
    "DDIMScheduler": {},
    "DPMSolverMultistepScheduler": {"use_karras_sigmas": True},
    "UniPCMultistepScheduler": {},
    "DEISMultistepScheduler": {},
    "PNDMScheduler": {"skip_prk_steps": True},
    "LMSDiscreteScheduler": {},
    "HeunDiscreteScheduler": {},
    "KDPM2DiscreteScheduler": {},
    "EDMEulerScheduler": {},
    "EDMDPMSolverMultistepScheduler": {},
    "DDPMScheduler": {},
    "EulerAncestralDiscreteScheduler": {},
    "LCMScheduler": {},
    "TCDScheduler": {},
}


NEED_TORCHVISION = ("CosmosTransformer3DModel",)


def flow() -> Any:
    return diffusers.FlowMatchEulerDiscreteScheduler()


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(before)


def test_every_denoiser_of_the_installed_diffusers_is_known_or_says_why_not():
    assert set(denoiser_names()) <= {*KNOWN, *NOT_BUILT}  # an older diffusers has fewer


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_denoiser_is_evaluated_where_it_should_be_and_then_is_as_it_was(name):
    if not hasattr(diffusers, name):
        pytest.skip(f"diffusers {diffusers.__version__} has no {name}")
    if name in NEED_TORCHVISION and not is_torchvision_available():
        pytest.skip("diffusers uses torchvision in it")
    loop = Loop(name, flow(), STEPS)
    full = loop.run()
    assert loop.calls == STEPS and full.isfinite().all()
    with tenuto.running(loop.network, loop.scheduler, evaluations=STEPS):
        assert torch.equal(loop.run(), full)
    with tenuto.running(loop.network, loop.scheduler, evaluations=EVALUATIONS) as running:
        held = loop.run()
        told = tenuto.summary(running)
    assert loop.calls == EVALUATIONS and held.isfinite().all()
    assert (told.computed, told.steps) == (EVALUATIONS, STEPS)
    assert (held - full).norm() <= NEAR * full.norm()
    assert torch.equal(loop.run(), full)


@pytest.mark.parametrize("name", ["FluxTransformer2DModel", "UNet2DConditionModel"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_scheduler_is_served_or_everything_is_computed_and_the_summary_says_why(scheduler, name):
    made = getattr(diffusers, scheduler)(**SCHEDULERS[scheduler])
    loop = Loop(name, made, STEPS)
    torch.manual_seed(4)
    full, evaluations = loop.run(), loop.calls
    torch.manual_seed(4)
    with tenuto.running(loop.network, made, evaluations=EVALUATIONS) as running:
        held = loop.run()
        told = tenuto.summary(running)
    assert held.isfinite().all()
    if told.in_full_because:
        assert loop.calls == evaluations and torch.equal(held, full)
        assert "noise" in told.in_full_because
    else:
        assert loop.calls == EVALUATIONS < evaluations  # how near it comes is measured on trained networks
