"""A verdict needs certainty: after the correction for many comparisons, and only if the metric can vary."""

import pytest

from tenuto_lab.judging.verdicts import alike, at_least, at_most, better, decided, holm


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


def test_a_difference_is_decided_by_its_interval() -> None:
    up, down, unsure = decided([better((2.0, 1.0, 3.0)), better((-2.0, -3.0, -1.0)), better((0.5, -1.0, 2.0))])
    assert (up.verdict, down.verdict, unsure.verdict) == ("yes", "no", "cannot tell")
    assert up.p == pytest.approx(8.9e-5, rel=0.05) and up.corrected == pytest.approx(3 * up.p)


def test_many_comparisons_ask_for_more() -> None:
    barely = better((2.0, 0.1, 3.9))  # p = 0.039
    assert decided([barely])[0].verdict == "yes"
    assert decided([barely] * 5)[0].verdict == "cannot tell"


def test_a_metric_that_does_not_vary_decides_nothing() -> None:
    for claim in (better((0.0, 0.0, 0.0)), at_least((0.0, 0.0, 0.0), -0.002), alike((0.0, 0.0, 0.0), 0.01)):
        assert decided([claim])[0].verdict == "cannot tell"
    assert decided([better((0.0, 0.0, 0.0), p=1e-9)])[0].verdict == "cannot tell"


def test_bounds_and_margins() -> None:
    assert decided([at_most((0.01, 0.0, 0.02), 0.08)])[0].verdict == "yes"
    assert decided([at_most((0.5, 0.4, 0.6), 0.08)])[0].verdict == "no"
    assert decided([at_most((0.07, 0.0, 0.14), 0.08)])[0].verdict == "cannot tell"
    assert decided([at_least((-0.5, -0.6, -0.4), -0.1)])[0].verdict == "no"
    assert decided([alike((0.001, -0.002, 0.004), 0.05)])[0].verdict == "yes"
    assert decided([alike((0.2, 0.15, 0.25), 0.05)])[0].verdict == "no"
    assert decided([alike((0.001, -0.1, 0.102), 0.05)])[0].verdict == "cannot tell"
