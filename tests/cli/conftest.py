"""Run a command of `tenuto` in a folder of its own, in this process."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tenuto.cli import main
from tests.conftest import random_dit, write_checkpoint

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tenuto(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """(status, stdout, stderr) of a command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tenuto", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, captured.out, captured.err

    return run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model", random_dit())
