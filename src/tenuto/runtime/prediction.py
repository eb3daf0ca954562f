"""Predicts a value between or after known ones by a polynomial through them.

A polynomial through the last refreshes is more accurate the higher its degree is, as long as the refreshes follow the
smooth path of the trajectory. Whatever does not follow that path (the refreshes' own errors, a sudden change in the
network's output) is magnified by up to Σ|w|, the sum of the magnitudes of the polynomial's weights. Σ|w| grows with the
degree and with the distance. It depends on no data, so it is bounded before the run.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

STEADY = 4.0  # the largest Σ|w|


def polynomial_weights(nodes: Sequence[float], at: float) -> list[float]:
    """The weights of the values at `nodes` in the sum that predicts the value at `at`.

    The polynomial goes through all nodes. If this would magnify errors too much, it goes through the latest nodes only.
    """
    latest = sorted(nodes)
    weights = lagrange(latest, at)
    while sum(map(abs, weights)) > STEADY and len(latest) > 1:
        latest = latest[1:]
        weights = lagrange(latest, at)
    known = dict(zip(latest, weights, strict=True))
    return [known.get(node, 0.0) for node in nodes]


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
