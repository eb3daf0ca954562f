"""A metric that has nothing left to measure decides nothing: ruined pictures, and tasks too easy or too hard."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tenuto.errors import TenutoError, UsageError
from tenuto.models import find
from tenuto_lab.judging.judges import answer_lengths, problems
from tenuto_lab.paper import Lab, Protocol
from tenuto_lab.paper.experiment_results import judged
from tenuto_lab.paper.trials import Trial
from tenuto_lab.paper.ways import RUINED, beyond, comparison, ruined
from tests.helpers import layouts

CHANCE = 0.1


def drawn(share: float, fid: float, noise: float | None = None) -> Trial:
    """A trial of 100 pictures, of which this share shows the class asked for."""
    right = [float(i < 100 * share) for i in range(100)]
    figures = {"fid": (fid, fid - 1, fid + 1), "full_fid": (2.0, 1.0, 3.0)}
    figures |= {} if noise is None else {"noise_fid": (noise, noise, noise)}
    draws = {"fid": [fid + 0.01 * (i % 7) * (1 + fid) for i in range(50)]}
    near = [10 + 0.01 * i + fid / 100 for i in range(100)]
    return Trial(None, None, 0.3, 0.3, {"psnr": near, "agreement": right}, figures, draws)


def bench(chance: float | None = CHANCE) -> Any:
    shown = SimpleNamespace(name="m")
    return SimpleNamespace(model=shown, quality="psnr", writes=False, chance=chance, family="dit", granularity="block")


def test_pictures_without_the_class_asked_for_are_ruined() -> None:
    assert ruined(drawn(0.1, 50.0), CHANCE) and ruined(drawn(0.12, 50.0), CHANCE)
    assert not ruined(drawn(0.5, 50.0), CHANCE)


def test_without_a_judge_of_classes_the_fid_of_noise_is_the_measure() -> None:
    assert ruined(drawn(0.9, 50.0, noise=90.0), None) and not ruined(drawn(0.1, 40.0, noise=90.0), None)
    assert not ruined(drawn(0.1, 50.0), None), "nothing is known of noise"


@pytest.mark.parametrize("order", [1, -1])
def test_two_ruined_schedules_cannot_be_ranked_whichever_fid_is_lower(order: int) -> None:
    pair = (drawn(0.1, 20.0), drawn(0.1, 60.0))[::order]
    (row,) = judged([comparison(bench(), "a", "b", (pair[0], pair[1]))])
    assert row.holds == "cannot tell" and RUINED in row.note and row.measured is not None and row.corrected is None


def test_one_schedule_that_still_shows_something_is_ranked() -> None:
    (row,) = judged([comparison(bench(), "a", "b", (drawn(0.9, 20.0), drawn(0.1, 60.0)))])
    assert row.holds == "yes" and RUINED not in row.note


@pytest.mark.parametrize(("right", "tells"), [(0.5, False), (0.6, True), (0.95, True), (0.97, False)])
def test_a_task_tells_if_full_inference_solves_most_but_not_all(right: float, tells: bool) -> None:
    full = Trial(None, None, 1.0, 1.0, {"sums": [float(i < 100 * right) for i in range(100)]})
    assert bool(beyond(full, "sums")) is not tells


def stored(place: Path, **more: Any) -> Path:
    place.mkdir(exist_ok=True)
    posed = {"sums": [{"prompt": [2], "answer": [3]}], "sort": [{"prompt": [2], "answer": [3, 4]}]}
    (place / "problems.json").write_text(json.dumps({"provenance": {}, "problems": posed, **more}))
    return place


def test_a_file_of_problems_may_say_how_long_answers_are(tmp_path: Path) -> None:
    place = stored(tmp_path / "a", lengths={"sums": 16, "sort": 32})
    assert answer_lengths(place) == {"sums": 16, "sort": 32} and set(problems(place)) == {"sums", "sort"}
    assert answer_lengths(stored(tmp_path / "b")) == {}
    with pytest.raises(TenutoError, match="the length of 'sums' should be some tokens"):
        answer_lengths(stored(tmp_path / "c", lengths={"sums": 0}))
    with pytest.raises(TenutoError, match="unknown field"):
        problems(stored(tmp_path / "d", width=3))


def test_the_problems_of_the_shipped_models_are_read() -> None:
    for name in ("small-llada",):
        try:
            place = find(name)
        except TenutoError:
            pytest.skip(f"{name} is not here")
        assert problems(place)


def test_a_problem_that_stands_twice_in_a_file_is_asked_once(tmp_path: Path) -> None:
    place = layouts.llada(tmp_path / "llada")
    posed = [{"prompt": [2, 3], "answer": [i]} for i in (4, 5)] + [{"prompt": [2, 4], "answer": [4]}]
    (place / "problems.json").write_text(json.dumps({"provenance": {}, "problems": {"sort": posed}}))
    bench: Any = Lab((str(place),), 2, 1).bench(str(place))
    assert bench.problems == {"sort": posed[::2]}
    with pytest.raises(UsageError, match="has 2 different problems of the kind 'sort'"):
        Lab((str(place),), 3, 1).bench(str(place))


def test_answers_have_the_length_of_their_task_and_are_written_in_blocks(tmp_path: Path) -> None:
    place = layouts.llada(tmp_path / "llada")
    stored(place, lengths={"sums": 16, "sort": 32})
    bench: Any = Lab((str(place),), 1, 1).bench(str(place))
    assert bench.tasks == ("all tasks", "sums", "sort")
    assert bench._shape("sums", 100) == (16, 1) and bench._shape("sort", 100) == (32, 2)
    assert bench._shape("sort", 25) == (8, 2), "a quarter of the steps, a quarter of the evaluations"
    found = bench.answers(bench._eager, "sort", 25)
    assert [len(row) for row in found] == [32]
    given: Any = Lab((str(place),), 1, 1, protocol=Protocol(tasks=("sort",))).bench(str(place))
    assert given.tasks == ("sort",)
