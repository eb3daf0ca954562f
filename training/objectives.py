"""The two things a latent DiT can be trained to predict, and how each is drawn from.

noise   x_t = √ᾱ x + √(1 − ᾱ) ε, the network predicts ε: DDPM with the architecture's own linear schedule, so that every
        sampler of the package runs the network. The loss is weighted by min(SNR, 5) / SNR (Hang et al., 2023): without
        it most of the gradient comes from nearly clean pictures, and training takes about three times as long.
flow    x_s = (1 − s) x + s ε, the network predicts the velocity ε − x at timestep 1000 s. s is drawn from a
        logit-normal distribution (Esser et al., 2024), which favours the middle, where the prediction is hardest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from tenuto.models.architecture import NoiseLevels
from tenuto.models.dit import ARCHITECTURE
from training.ddim import alphas_cumprod, ddim, noised

Name = Literal["noise", "flow"]
# (x, t) -> what the network predicts with its condition, and without
Predict = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
# (clean latents, generator) -> what the network is given, its timesteps, what it should predict, and weights [B]
Noising = Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor, Tensor, Tensor]]
SNR_LIMIT = 5.0


@dataclass(frozen=True)
class Objective:
    name: Name
    noising: Noising
    draw: Callable[[Predict, Tensor, int, float], Tensor]  # (predict, initial noise, steps, guidance) -> latents
    scheduler: dict[str, Any]  # its diffusers config


def levels() -> NoiseLevels:
    assert ARCHITECTURE.noise is not None
    return ARCHITECTURE.noise


def noise_objective(device: torch.device) -> Objective:
    alphas = alphas_cumprod(levels()).to(device)
    snr = alphas / (1 - alphas)
    weights = snr.clamp(max=SNR_LIMIT) / snr
    weights = weights / weights.mean()

    def noising(x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        t = torch.randint(len(alphas), (len(x),), generator=generator, device=x.device)
        noise = torch.randn(x.shape, generator=generator, device=x.device)
        return noised(x, noise, alphas[t]), t, noise, weights[t]

    def draw(predict: Predict, noise: Tensor, steps: int, guidance: float) -> Tensor:
        return ddim(predict, noise, levels(), steps, guidance)

    scheduler = {
        "_class_name": "DDIMScheduler",
        "num_train_timesteps": levels().timesteps,
        "beta_schedule": levels().schedule,
        "beta_start": levels().start,
        "beta_end": levels().end,
        "prediction_type": "epsilon",
        "timestep_spacing": "leading",
        "steps_offset": levels().offset,
        "set_alpha_to_one": levels().ends_clean,
        "clip_sample": False,
    }
    return Objective("noise", noising, draw, scheduler)


def flow_objective(device: torch.device) -> Objective:
    timesteps = levels().timesteps

    def noising(x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        s = torch.randn(len(x), generator=generator, device=x.device).sigmoid()
        noise = torch.randn(x.shape, generator=generator, device=x.device)
        share = s[:, None, None, None]
        return (1 - share) * x + share * noise, timesteps * s, noise - x, torch.ones_like(s)

    scheduler = {
        "_class_name": "FlowMatchEulerDiscreteScheduler",
        "num_train_timesteps": timesteps,
        "shift": 1.0,
        "prediction_type": "flow_prediction",  # so that samplers do not take it for noise
    }
    return Objective("flow", noising, euler, scheduler)


def objective(name: Name, device: torch.device) -> Objective:
    return {"noise": noise_objective, "flow": flow_objective}[name](device)


@torch.no_grad()
def euler(predict: Predict, noise: Tensor, steps: int, guidance: float) -> Tensor:
    """From s = 1 to 0 in equal steps, x ← x + Δs · v, with classifier-free guidance."""
    x, times = noise, torch.linspace(1, 0, steps + 1).tolist()
    for s, following in pairwise(times):
        t = torch.full((len(x),), levels().timesteps * s, device=x.device)
        conditional, unconditional = predict(x, t)
        x = x + (following - s) * (unconditional + guidance * (conditional - unconditional))
    return x


def weighted_loss(predicted: Tensor, wanted: Tensor, weights: Tensor) -> Tensor:
    return ((predicted.float() - wanted).square().flatten(1).mean(dim=1) * weights).mean()
