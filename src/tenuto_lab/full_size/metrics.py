"""Metrics on the features of sets of samples. Fréchet distances are in judging.statistics."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tenuto.errors import TenutoError, UsageError
from tenuto.extras import install

NEIGHBOURS = 3  # the distance of the k-th neighbour is the radius of a ball; k as published
SPLITS = 10  # number of splits over which the inception score is averaged, as published
CHUNK = 4096  # rows of distances at once


def inception_score(logits: Tensor, splits: int = SPLITS, seed: int = 2020) -> tuple[float, float]:
    """exp E KL(p(y|x) ‖ p(y)) from logits [N, K]: mean and standard deviation over the splits of a shuffled set."""
    if logits.ndim != 2 or len(logits) < splits:
        raise UsageError(f"{len(logits)} samples cannot be split into {splits}.")
    shuffled = logits[torch.from_numpy(np.random.RandomState(seed).permutation(len(logits)))].double().cpu()
    likely = shuffled.log_softmax(dim=1)
    scores = []
    for i in range(splits):
        part = likely[i * len(likely) // splits : (i + 1) * len(likely) // splits]
        marginal = part.exp().mean(dim=0, keepdim=True).log()
        scores.append(float((part.exp() * (part - marginal)).sum(dim=1).mean().exp()))
    return float(np.mean(scores)), float(np.std(scores))


def precision_recall(features: Tensor, real: Tensor, neighbours: int = NEIGHBOURS) -> tuple[float, float]:
    """Kynkäänniemi et al.: the share of samples in the balls of real ones, and of real ones in the balls of samples.

    The radius of a ball is the distance to the k-th neighbour in the same set.
    """
    if features.ndim != 2 or features.shape[1:] != real.shape[1:]:
        raise UsageError(f"Features {tuple(features.shape)} and {tuple(real.shape)} are not of one space.")
    if min(len(features), len(real)) <= neighbours:
        raise UsageError(f"Precision and recall by {neighbours} neighbours need more than {neighbours} of each.")
    return _covered(features, real, neighbours), _covered(real, features, neighbours)


def _covered(points: Tensor, centres: Tensor, neighbours: int) -> float:
    """The share of points that lie in a ball of some centre."""
    radii = torch.cat([_distances(part, centres).kthvalue(neighbours + 1).values for part in centres.split(CHUNK)])
    return float(
        torch.cat([(_distances(part, centres) <= radii).any(dim=1) for part in points.split(CHUNK)]).double().mean()
    )


def _distances(a: Tensor, b: Tensor) -> Tensor:
    # Exact, because matrix products would lose small differences of nearly equal features to rounding.
    return torch.cdist(a.float(), b.float(), compute_mode="donot_use_mm_for_euclid_dist")


def mauve(features: Tensor, real: Tensor, clusters: int | None = None, scale: float = 5.0, seed: int = 0) -> float:
    """Pillutla et al.: the area under the divergence frontier of two sets of text features, in (0, 1]; 1 if alike.

    K-means over both sets together quantises the features. The default number of clusters is a tenth of the smaller
    set's size. Published figures use GPT-2's features and their own preparation: compare within one setting only.
    """
    try:
        from sklearn.cluster import KMeans
    except ImportError as error:
        raise TenutoError(f"MAUVE needs scikit-learn, which is not installed: {install('eval')}") from error
    together = torch.cat([features, real]).double().cpu()
    together = (together / together.norm(dim=1, keepdim=True).clamp(min=1e-12)).numpy()
    count = clusters or max(2, round(min(len(features), len(real)) / 10))
    labels = KMeans(count, n_init=5, max_iter=500, random_state=seed).fit_predict(together)
    p, q = (
        np.bincount(part, minlength=count) / len(part) for part in (labels[: len(features)], labels[len(features) :])
    )
    weights = np.linspace(1e-6, 1 - 1e-6, 100)
    points = [(_kl(q, w * p + (1 - w) * q), _kl(p, w * p + (1 - w) * q)) for w in weights]
    x, y = np.exp(-scale * np.array([(0.0, np.inf), *points, (np.inf, 0.0)])).T
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    return min(1.0, float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum()))


def _kl(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    there = p > 0
    return float((p[there] * np.log(p[there] / q[there])).sum())
