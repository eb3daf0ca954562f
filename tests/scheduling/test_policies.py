"""Lifetimes follow the paper's formula, budgets are met as nearly as can be, refreshing starts with a full step."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tenuto
from tenuto.deciding import advice
from tenuto.errors import UsageError
from tenuto.scheduling.refresh import LEAST, evaluations_for, refresh
from tenuto.scheduling.rewrite import checks, rewrite
from tenuto.scheduling.schedule import from_json, to_json
from tenuto_lab.candidates.allocation import allocated, anchors, ranked
from tenuto_lab.checking import like
from tenuto_lab.scoring.scores import Scores, UnitScore
from tenuto_lab.units.lifetimes import lifetimes, lifetimes_at, tau_for_budget

SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=12)
STEPS = st.integers(1, 60)


def scored(*values: float) -> Scores:
    units = [UnitScore(f"unit{i}", "mlp", 1.0 + i, (), value, value) for i, value in enumerate(values)]
    return Scores("toy", "toy", "sha256:toy", tuple(units))


def test_lifetimes_by_hand():
    # T = 10, S_min = 1: max{1, ⌈10 min(1, Λ̂/τ)⌉}
    assert lifetimes_at([0.0, 0.05, 0.1, 0.31, 0.999, 1.0], 10, 1.0) == [1, 1, 1, 4, 10, 10]
    assert lifetimes_at([0.0, 0.05, 0.1, 0.31, 0.999, 1.0], 10, 2.0) == [1, 1, 1, 2, 5, 5]
    assert lifetimes_at([0.0, 0.5], 10, 1.0, min_lifetime=0.35) == [4, 5]


def test_rounding_does_not_add_a_step():
    assert lifetimes_at([0.07, 0.29, 0.57], 100, 1.0) == [10, 29, 57]  # 100 · 0.29 is 28.999999999999996 in binary
    assert lifetimes_at([0.07], 100, 1.0, min_lifetime=0.01) == [7]  # 100 · 0.07 is 7.000000000000001


@given(SCORES, STEPS, st.floats(0.05, 5), st.floats(0, 1))
def test_lifetimes_grow_with_the_score_and_shrink_with_tau(scores, steps, tau, shortest):
    lives = lifetimes_at(scores, steps, tau, shortest)
    ordered = [life for _, life in sorted(zip(scores, lives, strict=True))]
    assert ordered == sorted(ordered)
    assert all(later <= life for later, life in zip(lifetimes_at(scores, steps, 2 * tau, shortest), lives, strict=True))
    assert all(max(1, math.ceil(round(shortest * steps, 9))) <= life <= steps for life in lives)


@settings(max_examples=80, deadline=None)
@given(SCORES, st.integers(1, 25), st.floats(0.01, 1), st.sampled_from([0.0, 0.1, 0.3]))
def test_the_budget_is_met_to_the_nearest_achievable_unit_step(scores, steps, budget, shortest):
    wanted = budget * len(scores) * steps
    found = sum(lifetimes_at(scores, steps, tau_for_budget(scores, steps, budget, shortest), shortest))
    # Every sum any τ can give: τ at, just below and just above each place where some lifetime changes.
    places = [steps * s / n for s in scores if s > 0 for n in range(1, steps + 1)] or [1.0]
    achievable = {
        sum(lifetimes_at(scores, steps, place * factor, shortest)) for place in places for factor in (0.999, 1, 1.001)
    }
    assert abs(found - wanted) <= min(abs(total - wanted) for total in achievable) + 1e-9


def test_the_schedule_of_a_budget_has_that_budget():
    schedule = lifetimes(scored(*np.linspace(0.05, 1, 24)), 100, budget=0.35)
    assert schedule.budget == pytest.approx(0.35, abs=1 / (24 * 100))
    assert schedule.policy["tau"] > 0 and schedule.policy["budget"] == 0.35


def test_lifetimes_compute_first_and_then_hold_for_good():
    schedule = lifetimes(scored(0.2, 1.0), 5)
    assert schedule.active.tolist() == [[True, False, False, False, False], [True] * 5]
    assert schedule.lifetimes == (1, 5)
    assert (schedule.keep, schedule.predict) == ("update", "constant")


def test_refresh_computes_everything_at_the_first_step_and_every_rth():
    schedule = refresh(scored(0.2, 1.0), 8, every=3)
    assert schedule.active.tolist() == [[True, False, False, True, False, False, True, False]] * 2
    assert (schedule.keep, schedule.corrected) == ("output", True)
    assert schedule.policy == {"name": "refresh", "evaluations": 3, "every": 3, "budget": None}
    assert refresh(scored(1.0), 8, every=1).budget == 1
    assert refresh(scored(1.0), 8, every=100).active.sum() == 1


@given(STEPS, st.integers(1, 70))
def test_a_number_of_evaluations_is_exact(steps, evaluations):
    evaluations = min(steps, evaluations)
    schedule = refresh(scored(0.5, 1.0), steps, evaluations=evaluations)
    assert schedule.full_steps.sum() == evaluations == schedule.policy["evaluations"]
    assert schedule.active[:, 0].all() and (
        steps >= 4 * evaluations or evaluations == 1 or schedule.active[:, -1].all()
    )
    assert schedule.policy["every"] is schedule.policy["budget"] is None


@given(STEPS, st.floats(0.01, 1))
def test_a_budget_is_this_share_of_the_steps_but_not_fewer_than_six(steps, budget):
    schedule = refresh(scored(0.5, 1.0), steps, budget=budget)
    count = int(schedule.full_steps.sum())
    assert count == evaluations_for(steps, budget) == schedule.policy["evaluations"]
    assert count >= min(steps, LEAST)
    assert count in (steps, LEAST) or abs(count - budget * steps) <= 0.5
    assert schedule.policy["budget"] == budget


def test_evaluations_for_a_budget_by_hand():
    assert [evaluations_for(50, share) for share in (1.0, 0.5, 0.34, 0.25, 0.2, 0.12, 0.02)] == [
        50,
        25,
        17,
        12,
        10,
        6,
        6,
    ]
    assert [evaluations_for(steps, 0.25) for steps in (1, 4, 6, 8, 12, 24, 28, 100)] == [1, 4, 6, 6, 6, 6, 7, 25]


def test_evaluations_follow_the_noise_levels_where_these_are_known():
    levels = [10 * (step / 49) ** 4 - 5 for step in range(50)]  # the noise falls at the end
    evenly, by_noise_level = (refresh(scored(1.0), 50, evaluations=16, log_snr=known) for known in (None, levels))
    assert by_noise_level.full_steps[-15:].sum() > evenly.full_steps[-15:].sum()
    with pytest.raises(UsageError, match="a noise level for each of the 50 steps, not 49"):
        refresh(scored(1.0), 50, log_snr=levels[1:])


def test_options_of_refresh_are_taken_instead_of_its_own_choices():
    schedule = refresh(scored(1.0), 50, every=5, predict="linear", keep="branch")
    assert (schedule.predict, schedule.keep, schedule.corrected) == ("linear", "branch", False)
    assert not refresh(scored(1.0), 50, correction=False).corrected


def test_the_same_kind_of_schedule_with_another_number_of_evaluations():
    for made in (refresh(scored(1.0, 0.5), 40), lifetimes(scored(1.0, 0.5), 40, budget=0.3)):
        other = like(made, 9)
        assert other.full_steps.sum() == 9 and other.units == made.units and other.steps == made.steps
        assert (other.keep, other.corrected, other.policy["evaluations"]) == ("output", True, 9)


# Text


def test_text_in_blocks_is_refreshed_at_each_block_and_computed_within_it():
    schedule = rewrite(scored(*[1.0] * 6), 16, every=4, blocks=2)
    assert np.flatnonzero(schedule.active[0]).tolist() == [0, 4, 8, 12]
    assert (schedule.rows, schedule.predict) == ("block", "constant")
    assert rewrite(scored(*[1.0] * 6), 16, budget=0.125, blocks=2).active.sum(axis=1).tolist() == [2] * 6


def test_early_text_is_refreshed_at_the_first_steps_and_at_the_powers_of_two():
    schedule = rewrite(scored(*[1.0] * 6), 40, every="early", rows="block")
    assert np.flatnonzero(schedule.full_steps).tolist() == [0, 1, 2, 3, 4, 8, 16, 32]
    assert schedule.policy["every"] == "early" and schedule.keep == "keys"
    in_blocks = rewrite(scored(1.0), 20, every="early", blocks=2)
    assert np.flatnonzero(~in_blocks.full_steps).tolist() == [5, 6, 7, 9, 15, 16, 17, 19]
    careful = rewrite(scored(1.0), 40, every="careful", rows="block")
    assert np.flatnonzero(careful.full_steps).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 32]
    checked = rewrite(scored(1.0), 40, every="checked", rows="block")
    assert np.flatnonzero(checked.full_steps).tolist() == [0, 1, 2, 3, 4, 8, 16, 32]
    assert checks(checked) and not checks(careful)
    with pytest.raises(UsageError, match="a whole number, 'early', 'careful' or 'checked', not 'late'"):
        rewrite(scored(1.0), 20, every="late")


def test_a_budget_of_text_is_kept_where_any_period_keeps_it():
    assert rewrite(scored(1.0), 64, budget=0.8, blocks=4).budget == 0.5  # computing everything would be nearer
    assert rewrite(scored(1.0), 64, budget=0.01, blocks=4).budget == 4 / 64  # as little as there can be


def test_text_in_one_block_holds_the_units_in_the_middle():
    schedule = rewrite(scored(*[1.0] * 8), 16, budget=0.625)
    held = (~schedule.active).any(axis=1)
    assert held.tolist() == [False, False, True, True, True, True, False, False]
    assert schedule.rows == "written" and schedule.budget == pytest.approx(0.625)
    assert rewrite(scored(*[1.0] * 8), 16, budget=0.125).active.sum(axis=1).tolist() == [2] * 8
    assert rewrite(scored(*[1.0] * 8), 16, budget=1.0).budget == 1


# Unequal shares


@given(SCORES, st.integers(2, 40), st.floats(0.05, 0.9))
def test_allocation_spends_the_budget_on_scores_and_not_on_costs(values, steps, budget):
    schedule = allocated(scored(*values), steps, budget=budget)
    assert schedule.active[:, 0].all()
    least = 1 / steps
    assert schedule.flop_budget <= max(budget, least) + 0.5 / steps * 2 + 1e-9


def test_allocation_by_hand():
    # Costs 1 and 4; refreshes go as the root of score over cost: 1 and 1/2 of equal scores.
    units = (UnitScore("a", "mlp", 1.0, (), 1.0, 1.0), UnitScore("b", "mlp", 4.0, (), 1.0, 1.0))
    schedule = allocated(Scores("toy", "toy", "sha256:toy", units), 100, budget=0.3)
    often, seldom = schedule.active.sum(axis=1)
    assert often == pytest.approx(2 * seldom, abs=2)
    assert schedule.flop_budget == pytest.approx(0.3, abs=0.01)


def test_anchors_refresh_half_of_the_work_again_in_between():
    units = tuple(UnitScore(f"u{i}", "mlp", 1.0, (), s, s) for i, s in enumerate((0.1, 0.9, 0.2, 0.8)))
    schedule = anchors(Scores("toy", "toy", "sha256:toy", units), 12, every=4)
    assert [np.flatnonzero(row).tolist() for row in schedule.active] == [
        [0, 4, 8],
        [0, 2, 4, 6, 8, 10],
        [0, 4, 8],
        [0, 2, 4, 6, 8, 10],
    ]
    assert anchors(Scores("toy", "toy", "sha256:toy", units), 12, every=4, ranking="late").active[2:].sum() == 12


def test_rankings():
    units = tuple(
        UnitScore(f"u{i}", kind, cost, (), s, s)
        for i, (kind, cost, s) in enumerate((("mlp", 1.0, 0.2), ("attention", 1.0, 0.9), ("mlp", 9.0, 0.1)))
    )
    toy = Scores("toy", "toy", "sha256:toy", units)
    assert ranked(toy, "spectral") == [1, 0, 2]
    assert ranked(toy, "spectral within type") == [0, 1, 2]
    assert (ranked(toy, "early"), ranked(toy, "late")) == ([0, 1, 2], [2, 1, 0])
    assert sorted(ranked(toy, "random", seed=3)) == [0, 1, 2]


def test_the_flop_budget_weighs_units_by_cost():
    schedule = lifetimes(scored(0.2, 1.0), 5)  # costs 1 and 2; 1 and 5 of 5 steps
    assert schedule.budget == pytest.approx(6 / 10)
    assert schedule.flop_budget == pytest.approx((1 * 1 + 2 * 5) / (3 * 5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "between 1 and 10,000"),
        ({"steps": 10**12}, "between 1 and 10,000"),
        ({"steps": 2.5}, "a whole number, not 2.5"),
        ({"steps": "10"}, "a whole number, not '10'"),
        ({"steps": None}, "a whole number, not None"),
        ({"steps": 10, "budget": "x"}, "a share of the work"),
        ({"steps": 10, "budget": 0}, "above 0"),
        ({"steps": 10, "budget": 1.5}, "at most 1"),
        ({"steps": 10, "budget": float("nan")}, "above 0"),
        ({"steps": 10, "every": 0}, "at least 1, not 0"),
        ({"steps": 10, "every": 2.5}, "a whole number, not 2.5"),
        ({"steps": 10, "every": "x"}, "a whole number, not 'x'"),
        ({"steps": 10, "every": 2, "budget": 0.5}, "not two of them"),
        ({"steps": 10, "evaluations": 3, "budget": 0.5}, "not two of them"),
        ({"steps": 10, "evaluations": 3, "every": 2}, "not two of them"),
        ({"steps": 10, "evaluations": 0}, "at least 1, not 0"),
        ({"steps": 10, "evaluations": 2.5}, "a whole number, not 2.5"),
        ({"steps": 10, "evaluations": True}, "a whole number, not True"),
        ({"steps": 10, "opening": False}, "opening is an option of no policy"),
        ({"steps": 10, "policy": "lifetimes", "evaluations": 3}, "evaluations belongs to the policy refresh"),
        ({"steps": 10, "tau": 1.0}, "tau belongs to the policy lifetimes"),
        ({"steps": 10, "policy": "lifetimes", "every": 3}, "every belongs to the policy refresh"),
        ({"steps": 10, "policy": "lifetimes", "tau": 1.0, "budget": 0.5}, "not both"),
        ({"steps": 10, "policy": "lifetimes", "tau": 0.0}, "tau must be positive"),
        ({"steps": 10, "policy": "lifetimes", "min_lifetime": 2}, "between 0 and 1"),
        ({"steps": 10, "policy": "magic"}, "one of refresh, rewrite"),
    ],
)
def test_nonsense_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        tenuto.schedule(scored(0.2, 1.0), **options)


# What a user says


def test_a_speedup_is_a_budget_less_what_is_never_held():
    dit = Scores("toy", "dit", "sha256:toy", scored(0.5, 1.0).units)
    assert tenuto.schedule(dit, 100, speedup=4).policy["budget"] == 0.25  # the output is held: that costs nothing
    by_units = tenuto.schedule(dit, 100, speedup=4, keep="branch")
    assert by_units.policy["budget"] == pytest.approx((0.25 - 0.05) / 0.95)
    unet = Scores("toy", "UNet2DConditionModel", "sha256:toy", scored(0.5, 1.0).units)
    assert tenuto.schedule(unet, 100, speedup=2, keep="update").policy["budget"] == pytest.approx((0.5 - 0.12) / 0.88)
    assert tenuto.schedule(dit, 100, speedup=1).budget == 1
    with pytest.raises(UsageError, match="cannot become 25 times as fast.*less than 20.0 times"):
        tenuto.schedule(dit, 100, speedup=25, keep="branch")
    with pytest.raises(UsageError, match="not both"):
        tenuto.schedule(dit, 100, speedup=2, budget=0.5)
    with pytest.raises(UsageError, match="from 1 on"):
        tenuto.schedule(dit, 100, speedup=0.5)


def test_text_is_rewritten_by_default_and_pictures_are_refreshed():
    llada = Scores("toy", "llada", "sha256:toy", scored(*[0.5] * 8).units)
    assert tenuto.schedule(llada, 16, blocks=4).policy["name"] == "rewrite"
    assert tenuto.schedule(scored(0.5), 16).policy["name"] == "refresh"
    with pytest.raises(UsageError, match="rewrite is for language models"):
        tenuto.schedule(scored(0.5), 16, policy="rewrite")
    with pytest.raises(UsageError, match="blocks belongs to the policy rewrite"):
        tenuto.schedule(scored(0.5), 16, blocks=4)
    with pytest.raises(UsageError, match="colour is an option of no policy"):
        tenuto.schedule(scored(0.5), 16, colour="red")


def test_what_is_fewer_steps_by_another_name_is_called_so():
    llada = Scores("toy", "llada", "sha256:toy", scored(*[0.5] * 8).units)
    idle = tenuto.schedule(llada, 16, every=4, rows="none", held=1.0)
    assert "the same as taking 4 steps" in advice(idle, text=True)
    assert advice(tenuto.schedule(llada, 16, blocks=4), text=True) is None
    assert "too few to extrapolate from" in advice(refresh(scored(0.5), 20, every=5), text=False)
    assert advice(refresh(scored(0.5), 50), text=False) is None


@pytest.mark.parametrize(
    ("steps", "asked", "said"),
    [
        (4, {}, "All 4 steps are evaluated, and nothing is gained"),
        (8, {}, "6 of 8 steps are evaluated: at most 1.33 times as fast. With so few steps, 6 plain steps"),
        (12, {}, "6 of 12 steps are evaluated: at most 2.00 times as fast. .* evaluations=8"),
        (12, {"evaluations": 8}, None),
        (12, {"budget": 1.0}, None),
        (13, {}, None),
    ],
)
def test_few_steps_are_told_at_once_what_they_gain(steps, asked, said):
    found = advice(refresh(scored(0.5), steps, **asked), text=False)
    assert found is None if said is None else re.match(said, found)


def test_only_the_first_of_few_evaluations_asks_ahead_and_only_if_there_is_no_signal_yet():
    noise_first, signal_first = (np.linspace(start, 5, 50).tolist() for start in (-6, -2))
    for evaluations, levels, asks in ((8, noise_first, True), (12, noise_first, False), (8, signal_first, False)):
        ahead, at_once = (
            refresh(scored(1.0), 50, evaluations=evaluations, log_snr=levels, ahead=ahead) for ahead in (True, False)
        )
        assert (ahead.full_steps != at_once.full_steps).any() == asks
        assert ahead.full_steps.sum() == at_once.full_steps.sum() == evaluations
        assert ahead.ahead == asks and not at_once.ahead
        assert from_json(to_json(ahead), "here") == ahead and ("ahead" in to_json(ahead)) == asks
    assert not refresh(scored(1.0), 50, every=8, log_snr=noise_first, ahead=True).ahead
    assert not refresh(scored(1.0), 50, evaluations=8, ahead=True).ahead


def test_more_evaluations_than_steps_are_refused():
    assert tenuto.schedule("tiny-dit", steps=20, evaluations=20).active.all()
    with pytest.raises(UsageError, match="There are 20 steps, so there cannot be 21 evaluations: ask for 20 at most"):
        tenuto.schedule("tiny-dit", steps=20, evaluations=21)
    with pytest.raises(UsageError, match="ask for 5 at most"):
        refresh(scored(1.0), 5, evaluations=6)
