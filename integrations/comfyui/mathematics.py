"""Noise levels, placement and prediction: all of it is Tenuto's, brought to what ComfyUI calls sigmas."""

import math
from collections.abc import Sequence

from tenuto.runtime.prediction import extrapolation_weights


def levels_of(sigmas: Sequence[float], flow: bool) -> list[float]:
    """The log of the signal-to-noise ratio at each sigma. flow: x = (1 − σ)·x₀ + σ·noise, else x = x₀ + σ·noise."""
    return [_level(sigma, flow) for sigma in sigmas]


def _level(sigma: float, flow: bool) -> float:
    sigma = max(sigma, 1e-4)
    return math.log(max(1 - sigma, 1e-4) / sigma) if flow else -math.log(sigma)


def placed(levels: Sequence[float], evaluations: int) -> list[int]:
    """Which evaluations to compute."""
    last = len(levels) - 1
    return sorted({round(place * last / max(1, evaluations - 1)) for place in range(evaluations)})


def weights_at(nodes: Sequence[float], at: float, points: int = 4) -> tuple[list[int], list[float]]:
    """(which of the nodes are used, their weights)."""
    before = [place for place, node in enumerate(nodes) if node <= at]
    split = len(before)
    first = max(0, min(split - points // 2, len(nodes) - points)) if split < len(nodes) else max(0, len(nodes) - points)
    chosen = list(range(first, min(len(nodes), first + points)))
    return chosen, extrapolation_weights([nodes[place] for place in chosen], at)  # type: ignore[arg-type]
