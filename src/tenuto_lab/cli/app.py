"""The laboratory's app, its group `eval`, and what its commands share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(
    name="lab",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="The laboratory judges Tenuto: rivals, frontiers, speed, full-size evaluation, and the paper's experiments.",
)
evaluation = typer.Typer(
    name="eval",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Evaluate at full size: samples by many processes, pictures against a reference, language tasks, comparisons.",
)

RESULTS = Path("results") / "experiments"
Precision = Literal["float32", "bfloat16", "float16"]
Dtype = Annotated[Precision | None, typer.Option(help="Precision to run in. Default: the checkpoint's own.")]


@app.callback()
def _root() -> None: ...


@contextmanager
def telling(title: str) -> Iterator[Callable[[str], object]]:
    """A line that says what goes on, and above it the lines that the block tells."""
    from tenuto.cli.console import err, quoted, say

    if not err.is_terminal:  # which shows no moving line
        say(title)
    with err.status(quoted(title)) as status:
        yield lambda told: status.console.print(told, markup=False, soft_wrap=True)


def interval(low: float, high: float, count: int, form: str = ".3f") -> str:
    """` (95% interval … to …)`; nothing where a single sample allows for none, or where all samples are alike."""
    return f" (95% interval {low:{form}} to {high:{form}})" if count > 1 and low < high else ""
