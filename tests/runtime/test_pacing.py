"""The steps that are chosen on the way, for a quality."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.errors import UsageError
from tenuto.models.architecture import NoiseLevels
from tenuto.models.solvers import nature_for
from tenuto.runtime.levels import Levels
from tenuto.runtime.pacing import GROWTH, Account, Pace, decibels


def levels(steps: int) -> Levels:
    found = nature_for(NoiseLevels("linear", 1e-4, 0.02), steps).levels
    assert found is not None
    return found


def walked(pace: Pace, steps: int, changes: float | list[float]) -> list[int]:
    """The steps that are evaluated if corrections change the samples so much."""
    computed, chosen, spent, before = [True] * steps, [], 0.0, -1
    for step in range(steps):
        if not computed[step]:
            continue
        change = None
        if chosen and step > before + 1:
            now = changes if isinstance(changes, float) else changes[step]
            spent += now
            change = torch.tensor([0.0, now])
        pace.decide(step, computed, change, torch.tensor([0.0, spent]), torch.ones(2))
        chosen.append(step)
        before = step
    return chosen


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 80), st.floats(10, 80), st.floats(1e-9, 1.0), st.one_of(st.none(), st.integers(1, 80)))
def test_the_first_and_the_last_step_are_evaluated_and_a_limit_is_kept(steps, quality, change, most):
    chosen = walked(Pace(quality, levels(steps), most), steps, change)
    assert chosen[0] == 0 and chosen == sorted(set(chosen))
    if most is None:
        assert chosen[-1] == steps - 1
    else:
        assert len(chosen) <= most
        assert chosen[-1] == steps - 1 or most == 1


def test_what_strays_more_is_evaluated_more_often():
    counts = [len(walked(Pace(40, levels(50)), 50, change)) for change in (1e-9, 1e-6, 1e-4, 1e-2)]
    assert counts == sorted(counts) and counts[0] < 16 < counts[-1]


def test_a_higher_quality_takes_more_evaluations():
    counts = [len(walked(Pace(quality, levels(50)), 50, 1e-5)) for quality in (25, 35, 45, 55)]
    assert counts == sorted(counts) and counts[0] < counts[-1]


def test_distances_grow_gradually():
    progress = Pace(40, levels(50))._progress
    chosen = walked(Pace(40, levels(50)), 50, 1e-12)
    gaps = [(progress[b] - progress[a], b - a) for a, b in pairwise(chosen)]
    for (before, _), (after, steps) in pairwise(gaps):
        assert after <= GROWTH * before + 1e-9 or steps == 1
    assert max(steps for _, steps in gaps) > 3


def test_it_says_when_more_evaluations_were_needed():
    enough, few = Pace(40, levels(50)), Pace(40, levels(50), most=7)
    walked(enough, 50, 1e-3)
    assert not enough.capped
    assert len(walked(few, 50, 1e-3)) <= 7 and few.capped


@pytest.mark.parametrize("change", [1e-9, 1e-6, 1e-5])
def test_a_limit_that_suffices_changes_nothing(change):
    free = walked(Pace(40, levels(50)), 50, change)
    limited = Pace(40, levels(50), most=len(free) + 1)
    assert walked(limited, 50, change) == free
    assert not limited.missed(45.0) and not limited.missed(38.0)


def test_a_quality_was_missed_if_a_limit_cost_decibels_and_not_because_there_was_one():
    limited = Pace(40, levels(50), most=7)
    walked(limited, 50, 1e-3)
    assert limited.capped and limited.missed(39.0) and not limited.missed(41.0)


def test_a_second_scheduler_in_the_same_step_can_only_shorten_the_way():
    pace, computed = Pace(30, levels(50)), [True] * 50
    pace.decide(0, computed, None, None, None)
    first = computed.index(True, 1)
    pace.decide(0, computed, None, None, None)
    assert computed.index(True, 1) <= first and sum(computed[1:]) == 1


def test_a_second_scheduler_that_strays_as_much_costs_no_evaluation():
    one, two = Pace(30, levels(50)), Pace(30, levels(50))
    alone, together = [True] * 50, [True] * 50
    for step in range(50):
        for pace, computed, schedulers in ((one, alone, 1), (two, together, 2)):
            if computed[step]:
                change = torch.full((1,), 1e-4) if step else None
                for _ in range(schedulers):
                    pace.decide(step, computed, change, change, torch.ones(1))
    assert alone == together and sum(alone) < 40 and not two.capped


@pytest.mark.parametrize(("clean", "difference"), [(math.nan, 1.0), (1.0, math.nan), (1.0, 1.0), (1.0, 0.0)])
def test_an_account_of_nonsense_ends_in_no_error(clean, difference):
    """A network may give values that are not finite, or a picture of one colour, whose variance is zero."""
    pace, computed = Pace(40, levels(10)), [True] * 10
    account = Account(pace)
    assert account.estimated is None and not account.missed
    account.note(0, (1.0, 1.0), computed, torch.full((2, 3, 4), clean), None)
    account.note(2, (1.0, 1.0), computed, torch.full((2, 3, 4), clean), torch.full((2, 3, 4), difference))
    assert computed[3]  # what cannot be measured is computed
    sure = clean == difference == 1.0
    assert account.estimated == (-math.inf if sure else None) and account.missed == sure


def test_decibels_fall_by_ten_for_ten_times_the_error():
    assert decibels(0) == math.inf and decibels(math.inf) == -math.inf
    assert decibels(1e-4) - decibels(1e-3) == pytest.approx(10)


@pytest.mark.parametrize("quality", [0, 9.9, 81, math.nan, math.inf, "40", True, None])
def test_nonsense_is_refused(quality):
    with pytest.raises(UsageError, match="decibels from 10 to 80"):
        Pace(quality, levels(10))
