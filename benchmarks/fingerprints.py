"""Whether two runs drew the same samples: by what they were drawn from, and by what was drawn."""

import hashlib
import inspect
from collections.abc import Iterable, Sequence
from types import ModuleType

import torch
from torch import Tensor

DIRECTIONS = 4  # a sample's fingerprint: its products with so many fixed random directions
SAME = 0.01  # largest difference, in units of the spread of random products: rounding stays far below it


def digest(*tensors: Tensor) -> str:
    """Of the exact values; for what a run begins with: weights, noise, conditions."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def digest_of_code(*modules: ModuleType) -> str:
    return hashlib.sha256("".join(inspect.getsource(module) for module in modules).encode()).hexdigest()[:16]


def fingerprint(samples: Tensor) -> list[list[float]]:
    """A few numbers for each sample that another device or version changes by rounding alone."""
    flat = samples.detach().double().cpu().flatten(1)
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(flat.shape[1], DIRECTIONS, generator=generator, dtype=torch.float64)
    return [[round(value, 5) for value in row] for row in (flat @ directions / flat.shape[1] ** 0.5).tolist()]


def same(found: Sequence[Sequence[float]], before: Sequence[Sequence[float]], tolerance: float = SAME) -> bool:
    """Whether two fingerprints are those of the same samples, drawn with other rounding at most.

    A difference d of the samples changes each number by about its root mean square. So a tolerance of 0.01 allows
    samples in [-1, 1] that are 46 dB apart and refuses those that are 40 dB apart.
    """
    return len(found) == len(before) and _distance(found, before) <= tolerance


def _distance(found: Iterable[Sequence[float]], before: Iterable[Sequence[float]]) -> float:
    a, b = torch.tensor([*found], dtype=torch.float64), torch.tensor([*before], dtype=torch.float64)
    return float((a - b).square().mean().sqrt()) if a.shape == b.shape else float("inf")
