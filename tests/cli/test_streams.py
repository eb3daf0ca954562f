"""Streams, interrupts and failures: a sentence and a status, never a traceback."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from tenuto.cli import console, main
from tests.cli.conftest import Run
from tests.conftest import random_dit, write_checkpoint


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("frobnicate",), 2, "frobnicate"),
        (("shedule", "model"), 2, "Did you mean 'schedule'?"),
        (("score", "model", "--unknown"), 2, "--unknown"),
        (("score", "model", "--devise", "cpu"), 2, "--device"),
        (("score", "model", "--eta", "0"), 2, "η"),
        (("score", "model", "--eta", "inf"), 2, "η"),
        (("check", "model", "--schedule", "s.json", "--samples", "9" * 20), 2, "--samples"),
        (("demo", "--per-class", "0"), 2, "--per-class"),
        (("generate", "model", "-o", "x", "--schedule", "nowhere.json"), 1, "nowhere.json"),
        (("score", "broken"), 1, "not whole"),
    ],
)
def test_every_failure_is_a_sentence(
    tenuto: Run, model: Path, tmp_path: Path, arguments: tuple[str, ...], status: int, words: str
) -> None:
    broken = write_checkpoint(tmp_path / "broken", random_dit()) / "model.safetensors"
    broken.write_bytes(broken.read_bytes()[:200])
    ended, out, err = tenuto(*arguments)
    assert ended == status and out == ""
    assert words in err.replace("\n", " ") and "Traceback" not in err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
@pytest.mark.parametrize("arguments", [("show", "s.json"), ("show", "s.json", "--json"), ("schedule", "--help")])
def test_streams_of_any_encoding_are_written_to(
    tenuto: Run, model: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, arguments: tuple[str, ...]
) -> None:
    tenuto("schedule", model, "--steps", 4, "-o", "s.json")
    sink = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(sink, encoding=encoding, write_through=True))
    monkeypatch.setattr(sys, "argv", ["tenuto", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0 and len(sink.getvalue().decode(encoding)) > 100


def test_input_that_is_not_utf8_is_answered(tenuto: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", typed)
    status, _, err = tenuto("chat", "small-llada", "--length", 2, "--steps", 2)
    assert status == 0 and "tokens/s" in err


def test_a_name_that_is_not_utf8_is_answered_by_a_sentence(tenuto: Run) -> None:
    status, _, err = tenuto("score", "caf\udce9")
    assert status == 1 and "There is no model" in err


INTERRUPTED = """
import signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            {what}

sys.meta_path.insert(0, Interrupting())
sys.argv = ["tenuto", "score", "tiny-dit"]
from tenuto.cli import main
main()
"""
DISGUISED = """
            try: signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt: raise ImportError("numpy could not be imported") from None
"""
SWALLOWED = """
            class Gone:
                def __del__(self): signal.raise_signal(signal.SIGINT)
            Gone()
            for i in range(1000): pass
"""


@pytest.mark.parametrize("what", ["signal.raise_signal(signal.SIGINT)", DISGUISED, SWALLOWED])
def test_ctrl_c_while_modules_are_imported_is_a_sentence(what: str) -> None:
    code = INTERRUPTED.format(what=what)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 130, done.stderr
    assert "Interrupted." in done.stderr and "Traceback" not in done.stderr and "ignored" not in done.stderr


def test_where_stderr_is_no_terminal_a_line_comes_now_and_then(
    tenuto: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "FIRST", 0)
    monkeypatch.setattr(console, "EVERY", 0)
    status, _, err = tenuto("generate", model, "--steps", 2, "--class", 0, "-o", "x")
    assert status == 0
    assert err.splitlines() == ["Generating: 1 of 2, 50%", "Generating: 2 of 2, 100%"]


def test_an_import_that_an_extra_would_serve_names_the_extra(
    tenuto: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError("No module named 'gradio'", name="gradio.blocks")

    monkeypatch.setattr("tenuto.models.open_model", absent)
    status, _, err = tenuto("score", model)
    assert status == 1 and "This needs gradio, which is not installed: pip install '.[ui]'" in err


def test_plurals() -> None:
    assert [console.counted(n, "question") for n in (0, 1, 2, 50_000)] == [
        "0 questions",
        "1 question",
        "2 questions",
        "50,000 questions",
    ]
