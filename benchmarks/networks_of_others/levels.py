"""Noise levels that networks were trained with, as the betas that diffusers' schedulers take; the least noisy first."""

import numpy as np
from numpy.typing import NDArray

VP_LEVELS = 1000  # as many levels as a continuous process is cut into


def cosine_betas(levels: int, offset: float = 0.008) -> tuple[float, ...]:
    """Nichol and Dhariwal's cosine levels, with the bounds that the faces were trained with."""
    at = np.cos((np.linspace(0, 1, levels + 1) + offset) / (1 + offset) * np.pi / 2) ** 2
    return tuple(np.clip(1 - at[1:] / at[:-1], 1e-4, 0.9999).tolist())


def vp_betas(least: float = 0.1, most: float = 20.0) -> tuple[float, ...]:
    """Song's variance-preserving process at the times 1/1000, 2/1000, …, 1: αbar(t) = exp(−t β₀ − t² (β₁ − β₀) / 2)."""
    t = np.arange(1, VP_LEVELS + 1) / VP_LEVELS
    return betas_of(np.exp(-t * least - t**2 * (most - least) / 2))


def betas_of(alpha_bar: NDArray[np.float64]) -> tuple[float, ...]:
    """From the products of 1 − β."""
    return tuple((1 - alpha_bar / np.concatenate([[1.0], alpha_bar[:-1]])).tolist())
