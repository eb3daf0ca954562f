"""The command `tenuto check`; what it calls is tested in tests/lab/test_checking.py."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import Run


def test_check_says_whether_a_schedule_is_safe(tenuto: Run, model: Path, tmp_path: Path) -> None:
    for name, options in {"all": ("--budget", "1"), "few": ("--policy", "lifetimes", "--budget", "0.2")}.items():
        assert tenuto("schedule", model, "--steps", "10", *options, "-o", f"{name}.json")[0] == 0
    exact = ("check", model, "--schedule", "all.json", "--samples", "1")
    status, out, _ = tenuto(*exact)
    assert status == 0
    assert out == "Safe: the pictures are identical to those of the full run (1 sample compared).\n"
    status, out, _ = tenuto(*exact, "--json")
    assert status == 0 and json.loads(out)["likeness"] == [None]
    command = ("check", model, "--schedule", "few.json", "--for", "1")
    status, out, _ = tenuto(*command, "--png", "errors.png")
    assert status == 1 and out.startswith("Not safe") and "furthest off: blocks." in out
    assert "These differences are of values inside the run, not of pictures" in out
    assert "--reuse" not in out
    assert (tmp_path / "errors.png").stat().st_size > 1000
    status, out, _ = tenuto(*command, "--json")
    record = json.loads(out)
    assert status == 1 and not record["safe"] and record["worst_units"][0]["error"] > 0


def test_the_schedule_that_is_recommended_says_how_safe_it_is(
    tenuto: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenuto_lab import checking

    def judged(loaded: Any, schedule: Any, asked: Any, **options: Any) -> checking.Check:
        likeness = 20.0 if schedule.policy["name"] == "lifetimes" else 30.5 if schedule.full_steps.sum() < 5 else best
        return checking.Check(schedule, (likeness,), False, np.zeros(schedule.active.shape))

    monkeypatch.setattr(checking, "check", judged)
    tenuto("schedule", model, "--steps", "10", "--policy", "lifetimes", "--budget", "0.2", "-o", "s.json")
    for best, words in (
        (34.0, "safe, with at least 3 dB to spare: --evaluations 5"),
        (31.0, "less than 3 dB to spare"),
    ):
        status, out, _ = tenuto("check", model, "--schedule", "s.json", "--for", "1")
        assert status == 1 and words in out
        status, out, _ = tenuto("check", model, "--schedule", "s.json", "--for", "1", "--json")
        assert json.loads(out)["safe_alternative"]["clearly_safe"] is (best == 34.0)


def test_a_language_model_that_computes_nothing_takes_fewer_steps(tenuto: Run) -> None:
    common = ("check", "small-llada", "--length", "8", "--samples", "1", "--schedule", "s.json")
    tenuto("schedule", "small-llada", "--steps", "8", "--every", "4", "--rows", "none", "-o", "s.json")
    status, out, _ = tenuto(*common)
    assert "At 6 of 8 steps every unit is held" in out and status in (0, 1)
    tenuto("schedule", "small-llada", "--steps", "8", "--every", "4", "-o", "s.json")  # the default: rows are computed
    assert "fewer steps" not in tenuto(*common)[1]
