"""tenuto show: tables, pages and pictures; and files that would rather command the terminal."""

import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from tenuto.cli import console
from tenuto.cli.console import clean
from tests.cli.conftest import Run


def test_show_draws_tables_pages_and_pictures(tenuto: Run, model: Path, tmp_path: Path) -> None:
    tenuto("score", model, "-o", "scores.json")
    tenuto("schedule", "scores.json", "--steps", 12, "--predict", "linear", "-o", "schedule.json")
    for file, words in (("scores.json", "score Λ̂"), ("schedule.json", "linear extrapolation")):
        status, out, _ = tenuto("show", file, "--html", f"{file}.html", "--png", f"{file}.png")
        assert status == 0
        assert words in out
        page = (tmp_path / f"{file}.html").read_text()
        assert (
            "<svg" in page
            and ("blocks.1.attn" in page or ">network<" in page)
            and "http" not in page.replace("http://www.w3.org", "")
        )
        assert Image.open(tmp_path / f"{file}.png").width > 500
        assert json.loads(tenuto("show", file, "--json")[1]) == json.loads((tmp_path / file).read_text())


def test_a_long_fact_goes_on_below_its_beginning(tenuto: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tenuto("schedule", model, "--steps", 50, "-o", "schedule.json")
    monkeypatch.setattr(console.out, "width", 60)
    lines = tenuto("show", "schedule.json")[1].splitlines()
    begun = next(i for i, line in enumerate(lines) if "quadratic" in line)
    assert lines[begun].index("the network's") == len(lines[begun + 1]) - len(lines[begun + 1].lstrip())


def test_a_schedule_of_the_first_format_is_shown_and_says_so(tenuto: Run, model: Path, tmp_path: Path) -> None:
    tenuto(
        "schedule", model, "--steps", 4, "--evaluations", 2, "--keep", "update", "--predict", "constant", "-o", "s.json"
    )
    record = json.loads((tmp_path / "s.json").read_text())
    for word in ("predict", "keep", "blocks"):
        del record[word]
    record |= {"format": "tenuto.schedule/1", "hold": "update", "reuse": "hold", "fingerprint": "sha256:0"}
    (tmp_path / "old.json").write_text(json.dumps(record))
    status, out, err = tenuto("show", "old.json")
    assert status == 0 and "each unit's update: kept as it was" in out
    assert err.startswith("Warning: ") and "first format" in err and ".py" not in err


@pytest.mark.parametrize("command", [("show", "s.json"), ("check", "model", "--schedule", "s.json")])
def test_a_picture_without_matplotlib_names_the_extra(
    tenuto: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    tenuto("schedule", model, "--steps", 4, "-o", "s.json")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, out, err = tenuto(*command, "--png", "x.png")
    assert status == 1 and out == ""
    assert "--png needs matplotlib, which is not installed: pip install '.[plots]'" in err
    assert not (tmp_path / "x.png").exists()


def test_other_files_are_refused_by_name(tenuto: Run, model: Path, tmp_path: Path) -> None:
    status, _, err = tenuto("show", "model/config.json")
    assert status == 1 and "neither a score file" in err
    (tmp_path / "frontier.json").write_text('{"cases": {"x": 1}, "rows": [1]}')
    assert "tenuto lab show" in tenuto("show", "frontier.json")[2]
    status, _, err = tenuto("show", "nowhere.json")
    assert status == 1 and "nowhere.json" in err


HOSTILE = "\x1b]52;c;aGk=\x07\x1b[2J\x9b31m\u202e[/bold][link=http://x]unit"


@pytest.mark.parametrize("kind", ["scores", "schedule"])
def test_names_in_a_file_do_not_command_the_terminal(
    tenuto: Run, model: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenuto("score", model, "-o", "scores.json")
    tenuto("schedule", model, "--steps", 4, "--policy", "lifetimes", "-o", "schedule.json")
    record = json.loads((tmp_path / f"{kind}.json").read_text())
    text = json.dumps(record).replace("blocks.0.attn", json.dumps(HOSTILE)[1:-1])
    record = json.loads(text) | {"model": HOSTILE}
    (tmp_path / "hostile.json").write_text(json.dumps(record))
    for arguments in (("hostile.json",), ("hostile.json", "--json")):
        status, out, err = tenuto("show", *arguments)
        assert status == 0, err
        assert clean(out) == out and "[/bold][link=http://x]unit" in out.replace("\\u202e", "")
    status, out, err = tenuto("generate", "model", "--schedule", "hostile.json", "-o", "x")
    assert status == 1 and clean(err) == err


def test_clean_keeps_text_and_lines() -> None:
    assert clean("Λ̂ = 1\n\tµ \x1b[1mé\x00\x85") == "Λ̂ = 1\n\tµ [1mé"
