"""Ordinary least squares, rank correlation, and Student's t, which both need for their p-values."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
TINY = 1e-300


@dataclass(frozen=True)
class Fit:
    """y = X β: coefficients with their standard errors, two-sided p and 95 % intervals, and R²."""

    beta: Numbers
    error: Numbers
    p: list[float]
    low: Numbers
    high: Numbers
    r2: float


def least_squares(y: Numbers, columns: list[Numbers]) -> Fit:
    """Fits a constant, which comes first, and these columns."""
    x = np.column_stack([np.ones(len(y)), *columns])
    solved, _, rank, _ = np.linalg.lstsq(x, y, rcond=None)
    beta: Numbers = solved.astype(np.float64)
    free = len(y) - int(rank)
    left = y - x @ beta
    error = np.sqrt(np.diag(np.linalg.pinv(x.T @ x)) * float(left @ left) / free)
    width = student_quantile(0.975, free) * error
    p = [student_p(float(b / max(e, TINY)), free) for b, e in zip(beta, error, strict=True)]
    spread = y - y.mean()
    return Fit(beta, error, p, beta - width, beta + width, 1 - float(left @ left) / float(spread @ spread))


def rank_correlation(a: Numbers, b: Numbers) -> tuple[float, float]:
    """Spearman's ρ and its two-sided p, by Student's t with n − 2 degrees of freedom."""
    rho = float(np.corrcoef(ranks(a), ranks(b))[0, 1])
    free = len(a) - 2
    rest = (1 - rho) * (1 + rho)
    return rho, student_p(rho * math.sqrt(free / rest), free) if rest > 1e-15 else 0.0


def ranks(values: Numbers) -> Numbers:
    """Ranks from 1 on; equal values share the mean of their ranks."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    shared: Numbers = (last - (count - 1) / 2)[place]
    return shared


def student_p(t: float, free: int) -> float:
    """The two-sided p of Student's t with so many degrees of freedom."""
    return _incomplete_beta(free / (free + t * t), free / 2, 0.5)


def student_quantile(share: float, free: int) -> float:
    """The value below which Student's t lies with this probability, above one half."""
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - student_p(middle, free) / 2 < share else (low, middle)
    return (low + high) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz's method)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    found = d
    for m in range(1, 300):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away(1 + numerator * d)
            c = _away(1 + numerator / c)
            found *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * found / a


def _away(x: float) -> float:
    """A divisor that is not zero."""
    return x if abs(x) > TINY else TINY
