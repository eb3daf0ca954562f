"""A denoiser without a network: the exact noise in samples of a mixture of two Gaussians, pixel by pixel.

Along the probability-flow ODE a pixel keeps its quantile, so the exact picture that a solver approaches is known.
"""

import math

import numpy as np
import torch
from torch import Tensor

from tenuto.models.architecture import NoiseLevels
from tenuto_lab.rivals.strong_solvers import Setting, course

CENTRES = (-0.6, 0.5)
SPREAD = 0.25
NOISE = NoiseLevels("scaled_linear", 0.00085, 0.012)


def table(noise: NoiseLevels = NOISE) -> np.ndarray:
    """σ/α at each trained timestep."""
    kept = course(noise, Setting("DDIM"), 1).scheduler.alphas_cumprod.double().numpy()
    return np.sqrt((1 - kept) / kept)


class MixtureDenoiser:
    """The exact noise at any time, counted. One centre instead of two makes it a Gaussian."""

    def __init__(self, centres: tuple[float, ...] = CENTRES, noise: NoiseLevels = NOISE) -> None:
        self.centres, self.noise, self.evaluations = centres, noise, 0
        self.times: list[float] = []
        self._log_sigmas = np.log(table(noise))

    def scale(self, time: float) -> tuple[float, float]:
        """α and σ at a time."""
        sigma = math.exp(np.interp(time, np.arange(len(self._log_sigmas)), self._log_sigmas))
        return 1 / math.sqrt(1 + sigma**2), sigma / math.sqrt(1 + sigma**2)

    def __call__(self, x: Tensor, time: float) -> Tensor:
        self.evaluations += 1
        self.times.append(time)
        alpha, sigma = self.scale(time)
        y, variance = x.double(), alpha**2 * SPREAD**2 + sigma**2
        offsets = torch.stack([y - alpha * centre for centre in self.centres])
        shares = torch.softmax(-offsets.square() / (2 * variance), dim=0)
        return (sigma * (shares * offsets).sum(dim=0) / variance).to(x.dtype)  # ε = −σ ∇ log p

    def exact(self, x: Tensor, time: float, until: float) -> Tensor:
        """The sample at another time on the same path of the ODE; `until` of −1 means without noise."""
        quantile = self._below(x.double(), *self.scale(time))
        alpha, sigma = (1.0, 0.0) if until < 0 else self.scale(until)
        low, high = torch.full_like(quantile, -8.0), torch.full_like(quantile, 8.0)
        for _ in range(80):
            middle = (low + high) / 2
            below = self._below(middle, alpha, sigma) < quantile
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2

    def _below(self, x: Tensor, alpha: float, sigma: float) -> Tensor:
        """The share of the distribution below x."""
        wide = math.sqrt(2 * (alpha**2 * SPREAD**2 + sigma**2))
        return torch.stack([0.5 * (1 + torch.erf((x - alpha * centre) / wide)) for centre in self.centres]).mean(dim=0)
