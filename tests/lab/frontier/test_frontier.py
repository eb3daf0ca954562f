"""The frontier measures every point once a seed, against the full run, and counts work as it is spent."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tenuto
from tenuto.errors import UsageError
from tenuto.models import shipped
from tenuto.runtime.executor import Executor
from tenuto.scheduling.rewrite import rewrite
from tenuto_lab.frontier import DrawingCase, WritingCase, case_of, cases, drawing, measure
from tenuto_lab.frontier.frontier_report import frontier_tables
from tenuto_lab.frontier.measurements import HIGHEST, compared
from tenuto_lab.frontier.points import Points, everything, plain_refresh
from tenuto_lab.frontier.writing import flop_share
from tenuto_lab.judging.judges import problems
from tests.helpers import layouts


@pytest.fixture(scope="module")
def dit() -> Any:
    return tenuto.load("tiny-dit")


@pytest.fixture(scope="module")
def llada() -> Any:
    try:
        return tenuto.load("small-llada")
    except tenuto.TenutoError:
        pytest.skip("small-llada is not here")


@pytest.fixture(scope="module")
def drawn(dit: Any) -> Any:
    told: list[str] = []
    saved: list[Any] = []
    case = case_of(dit, 12, samples=1, seeds=2, budgets=(0.5,))  # six evaluations, which a budget leaves at least
    return measure(case, told.append, lambda frontier: saved.append(len(frontier.rows))), told, saved


def test_every_point_is_measured_once_a_seed_and_saved_as_it_is_finished(drawn: Any) -> None:
    frontier, told, saved = drawn
    points = {(row.policy, row.budget) for row in frontier.rows}
    assert len(frontier.rows) == 2 * len(points) == 2 * len(told)
    assert saved == list(range(2, len(frontier.rows) + 1, 2))
    assert "equal" in told[0] and "dB" not in told[0], "the full run equals itself: no number stands for that"
    assert all(" dB" in line for line in told[1:] if "work 1.0" not in line)
    kinds = {row.kind for row in frontier.rows}
    assert kinds == {"full", "ours", "option", "rival", "paper"}


def test_the_first_evaluations_of_a_process_are_not_timed(dit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take longer, and would make everything after the full run look faster than it is."""
    happened: list[str] = []
    timed = drawing.timed

    def watched(*given: Any) -> Any:
        happened.append("timed")
        return timed(*given)

    monkeypatch.setattr(drawing, "timed", watched)
    handle = dit.network.register_forward_pre_hook(lambda *_: happened.append("evaluated"))
    try:
        measure(case_of(dit, 4, samples=1, seeds=1, budgets=(0.5,), ours_only=True))
    finally:
        handle.remove()
    assert happened[0] == "evaluated" and "timed" in happened


def test_the_full_run_is_the_network_as_it_is(dit: Any) -> None:
    full = next(iter(Points(dit, tenuto.score(dit), 4)))
    assert type(full.executor()) is Executor, "single units are run one by one only where some of them are held"


def test_the_full_run_comes_first_and_equals_itself(drawn: Any) -> None:
    full = drawn[0].rows[0]
    assert (full.policy, full.psnr, full.work, full.flop_work, full.lpips) == ("full", HIGHEST, 1.0, 1.0, 0.0)
    assert all(row.psnr < 100 for row in drawn[0].rows if row.work < 0.6)


def test_work_is_what_was_computed(drawn: Any) -> None:
    rows = {(row.policy, row.budget): row for row in drawn[0].rows}
    assert rows["tenuto", 0.5].work == pytest.approx(0.5)
    assert rows["fewer steps, ddim", 0.5].work == pytest.approx(0.5) and rows["fewer steps, ddim", 0.5].steps == 6
    assert rows["skipped evaluations", 0.5].work == pytest.approx(0.5)
    assert rows["TaylorSeer", 0.5].work == pytest.approx(7 / 12)  # its second step warms up
    assert rows["lifetimes (the paper)", 0.35].flop_work < 0.35
    assert rows["tenuto", 0.5].cache_bytes < rows["every update held", 0.5].cache_bytes
    assert rows["every update held", 0.5].cache_bytes < rows["every branch held", 0.5].cache_bytes


def test_pairs_at_equal_budget_are_compared(drawn: Any) -> None:
    pairs = {(one.a, one.b) for one in drawn[0].comparisons}
    assert ("tenuto at 0.5", "plain refresh, linear at 0.5") in pairs
    assert all(one.low <= one.difference <= one.high and 0 < one.p <= 1 for one in drawn[0].comparisons)


def test_a_comparison_by_hand() -> None:
    one = compared("toy", 10, "psnr", ("a", [3.0, 4.0, 5.0]), ("b", [1.0, 2.0, 3.0]))
    assert (one.difference, one.low, one.high) == (2.0, 2.0, 2.0)


def named_case(checkpoint: Path, budget: float, *named: str) -> DrawingCase:
    model = tenuto.load(str(checkpoint))
    return DrawingCase(model, 6, [0, 2], (0, 1), 1, budgets=(budget,), rivals=False, rankings=False, named=named)


def test_rivals_by_name_draw_the_same_pictures_at_their_best_setting(checkpoint: Path) -> None:
    told: list[str] = []
    found = measure(named_case(checkpoint, 0.5, "UniPC 2", "ZEUS", "EasyCache"), told.append)
    rows = [row for row in found.rows if row.policy in ("UniPC 2", "ZEUS", "EasyCache")]
    assert [(row.policy, row.seed) for row in rows[:4]] == [("UniPC 2", 0), ("UniPC 2", 1), ("ZEUS", 0), ("ZEUS", 1)]
    for row in rows:
        assert row.kind == "rival" and row.setting and row.psnr is not None and row.samples == 2 and row.seconds > 0
        assert row.work == pytest.approx(0.5, abs=0.35 if row.policy == "EasyCache" else 1e-9)
    assert rows[0].steps == 3 and rows[2].steps == 6 and sum("UniPC 2" in line for line in told) == 1


def test_a_rival_that_evaluates_every_step_draws_the_full_run(checkpoint: Path) -> None:
    found = measure(named_case(checkpoint, 1.0, "TaylorSeer (output)"))
    same = [row.psnr for row in found.rows if row.policy == "TaylorSeer (output)"]
    assert len(same) == 2 and all(value is not None and value > 80 for value in same)


def test_a_rival_that_cannot_run_says_so_in_the_table(checkpoint: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(drawing, "best_drawing", lambda *arguments: "it has no blocks")
    told: list[str] = []
    found = measure(named_case(checkpoint, 0.5, "DBCache"), told.append)
    assert found.unable == {"DBCache": "it has no blocks"} and "cannot run: it has no blocks" in told[-1]
    made = {"command": "x", "commit": "y", "torch": "2", "hardware": "a CPU", "unable": found.unable}
    record = {"cases": {"c": made}, "rows": [{"case": "c", **row.to_json()} for row in found.rows]}
    assert "Rivals without a row: DBCache: it has no blocks." in frontier_tables(record)
    with pytest.raises(UsageError, match="no rival 'Zeus'"):
        case_of(tenuto.load(str(checkpoint)), 6, samples=1, named=["Zeus"])


def test_points_without_rivals_or_rankings_are_few(dit: Any) -> None:
    scores = tenuto.score(dit)
    few = [point.policy for point in Points(dit, scores, 20, (0.25,), rivals=False, rankings=False)]
    assert few[:2] == ["full", "tenuto"] and not any("steps, " in name or "anchors" in name for name in few)
    assert plain_refresh(scores, 20, 0.25).active.sum() == 5 * len(scores.units)


def test_text_is_judged_by_its_answers_and_counted_by_what_it_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    place = layouts.llada(tmp_path / "llada")
    judge = layouts.prose(place)
    monkeypatch.setattr(cases, "text_judge", lambda device: judge)
    case = case_of(tenuto.load(place), 8, samples=1, seeds=1, budgets=(0.5,), rankings=False, block_length=32)
    assert isinstance(case, WritingCase) and case.judge is judge and case.answer_length == 16
    case = dataclasses.replace(case, length=16, block_length=8, answer_length=8)
    frontier = measure(case)
    rows = {(row.policy, row.budget): row for row in frontier.rows}
    full = rows["full", 1.0]
    assert full.same_tokens == 1 and {full.needle, full.arithmetic} <= {0.0, 1.0}
    assert rows["tenuto", 0.5].flop_work < 0.7
    idle, fewer = rows["all units held (the same as fewer steps)", 0.5], rows["fewer steps", 0.5]
    assert idle.same_tokens == fewer.same_tokens and idle.work == fewer.work == 0.5
    assert full.nll is not None and full.nll_delta == 0 and idle.nll == pytest.approx(fewer.nll, abs=1e-4)


def test_a_model_without_prose_is_asked_its_own_problems_at_their_own_length(llada: Any) -> None:
    case = case_of(llada, 8, samples=1, seeds=1)
    assert isinstance(case, WritingCase) and case.judge is None, "the judge reads prose only"
    assert case.answered == {"arithmetic": "brackets-22"} and case.answer_length == 32
    asked = case_of(llada, 8, samples=1, seeds=1, answer_length=8)
    assert isinstance(asked, WritingCase) and asked.answer_length == 8


def test_flops_of_text_by_hand(llada: Any) -> None:
    case = WritingCase(llada, 16, problems(shipped("small-llada")), None, length=64, block_length=16)
    scores = tenuto.score(llada)
    assert flop_share(case, everything(scores, 16), 64) == 1
    idle = rewrite(scores, 16, every=4, blocks=4, rows="none", held=1.0)
    assert flop_share(case, idle, 64) == pytest.approx(0.25)
    keys = rewrite(scores, 16, every=4, blocks=4)  # a block of 16 of 128 positions at three steps of four
    assert keys.keep == "keys"
    assert flop_share(case, keys, 64) == pytest.approx(0.25 + 0.75 * 16 / 128)
    assert flop_share(case, dataclasses.replace(keys, keep="update"), 64) > flop_share(case, keys, 64)


def test_nonsense_is_refused(dit: Any, llada: Any) -> None:
    with pytest.raises(UsageError, match="At least one sample"):
        case_of(dit, 6, samples=0)
    with pytest.raises(UsageError, match="no converged output"):
        case_of(llada, 8, samples=1, converged=2)


def test_distances_to_real_pictures_need_more_samples_than_features(dit: Any) -> None:
    from tenuto_lab.judging.judges import picture_judge

    judge = picture_judge(dit, "cpu")
    assert judge is not None and judge.statistics is not None
    assert judge.features(torch.zeros(2, 1, 32, 32)).shape[1] == len(judge.statistics.mean)
    assert np.isfinite(judge.statistics.covariance.numpy()).all()
