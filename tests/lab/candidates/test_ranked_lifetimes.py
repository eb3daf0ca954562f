"""Rankings share one set of lifetimes and differ in who gets them; two schedules are joined by what both compute."""

from typing import Any, cast

import numpy as np
import pytest
import torch

import tenuto
from tenuto.errors import UsageError
from tenuto.scheduling.refresh import refresh
from tenuto_lab.candidates.composition import both
from tenuto_lab.candidates.ranked_lifetimes import STATISTICS, lifetimes_by, ranked_lifetimes, statistic_of
from tenuto_lab.scoring.scores import Scores, UnitScore
from tenuto_lab.units.lifetimes import lifetimes
from tests.conftest import random_dit, write_checkpoint

STEPS, BUDGET = 12, 0.5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    network = random_dit(class_dropout_prob=0.1)
    for i, parameter in enumerate(network.parameters()):  # or all matrices would be alike
        parameter.mul_(1 + 0.3 * np.sin(i))
    return tenuto.load(str(write_checkpoint(tmp_path_factory.mktemp("model") / "dit", network)))


@pytest.fixture(scope="module")
def scores(model: Any) -> Any:
    return tenuto.score(model)


def test_a_units_number_is_the_mean_over_its_matrices(model: Any, scores: Any) -> None:
    weights = model.network.state_dict()
    q, k, v = weights["blocks.1.attn.qkv.weight"].chunk(3)
    matrices = [q, k, v, weights["blocks.1.attn.proj.weight"]]
    frobenius = [torch.linalg.matrix_norm(matrix) for matrix in matrices]
    spectral = [torch.linalg.matrix_norm(matrix, 2) for matrix in matrices]
    rank = [(f / s) ** 2 for f, s in zip(frobenius, spectral, strict=True)]
    want = {
        "frobenius": np.mean(frobenius),
        "spectral_norm": np.mean(spectral),
        "stable_rank": np.mean(rank),
        "frobenius_stable_rank": np.mean([f * r for f, r in zip(frobenius, rank, strict=True)]),
        "depth": 2.0,
        "score": scores.units[2].score,
    }
    for statistic, value in want.items():
        assert statistic_of(scores, cast(Any, statistic))[2] == pytest.approx(float(value), rel=1e-4)
    parts = scores.units[2].components[0].spectra.values()
    assert statistic_of(scores, "scr")[2] == pytest.approx(np.mean([part.scr for part in parts]))


@pytest.mark.parametrize("ranking", STATISTICS)
@pytest.mark.parametrize("orientation", [1, -1])
def test_every_ranking_gives_out_the_same_lifetimes(scores: Any, ranking: Any, orientation: int) -> None:
    spectral = lifetimes(scores, STEPS, budget=BUDGET)
    schedule = ranked_lifetimes(scores, STEPS, ranking, BUDGET, orientation=orientation)
    assert sorted(schedule.lifetimes) == sorted(spectral.lifetimes)
    assert (schedule.active.sum(0) == spectral.active.sum(0)).all()
    values = orientation * statistic_of(scores, ranking)
    longest = sorted(range(len(values)), key=lambda i: -values[i])
    assert [schedule.lifetimes[i] for i in longest] == sorted(spectral.lifetimes, reverse=True)
    assert schedule.policy["orientation"] == orientation and schedule.policy["tau"] == spectral.policy["tau"]


def test_ranked_by_the_score_it_is_the_papers_schedule(scores: Any) -> None:
    assert (
        ranked_lifetimes(scores, STEPS, "score", BUDGET).active == lifetimes(scores, STEPS, budget=BUDGET).active
    ).all()
    assert (ranked_lifetimes(scores, STEPS, "score").active == lifetimes(scores, STEPS).active).all()


def test_of_equal_units_the_first_lives_longer(scores: Any) -> None:
    schedule = lifetimes_by(scores, STEPS, [1.0] * len(scores.units), "nothing", BUDGET)
    assert list(schedule.lifetimes) == sorted(schedule.lifetimes, reverse=True)
    assert schedule.policy["ranking"] == "nothing"


def test_the_random_order_depends_on_its_seed_alone(scores: Any) -> None:
    first, again, other = (statistic_of(scores, "random", seed) for seed in (0, 0, 1))
    assert (first == again).all() and (first != other).any()
    assert ranked_lifetimes(scores, STEPS, "random", BUDGET, 7).policy["seed"] == 7


def test_nonsense_is_refused(scores: Any) -> None:
    bare = Scores("toy", "toy", "sha256:toy", (UnitScore("a", "mlp", 1.0, (), 1.0, 1.0),))
    with pytest.raises(UsageError, match="nothing of the weights of a"):
        statistic_of(bare, "scr")
    with pytest.raises(UsageError, match="one of random"):
        statistic_of(scores, cast(Any, "beauty"))
    with pytest.raises(UsageError, match="1 or −1"):
        ranked_lifetimes(scores, STEPS, "depth", BUDGET, orientation=0)
    with pytest.raises(UsageError, match="finite number for each"):
        lifetimes_by(scores, STEPS, [1.0], "short", BUDGET)


# ----------------------------------------------------------------------------------------------------- compositions


def test_two_schedules_at_once_compute_what_both_do(model: Any, scores: Any) -> None:
    first = lifetimes(scores, STEPS, budget=BUDGET)
    second = refresh(scores, STEPS, every=3, predict="constant", keep="update")
    joined = both(first, second)
    assert (joined.active == (first.active & second.active)).all() and joined.active[:, 0].all()
    assert joined.policy["first"]["name"] == "lifetimes" and joined.policy["second"]["name"] == "refresh"
    assert torch.isfinite(tenuto.generate(model, [0], schedule=joined)).all()


def test_schedules_that_do_not_fit_are_not_joined(scores: Any) -> None:
    first = lifetimes(scores, STEPS)
    with pytest.raises(UsageError, match="their steps differ: 12 and 6"):
        both(first, lifetimes(scores, 6))
    with pytest.raises(UsageError, match="their keep differ"):
        both(first, lifetimes(scores, STEPS, keep="branch"))


def test_lifetimes_run_at_the_steps_of_dpm_solver(model: Any, scores: Any) -> None:
    """The paper's Spectral + DPM-Solver++: a step is an evaluation, and the solver evaluates once a step."""
    full = tenuto.generate(model, [0, 1], steps=STEPS, solver="dpm++")
    everything = lifetimes(scores, STEPS, tau=1e-6)
    assert torch.equal(tenuto.generate(model, [0, 1], schedule=everything, solver="dpm++"), full)
    held = tenuto.generate(model, [0, 1], schedule=lifetimes(scores, STEPS, budget=BUDGET), solver="dpm++")
    assert torch.isfinite(held).all() and not torch.equal(held, full)
    assert not torch.equal(full, tenuto.generate(model, [0, 1], steps=STEPS, solver="ddim"))
