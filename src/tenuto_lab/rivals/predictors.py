"""How whole-output caches predict the network's output at a held step. Each formula is the published one.

A predictor sees every earlier step: its noise level, its sample, and its output, evaluated or predicted. All
predictors here but DMD are sums of outputs with weights that depend on the steps or on the noise levels only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb, factorial, inf
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tenuto.errors import UsageError


@dataclass(frozen=True)
class Target:
    """The step to predict: its noise level σ/α, its sample x = α x₀ + σ ε, and the number of steps of the whole run."""

    step: int
    sigma: float
    sample: Tensor
    steps: int


@dataclass(frozen=True)
class Known:
    """An earlier step, with the noise that was evaluated or predicted there."""

    step: int
    sigma: float
    sample: Tensor
    output: Tensor
    computed: bool = True


Predict = Callable[[Sequence[Known], Target], Tensor]


def zeus(history: Sequence[Known], target: Target) -> Tensor:
    """ZEUS (Wang et al. 2026, arXiv 2604.01552; github.com/Ting-Justin-Jiang/ZEUS, `psi` with `reuse_interp`).

    2 ψ_last − ψ_before at the first, third, … held step, and ψ_last itself at the second, fourth, …. As in the
    published code, the difference of the last two evaluated outputs is not scaled by the distance of their steps.
    """
    *_, before, last = [None, *computed(history)]
    if before is None or last is None or (target.step - last.step) % 2 == 0:
        return computed(history)[-1].output
    return 2 * last.output - before.output


def fsampler(
    history: Sequence[Known], target: Target, points: int = 3, quantity: Literal["noise", "clean"] = "noise"
) -> Tensor:
    """FSampler (Vladimir 2025, arXiv 2511.09180; github.com/obisin/ComfyUI-FSampler), sigma-aware h2, h3 and h4.

    The Lagrange polynomial in σ through the last 2, 3 or 4 evaluated steps, fewer while there are fewer. What is
    extrapolated is k-diffusion's `denoised − x` = −σ ε, or with `quantity="clean"` the denoised sample itself.
    """
    last = computed(history)[-points:]
    weights = lagrange([one.sigma for one in last], target.sigma)
    if quantity == "noise":
        total = combined([w * one.sigma for w, one in zip(weights, last, strict=True)], [one.output for one in last])
        return total / target.sigma
    clean = combined(weights, [_exploding(one) - one.sigma * one.output for one in last])
    return (_exploding(target) - clean) / target.sigma


def ab_cache(
    history: Sequence[Known], target: Target, order: int = 2, of: Literal["all", "computed"] = "all"
) -> Tensor:
    """AB-Cache (Yu et al. 2025, arXiv 2504.10540): an Adams–Bashforth relation of order k between neighbouring outputs.

    Σ_i (−1)^(i+1) C(k, i) ε_{n−i}, i = 1 … k: the k-th difference is taken to be zero. The paper leaves open
    whether the k outputs before include predicted ones; of="all" takes the last k steps, of="computed" the last k
    evaluated steps.
    """
    last = (computed(history) if of == "computed" else list(history))[-order:][::-1]
    k = len(last)
    return combined([(-1) ** (i + 1) * comb(k, i) for i in range(1, k + 1)], [one.output for one in last])


def spectrum(
    history: Sequence[Known], target: Target, degree: int = 4, ridge: float = 0.1, blend: float = 1.0
) -> Tensor:
    """Spectrum (Han et al., CVPR 2026, arXiv 2603.01623; github.com/hanjq17/Spectrum).

    A ridge regression of all evaluated outputs on Chebyshev polynomials of the step, scaled from [0, T] to [−1, 1].
    With blend < 1, the rest is a linear extrapolation of the last two, which the authors recommend since.
    """
    known = computed(history)
    steps = np.array([one.step for one in known], dtype=np.float64)

    def design(at: NDArray[np.float64]) -> NDArray[np.floating[Any]]:
        return np.polynomial.chebyshev.chebvander(2 * at / target.steps - 1, degree)

    basis = design(steps)
    inverse = np.linalg.inv(basis.T @ basis + ridge * np.eye(degree + 1))
    weights = blend * (design(np.array([float(target.step)])) @ inverse @ basis.T)[0]
    weights[-1] += 1 - blend
    if len(known) > 1:
        ahead = (1 - blend) * (target.step - steps[-1]) / (steps[-1] - steps[-2])
        weights[-1] += ahead
        weights[-2] -= ahead
    return combined(weights, [one.output for one in known])


def taylor(history: Sequence[Known], target: Target, order: int = 2) -> Tensor:
    """TaylorSeer (Liu et al. 2025, arXiv 2503.06923; github.com/Shenyi-Z/TaylorSeer) on the output: Σ_i Δⁱ xⁱ / i!."""
    return _series(history, target, order, lambda i, x: x**i)


def hermite(history: Sequence[Known], target: Target, order: int = 2, contraction: float = 0.5) -> Tensor:
    """HiCache (2025, arXiv 2508.16984; github.com/Archerkattri/hicache-plus-plus) on the output.

    TaylorSeer with σⁱ Hᵢ(σ x) instead of xⁱ: physicists' Hermite polynomials H, contracted by σ on both sides.
    """
    return _series(history, target, order, lambda i, x: contraction**i * hermite_polynomial(i, contraction * x))


def foca(history: Sequence[Known], target: Target, scaled: bool = True, horizon: float = inf) -> Tensor:
    """FoCa (Zheng et al., AAAI 2026, arXiv 2508.16211) as in cache-dit 1.5 (calibrators/foca.py), on the output.

    F + k/2 (d + d′), k steps behind the last evaluated output F: Heun's rule, with the slope d of the last two
    evaluated outputs, and the slope d′ of the last two steps, which may be predicted ones (BDF2's forecast).
    cache-dit does not divide d by the distance of the two evaluated steps (scaled=False), and holds F + 3/k of the
    way beyond three steps (horizon=3).
    """
    known = computed(history)
    if len(known) < 2:
        return known[-1].output
    (before, last), (second, newest) = known[-2:], history[-2:]
    apart = last.step - before.step if scaled else 1
    ahead = target.step - last.step
    slope = (last.output - before.output) / apart + (newest.output - second.output)
    reach = min(float(ahead), horizon) * min(1.0, horizon / ahead)
    return last.output + reach / 2 * slope


def computed(history: Sequence[Known]) -> list[Known]:
    """The evaluated steps."""
    found = [one for one in history if one.computed]
    if not found:
        raise UsageError("The first step must be evaluated: there is nothing to predict from.")
    return found


def combined(weights: Sequence[float] | NDArray[np.float64], outputs: Sequence[Tensor]) -> Tensor:
    total = torch.zeros_like(outputs[0])
    for weight, output in zip(weights, outputs, strict=True):
        total = total.add(output, alpha=float(weight))
    return total


def lagrange(nodes: Sequence[float], at: float) -> list[float]:
    """Weights of the polynomial through the nodes, at another place."""
    return [float(np.prod([(at - b) / (a - b) for j, b in enumerate(nodes) if j != i])) for i, a in enumerate(nodes)]


def hermite_polynomial(order: int, x: float) -> float:
    return float(np.polynomial.hermite.hermval(x, [0.0] * order + [1.0]))


def differences(steps: Sequence[int], order: int) -> list[NDArray[np.float64]]:
    """Δ⁰, Δ¹, … at the last step, as weights of the outputs at the steps.

    Δⁱ is the change of Δⁱ⁻¹ since the evaluated step before, divided by the distance of the two steps.
    """
    rows = list(np.eye(len(steps)))  # Δ⁰ at each step
    found = [rows[-1]]
    for i in range(1, min(order, len(steps) - 1) + 1):
        apart = np.diff(steps)[i - 1 :]
        rows = [(b - a) / d for a, b, d in zip(rows, rows[1:], apart, strict=False)]
        found.append(rows[-1])
    return found


def _series(history: Sequence[Known], target: Target, order: int, basis: Callable[[int, float], float]) -> Tensor:
    last = computed(history)[-order - 1 :]
    ahead = float(target.step - last[-1].step)
    terms = differences([one.step for one in last], order)
    weights = sum(term * (basis(i, ahead) if i else 1.0) / factorial(i) for i, term in enumerate(terms))
    return combined(np.asarray(weights), [one.output for one in last])


def _exploding(at: Known | Target) -> Tensor:
    """The sample in k-diffusion's scale, x₀ + σ ε."""
    return at.sample * (1 + at.sigma**2) ** 0.5
