"""tenuto schedule: decisions shown and written, and nothing computed that the decision does not need."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenuto import models
from tenuto_lab.scoring import scoring_models
from tests.cli.conftest import Run


@pytest.mark.parametrize("source", ["scores.json", "model"])
def test_schedule_from_a_score_file_or_a_model(tenuto: Run, model: Path, tmp_path: Path, source: str) -> None:
    tenuto("score", model, "-o", "scores.json")
    status, out, _ = tenuto("schedule", source, "--steps", 12, "--evaluations", 4, "-o", "schedule.json")
    assert status == 0
    assert "evaluated at 4 of 12 steps (33.3%)" in out and "policy refresh (evaluations 4)" in out
    drawn = next(line for line in out.splitlines() if line.startswith("network ")).removeprefix("network ")
    assert drawn.count("█") == 4 and drawn.count("·") == 8 and drawn[0] == "█"
    assert json.loads((tmp_path / "schedule.json").read_text())["steps"] == 12


@pytest.mark.parametrize(
    ("options", "count"), [((), 6), (("--budget", 0.75), 9), (("--every", 4), 3), (("--speedup", 1.5), 8)]
)
def test_a_schedule_computes_what_was_asked(tenuto: Run, model: Path, options: tuple[Any, ...], count: int) -> None:
    status, out, err = tenuto("schedule", model, "--steps", 12, *options, "--json")
    assert status == 0, err
    assert json.loads(out)["policy"]["evaluations"] == count


def test_two_ways_to_say_how_much_are_refused(tenuto: Run, model: Path) -> None:
    status, out, err = tenuto("schedule", model, "--steps", 12, "--evaluations", 4, "--budget", 0.5)
    assert status == 2 and out == "" and "not two of them" in err


def test_the_default_reads_no_weight(tenuto: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring_models, "score_tensors", lambda *given, **options: pytest.fail("a score was computed"))
    status, out, _ = tenuto("schedule", model, "--steps", 12)
    assert status == 0 and "no weight was read" in out


def test_schedule_by_lifetimes(tenuto: Run, model: Path) -> None:
    status, out, _ = tenuto("schedule", model, "--steps", 10, "--policy", "lifetimes", "--tau", 0.5, "--json")
    record = json.loads(out)
    assert status == 0
    assert record["policy"] == {"name": "lifetimes", "tau": 0.5, "budget": None, "min_lifetime": 0.1}
    assert (record["keep"], record["predict"]) == ("update", "constant")
    status, out, _ = tenuto("schedule", model, "--steps", 10, "--policy", "lifetimes")
    assert status == 0 and "sha256:" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("score", "model"),
        ("schedule", "model", "--steps", "4"),
        ("schedule", "model", "--steps", "4", "--policy", "lifetimes"),
        ("generate", "model", "--steps", "1", "--class", "0", "-o", "x"),
        ("check", "model", "--schedule", "s.json", "--samples", "1"),
    ],
)
def test_a_model_is_found_and_opened_once(
    tenuto: Run, model: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    tenuto("schedule", "model", "--steps", "2", "--budget", "1", "-o", "s.json")
    calls: list[str] = []

    def counting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            calls.append(name)
            return original(*given, **options)

        return call

    for name in ("find", "open_model"):
        monkeypatch.setattr(models, name, counting(name, getattr(models, name)))
    status, _, err = tenuto(*arguments)
    assert status == 0, err
    assert sorted(calls) == ["find", "open_model"]


def test_a_long_schedule_still_fits_the_terminal(tenuto: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tenuto.cli import console

    monkeypatch.setattr(console.out, "width", 60)
    for options, name in ((("--every", 3), "network"), (("--policy", "lifetimes"), "blocks.")):
        status, out, _ = tenuto("schedule", model, "--steps", 500, *options)
        assert status == 0
        assert "steps a cell" in " ".join(out.split())
        assert max(len(line) for line in out.splitlines() if name in line) <= 60


def test_text_is_told_in_the_words_of_text(tenuto: Run) -> None:
    status, out, err = tenuto("schedule", "small-llada", "--steps", 64, "--blocks", 4)
    assert status == 0 and err == ""
    words = " ".join(out.split())
    assert (
        "blocks of text 4" in words and "· computed at the positions of the block that is being written only" in words
    )
    assert "noisiest" not in out and "predicted" not in out and "held" not in words.split("█ computed")[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--steps"),
        (("--steps", "ten"), "ten"),
        (("--steps", "1000000"), "between 1 and 10,000"),
        (("--steps", "1" + "0" * 30), "between 1 and 10,000"),
        (("--steps", "0"), "between 1 and 10,000"),
        (("--steps", "10", "--budget", "1.5"), "budget"),
        (("--steps", "10", "--tau", "1", "--budget", "0.3", "--policy", "lifetimes"), "not both"),
        (("--steps", "10", "--policy", "magic"), "magic"),
        (("--steps", "10", "--policy", "anchors"), "anchors"),
        (("--steps", "4", "--policy", "lifetimes", "--tau", "inf"), "tau"),
        (("--steps", "4", "--share", "0.5"), "--share"),
    ],
)
def test_misuse_ends_with_status_2_and_a_sentence(
    tenuto: Run, model: Path, arguments: tuple[str, ...], words: str
) -> None:
    status, out, err = tenuto("schedule", "model", *arguments)
    assert status == 2 and out == ""
    assert words in " ".join(err.split()) and "Traceback" not in err


def test_a_schedule_does_not_overwrite_what_it_is_made_from(tenuto: Run, model: Path) -> None:
    tenuto("score", model, "-o", "scores.json")
    status, _, err = tenuto("schedule", "scores.json", "--steps", 4, "-o", "scores.json")
    assert status == 1 and "belongs to what is read" in err


def test_it_is_said_how_outputs_are_predicted(tenuto: Run, model: Path) -> None:
    status, out, _ = tenuto("schedule", model, "--steps", 50, "--evaluations", 8)
    assert status == 0 and "quadratic extrapolation, corrected at the next evaluation" in out
