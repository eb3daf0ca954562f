"""Where to evaluate: as often as was asked, the first step too, and evenly over the noise levels from there on."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.scheduling.placement import FEW, FLOOR, SILENT, asked_ahead, placed, places_of, progress_of

LEVELS = st.lists(st.one_of(st.floats(-20, 20), st.floats(-0.1, 0.1)), min_size=1, max_size=40).flatmap(
    lambda levels: st.sampled_from([levels, sorted(levels), sorted(levels, reverse=True)])
)


@given(st.data(), LEVELS, st.booleans(), st.booleans())
def test_exactly_as_many_steps_as_asked_are_computed(data, levels, known, ahead):
    """The first among them, and mostly the last, whatever the levels are, even if they repeat or fall."""
    steps = len(levels)
    evaluations = data.draw(st.integers(1, steps + 3))
    computed = placed(steps, evaluations, levels if known else None, ahead)
    assert computed.shape == (steps,) and computed.dtype == bool
    assert computed.sum() == min(steps, evaluations)
    assert computed[0]
    assert computed[-1] or evaluations == 1 or early(steps, evaluations)


def early(steps: int, evaluations: int) -> bool:
    """Whether the last evaluation may come before the last step: there are few, and most steps are left out."""
    return evaluations < FEW and 2 * evaluations < steps


def test_few_evaluations_of_many_steps_end_before_the_last_step():
    last = {count: int(np.flatnonzero(placed(50, count))[-1]) for count in (6, 8, 9, 12)}
    assert 40 < last[6] < last[8] < 49 and last[9] == last[12] == 49
    assert placed(20, 6)[-1]


def test_a_run_that_begins_in_noise_ends_its_few_evaluations_earlier_the_more_steps_are_left_out():
    noise = {steps: np.linspace(-4.5, 4.5, steps).tolist() for steps in (12, 20, 50)}
    missed = [float(1 - np.flatnonzero(placed(steps, 6, levels))[-1] / (steps - 1)) for steps, levels in noise.items()]
    assert 0 == missed[0] < missed[1] < missed[2]
    assert placed(20, 9, noise[20])[-1]


def test_a_run_that_begins_with_signal_ends_with_the_last_step_unless_there_are_four_steps_for_each_evaluation():
    signal = {steps: np.linspace(-2.5, 4.5, steps).tolist() for steps in (20, 50)}
    assert placed(20, 6, signal[20])[-1] and not placed(50, 6, signal[50])[-1]


def test_every_number_of_evaluations_can_be_had_of_every_number_of_steps():
    """Also where levels change fast at the beginning, in the middle or at the end, as with Karras' levels."""
    for steps in range(2, 26):
        even = np.linspace(0, 1, steps)
        for shape in (even, even**4, 1 - (1 - even) ** 4, np.tanh(8 * even - 4)):
            for evaluations in range(2, steps + 1):
                computed = placed(steps, evaluations, (10 * shape).tolist())
                assert computed.sum() == evaluations and computed[0], (steps, evaluations)
                assert computed[-1] or early(steps, evaluations)


@given(st.integers(2, 80), st.data())
def test_without_levels_evaluations_are_spread_evenly(steps, data):
    evaluations = data.draw(st.integers(2, steps))
    gaps = np.diff(np.flatnonzero(placed(steps, evaluations)))
    assert gaps.max() - gaps.min() <= 2
    assert gaps.max() <= math.ceil((steps - 1) / (evaluations - 1)) + 1


@given(st.integers(8, 60), st.data())
def test_where_levels_change_faster_there_are_at_least_as_many(steps, data):
    evaluations = data.draw(st.integers(4, steps - 1))
    half = steps // 2
    fast_first = [*np.linspace(0, 10, half), *np.linspace(10.1, 11, steps - half)]
    fast_last = [-level for level in reversed(fast_first)]
    one, other = (placed(steps, evaluations, levels) for levels in (fast_first, fast_last))
    even = placed(steps, evaluations)
    assert one[:half].sum() >= even[:half].sum() - 1
    assert other[-half:].sum() >= even[-half:].sum() - 1
    assert one[:half].sum() >= other[:half].sum()


@given(st.integers(2, 60), st.data())
def test_more_evaluations_leave_no_wider_gap(steps, data):
    """Over the steps: a larger budget never leaves a longer stretch unseen."""
    fewer = data.draw(st.integers(2, steps))
    more = data.draw(st.integers(fewer, steps))
    widest = [int(np.diff(np.flatnonzero(placed(steps, count))).max(initial=0)) for count in (more, fewer)]
    assert widest[0] <= widest[1]


def test_there_are_most_where_picture_and_noise_are_equally_strong():
    """With levels that fall evenly, neither at the beginning nor at the end."""
    chosen = np.flatnonzero(placed(60, 15, np.linspace(-6, 6, 60).tolist()))
    gaps = np.diff(chosen)
    assert gaps[len(gaps) // 2] < gaps[0] and gaps[len(gaps) // 2] < gaps[-1]


@pytest.mark.parametrize("first", [-5.0, -2.7], ids=["from noise alone", "with signal"])
def test_how_a_scheduler_spaces_its_steps_does_not_matter(first):
    """Two schedulers that go through the same noise levels at another pace are evaluated at the same levels."""
    even, karras = np.linspace(first, 5, 400), first + (5 - first) * np.linspace(0, 1, 400) ** 2
    for measure in (progress_of, places_of):
        between = np.interp(even, karras, measure(400, karras.tolist()))
        assert np.abs(between - measure(400, even.tolist())).max() < 1e-3
    for evaluations in (7, 12, 20):
        one, other = (levels[placed(400, evaluations, levels.tolist())] for levels in (even, karras))
        assert np.abs(one - other).max() < 0.1


def test_levels_without_any_signal_are_one_place():
    """Flow matching begins without signal, and SVD with seven hundred times as much noise: nothing happens there."""
    levels = [-9.2, -6.5, FLOOR, -4.0, 0.0, 3.0]
    assert places_of(6, levels)[:3].tolist() == progress_of(6, levels)[:3].tolist() == [0, 0, 0]
    assert places_of(6, levels)[3] > 0 and progress_of(6, levels)[3] > 0


@pytest.mark.parametrize("levels", [[1.0] * 9, list(range(9, 0, -1)), None])
def test_levels_that_do_not_rise_say_nothing(levels):
    assert placed(9, 4, levels).tolist() == placed(9, 4).tolist()


def test_a_single_evaluation_is_the_first():
    assert np.flatnonzero(placed(9, 1)).tolist() == [0]
    assert np.flatnonzero(placed(7, 2)).tolist() == [0, 6]
    assert placed(1, 1).tolist() == [True]


# -------------------------------------------------------------------------------------------------- asking ahead


def test_a_run_that_begins_in_noise_alone_asks_ahead():
    """About a level that is still noise alone, and before the next evaluation. The others come later for it."""
    levels = np.linspace(-6, 5, 50).tolist()
    for evaluations in (6, 8, 12, 16):
        computed = placed(50, evaluations, levels, ahead=True)
        asked, following = asked_ahead(computed.tolist(), levels), np.flatnonzero(computed)[1]
        assert 0 < asked < following and levels[asked] <= SILENT
        assert following > np.flatnonzero(placed(50, evaluations, levels))[1]


@given(st.integers(2, 60), st.data())
def test_a_run_that_begins_with_signal_asks_about_its_own_levels(steps, data):
    levels = np.linspace(data.draw(st.floats(SILENT + 0.01, 0)), 5, steps).tolist()
    evaluations = data.draw(st.integers(1, steps))
    computed = placed(steps, evaluations, levels, ahead=True)
    assert computed.tolist() == placed(steps, evaluations, levels).tolist()
    assert asked_ahead(computed.tolist(), levels) == 0


@given(st.data(), LEVELS)
def test_nobody_asks_beyond_the_next_evaluation(data, levels):
    computed = placed(len(levels), data.draw(st.integers(1, len(levels))), levels, ahead=True).tolist()
    asked = asked_ahead(computed, levels)
    assert asked == 0 or not any(computed[1 : asked + 1])
    assert asked_ahead([True] * len(levels), levels) == 0
