"""How far sets of samples are apart, and how certain a difference is.

Fréchet distances here use the features of a small classifier. They compare schedules of one model with each other; do
not compare them with published figures. They fall when samples are added, so only compare sets of the same size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tenuto.errors import TenutoError
from tenuto.files import replacing

ALIKE = 30  # dB; from this value on, differences are hard to see in small pictures
SURE = 0.95  # confidence of the intervals
SPREAD = 1.96  # standard errors on either side at this confidence

Interval = tuple[float, float, float]  # the value, and the low and the high end of its interval
Values = Tensor | NDArray[np.generic] | Sequence[float]


@dataclass(frozen=True, eq=False)
class Statistics:
    """The mean and covariance of a set of features, in float64; the features are treated as Gaussian."""

    mean: Tensor  # [D]
    covariance: Tensor  # [D, D]

    def __post_init__(self) -> None:
        if self.mean.ndim != 1 or self.covariance.shape != (len(self.mean), len(self.mean)):
            raise ValueError(
                f"a mean of shape {tuple(self.mean.shape)} and a covariance of shape "
                f"{tuple(self.covariance.shape)} make no Gaussian"
            )

    @classmethod
    def of(cls, features: Tensor) -> "Statistics":
        """The statistics of features [N, D], on their device."""
        _check_features(features)
        return cls(features.double().mean(dim=0), torch.cov(features.double().T).reshape(2 * features.shape[1:]))

    def to(self, device: str | torch.device) -> "Statistics":
        return Statistics(self.mean.to(device), self.covariance.to(device))

    def save(self, path: Path, notes: Mapping[str, str] | None = None) -> None:
        """As a safetensors file; `notes` go into its header."""
        tensors = {"mean": self.mean.cpu().contiguous(), "covariance": self.covariance.cpu().contiguous()}
        with replacing(path) as temporary:
            save_file(tensors, temporary, {"format": "pt", **(notes or {})})

    @classmethod
    def load(cls, path: Path) -> "Statistics":
        try:
            tensors = load_file(path)
            if any(tensor.dtype != torch.float64 or not tensor.isfinite().all() for tensor in tensors.values()):
                raise ValueError("its tensors should be finite numbers in float64")
            return cls(**tensors)
        except OSError as error:
            raise TenutoError(f"Cannot read the statistics {path}: {error.strerror or error}.") from error
        except (SafetensorError, TypeError, ValueError) as error:
            raise TenutoError(f"{path} does not hold a mean and a covariance: {error}.") from error


def frechet(a: Statistics, b: Statistics) -> float:
    """The Fréchet distance of two Gaussians, |μ₁ − μ₂|² + tr(Σ₁ + Σ₂ − 2 (Σ₁ Σ₂)^½), on the device of `a`."""
    return float(_distances(a.mean[None], a.covariance[None], b.to(a.mean.device))[0])


@dataclass(frozen=True, eq=False)
class Distance:
    """The Fréchet distance of a set of samples from a reference, and the distances of its bootstrap resamples."""

    value: float
    drawn: Tensor  # [resamples]
    samples: int

    @classmethod
    def of(cls, features: Tensor, reference: Statistics, resamples: int = 20, seed: int = 0) -> "Distance":
        """The distance of features [N, D], on their device. Prefer the CPU for eigenvalues of small matrices."""
        _check_features(features)
        itself = torch.ones(1, len(features), dtype=torch.float64)
        found = _resampled(features, reference, torch.cat([itself, _counts(len(features), resamples, seed)]))
        return cls(float(found[0]), found[1:], len(features))

    @property
    def interval(self) -> Interval:
        """The distance, with its 95 % bootstrap interval."""
        value, low, high = _around(self.value, self.drawn)
        return value, max(low, 0.0), high

    def beyond(self, full: "Distance") -> Interval:
        """How much further from the reference than the full run's samples: FID(schedule) − FID(full), and its interval.

        Sample i of both sets comes from the same noise, and both sets are resampled with the same indices. So their
        common random error cancels, and the interval is far narrower than the intervals of the two distances.
        """
        if (self.samples, len(self.drawn)) != (full.samples, len(full.drawn)):
            raise ValueError(f"distances of {self.samples} and {full.samples} samples are not of paired samples")
        return _around(self.value - full.value, self.drawn - full.drawn)


def mean_interval(values: Values, resamples: int = 2000, seed: int = 0) -> Interval:
    """The mean, with its 95 % bootstrap interval."""
    given = _array(values)
    if not len(given):
        raise ValueError("there is no mean of no values")
    generator = np.random.default_rng(seed)
    means = [given[generator.integers(len(given), size=len(given))].mean() for _ in range(resamples)]
    # Without interpolation, because interpolating infinite values gives NaN.
    low, high = np.quantile(means, [(1 - SURE) / 2, (1 + SURE) / 2], method="inverted_cdf")
    return float(given.mean()), float(low), float(high)


def share_interval(values: Values) -> Interval:
    """The mean of zeros and ones, with Wilson's 95 % interval, which has a width even where all values are alike."""
    given = _array(values)
    if not len(given) or set(np.unique(given)) - {0.0, 1.0}:
        raise ValueError("a share is of zeros and ones, at least one of them")
    share, square = float(given.mean()), SPREAD**2 / len(given)
    centre = (share + square / 2) / (1 + square)
    half = SPREAD / (1 + square) * np.sqrt(share * (1 - share) / len(given) + square / len(given) / 4)
    return share, max(float(centre - half), 0.0), min(float(centre + half), 1.0)


def paired_test(a: Values, b: Values, flips: int = 10_000, seed: int = 0) -> float:
    """The two-sided p of the mean difference in a sign-flip permutation test."""
    first, second = _array(a), _array(b)
    if first.shape != second.shape or not len(first):
        raise ValueError(f"{len(first)} and {len(second)} values do not make pairs")
    differences = first - second
    differences = differences[differences != 0]  # flipping the sign of zero changes nothing
    generator, reached = np.random.default_rng(seed), 0
    least = abs(differences.sum()) - 1e-12 * np.abs(differences).sum()  # rounding depends on the order
    for start in range(0, flips, 500):
        signs = generator.integers(2, size=(min(500, flips - start), len(differences)), dtype=np.int8) * 2.0 - 1.0
        reached += int((np.abs(signs @ differences) >= least).sum())
    return (1 + reached) / (1 + flips)  # the observed signs count as one of the flips


def _distances(means: Tensor, covariances: Tensor, reference: Statistics) -> Tensor:
    """Distances [R] of Gaussians with means [R, D] and covariances [R, D, D] to the reference.

    (Σ₁ Σ₂)^½ has the same trace as the symmetric matrix (Σ₂^½ Σ₁ Σ₂^½)^½.
    """
    if means.shape[1:] != reference.mean.shape:
        raise ValueError(f"{means.shape[1]} features cannot be compared with {len(reference.mean)}")
    values, vectors = torch.linalg.eigh(reference.covariance)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    product = root @ covariances @ root
    crossed = torch.linalg.eigvalsh((product + product.mT) / 2).clamp(min=0).sqrt().sum(dim=-1)
    traces = covariances.diagonal(dim1=-2, dim2=-1).sum(-1) + reference.covariance.trace()
    return ((means - reference.mean).square().sum(-1) + traces - 2 * crossed).clamp(min=0)


def _counts(samples: int, resamples: int, seed: int) -> Tensor:
    """How often each sample is drawn in each resample: [resamples, samples], the same on every device."""
    if resamples < 2:
        raise ValueError(f"an interval needs at least 2 resamples, not {resamples}")
    drawn = torch.randint(samples, (resamples, samples), generator=torch.Generator().manual_seed(seed))
    counts = torch.zeros(resamples, samples, dtype=torch.float64)
    return counts.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))


def _resampled(features: Tensor, reference: Statistics, counts: Tensor) -> Tensor:
    """The distance of each resample to the reference: [resamples], on the CPU."""
    size, center = len(features), features.double().mean(dim=0)
    centered, counts = features.double() - center, counts.to(features.device)
    shifts = counts @ centered / size
    squares = torch.stack([(centered * count[:, None]).T @ centered for count in counts])
    covariances = (squares - size * shifts[:, :, None] * shifts[:, None, :]) / (size - 1)
    return _distances(center + shifts, covariances, reference.to(features.device)).cpu()


def _around(value: float, drawn: Tensor) -> Interval:
    """From the resamples' standard error. Their distances are too large, because a resample repeats samples."""
    error = SPREAD * float(drawn.std())
    return value, value - error, value + error


def _check_features(features: Tensor) -> None:
    if features.ndim != 2 or len(features) < 2:
        raise ValueError(f"statistics need features [N, D] of at least 2 samples, not {tuple(features.shape)}")


def _array(values: Values) -> NDArray[np.float64]:
    given = values.detach().cpu().double().numpy() if isinstance(values, Tensor) else values
    return np.asarray(given, dtype=np.float64).ravel()
