"""What the singular values of a weight matrix show: how much energy the matrix has, and how concentrated the energy is.

Energies σ² are the eigenvalues of the smaller Gram matrix. Everything is accumulated in float64. With every input
precision, rounding then stays far below the regulariser η, and the cost is less than that of a float32 SVD.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tenuto.errors import CheckpointError

ETA = 1e-6  # η of SCR_η
K_RULE = "min(d, max(1, floor(0.1 d)))"

_SLAB = 2048  # rows or columns converted to float64 at a time, to bound the memory


@dataclass(frozen=True)
class Spectrum:
    """The statistics of one matrix W ∈ R^{m×n} with singular values σ_1 ≥ … ≥ σ_d, d = min(m, n)."""

    shape: tuple[int, int]
    k: int  # size of the leading band
    frobenius: float  # ‖W‖_F
    spectral_norm: float  # ‖W‖_2 = σ_1
    stable_rank: float  # ‖W‖_F² / ‖W‖_2²
    scr: float  # SCR_η(W)
    rho: float  # ρ(SCR_η(W)), the share of energy in the leading band
    g: float  # g(W) = ‖W‖_F √ρ


def leading_band(d: int) -> int:
    """k = min(d, max(1, ⌊0.1 d⌋))."""
    return min(d, max(1, d // 10))


def unfold(weight: Tensor) -> Tensor:
    """A matrix stays as it is; a convolution kernel C_out × C_in × k_h × k_w (or 1-D, 3-D) becomes C_out × rest."""
    if weight.dim() < 2:
        raise ValueError(f"a matrix or a convolution kernel is needed, not a tensor of shape {tuple(weight.shape)}")
    return weight.flatten(1)


def spectrum(weight: Tensor, eta: float = ETA, name: str = "tensor") -> Spectrum:
    """All statistics of one weight, computed on the weight's device. Errors call the weight `name`.

    A zero matrix has no energy to concentrate. By convention SCR is 0 and ρ is ½; norms, stable rank and g are 0.
    """
    matrix = unfold(weight)
    sigma2, exponent = _scaled_energies(matrix, name)
    shape, k = (matrix.shape[0], matrix.shape[1]), leading_band(len(sigma2))
    total, leading, tail = (float(part.sum()) for part in (sigma2, sigma2[:k], sigma2[k:]))
    if total == 0:
        return Spectrum(shape, k, frobenius=0.0, spectral_norm=0.0, stable_rank=0.0, scr=0.0, rho=0.5, g=0.0)
    scr = math.log((leading + eta * total) / (tail + eta * total))  # SCR_η(W), total = ‖W‖_F²
    rho = 1 / (1 + math.exp(-scr))  # ρ(u) = e^u / (1 + e^u)
    frobenius = math.ldexp(math.sqrt(total), exponent)
    return Spectrum(
        shape,
        k,
        frobenius=frobenius,
        spectral_norm=math.ldexp(math.sqrt(float(sigma2[0])), exponent),
        stable_rank=total / float(sigma2[0]),
        scr=scr,
        rho=rho,
        g=frobenius * math.sqrt(rho),  # g(W) = ‖W‖_F √ρ
    )


def _scaled_energies(matrix: Tensor, name: str) -> tuple[Tensor, int]:
    """(σ² of W / 2^e, e), with e such that the largest entry of W / 2^e is near one.

    Without scaling, squares of 1e-200 or 1e200 would leave float64's range. Scaling by a power of two is exact.
    """
    matrix = matrix.detach()
    if not matrix.is_floating_point() or matrix.dtype.itemsize == 1:
        kind = str(matrix.dtype).removeprefix("torch.")
        raise CheckpointError(f"{name} holds {kind} numbers: quantised weights must be dequantised first.")
    if matrix.numel() == 0:
        raise CheckpointError(f"{name} is empty (shape {tuple(matrix.shape)}), so it has no spectrum.")
    if matrix.device.type == "mps":  # no float64 there
        matrix = matrix.cpu()
    largest = float(matrix.abs().amax())  # NaN and infinity both survive the maximum
    if not math.isfinite(largest):
        bad = int((~torch.isfinite(matrix)).sum())
        raise CheckpointError(
            f"{name} holds {bad} value(s) that are NaN or infinite: the checkpoint is damaged or its training diverged."
        )
    exponent = min(1000, max(-1000, math.frexp(largest)[1]))
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T  # d × n with d ≤ n
    gram = torch.zeros(len(wide), len(wide), dtype=torch.float64, device=matrix.device)
    for slab in wide.split(_SLAB, dim=1):
        slab = slab.to(torch.float64) * math.ldexp(1.0, -exponent)
        gram.addmm_(slab, slab.T)
    return torch.linalg.eigvalsh(gram).flip(0).clamp(min=0).cpu(), exponent
