"""Extrapolation: exact for polynomials where it may be, and never unsteady."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.runtime import prediction as extrapolation
from tenuto.runtime.prediction import STEADY, polynomial_weights, lagrange, recipes

steps = st.lists(st.integers(0, 40), min_size=1, max_size=4, unique=True)


@given(st.integers(0, 3), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_it_is_exact_for_polynomials_of_its_degree(degree, ahead, seed):
    rng = np.random.default_rng(seed)
    nodes = sorted(rng.choice(20, degree + 1, replace=False).tolist(), reverse=True)
    polynomial = np.poly1d(rng.integers(-3, 4, degree + 1))
    at = nodes[0] + ahead
    got = sum(w * polynomial(n) for w, n in zip(lagrange(nodes, at), nodes, strict=True))
    assert got == pytest.approx(polynomial(at), rel=1e-9, abs=1e-6)


@given(steps, st.integers(1, 40), st.randoms())
def test_it_magnifies_no_more_than_is_steady(nodes, ahead, shuffled):
    at = max(nodes) + ahead
    weights = dict(zip(nodes, polynomial_weights(nodes, at), strict=True))
    assert sum(map(abs, weights.values())) <= STEADY
    assert sum(weights.values()) == pytest.approx(1)  # what does not change stays as it is
    latest = sorted(node for node in nodes if weights[node])
    assert latest == sorted(nodes)[-len(latest) :]
    more = sorted(nodes)[-len(latest) - 1 :]
    assert len(latest) == len(nodes) or sum(map(abs, lagrange(more, at))) > STEADY  # as many as may be
    order = shuffled.sample(nodes, len(nodes))
    assert dict(zip(order, polynomial_weights(order, at), strict=True)) == weights


@pytest.mark.parametrize(("every", "degrees"), [(2, [3]), (3, [3, 2]), (4, [3, 3, 2]), (8, [3, 3, 3, 3, 2, 2, 2])])
def test_evenly_refreshed_the_degree_falls_on_the_way_to_the_next(every, degrees):
    nodes = [0, every, 2 * every, 3 * every]
    found = [
        sum(weight != 0 for weight in polynomial_weights(nodes, nodes[-1] + ahead)) - 1 for ahead in range(1, every)
    ]
    assert found == degrees


def test_refreshes_near_each_other_and_far_from_here_are_not_drawn_through():
    assert polynomial_weights([0, 5, 6], 30) == [0, 0, 1]


refreshed = st.lists(st.booleans(), min_size=1, max_size=30).map(lambda rest: [True, *rest])
courses = st.floats(0.5, 0.99).map(lambda ratio: [-(ratio**step) for step in range(31)])


@given(refreshed, st.integers(0, 3))
def test_without_a_course_values_are_extrapolated_and_computed_ones_left_as_they_are(computed, order):
    known = []
    for step, (is_computed, recipe) in enumerate(zip(computed, recipes(computed, order), strict=True)):
        if is_computed:
            assert recipe.given == recipe.kept == {step: 1.0}
            known.append(step)
        else:
            last = known[-(order + 1) :]
            assert recipe.given == dict(zip(last, polynomial_weights(last, step), strict=True))


@given(refreshed, st.integers(0, 3), courses)
def test_what_does_not_change_stays_as_it_is_when_it_is_corrected(computed, order, course):
    known = []
    for step, (is_computed, recipe) in enumerate(zip(computed, recipes(computed, order, course), strict=True)):
        assert sum(recipe.given.values()) == pytest.approx(1)
        assert set(recipe.given) <= {*known[-(order + 1) :], step}
        if is_computed:
            assert sum(recipe.kept.values()) == pytest.approx(1)
            known.append(step)


@given(st.integers(0, 3), st.integers(2, 4), courses, st.integers(0, 2**32 - 1))
def test_a_corrected_sum_is_exact_for_polynomials_of_one_degree_more(order, every, course, seed):
    """Where values do not depend on the sample: there a network would take no difference for noise."""
    steps, polynomial = 7 * every + 1, np.poly1d(np.random.default_rng(seed).integers(-3, 4, order + 2))
    computed = [step % every == 0 for step in range(steps)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extrapolation, "NOISE", 0.0)
        patch.setattr(extrapolation, "STEADY", np.inf)
        made = recipes(computed, order, course)
    values, kept = [], {}
    for step, recipe in enumerate(made):
        now = {**kept, step: polynomial(step)}
        values.append(sum(weight * now[node] for node, weight in recipe.given.items()))
        if computed[step]:
            kept[step] = sum(weight * now[node] for node, weight in recipe.kept.items())
    since = order * every  # until then there are fewer values than it takes
    off = [
        sum(
            count * (value - polynomial(step))
            for step, (count, value) in list(enumerate(zip(course, values, strict=False)))[since + 1 : end + 1]
        )
        for end in range(since + every, steps, every)
    ]
    scale = max(abs(polynomial(step)) for step in range(steps)) * abs(sum(course))
    assert off == pytest.approx([0.0] * len(off), abs=1e-9 * max(1.0, scale) * every**order)


def test_a_sample_that_was_off_is_not_corrected_twice():
    """A network that is sure of its picture, 0, and calls all the rest noise: it finds back by itself. Correcting it
    must not make it sway about."""
    levels = np.geomspace(100, 0.01, 21)
    course = np.diff(levels).tolist()
    computed = [step % 4 == 0 for step in range(20)]
    for noise, sways in ((1.0, False), (0.0, True)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(extrapolation, "NOISE", noise)
            made = recipes(computed, 2, course)
        sample, kept = 100.0 + 1.0, {}
        for step, recipe in enumerate(made):
            wobble = 0.05 * np.sin(step)  # so that it is no straight line
            now = {**kept, step: sample / levels[step] + wobble}
            given = sum(weight * now[node] for node, weight in recipe.given.items())
            if computed[step]:
                kept[step] = sum(weight * now[node] for node, weight in recipe.kept.items())
            sample += course[step] * given
        assert (abs(sample) > 0.05) == sways
