"""Experiments beside each other: no times meanwhile, times afterwards, and everything put together elsewhere."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.experiments import MAIN, parts
from benchmarks.experiments import app as kept_trials
from tenuto_lab.cli import app
from tenuto_lab.paper import EXPERIMENTS
from tenuto_lab.paper.notes import FILE
from tenuto_lab.paper.results_page import in_parts
from tests.conftest import random_dit, write_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("model") / "toy", random_dit()))


def run(checkpoint: str, *arguments: object) -> Any:
    small = ["--checkpoint", checkpoint, "--samples", "1", "--seeds", "1", "--steps", "6"]
    given = ["experiment", *map(str, arguments), *small]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tenuto", *given])  # results name the command that made them
        return CliRunner().invoke(app, given)


def speeds(folder: Path) -> list[dict[str, Any]]:
    rows = json.loads((folder / "pareto.json").read_text())["rows"]
    return [row for row in rows if "speed-up" in row["quantity"]]


def test_times_are_taken_afterwards_and_all_is_put_together(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENUTO_COMMIT", "measured")
    block, branch, times, out = (tmp_path / name for name in ("all/block", "all/branch", "all/times", "out"))
    for folder in (block, branch):
        done = run(checkpoint, "pareto", "--granularity", folder.name, "--beside", "-o", folder)
        assert done.exit_code == 0, done.output
        assert (folder / FILE).exists() and speeds(folder)
        assert all(row["measured"] is None and "not timed" in row["note"] for row in speeds(folder))
    done = run(checkpoint, "pareto", "--times", "--trials", tmp_path / "all", "-o", times)
    assert done.exit_code == 0 and not (times / "pareto.json").exists(), done.output
    monkeypatch.setenv("TENUTO_COMMIT", "another")  # who puts it together is not who measured it
    done = run(checkpoint, "pareto", "--minutes", 0, "--trials", tmp_path / "all", "-o", out)
    assert done.exit_code == 0, done.output
    assert all(row["measured"] > 0 for row in speeds(out)) and len(speeds(out)) == 2 * len(speeds(block))
    made = json.loads((out / "pareto.json").read_text())["provenance"]
    assert made["commit"] == "measured" and "left_out" not in made
    assert any("--granularity block" in command for command in made["measured_by"])
    assert not any("--minutes" in command for command in made["measured_by"])


def test_what_is_not_complete_is_left_out_and_named(checkpoint: str, tmp_path: Path) -> None:
    assert run(checkpoint, "pareto", "--granularity", "block", "--beside", "-o", tmp_path / "p").exit_code == 0
    done = run(checkpoint, "pareto", "rankings", "--minutes", 0, "--trials", tmp_path / "p", "-o", tmp_path / "out")
    assert done.exit_code == 75, done.output
    record = json.loads((tmp_path / "out" / "pareto.json").read_text())
    assert {row.get("granularity") for row in record["rows"]} == {"block"}
    assert record["provenance"]["left_out"] == [f"{checkpoint} by branch"]
    assert not (tmp_path / "out" / "rankings.json").exists()
    assert "Not measured yet: quality against work" in in_parts([record])[0]


def test_trials_that_were_kept_are_as_good_as_those_measured(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENUTO_COMMIT", "measured")
    for granularity in ("block", "branch"):
        place = tmp_path / "all" / ".parts" / granularity
        assert run(checkpoint, "pareto", "--granularity", granularity, "--beside", "-o", place).exit_code == 0
    kept = tmp_path / "kept.jsonl"
    done = CliRunner().invoke(kept_trials, ["keep", str(kept), "--out", str(tmp_path / "all")])
    assert done.exit_code == 0, done.output
    found = []
    for trials, out in ((tmp_path / "all", tmp_path / "from-parts"), (kept, tmp_path / "from-kept")):
        assert run(checkpoint, "pareto", "--minutes", 0, "--trials", trials, "-o", out).exit_code == 0
        found.append(json.loads((out / "pareto.json").read_text()))
    assert found[0]["rows"] == found[1]["rows"]
    assert found[0]["provenance"]["measured_by"] == found[1]["provenance"]["measured_by"]
    nothing = CliRunner().invoke(kept_trials, ["keep", str(kept), "--out", str(tmp_path / "nowhere")])
    assert nothing.exit_code != 0 and "There are no trials in" in str(nothing.exception)


def test_trials_of_other_code_are_not_mixed_in(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENUTO_COMMIT", "old")
    assert run(checkpoint, "maps", "--beside", "-o", tmp_path / "old").exit_code == 0
    monkeypatch.setenv("TENUTO_COMMIT", "new")
    done = run(checkpoint, "maps", "--trials", tmp_path / "old", "-o", tmp_path / "new")
    assert done.exit_code != 0 and "these trials cannot be compared" in str(done.exception)
    nothing = run(checkpoint, "maps", "--minutes", 0, "-o", tmp_path / "new")
    assert nothing.exit_code != 0 and "name it with --trials" in str(nothing.exception)


def test_every_experiment_belongs_to_a_part() -> None:
    done = {name for part in parts() for name in part.experiments}
    counted_or_timed = {"maps", "quantisation", "execution"}
    assert done == set(EXPERIMENTS) - counted_or_timed
    assert len({part.name for part in parts()}) == len(parts()) and parts()[0].experiments[:2] == MAIN[:2]
