"""The end-to-end benchmark with miniature networks: it counts what it says, and goes on from what is known."""

import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.end_to_end import __main__ as end_to_end
from benchmarks.end_to_end.building import CASES, build
from benchmarks.end_to_end.measuring import Row, compare, measure
from benchmarks.end_to_end.planning import Book, expected, in_order, least_seconds
from benchmarks.end_to_end.recording import Recorder
from benchmarks.end_to_end.report import tables, verdict
from benchmarks.end_to_end.rounds import ratio_of
from benchmarks.end_to_end.ways import BASE, Plan, Way, intervals, ways, with_tenuto
from tenuto.errors import UsageError

CPU = torch.device("cpu")
MADE = dict.fromkeys(("command", "commit", "torch", "hardware", "date"), "…")


def test_one_pipeline_is_measured_in_every_way_and_a_second_run_measures_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "rows.json"
    asked: dict[str, Any] = {"only": ["flux-28"], "peers": ["flux-28"], "compiled": ["none"], "steps": 12}
    end_to_end.main(out=out, repeats=1, tiny=True, device="cpu", **asked)
    rows = {row["way"]: row for row in json.loads(out.read_text())["rows"]}
    assert rows["untouched"]["evaluations"] == rows["untouched, again"]["evaluations"] == 12
    assert [rows[f"Tenuto {share}%"]["evaluations"] for share in (34, 25, 15)] == [4, 3, 2]
    ours = rows["Tenuto 25%"]
    for peer in ("FirstBlockCache", "MagCache", "TaylorSeer, lite"):
        row = rows[f"diffusers {peer} 25%"]
        assert (row["evaluations"], row["why"]) == (3, "")
    assert rows["diffusers MagCache 25%"]["computed_steps"] == ours["computed_steps"]
    assert ours["ideal_seconds"] < rows["untouched"]["seconds"] and ours["held_ms"] > 0
    assert "| Tenuto 25% | 3 of 12 |" in out.with_suffix(".md").read_text()
    monkeypatch.setattr(end_to_end, "build", None)  # calling it would raise
    end_to_end.main(out=out, repeats=1, tiny=True, device="cpu", **asked)
    assert len(json.loads(out.read_text())["rows"]) == len(rows)


def test_a_way_that_fails_or_computes_too_much_keeps_a_row_with_the_reason() -> None:
    case = CASES[0]
    built = build(case.design, CPU, torch.float32, tiny=True, frames=5)

    @contextmanager
    def broken(*_: Any) -> Any:
        raise ValueError("no such block")
        yield

    @contextmanager
    def idle(*_: Any) -> Any:
        yield

    plan = Plan(4, (0, 2))
    assert "no such block" in measure(case, Way("broken", broken, 0.5, "peer"), built, plan, 1, None).why
    row = measure(case, Way("idle", idle, 0.5, "peer"), built, plan, 1, None)
    assert row.why == "it was to compute 2 steps and computed 4"


def test_guidance_in_two_calls_counts_as_one_evaluation_a_step() -> None:
    case = next(case for case in CASES if case.name == "qwen")
    built = build(case.design, CPU, torch.float32, tiny=True, frames=5)
    recorder, plan = Recorder(built, 8), Plan(8, (0, 2, 4, 7))
    with with_tenuto()(built, plan, recorder):
        made = recorder.generate(at_denoiser=True, time_denoiser=False)
    assert len(made.computed) == 4 and made.calls == 8 and len(made.steps) == 8


def test_the_ideal_is_the_share_of_the_denoisers_time_and_the_rest() -> None:
    base = Row("c", "untouched", "base", steps=10, evaluations=10, seconds=12.0, denoiser_seconds=10.0)
    row = Row("c", "Tenuto", "tenuto", steps=10, evaluations=4, seconds=6.6, held_ms=5.0)
    compare(row, base)
    assert [row.ideal_seconds, row.ratio_to_ideal, row.held_share] == pytest.approx([6.0, 1.1, 0.005])


def test_taylorseers_settings_give_the_number_of_evaluations() -> None:
    for steps in (28, 30, 50):
        for evaluations in (4, 7, 10, 12, 17):
            interval, before = intervals(steps, evaluations)
            assert sum(s < before or (s - before - 1) % interval == 0 for s in range(steps)) == evaluations


def test_rows_that_do_not_fit_into_the_time_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.json"
    end_to_end.main(out=out, only=["flux-28"], tiny=True, device="cpu", seconds=0.0)
    assert "no time is left" in capsys.readouterr().out and not out.exists()


def test_the_untouched_row_and_tenutos_of_later_pipelines_come_before_peers(tmp_path: Path) -> None:
    book = Book(tmp_path / "rows.json", MADE)
    flux, sdxl = CASES[0], CASES[2]
    kept_back = least_seconds([sdxl], book, most=3)
    pictures = [sdxl.steps * sdxl.step_seconds * share for share in (1.0, 0.34, 0.25, 0.15)]
    assert sum(pictures) < kept_back < 8 * sum(pictures)
    for way in ways([], False):
        book.add(Row("sdxl", way.name, way.kind, "SDXL", "1024×1024, 50 steps"))
    assert least_seconds([sdxl], book, most=3) == 0.0
    rows = in_order([flux, sdxl], 0, ["flux-28"], ["flux-28"], [0.25])
    assert not any(way.compiled or "graphs" in way.name for _, way in rows)
    assert [way.compiled for _, way in in_order([flux], 1, ["flux-28"], ["flux-28"], [0.25])] == [False] + 4 * [True]


def test_an_untouched_row_that_is_measured_again_is_compared_with_itself(tmp_path: Path) -> None:
    book = Book(tmp_path / "rows.json", MADE)
    book.add(Row("sdxl", BASE.name, BASE.kind, seconds=2.0))
    again, ours = Row("sdxl", BASE.name, BASE.kind, seconds=3.0), Row("sdxl", "Tenuto 25%", "tenuto", seconds=0.5)
    end_to_end.compare_to_untouched(again, book)
    book.add(again)
    end_to_end.compare_to_untouched(ours, book)
    assert (again.speedup, ours.speedup) == (1.0, 6.0)


def test_long_pictures_are_timed_less_often() -> None:
    quick, slow = CASES[0], CASES[4]
    assert expected(quick, ways([], False)[1], Plan(28, tuple(range(7))), None, 3)[1] == 3
    assert expected(slow, BASE, Plan(30, tuple(range(30))), None, 3)[1] == 1


def test_the_verdict_names_the_quickest_and_the_leanest_peer() -> None:
    def row(way: str, kind: str, seconds: float, peak: float) -> dict[str, Any]:
        return {**vars(Row("c", way, kind, evaluations=7, seconds=seconds, peak_gib=peak))}

    rows = [row("Tenuto 25%", "tenuto", 1.0, 30.0), row("A 25%", "peer", 1.01, 31.0), row("B 25%", "peer", 2.0, 29.5)]
    said = verdict(rows)
    assert "A 25% with 1.010 s (1.0% more)" in said and "B 25% with 512.0 MiB less" in said


def test_miniatures_never_overwrite_the_measurements() -> None:
    with pytest.raises(UsageError, match="measure nothing"):
        end_to_end.main(tiny=True)
    with pytest.raises(UsageError, match="no case 'flux'"):
        end_to_end.chosen(["flux"], [])


def test_a_row_without_numbers_says_why_in_the_table() -> None:
    row = {**vars(Row("flux-28", BASE.name, "peer", "FLUX", "1024×1024, 28 steps")), "why": "ValueError: a|b"}
    table = tables({"provenance": {"flux-28": MADE}, "rows": [row]})
    cells = next(line for line in table.splitlines() if "a/b" in line)
    assert "does not run" in cells and cells.count("|") == 17


def test_rows_measured_in_rounds_have_an_interval_and_their_own_provenance(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    first = Book(out, {**MADE, "commit": "older"})
    first.add(Row("sd3", "Tenuto 34%", "tenuto", "SD3", "32×32, 12 steps"))
    names = ["untouched", "Tenuto 25%", "diffusers MagCache 25%"]
    asked: dict[str, Any] = {"only": ["sd3"], "peers": ["sd3"], "way": names, "steps": 12}
    end_to_end.main(out=out, rounds=3, repeats=1, tiny=True, device="cpu", **asked)
    rows = {row["way"]: row for row in json.loads(out.read_text())["rows"]}
    assert set(rows) == {*names, "Tenuto 34%"}
    assert all(len(rows[name]["round_seconds"]) == rows[name]["repeats"] == 3 for name in names)
    assert rows["diffusers MagCache 25%"]["computed_steps"] == rows["Tenuto 25%"]["computed_steps"]
    table = out.with_suffix(".md").read_text()
    assert "; in rounds " in table and "Tenuto 34%: `…` at older" in table and table.count("–") >= 2


def test_the_interval_of_a_ratio_contains_it_and_needs_the_same_three_rounds() -> None:
    one, other = {"round_seconds": [1.0, 2.0, 1.5]}, {"round_seconds": [1.1, 2.2, 1.6]}
    ratio = ratio_of(other, one)
    assert ratio is not None and ratio[1] < ratio[0] < ratio[2] and ratio[0] == pytest.approx(1.089, abs=1e-3)
    assert ratio_of(other, {"round_seconds": [1.0, 2.0]}) is None and ratio_of({}, one) is None
