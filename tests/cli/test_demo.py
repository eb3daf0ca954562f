"""tenuto demo: the story it tells, and the files that it leaves."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tenuto import models, timing
from tenuto.cli import console
from tenuto.cli.demo import CLOTHES, NATURAL, SCENES, Drawn, _scene
from tenuto.errors import UsageError
from tests.cli.conftest import Run


def test_the_demo_tells_its_story(tenuto: Run, tmp_path: Path) -> None:
    status, out, err = tenuto("demo", "--model", "tiny-dit", "--steps", 20, "--out", "demo")
    assert status == 0, err
    assert "█·" in out and "steps 1 to 20" in out and "speed-up" in out and "report.html" in err
    made = {file.name for file in (tmp_path / "demo").iterdir()}
    pictures = {"full.png", "scheduled.png", "difference.png"}
    assert made == pictures | {"report.html", "demo.json", "schedule.json"}  # no scores: the default reads none
    page = (tmp_path / "demo" / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 3 and page.count("<svg") == 1
    result = json.loads((tmp_path / "demo" / "demo.json").read_text())
    assert result["work"] < 0.5 and result["psnr_mean"] > 15
    assert {"command", "commit", "torch", "hardware", "seed", "date"} <= set(result)


def test_the_demo_tells_how_far_it_is_where_nobody_sees_a_bar(tenuto: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "FIRST", 0)
    monkeypatch.setattr(console, "EVERY", 0)
    status, _, err = tenuto("demo", "--model", "tiny-dit", "--steps", 7, "--out", "demo")
    assert status == 0
    assert "Drawing: 2 of 140, 1%" in err and "Drawing: 140 of 140, 100%" in err


def test_a_demo_with_nothing_held_is_identical(tenuto: Run, tmp_path: Path) -> None:
    status, out, _ = tenuto("demo", "--model", "tiny-dit", "--steps", 2, "--budget", 1.0, "--out", "demo", "--json")
    assert status == 0
    assert json.loads(out)["psnr_mean"] is None  # no error, so no ratio
    assert "identical pictures" in (tmp_path / "demo" / "report.html").read_text()


def test_the_demo_says_when_a_busy_machine_makes_the_speed_up_too_good(
    tenuto: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, by = [0.0], Drawn.by

    def slow(self: Drawn, sampling: Any, schedule: Any, *given: Any, **named: Any) -> Any:
        clock[0] += 1 if schedule else 100
        return by(self, sampling, schedule, *given, **named)

    monkeypatch.setattr(Drawn, "by", slow)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    status, _, err = tenuto("demo", "--model", "tiny-dit", "--steps", 20, "--out", "demo")
    assert status == 0 and "at most 3.33× is possible, and 100.00× were measured" in err
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "this machine was busy with other work" in page and "3.3 times faster" in page


def test_where_the_larger_model_is_here_the_demo_draws_its_decoded_pictures(tenuto: Run, tmp_path: Path) -> None:
    status, out, err = tenuto("demo", "--steps", 2, "--budget", 1.0, "--out", "demo", "--json")
    assert status == 0, err
    result = json.loads(out)
    assert result["model"] == NATURAL.model and result["images"] == len(NATURAL.classes)
    width, height = Image.open(tmp_path / "demo" / "full.png").size
    assert width >= 5 * 64 * NATURAL.scale and height >= 2 * 64 * NATURAL.scale
    assert "27 million" in (tmp_path / "demo" / "report.html").read_text()


def test_an_installed_package_draws_with_the_model_that_it_has(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "tenuto" / "weights" / "tiny-dit").mkdir(parents=True)
    monkeypatch.setattr(models, "PACKAGE", tmp_path / "tenuto")
    monkeypatch.delenv("TENUTO_WEIGHTS", raising=False)
    assert _scene(None) is CLOTHES and _scene(NATURAL.model) is NATURAL
    with pytest.raises(UsageError, match="not with 'tiny-uvit'"):
        _scene("tiny-uvit")


def test_every_class_of_a_scene_has_a_seed_and_is_known_to_the_model() -> None:
    for scene in SCENES.values():
        assert len(scene.classes) == len(scene.seeds)
        labels = models.open_model(scene.model).labels
        assert all(name in labels for name in scene.classes if isinstance(name, str))
