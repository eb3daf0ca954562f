"""tenuto demo: the story it tells, and the files that it leaves."""

import json
from pathlib import Path

import pytest

from tenuto.cli import console
from tests.cli.conftest import Run


def test_the_demo_tells_its_story(tenuto: Run, tmp_path: Path) -> None:
    status, out, err = tenuto("demo", "--steps", 10, "--out", "demo")
    assert status == 0, err
    assert "computed, · predicted" in out and "speed-up" in out and "report.html" in err
    made = {file.name for file in (tmp_path / "demo").iterdir()}
    pictures = {"full.png", "scheduled.png", "difference.png"}
    assert made == pictures | {"report.html", "demo.json", "schedule.json"}  # no scores: the default reads none
    page = (tmp_path / "demo" / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 3 and page.count("<svg") == 1
    result = json.loads((tmp_path / "demo" / "demo.json").read_text())
    assert result["work"] == 0.6 and result["psnr_mean"] > 15  # a quarter of ten steps, but at least six
    assert {"command", "commit", "torch", "hardware", "seed", "date"} <= set(result)


def test_the_demo_tells_how_far_it_is_where_nobody_sees_a_bar(tenuto: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "FIRST", 0)
    monkeypatch.setattr(console, "EVERY", 0)
    status, _, err = tenuto("demo", "--steps", 7, "--out", "demo")
    assert status == 0
    for title in ("In full", "Scheduled"):
        assert f"{title}: 10 of 70, 14%" in err and f"{title}: 70 of 70, 100%" in err


def test_a_demo_with_nothing_held_is_identical(tenuto: Run, tmp_path: Path) -> None:
    status, out, _ = tenuto("demo", "--steps", 2, "--budget", 1.0, "--out", "demo", "--json")
    assert status == 0
    assert json.loads(out)["psnr_mean"] is None  # no error, so no ratio
    assert "identical pictures" in (tmp_path / "demo" / "report.html").read_text()
