"""The help: every command teaches by an example, fits the screen, and answers at once."""

import shlex
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest
import typer

from tenuto.cli.app import COMMANDS, app_for
from tenuto_lab.cli import app as lab
from tenuto_lab.cli.app import evaluation
from tests.cli.conftest import Run


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches(tenuto: Run, command: str) -> None:
    status, out, _ = tenuto(command, "--help")
    assert status == 0
    assert ("Usage: tenuto lab" if command == "lab" else f"Example: tenuto {command}") in out


@pytest.mark.parametrize(
    "command",
    ["frontier", "experiment", "results", "bench", "schedule", "show", "eval samples", "eval pictures", "eval lm"],
)
def test_every_command_of_the_laboratory_teaches(tenuto: Run, command: str) -> None:
    status, out, _ = tenuto("lab", *command.split(), "--help")
    assert status == 0
    assert f"Usage: tenuto lab {command}" in out and "Example: " in out


def examples() -> list[str]:
    laboratory = [*lab.registered_commands, *evaluation.registered_commands]
    texts = [str(command.epilog) for command in [*app_for([]).registered_commands, *laboratory]]
    return [example for text in texts for example in text.removeprefix("Example: ").split(" · ")]


@pytest.mark.parametrize("example", examples())
def test_the_examples_are_understood(example: str) -> None:
    words = shlex.split(example.replace("torchrun --nproc-per-node 8 -m tenuto_lab", "tenuto lab"))
    assert words.pop(0) == "tenuto"
    group: Any = typer.main.get_command(app_for([]))
    if words[0] == "lab" and words[1:] != ["--help"]:
        group = typer.main.get_command(lab)
        words.pop(0)
    while hasattr(group, "commands"):
        group = group.commands[words.pop(0)]
    group.make_context(group.name, words)  # reads the options, and refuses those that it does not know


def test_the_help_of_schedule_fits_one_screen(tenuto: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERMINAL_WIDTH", "100")
    status, out, _ = tenuto("schedule", "--help")
    assert status == 0 and len(out.splitlines()) <= 50
    assert max(map(len, out.splitlines())) <= 100


def test_who_forgets_an_option_is_shown_an_example(tenuto: Run) -> None:
    status, _, err = tenuto("schedule", "small-llada", "--blocks", 4)
    assert status == 2 and "--steps" in err and "tenuto schedule small-llada --steps 64 --blocks 4 --budget 0.5" in err


def test_every_period_of_text_is_named_in_the_help() -> None:
    for name in ("generate", "chat", "schedule"):
        command: Any = typer.main.get_command(app_for([])).commands[name]  # type: ignore[attr-defined]
        (every,) = [option for option in command.params if option.name == "every"]
        assert every.metavar == "N|early|careful|checked"


def test_version(tenuto: Run) -> None:
    import tenuto as package

    assert tenuto("--version")[:2] == (0, f"tenuto {package.__version__}\n")


def test_the_choices_are_those_of_the_library() -> None:
    from tenuto import deciding
    from tenuto.cli import generate, schedule
    from tenuto.runtime import executor
    from tenuto.sampling import pictures
    from tenuto.scheduling import schedule as schedules
    from tenuto.scheduling import units
    from tenuto_lab.candidates import allocation, ranked_lifetimes
    from tenuto_lab.cli import schedule as lab_schedule

    for here, there in (
        (schedule.Policy, deciding.Policy),
        (schedule.Predict, schedules.Predict),
        (schedule.Rows, schedules.Rows),
        (generate.Mode, executor.Mode),
        (generate.Solver, pictures.Solver),
        (lab_schedule.Predict, schedules.Predict),
        (schedule.Granularity, units.Granularity),
        (lab_schedule.Granularity, units.Granularity),
    ):
        assert typing.get_args(here) == typing.get_args(there)
    rankings = {*typing.get_args(allocation.Ranking), *typing.get_args(ranked_lifetimes.Statistic)}
    assert set(typing.get_args(lab_schedule.Ranking)) == rankings
    for kept in (schedule.Keep, lab_schedule.Keep):
        assert set(typing.get_args(kept)) < set(typing.get_args(schedules.Keep))


def tenuto_modules_after(arguments: list[str], folder: Path) -> set[str]:
    """The modules of ours that a fresh interpreter has loaded after a command."""
    code = f"import sys; sys.argv = ['tenuto', *{arguments}]\nfrom tenuto.cli import main\n"
    code += "try: main()\nexcept SystemExit as end: assert not end.code, end.code\n"
    code += "print(*[name for name in sys.modules if name.split('.')[0] in ('tenuto', 'tenuto_lab')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder)
    return set(done.stdout.splitlines()[-1].split())


def test_scoring_imports_little(model: Path) -> None:
    loaded = tenuto_modules_after(["score", "model"], model.parent)
    assert "tenuto_lab.scoring.scores" in loaded
    assert len([name for name in loaded if name.partition(".")[0] == "tenuto"]) <= 25, sorted(loaded)
    others = ("tenuto_lab.rivals", "tenuto_lab.judging", "tenuto_lab.units", "tenuto.runtime.graphs", "tenuto.sampling")
    assert not [name for name in loaded if name.startswith(others)]


@pytest.mark.parametrize(
    "arguments",
    [
        ("schedule", "model", "--steps", "12"),
        ("generate", "model", "--class", "1", "--steps", "12", "--quality", "30", "-o", "out"),
    ],
)
def test_the_default_loads_nothing_of_the_laboratory(model: Path, arguments: tuple[str, ...]) -> None:
    loaded = tenuto_modules_after(list(arguments), model.parent)
    assert "tenuto.scheduling.schedule" in loaded
    assert not [name for name in loaded if name.startswith("tenuto_lab")]
