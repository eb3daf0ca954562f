"""Extrapolation: exact for polynomials where it may be, and never unsteady."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tenuto.runtime.prediction import STEADY, lagrange, polynomial_weights, weighted

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
    magnified = sum(map(abs, weights.values()))
    assert magnified <= STEADY * (1 + 1e-9)
    assert sum(weights.values()) == pytest.approx(1)  # what does not change stays as it is
    assert magnified == pytest.approx(STEADY) or magnified == pytest.approx(sum(map(abs, lagrange(nodes, at))))
    order = shuffled.sample(nodes, len(nodes))
    assert dict(zip(order, polynomial_weights(order, at), strict=True)) == weights


def test_farther_away_the_polynomial_goes_over_into_one_of_lower_degree():
    """Without a jump: the weights of neighbouring places are near each other."""
    nodes, places = [0.0, 8.0, 16.0], np.linspace(16, 24, 801)
    weights = np.array([polynomial_weights(nodes, at, 2.5) for at in places])
    assert np.abs(np.diff(weights, axis=0)).max() < 0.01
    near, far = places <= 18, places > 22
    assert np.allclose(weights[near], [lagrange(nodes, at) for at in places[near]])
    assert np.allclose(weights[far, 0], 0)  # between the line and the last value alone
    assert np.allclose(np.abs(weights[far]).sum(axis=1), 2.5)


def test_refreshes_near_each_other_and_far_from_here_are_hardly_drawn_through():
    assert np.abs(polynomial_weights([0, 5, 6], 30, 2.0)).sum() == pytest.approx(2)


@given(steps, st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_between_known_values_nothing_is_magnified_beyond_the_bound_and_known_values_are_met(nodes, at, seed):
    """A correction interpolates: the value at a node is the node's own."""
    weights = dict(zip(nodes, polynomial_weights(nodes, at), strict=True))
    assert sum(map(abs, weights.values())) <= STEADY * (1 + 1e-9)
    if at == max(nodes):
        assert weights[at] == pytest.approx(1)
        assert sum(map(abs, weights.values())) == pytest.approx(1)


def test_a_weighted_sum_is_wide_enough_for_large_weights():
    halves = [torch.full((3,), 1.0 + i / 128, dtype=torch.bfloat16) for i in range(3)]
    total = weighted(halves, [100.0, -200.0, 101.0])
    assert total.dtype == torch.float32
    torch.testing.assert_close(total, torch.full((3,), 101 * (1 + 2 / 128) - 200 * (1 + 1 / 128) + 100))
    doubles = weighted([torch.ones(2, dtype=torch.float64)], [0.5])
    assert doubles.dtype == torch.float64
    kept = [torch.ones(2), torch.ones(2)]
    weighted(kept, [2.0, -1.0])
    assert all(torch.equal(one, torch.ones(2)) for one in kept)  # what is kept is not written to
