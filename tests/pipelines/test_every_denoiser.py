"""Every denoiser class of the installed diffusers, held in a plain loop; and the main schedulers."""

import warnings
from typing import Any

import diffusers
import pytest
import torch

import tenuto
from tests.helpers.every_denoiser import KNOWN, Loop, denoiser_names

STEPS, EVALUATIONS = 12, 5
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
    assert sorted(denoiser_names()) == sorted({*KNOWN, *NOT_BUILT})
