"""What all commands share: where text goes, progress bars, and how an error looks."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)  # progress and errors, so that --json output stays clean


def failure(message: object) -> None:
    err.print(f"[bold red]Error:[/] {escape(str(message))}", soft_wrap=True)


def say(message: object) -> None:
    """A plain sentence on stderr; brackets in a path are no markup."""
    err.print(escape(str(message)), soft_wrap=True)


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr; the block advances it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(escape(title), total=total)
        yield lambda amount: bar.advance(task, amount)
