"""tenuto chat: one answer, lines of a pipe, or a talk in a terminal in which tokens appear as they are written."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

import tenuto
import tenuto.cli.chat as module
from tenuto.cli.app import app_for
from tests.sampling.test_text_api import write_language_model

Talk = Callable[..., tuple[str, list[Text]]]
SIZES = ("--length", "8", "--block-length", "4")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_language_model(tmp_path_factory.mktemp("chat")))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same without a chat template."""
    return str(write_language_model(tmp_path_factory.mktemp("plain"), template=None))


def chat(*arguments: str, typed: str | None = None) -> Any:
    return CliRunner().invoke(app_for(["chat"]), ["chat", *arguments], input=typed)


def test_a_prompt_is_answered_and_timed(directory: str) -> None:
    result = chat(directory, "--prompt", "two and", *SIZES)
    assert result.exit_code == 0, result.output
    want = tenuto.text.load(directory).generate(
        ["two and"], chat=True, parallel=0.9, every="checked", length=8, block_length=4
    )
    assert result.stdout.strip() == want[0].strip()
    assert "tokens/s" in result.stderr
    for every in ("early", "3"):
        asked = chat(directory, "--prompt", "two and", *SIZES, "--every", every)
        assert asked.exit_code == 0 and "from the KV cache" in asked.stderr
    for wrong in ("late", "0", "-1", "1e22", "²", "2.5"):
        refused = chat(directory, "--prompt", "two and", *SIZES, "--every", wrong)
        assert refused.exit_code == 2 and "is no period" in refused.output


def test_without_a_template_prompts_are_plain_text(plain: str) -> None:
    result = chat(plain, "--prompt", "two and", *SIZES, "--budget", "1")
    assert result.stdout.strip() == tenuto.text.load(plain).generate(["two and"], length=8, block_length=4)[0].strip()


def test_lines_of_a_pipe_are_answered_one_by_one(directory: str) -> None:
    result = chat(directory, *SIZES, typed="two\n\n/full\nfive\n/nothing\n/new\n/quit\nthree\n")
    assert result.exit_code == 0, result.output
    model = tenuto.text.load(directory)
    first = model.generate(["two"], chat=True, parallel=0.9, every="checked", length=8, block_length=4)[0]
    said = [("user", "two"), ("assistant", first), ("user", "five")]  # the talk goes on
    second = model.generate([[{"role": a, "content": b} for a, b in said]], length=8, block_length=4)[0]
    assert [line.strip() for line in result.stdout.splitlines()] == [first.strip(), second.strip()]
    assert result.stderr.count("tokens/s") == 2
    assert "everything computed" in result.stderr and "/nothing is no command" in result.stderr


def test_a_schedule_file_says_how_many_steps_and_blocks(directory: str, tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    tenuto.schedule(directory, steps=4, blocks=2, budget=0.5).save(path)
    result = chat(directory, "--prompt", "two", "--length", "8", "--schedule", str(path))
    assert result.exit_code == 0 and "4 evaluations, 2 of everything" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tiny-dit",), "draws"),
        (("MODEL", "--budget", "0.5", "--speedup", "2"), "one of budget"),
        (("MODEL", "--length", "40"), "more than the"),
        (("MODEL", "--length", "20000"), "more than the"),
        (("MODEL", "--parallel", "1.5"), "at most 1, not 1.5"),
        (("MODEL", "--parallel", "0.9", "--steps", "4"), "leave the steps out"),
        (("MODEL", "--every", "4", "--steps", "4"), "goes with parallel decoding"),
        (("MODEL", "--parallel", "0.9", "--budget", "0.5"), "with parallel decoding, give `every`"),
        (("MODEL", "--sliding", "--steps", "4"), "give a threshold too"),
    ],
)
def test_what_cannot_be_done_is_an_error(directory: str, arguments: tuple[str, ...], message: str) -> None:
    result = chat(*(directory if one == "MODEL" else one for one in arguments), "--prompt", "two")
    assert isinstance(result.exception, tenuto.TenutoError) and message in str(result.exception)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Talk:
    """What is shown on a terminal at which somebody types these lines."""

    def talk(model: str, *lines: str) -> tuple[str, list[Text]]:
        shown = Console(force_terminal=True, width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
        frames: list[Text] = []
        typed = iter(lines)

        def read(prompt: str) -> str:
            try:
                return next(typed)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr(shown, "input", read)
        monkeypatch.setattr(module, "out", shown)
        monkeypatch.setattr(sys, "stdin", type("Terminal", (), {"isatty": lambda self: True})())
        original = module.canvas

        def canvas(*given: Any) -> Text:
            frames.append(original(*given))
            return frames[-1]

        monkeypatch.setattr(module, "canvas", canvas)
        module.chat(model, budget=0.5, length=8, block_length=4, steps=4)
        return shown.export_text(), frames

    return talk


def test_at_a_terminal_tokens_appear_as_they_are_written(
    terminal: Talk, directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown, frames = terminal(directory, "two", "five " * 30, "/full", "three")
    told = capsys.readouterr().err
    assert "/quit" in told and "more than the 32" in told  # and the talk goes on
    assert told.count("tokens/s") == 2
    assert len(frames) == 8 and frames[0].plain.count("·") == 6 and "·" not in frames[3].plain
    assert "dim" in {str(span.style) for span in frames[0].spans}
    assert frames[3].plain.strip() in shown


def test_nothing_is_shown_from_the_end_on() -> None:
    words = {5: "five", 6: " six"}
    drawn = module.canvas([5, 6, None, 1, None, 6], lambda run: "".join(words[one] for one in run), end=1)
    assert drawn.plain == "five six·"


def test_a_schedule_is_made_without_a_score(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tenuto_lab.scoring import scoring_models

    monkeypatch.setattr(scoring_models, "score_tensors", lambda *given, **options: pytest.fail("a score was computed"))
    assert chat(directory, "--prompt", "two", *SIZES).exit_code == 0
