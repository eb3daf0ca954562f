"""Made-up pictures whose exact denoiser is a formula: a mixture of Gaussians with the spectrum of natural pictures.

A picture is a vector of Fourier amplitudes. The variance of an amplitude falls with its frequency, as it does in
natural pictures. Each class has several kinds of picture, and the pictures of one kind vary around their mean. The
expected clean picture, given a noisy one, is an average over all kinds, weighted by how likely each kind is. So the
denoiser decides for a kind as the noise falls, like a network that decides for a composition, and guidance drives it
towards its class.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SIDE = 32  # frequencies in each direction
LUMINANCE = 0.75  # mean variance of an amplitude: that of three equal channels of variance 0.25
CHANNELS = 3  # over which an error is spread
LONGEST = 0.7  # the frequency that stands for the mean of a picture


@dataclass(frozen=True)
class World:
    """A kind of made-up pictures."""

    within: float = 0.6  # the share of the variance that is between pictures of one kind
    power: float = 2.0  # the variance of an amplitude falls with this power of its frequency
    classes_differ: float = 0.6  # the share of a kind's mean, in standard deviations, that it has from its class
    classes: int = 10
    kinds: int = 3  # of each class


WORLDS = (World(), World(0.3, 2.0, 0.5), World(0.8, 2.3, 0.7), World(0.5, 1.8, 0.4))


class Mixture:
    """The exact denoiser of one batch of requests, one class after another."""

    def __init__(self, world: World, guidance: float, samples: int = 4, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        along = torch.arange(SIDE, dtype=torch.float32)
        frequency = (along[:, None] ** 2 + along**2).sqrt().clamp(min=LONGEST).flatten()
        variance = frequency**-world.power
        variance *= LUMINANCE / variance.mean()
        size, share = len(variance), world.classes_differ
        ours = torch.randn(world.classes, 1, size, generator=generator)
        own = torch.randn(world.classes, world.kinds, size, generator=generator)
        scale = (variance * (1 - world.within)).sqrt()
        self._means = ((share * ours + math.sqrt(1 - share**2) * own) * scale).flatten(0, 1)  # [kind, amplitude]
        self._variance = variance * world.within
        belongs = torch.arange(world.classes).repeat_interleave(world.kinds)
        wanted = torch.arange(samples)[:, None] % world.classes
        self._excluded = torch.where(belongs == wanted, 0.0, -torch.inf)  # [sample, kind]
        self._guidance = guidance
        self.noise = torch.randn(samples, size, generator=generator)

    def clean(self, x: Tensor, signal: float, noise: float) -> Tensor:
        """The guided expectation of the clean picture, given x = signal · clean + noise · ε; [sample, amplitude]."""
        spread = signal**2 * self._variance + noise**2
        likely = -0.5 * ((x[:, None] - signal * self._means).square() @ (1 / spread))  # [sample, kind]
        gain = signal * self._variance / spread
        rest = self._means * (1 - signal * gain)

        def expected(likely: Tensor) -> Tensor:
            return gain * x + likely.softmax(-1) @ rest

        conditional = expected(likely + self._excluded)
        if self._guidance == 1:
            return conditional
        empty = expected(likely)
        return empty + self._guidance * (conditional - empty)


def nearness(x: Tensor, goal: Tensor) -> float:
    """Mean dB of pictures between -1 and 1; at most 100."""
    error = (x - goal).double().square().mean(-1) / CHANNELS
    return float((10 * torch.log10(4 / error)).clamp(max=100).mean())
