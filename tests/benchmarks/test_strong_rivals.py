"""The benchmark of the rivals finds the best setting for each goal, goes on where it was, and joins rows with care."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tenuto
from benchmarks.fingerprints import digest, fingerprint, same
from benchmarks.kept import Kept
from benchmarks.strong_rivals import __main__ as command
from benchmarks.strong_rivals import measuring
from benchmarks.strong_rivals.joining import check_same_pictures
from benchmarks.strong_rivals.judging import Judges
from benchmarks.strong_rivals.measuring import Scene, best_for, cost_of, winners
from benchmarks.strong_rivals.progress import Progress
from benchmarks.strong_rivals.report import table
from tenuto.errors import UsageError
from tenuto_lab.rivals import RivalPoint
from tenuto_lab.rivals.by_name import SOLVERS, settings_of

MADE = {"command": "x", "commit": "y", "torch": "2", "hardware": "a CPU", "date": "today"}


@pytest.fixture
def scene(checkpoint: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Scene:
    monkeypatch.setattr(measuring, "STEPS", 10)
    monkeypatch.setattr(measuring, "CONVERGED", 20)
    monkeypatch.setattr(measuring, "OURS", (10,))
    return Scene(tenuto.load(str(checkpoint)), 2, None, Kept(tmp_path / "kept"))


def test_each_rival_is_judged_by_both_goals_at_its_best(scene: Scene) -> None:
    for name in ("DDIM", "ZEUS"):
        found = scene.best(scene.rival(name, 5))
        for goal in ("full", "converged"):
            best = found[name][goal]
            assert best["low"] <= best["psnr"] <= best["high"] and best["evaluations"] == 5 and best["setting"]
            assert best["seconds"] > 0


def test_the_other_numbers_are_of_the_chosen_point_and_of_its_goal() -> None:
    picture = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1
    goals = {"full": picture, "converged": -picture}
    points = [RivalPoint("one", setting, 5, x, 1.5) for setting, x in (("a", picture), ("b", -picture))]

    def apart(a: Tensor, b: Tensor) -> Tensor:
        return (a - b).abs().flatten(1).sum(1)

    found = best_for(points, goals, lambda x: x, Judges(lpips=apart))["one"]
    assert (found["full"]["setting"], found["converged"]["setting"]) == ("a", "b")
    for goal in goals:
        assert found[goal]["ssim"] == 1 and found[goal]["lpips"] == 0 and found[goal]["seconds"] == 1.5
    assert "frechet" not in found["full"] and "perceptual" not in found["full"]  # nobody judges such pictures


def test_full_runs_are_kept_on_disk(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    goals = scene.goals
    monkeypatch.setattr(measuring, "sample", None)  # drawing again would fail
    again = Scene(scene.model, 2, None, scene.kept).goals
    assert all(torch.equal(again[goal], goals[goal]) for goal in goals)
    with pytest.raises(TypeError):
        Scene(scene.model, 2, 3.0, scene.kept).goals  # noqa: B018 - drawn because the guidance differs


def test_only_the_settings_asked_for_are_tried(scene: Scene) -> None:
    among = ["DDIM trailing zero", "UniPC 2 trailing zero"]
    assert [point.setting for point in scene.rival("DDIM", 5, among)] == among[:1]
    assert cost_of("DDIM", 5, among) == 5 and cost_of("DDIM", 5) == 5 * len(settings_of("DDIM"))
    assert cost_of("ZEUS", 5) > 5 and cost_of("TeaCache", 5) > 5


def test_winners_are_counted_over_points_and_goals() -> None:
    def point(near: float, setting: str) -> dict[str, Any]:
        return {goal: {"psnr": near, "setting": setting} for goal in ("full", "converged")}

    cases = {
        "one": {"6": {"DDIM": point(20, "a"), "UniPC 2": point(30, "b"), "FSampler": point(40, "c")}},
        "two": {"6": {"DDIM": point(20, "a")}, "8": {"UniPC 2": point(30, "b"), "DDIM": {"reason": "none"}}},
    }
    assert winners(cases, SOLVERS, 10) == ["b", "a"] and winners(cases, SOLVERS, 1) == ["b"]


def rows_of(scene: Scene, name: str, count: int) -> dict[str, Any]:
    return json.loads(json.dumps({str(count): scene.best(scene.rival(name, count))}))  # type: ignore[no-any-return]


def test_rows_with_a_fingerprint_are_joined_if_the_pictures_are_the_same(scene: Scene) -> None:
    about = {"fingerprints": json.loads(json.dumps(scene.fingerprints()))}
    assert check_same_pictures("case", scene, {}, about)["fingerprints"] == about["fingerprints"]
    other = Scene(scene.model, 2, 4.0)
    with pytest.raises(UsageError, match="on other pictures: the full runs differ"):
        check_same_pictures("case", other, {}, about)


def test_rows_without_a_fingerprint_are_joined_if_a_solver_comes_to_its_recorded_distance(scene: Scene) -> None:
    rows = rows_of(scene, "UniPC 2", 5)
    found = check_same_pictures("case", scene, rows, {})
    assert {one["goal"] for one in found["check"]} == {"full", "converged"}
    assert all(one["found"] == one["recorded"] and one["evaluations"] == 5 for one in found["check"])
    rows["5"]["UniPC 2"]["full"]["psnr"] += 0.2
    with pytest.raises(UsageError, match="not of the same pictures"):
        check_same_pictures("case", scene, rows, {})
    with pytest.raises(UsageError, match="no row of UniPC 2"):
        check_same_pictures("case", scene, {"5": {}}, {})


@pytest.fixture
def run(scene: Scene, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The command on a small network; returns what the file holds afterwards."""
    monkeypatch.setattr(command, "figure", lambda record, path: None)
    monkeypatch.setattr(command, "own_network", lambda name, device: scene.model)

    def call(**options: Any) -> dict[str, Any]:
        asked = {"rivals": ["DDIM", "UniPC 2"], "evaluations": [5], "settings": "all", "lpips": None, "device": "cpu"}
        flags = dict.fromkeys(("draw_only", "ours_only", "rivals_only", "again"), False)
        places = {"out": tmp_path / "out.json", "kept": tmp_path / "kept"}
        command.main(only=["dit"], guidances=None, samples=2, **{**asked, **flags, **places, **options})
        return command.read(places["out"])

    return call


def test_a_run_goes_on_where_it_was_and_tenuto_alone_can_be_measured_again(run, monkeypatch) -> None:
    first = run(rivals_only=True, rivals=["DDIM"])
    assert list(first["cases"]["dit"]["5"]) == ["DDIM"]
    second = run(rivals_only=True)
    assert list(second["cases"]["dit"]["5"]) == ["DDIM", "UniPC 2"]
    assert second["cases"]["dit"]["5"]["DDIM"] == first["cases"]["dit"]["5"]["DDIM"]  # its seconds, too
    assert second["measured"]["dit"]["provenance"] == first["measured"]["dit"]["provenance"]  # of DDIM's row
    assert list(second["measured"]["dit"]["provenance_of"]) == ["UniPC 2"] and "Rows of UniPC 2: " in table(second)
    whole = run(ours_only=True)
    assert list(whole["cases"]["dit"]["5"]) == ["Tenuto, 10 steps", "DDIM", "UniPC 2"]
    assert {"provenance", "provenance_of_tenuto", "fingerprints"} <= whole["measured"]["dit"].keys()
    monkeypatch.setattr(Scene, "rival", None)
    assert run(ours_only=True)["cases"]["dit"]["5"].keys() == whole["cases"]["dit"]["5"].keys()
    assert run()["cases"] == run()["cases"]  # nothing is missing, so nothing is drawn


def test_nothing_is_timed_beside_other_work(run) -> None:
    record = run(rivals_only=True, beside=True, rivals=["DDIM", "TeaCache"])
    for goal in ("full", "converged"):
        assert "seconds" not in record["cases"]["dit"]["5"]["DDIM"][goal]
        assert record["cases"]["dit"]["5"]["DDIM"][goal]["evaluations"] == 5
    assert "| DDIM | " in table(record)


def test_rows_of_other_pictures_or_settings_or_none_at_all_are_not_joined(run) -> None:
    with pytest.raises(UsageError, match="holds no rivals' rows of dit"):
        run(ours_only=True)
    with pytest.raises(UsageError, match="no setting has won yet"):
        run(settings="winners")
    run(rivals_only=True)
    with pytest.raises(UsageError, match="other settings"):
        run(settings="winners", rivals=["UniPC 3", "DPM-Solver++ 2"])
    with pytest.raises(UsageError, match="all or winners"):
        run(settings="some")
    with pytest.raises(UsageError, match="leave out"):
        run(ours_only=True, again=True)


def test_the_table_gives_numbers_or_reasons() -> None:
    near = {"psnr": 31.24, "low": 30.0, "high": 32.0, "setting": "trailing", "evaluations": 10}
    detailed = near | {"ssim": 0.98765, "frechet": 12.34, "seconds": 3.21}
    rows = {"10": {"UniPC 2": {"full": near, "converged": detailed}, "DBCache": {"reason": "no blocks"}}}
    check = {"setting": "UniPC 2 a", "evaluations": 6, "found": 30.01, "recorded": 30.0, "goal": "full"}
    record: dict[str, Any] = {"provenance": MADE, "samples": 2, "cases": {"tiny-dit": rows, "tiny-uvit": rows}}
    record["measured"] = {"tiny-uvit": {"samples": 7, "check": [check], "settings": ["a", "b"]}}
    text = table(record)
    assert "| UniPC 2 | 31.2 [30.0, 32.0] trailing |" in text and "| DBCache | no blocks |" in text
    assert "tiny-dit: to the run of 500 steps" in text
    assert text.count("| SSIM / Fréchet / seconds | 10 |") == 2 and "| UniPC 2 | 0.9877 / 12.3 / 3.2 |" in text
    assert "2 pictures; `x` at y" in text and "7 pictures; `x` at y" in text
    assert "comes to 30.01 dB of the full run; the rivals' run had 30.00" in text
    assert "Of the solvers' 90 settings 2 were tried" in text


def test_progress_estimates_what_is_left() -> None:
    now = [0.0]
    progress = Progress(100, clock=lambda: now[0])
    assert str(progress) == "nothing is done yet"
    progress.add(25)
    now[0] = 60.0
    assert str(progress) == "25% done, about 3 minutes left"


def test_fingerprints_forgive_rounding_and_nothing_else() -> None:
    picture = torch.rand(3, 1, 16, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1
    noise = torch.randn(picture.shape, generator=torch.Generator().manual_seed(1))
    assert same(fingerprint(picture), fingerprint(picture + 1e-3 * noise))
    assert not same(fingerprint(picture), fingerprint(picture + 0.05 * noise))
    assert not same(fingerprint(picture), fingerprint(picture[:2]))
    assert digest(picture) == digest(picture.clone()) != digest(picture + 1e-6)
