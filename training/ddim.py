"""Noise and its removal, written out: so that the measure of a model does not rest on the package that will hold it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.models.architecture import NoiseLevels

# Draws pictures and their conditions (labels, captions) on the device.
Draw = Callable[[torch.Generator], tuple[Tensor, Tensor]]


def alphas_cumprod(noise: NoiseLevels) -> Tensor:
    """ᾱ of each timestep; "scaled_linear" means that β rises linearly in its square root."""
    power = {"linear": 1, "scaled_linear": 2}[noise.schedule]
    roots = torch.linspace(noise.start ** (1 / power), noise.end ** (1 / power), noise.timesteps, dtype=torch.float32)
    return torch.cumprod(1 - roots**power, dim=0)


def noised(x: Tensor, noise: Tensor, alpha: Tensor) -> Tensor:
    """√ᾱ x + √(1 − ᾱ) ε, with an ᾱ for each image."""
    alpha = alpha[:, None, None, None]
    return alpha.sqrt() * x + (1 - alpha).sqrt() * noise


def noised_batches(
    draw: Draw, levels: NoiseLevels, seed: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """(noised pictures, timesteps, conditions, noise) without end."""
    generator = torch.Generator(device).manual_seed(seed)
    alphas = alphas_cumprod(levels).to(device)
    while True:
        x, condition = draw(generator)
        t = torch.randint(len(alphas), (len(x),), generator=generator, device=device)
        noise = torch.randn(x.shape, generator=generator, device=device)
        yield noised(x, noise, alphas[t]), t, condition, noise


def noise_loss(stream: Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]) -> Callable[[Any], Tensor]:
    """What `loop.train` minimises: how far a network is from seeing the noise in the next batch."""

    def loss_of(forward: Any) -> Tensor:
        x, t, condition, noise = next(stream)
        return F.mse_loss(forward(x, t, condition).float(), noise)

    return loss_of


def chance(probability: float, like: Tensor, generator: torch.Generator) -> Tensor:
    """[len(like)], true with this probability."""
    return torch.rand(len(like), generator=generator, device=like.device) < probability


def initial_noise(shape: Sequence[int], seed: int, start: int, stop: int) -> Tensor:
    """Noise of the samples start..stop: each from its own seed, so that it does not depend on the batch."""
    return torch.stack(
        [torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed + i)) for i in range(start, stop)]
    )


def timesteps(steps: int, total: int, offset: int = 0) -> list[int]:
    """The "leading" spacing: 980, 960, … 0 for 50 steps of 1000, or `offset` above that."""
    if not 1 <= steps <= total - offset:
        raise UsageError(f"The model has {total} timesteps, so {steps} sampling steps cannot be taken.")
    return [i * (total // steps) + offset for i in reversed(range(steps))]


@torch.no_grad()
def ddim(
    predict: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    noise: Tensor,
    levels: NoiseLevels,
    steps: int,
    guidance: float,
) -> Tensor:
    """DDIM with η = 0 and classifier-free guidance; nothing is clipped.

    `predict(x, t)` gives the noise it sees with its condition, and without.
    """
    alphas = alphas_cumprod(levels).to(noise.device)
    end = torch.ones((), device=noise.device) if levels.ends_clean else alphas[0]
    x = noise
    for t in timesteps(steps, levels.timesteps, levels.offset):
        previous = t - levels.timesteps // steps
        alpha = alphas[t]
        alpha_previous = alphas[previous] if previous >= 0 else end
        conditional, unconditional = predict(x, torch.full((len(x),), t, device=noise.device))
        epsilon = unconditional + guidance * (conditional - unconditional)
        clean = (x - (1 - alpha).sqrt() * epsilon) / alpha.sqrt()
        x = alpha_previous.sqrt() * clean + (1 - alpha_previous).sqrt() * epsilon
    return x
