"""Predicts the value of a step that computes nothing from the last refreshes, and corrects the error afterwards.

Prediction. A polynomial through the last refreshes is more accurate the higher its degree is, as long as the refreshes
follow the smooth path of the trajectory. Whatever does not follow that path (the refreshes' own errors, a sudden change
in the network's output) is magnified by up to Σ|w|, the sum of the magnitudes of the polynomial's weights. Σ|w| grows
with the degree and with the distance. It depends on no data, so it is bounded before the run.

Correction. At the next refresh the values in between can be interpolated, which is more accurate than extrapolating
them. If the sampler adds values up, the refreshed value can therefore correct the error of the predicted values: a
predictor-corrector method that costs no evaluation. The refreshed value itself was computed from a sample that was
slightly wrong. From the right sample, the network would have predicted almost the same picture and taken most of the
difference for noise. That is why the refreshed value is changed as well: by that difference, divided by the noise that
is left. Without this, the next refresh would correct the same error again and oscillate.
"""

from collections.abc import Sequence
from dataclasses import dataclass

STEADY = 7.0  # the largest Σ|w|: a parabola may extrapolate as far as its refreshes lie apart
NOISE = 0.75  # the share of a difference between two samples that a network takes for noise, not for picture


def extrapolation_weights(nodes: Sequence[int], at: int) -> list[float]:
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


def lagrange(nodes: Sequence[int], at: int) -> list[float]:
    """The weights with which the values at `nodes` sum to the value at `at` of the polynomial through them."""
    weights = []
    for i, node in enumerate(nodes):
        weight = 1.0
        for j, other in enumerate(nodes):
            if i != j:
                weight *= (at - other) / (node - other)
        weights.append(weight)
    return weights


@dataclass(frozen=True)
class Recipe:
    """What a step's value is made of: earlier refreshes, and the value computed now, each with its weight."""

    given: dict[int, float]  # step -> weight, in the value that the sampler is given
    kept: dict[int, float]  # step -> weight, in the value that is kept; empty if nothing is computed


def recipes(computed: Sequence[bool], order: int, course: Sequence[float] | None = None) -> list[Recipe]:
    """What the value of each step is made of.

    order   the degree of the polynomials
    course  how much the value of each step counts in the final sample. If it is given, a refresh corrects the values
            that were predicted since the refresh before it
    """
    made: list[Recipe] = []
    known: list[int] = []  # steps at which the value was computed
    for step, is_computed in enumerate(computed):
        last = known[-(order + 1) :]
        if not is_computed:
            made.append(Recipe(dict(zip(last, extrapolation_weights(last, step), strict=True)), {}))
            continue
        missed = range(last[-1] + 1, step) if last else range(0)
        as_it_is = {step: 1.0}
        made.append(_corrected(step, last, made, missed, course) if course and missed else Recipe(as_it_is, as_it_is))
        known.append(step)
    return made


def _corrected(
    step: int, last: Sequence[int], made: Sequence[Recipe], missed: Sequence[int], course: Sequence[float]
) -> Recipe:
    """The value computed at a step, with the correction of the values that were predicted since the last refresh."""
    nodes, lacking, of_this = [*last, step], dict.fromkeys([*last, step], 0.0), 0.0
    for held in missed:
        weights = extrapolation_weights(nodes, held)
        of_this += course[held] * weights[-1]
        for node, weight in zip(nodes, weights, strict=True):
            lacking[node] += course[held] * weight
        for node, weight in made[held].given.items():
            lacking[node] -= course[held] * weight
    left = sum(course[step:])  # measures the noise that is left
    share = 1 / (1 + NOISE * of_this / left)
    change = {node: share * lacking[node] for node in nodes}  # of the sample
    kept = {node: (node == step) - NOISE * change[node] / left for node in nodes}
    return Recipe({node: kept[node] + change[node] / course[step] for node in nodes}, kept)
