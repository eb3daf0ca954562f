"""What a value that was refreshed at some steps is at a later one.

A polynomial through the last refreshes is the better the higher its degree, as long as they follow the smooth path of
the trajectory. What they do not follow of it (their own errors, and what a network does all at once) is magnified: by
up to Σ|w|, the sum of the magnitudes of the weights they are summed with, which grows with the degree and with the
distance. It does not depend on any data, so it is bounded where it is known before the run: here.

At the next refresh the values in between can be interpolated, which is nearer to what they should have been. Where a
sampler adds values up, what it got too much or too little of by then can be made up for with the refreshed value: a
corrector to the predictor, which costs no evaluation. But that value was computed from a sample that was off. In the
right one the network would have seen much the same picture, and have called the difference noise, for the most part. So
as the sample is corrected, the refreshed value is changed by that difference over the noise that is left; and so is the
correction, which was interpolated through it. Left as it is, it would correct a second time, and sway.
"""

from collections.abc import Sequence
from dataclasses import dataclass

STEADY = 7.0  # Σ|w| at most: a parabola may go on by as much as its refreshes lie apart
NOISE = 0.75  # of a difference between two samples, what a network takes for noise and not for picture


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


@dataclass(frozen=True)
class Recipe:
    """By which weights the values that are kept are summed, and the one computed now: steps and their weights."""

    given: dict[int, float]  # in the value of the step
    kept: dict[int, float]  # in what is kept of it; of a step that computes nothing, there is nothing


def recipes(computed: Sequence[bool], order: int, course: Sequence[float] | None = None) -> list[Recipe]:
    """What the value of each step is made of.

    order   of the polynomials
    course  how much the value of each step counts in the sample that comes out. With it, computed values are corrected
            for those that were extrapolated since the last
    """
    made: list[Recipe] = []
    known: list[int] = []  # steps at which it was computed
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
    """The value computed at a step, and what is missing of those since the last that was."""
    nodes, lacking, of_this = [*last, step], dict.fromkeys([*last, step], 0.0), 0.0
    for held in missed:
        weights = extrapolation_weights(nodes, held)
        of_this += course[held] * weights[-1]
        for node, weight in zip(nodes, weights, strict=True):
            lacking[node] += course[held] * weight
        for node, weight in made[held].given.items():
            lacking[node] -= course[held] * weight
    left = sum(course[step:])  # as much as there is noise
    share = 1 / (1 + NOISE * of_this / left)
    change = {node: share * lacking[node] for node in nodes}  # of the sample
    kept = {node: (node == step) - NOISE * change[node] / left for node in nodes}
    return Recipe({node: kept[node] + change[node] / course[step] for node in nodes}, kept)
