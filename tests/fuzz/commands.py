"""Random command lines: each ends with a status and, if it fails, with a sentence.

python -m tests.fuzz.commands --count 200 --seed 0
"""

import contextlib
import io
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import typer

import tenuto
from tenuto.cli import main as run
from tenuto.cli.app import app, app_for
from tests.conftest import random_dit, write_checkpoint
from tests.fuzz.asking import ask

COMMANDS = ("score", "schedule", "generate", "check", "show")  # those that read and compute, without a network
JUNK = (
    *("0", "-1", "1", "3", "2.5", "nan", "inf", "1e400", "9" * 30, "", "x", "[/bold]", "\ud800", "a\0b", "-", "--"),
    *("scores.json", "schedule.json", "deep.json", "pipe", "model", "/dev/null", "/", "..", "~nobody", "new"),
    *("cpu", "cuda:99", "meta", "ddim", "branch", "output", "quadratic", "refresh", "lifetimes", "rewrite"),
)


def command_line(rng: random.Random) -> list[str]:
    """A command with its arguments, and up to four of its options with values that may fit or not."""
    commands: Any = typer.main.get_command(app)
    name = rng.choice(COMMANDS)
    words, options = [name], []
    for one in commands.commands[name].params:
        if one.param_type_name == "argument":
            words.append(rng.choice(("model", "model", "scores.json", "schedule.json", rng.choice(JUNK))))
        else:
            options.append(one)
    for one in rng.sample(options, rng.randint(0, min(4, len(options)))):
        words += [one.opts[-1]] if one.is_flag else [one.opts[-1], rng.choice(JUNK)]
    return [*words, "--steps", "2"] if name in ("generate", "check", "schedule") and "--steps" not in words else words


def fuzz(count: int, seed: int) -> dict[str, Any]:
    rng, statuses, bare = random.Random(seed), Counter[str](), Counter[str]()
    app_for(())
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        try:
            os.chdir(folder)
            _prepare()
            for _ in range(count):
                words = command_line(rng)
                try:
                    with mock.patch.object(sys, "argv", ["tenuto", *words]), _silence():
                        run()
                except SystemExit as ended:
                    statuses[str(ended.code)] += 1
                except Exception as error:  # which is what must not happen
                    bare[type(error).__name__] += 1
                    print(f"seed {seed}: {words}: {type(error).__name__}: {str(error)[:200]}")
        finally:
            os.chdir(before)
    return {"commands": count, "statuses": dict(statuses), "bare_exceptions": dict(bare)}


def _prepare() -> None:
    scores = tenuto.score(write_checkpoint(Path("model"), random_dit()))
    scores.save(Path("scores.json"))
    tenuto.schedule(scores, 2).save(Path("schedule.json"))
    Path("deep.json").write_text("[" * 100_000)
    os.mkfifo("pipe")


@contextlib.contextmanager
def _silence() -> Any:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def line(found: dict[str, Any]) -> str:
    return f"commands: {found['commands']} at random, statuses {found['statuses']}, {found['bare_exceptions']} bare"


if __name__ == "__main__":
    ask(str(__doc__), fuzz, line, count=200)
