"""The benchmark of the rivals finds the best setting for each goal, and its table says who cannot run."""

from pathlib import Path
from typing import Any

import pytest

import tenuto
from benchmarks import strong_rivals
from benchmarks.strong_rivals import measure, table


def test_each_rival_is_judged_by_both_goals_at_its_best(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strong_rivals, "STEPS", 10)
    monkeypatch.setattr(strong_rivals, "CONVERGED", 20)
    [(count, found)] = measure(tenuto.load(str(checkpoint)), 2, [5], ["DDIM", "ZEUS"], None)
    assert count == 5
    for name in ("DDIM", "ZEUS"):
        for goal in ("full", "converged"):
            best = found[name][goal]
            assert best["low"] <= best["psnr"] <= best["high"] and best["evaluations"] == 5 and best["setting"]


def test_the_table_gives_numbers_or_reasons() -> None:
    near = {"psnr": 31.24, "low": 30.0, "high": 32.0, "setting": "trailing", "evaluations": 10}
    record: dict[str, Any] = {
        "provenance": {"command": "x", "commit": "y", "torch": "2", "hardware": "a CPU", "date": "today"},
        "samples": 2,
        "cases": {
            "tiny-dit": {"10": {"UniPC 2": {"full": near, "converged": near}, "DBCache": {"reason": "no blocks"}}}
        },
    }
    text = table(record)
    assert "| UniPC 2 | 31.2 [30.0, 32.0] trailing |" in text and "| DBCache | no blocks |" in text
    assert "tiny-dit: to the run of 500 steps" in text
