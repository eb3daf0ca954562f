"""What a value that was refreshed at some steps is at a later one.

A polynomial through the last refreshes is the better the higher its degree, as long as they follow the smooth path of
the trajectory. What they do not follow of it (their own errors, and what a network does all at once) is magnified: by
up to Σ|w|, the sum of the magnitudes of the weights they are summed with, which grows with the degree and with the
distance. It does not depend on any data, so it is bounded where it is known before the run: here.
"""

from collections.abc import Sequence

STEADY = 7.0  # Σ|w| at most: a parabola may go on by as much as its refreshes lie apart


def extrapolation_weights(nodes: Sequence[int], at: int) -> list[float]:
    """The weights of the values at `nodes` in the value at `at`: of a polynomial through all of them, or through the
    latest ones alone where that would magnify more than is steady."""
    latest = sorted(nodes)
    weights = lagrange(latest, at)
    while sum(map(abs, weights)) > STEADY and len(latest) > 1:
        latest = latest[1:]
        weights = lagrange(latest, at)
    known = dict(zip(latest, weights, strict=True))
    return [known.get(node, 0.0) for node in nodes]


def lagrange(nodes: Sequence[int], at: int) -> list[float]:
    """The value at `at` of the polynomial through the values at `nodes` is their sum with these weights."""
    weights = []
    for i, node in enumerate(nodes):
        weight = 1.0
        for j, other in enumerate(nodes):
            if i != j:
                weight *= (at - other) / (node - other)
        weights.append(weight)
    return weights
