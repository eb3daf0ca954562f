"""Scripts as commands: what the user got wrong is one sentence."""

import sys
from pathlib import Path

import pytest

from benchmarks.networks_of_others.packages import bare
from benchmarks.transfer import __main__ as transfer
from scripts.command_line import run
from tenuto.errors import TenutoError, UsageError

ROOT = Path(__file__).parents[1]


def said(command: object, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["script", *arguments])
    with pytest.raises(SystemExit) as ended:
        run(command)  # type: ignore[arg-type]
    return ended.value.code  # type: ignore[return-value]


def test_a_usage_error_of_a_benchmark_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(transfer.main, ["--only", "nothing"], monkeypatch) == 2
    told = capsys.readouterr().err
    assert told.startswith("Error: There is no network 'nothing'") and told.count("\n") == 1


def test_an_error_of_ours_that_is_no_wrong_usage_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise TenutoError("The disk is full.")

    assert said(fails, [], monkeypatch) == 1


def test_rows_without_a_fingerprint_are_refused_before_the_network_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    record = transfer.read(transfer.RESULTS)
    del record["networks"]["faces"]["network"]["fingerprint"]
    out = tmp_path / "transfer.json"
    transfer.write_json(out, record)
    asked = ["--out", str(out), "--faces", str(tmp_path), "--only", "faces", "--ours-only"]
    assert said(transfer.main, [*asked, "--samples", "3", "--seeds", "2"], monkeypatch) == 2
    assert "have no fingerprint of their samples" in capsys.readouterr().err


def test_a_package_that_a_network_needs_is_named(tmp_path: Path) -> None:
    (tmp_path / "made_up").mkdir()
    (tmp_path / "made_up" / "model.py").write_text("import a_package_that_is_absent\n", encoding="utf-8")
    with pytest.raises(UsageError, match="made_up needs the package a_package_that_is_absent"):
        bare("made_up.model", tmp_path)


def test_every_script_tells_its_errors_in_one_place() -> None:
    scripts = [path for folder in ("benchmarks", "training", "scripts") for path in (ROOT / folder).rglob("*.py")]
    assert [path.name for path in scripts if "typer.run(" in path.read_text(encoding="utf-8")] == []
