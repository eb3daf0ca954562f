"""Dynamic mode decomposition of the outputs: a sum of exponentials instead of a polynomial.

HiCache++ (github.com/Archerkattri/hicache-plus-plus, hicache_pp/dmd.py; the same is a calibrator of cache-dit 1.5).
The propagator A of the last outputs (F_{n+1} ≈ A F_n) is found by a truncated SVD, and F_{n+k} = Φ λᵏ b, where k
may be a fraction.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tenuto_lab.rivals.predictors import Known, Target, computed, hermite

WINDOW = 5  # evaluated outputs at most
LEAST = 4  # evaluated outputs that a fit needs; with fewer, HiCache's polynomial predicts
CUT = 1e-4  # singular values below this share of the largest are left out
RIDGE = 1e-8


def dmd(history: Sequence[Known], target: Target, order: int = 2) -> Tensor:
    """Predict every sample of the batch from its own last outputs, at even distances, by their modes.

    order  of HiCache's polynomial, which predicts while there are too few outputs at even distances
    """
    last = evenly_spaced(computed(history))[-WINDOW:]
    if len(last) < LEAST:
        return hermite(history, target, order)
    ahead = (target.step - last[-1].step) / (last[-1].step - last[-2].step)
    outputs = torch.stack([one.output.flatten(1).double() for one in last], dim=1)  # [B, n, d]
    weights = torch.stack([mode_weights(gram, ahead) for gram in (outputs @ outputs.mT).cpu()])
    predicted = torch.einsum("bn,bnd->bd", weights.to(outputs.device), outputs)
    return predicted.view_as(last[-1].output).to(last[-1].output.dtype)


def evenly_spaced(known: Sequence[Known]) -> list[Known]:
    """The longest run of evaluated steps at even distances that ends at the last one."""
    steps = [one.step for one in known]
    start = len(known) - 1
    while start > 0 and steps[start] - steps[start - 1] == steps[-1] - steps[-2]:
        start -= 1
    return list(known[start:])


def mode_weights(gram: Tensor, ahead: float) -> Tensor:
    """Weights of the n outputs in the prediction `ahead` distances behind the last, from their inner products [n, n].

    Rotating all outputs changes no weight, so the square root of their inner products stands for them. If the fit is
    degenerate, the last output is repeated.
    """
    held = torch.zeros(len(gram), dtype=torch.float64)
    held[-1] = 1
    values, vectors = torch.linalg.eigh(gram.double())
    snapshots = values.clamp_min(0).sqrt()[:, None] * vectors.mT  # [n, n]: one output a column
    before, after = snapshots[:, :-1], snapshots[:, 1:]
    u, s, vh = torch.linalg.svd(before, full_matrices=False)
    if not bool(s[0] > 0):
        return held
    rank = int((s > s[0] * CUT).sum())
    u, s, v = u[:, :rank], s[:rank] + RIDGE, vh[:rank].mT
    back = v / s  # coordinates in the modes' basis -> weights of the outputs `after`
    poles, eigenvectors = torch.linalg.eig(u.mT @ after @ back)
    to_weights = back.to(eigenvectors.dtype) @ eigenvectors
    modes = after.to(eigenvectors.dtype) @ to_weights
    amplitudes = torch.linalg.lstsq(modes, snapshots[:, -1:].to(modes.dtype)).solution[:, 0]
    weights = torch.cat([held.new_zeros(1), (to_weights @ (poles.pow(ahead) * amplitudes)).real])
    return weights if bool(torch.isfinite(weights).all()) else held
