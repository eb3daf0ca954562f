"""Predicts a value between or after known ones by a polynomial through them.

A polynomial through the last refreshes is more accurate the higher its degree is, as long as the refreshes follow the
smooth path of the trajectory. Whatever does not follow that path (the refreshes' own errors, a sudden change in the
network's output) is magnified by up to Σ|w|, the sum of the magnitudes of the polynomial's weights. Σ|w| grows with the
degree and with the distance. It depends on no data, so it is bounded before the run.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tenuto.scheduling.placement import FEW

STEADY = 4.0  # the largest Σ|w| of what single units keep
STEADY_OUTPUT, STEADY_IF_FEW = 2.5, 2.0  # of a network's output, the second with few evaluations


def steady_for(evaluations: int) -> float:
    """The largest Σ|w| with which a network's output is predicted: fewer evaluations are less certain."""
    return STEADY_IF_FEW if evaluations < FEW else STEADY_OUTPUT


def polynomial_weights(nodes: Sequence[float], at: float, steady: float = STEADY) -> list[float]:
    """The weights of the values at `nodes` in the sum that predicts the value at `at`.

    The degree is as high as Σ|w| ≤ steady allows. It need not be whole: between two degrees, the weights are a mixture.
    """
    ordered = sorted(nodes)
    found = {ordered[-1]: 1.0}
    for first in reversed(range(len(ordered) - 1)):
        higher = dict(zip(ordered[first:], lagrange(ordered[first:], at), strict=True))
        less, more = _magnified(found), _magnified(higher)
        share = 1.0 if more <= steady else (steady - less) / (more - less)
        found = {node: weight * share + found.get(node, 0.0) * (1 - share) for node, weight in higher.items()}
        if share < 1:
            break
    return [found.get(node, 0.0) for node in nodes]


def _magnified(weights: dict[float, float]) -> float:
    return sum(map(abs, weights.values()))


def lagrange(nodes: Sequence[float], at: float) -> list[float]:
    """The weights with which the values at `nodes` sum to the value at `at` of the polynomial through them."""
    weights = []
    for i, node in enumerate(nodes):
        weight = 1.0
        for j, other in enumerate(nodes):
            if i != j:
                weight *= (at - other) / (node - other)
        weights.append(weight)
    return weights


def weighted(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The weighted sum, in float32 at least, because weights may be larger than one and of both signs."""
    wide = torch.promote_types(values[0].dtype, torch.float32)
    total: Tensor | None = None
    for value, weight in zip(values, weights, strict=True):
        if weight:
            total = weight * value.to(wide) if total is None else total.add_(value.to(wide), alpha=weight)
    assert total is not None, "the weights sum to one"
    return total
