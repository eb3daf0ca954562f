"""The app that the commands register with, and the options that several of them share."""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenuto import __version__, laboratory

if TYPE_CHECKING:
    import torch

# One module for each command, in the order of the help: here, or offered by the laboratory.
COMMANDS = (
    *("demo", "score", "schedule", "generate", "chat", "check"),
    *("models", "show", "push", "pull", "doctor", "ui", "lab"),
)
OFFERED = ("score", "check", "push", "pull")
MOST = 1_000_000  # of what is counted: samples, tokens, pictures

app = typer.Typer(
    name="tenuto",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Faster diffusion models without training: Tenuto evaluates the network at some steps and predicts its output "
    "at the others.\n\nTry [bold]tenuto demo[/] first.",
)


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """The app with the command that the arguments name; with all commands where they name none.

    A command that is not called is not imported. Every module imports what is heavy when its command runs, so the help
    answers at once.
    """
    named = [arguments[0]] if arguments and arguments[0] in COMMANDS else COMMANDS
    for name in named:
        if name not in OFFERED:
            import_module(f"tenuto.cli.{name}")
        elif name in laboratory.offers(laboratory.COMMANDS):
            laboratory.offered(name, laboratory.COMMANDS)
    app.registered_commands.sort(key=lambda command: COMMANDS.index(command.callback.__name__))  # type: ignore[union-attr]
    return app


def _version(wanted: bool) -> None:
    if wanted:
        print(f"tenuto {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


def real_text(value: Any) -> Any:
    """Refuse text that no file and no tokenizer can hold: bytes of the command line that are not UTF-8."""
    from tenuto.cli.console import SURROGATE
    from tenuto.errors import UsageError

    for text in [value] if isinstance(value, str) else value or []:
        if SURROGATE.search(text):
            raise UsageError(f"This is not valid Unicode text: {text!r}. Type it as UTF-8.")
    return value


def period(told: Any) -> Any:
    """A refresh period of text: a whole number, or a name in `FIRST`."""
    from tenuto.scheduling.rewrite import FIRST, listed

    if told in FIRST or isinstance(told, int):
        return told
    if told.isdecimal() and told.isascii() and 1 <= len(told) <= 9 and int(told) >= 1:
        return int(told)
    raise typer.BadParameter(f"{told} is no period; give a whole number from 1 on, or {listed(FIRST)}.")


PERIODS = "N|early|careful|checked"  # what `period` takes, for a usage line
PERIODS_HELP = (
    "checked, the default: at the first four, then ever more rarely, and always once the KV cache fails a check; "
    "careful: at the first eight, without checks; early: at the first four, without checks. 1: no KV cache."
)
MODEL = "A shipped model (see `tenuto models`), a checkpoint file, a checkpoint directory, or a hub id (owner/name)."
ModelName = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, …")]
Seed = Annotated[int, typer.Option(min=0, max=2**53, help="Seed of the first sample; each next seed is one more.")]


def check_device(device: str) -> "torch.device":
    """The device of this name; a sentence where torch cannot compute on it."""
    import torch

    from tenuto.errors import UsageError, first_line

    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f"--device {device!r} is no device torch knows (cpu, cuda, cuda:1, mps).") from error
    if wanted.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"--device {device} was asked for, but torch {torch.__version__} sees no CUDA device here.")
    if wanted.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"--device {device!r}: Tenuto computes on cpu, cuda and mps only.")
    try:
        torch.empty(1, device=wanted)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"--device {device} cannot be used here: {first_line(error)}") from error
    return wanted
