"""What all commands share: the two streams, progress, JSON, and how an error looks."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment

# A terminal obeys these characters instead of showing them; the last ones reverse the order of what follows.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
SURROGATE = re.compile("[\ud800-\udfff]")  # half a character: a byte of a name or a prompt that is not UTF-8
FIRST, EVERY = 1.0, 10.0  # seconds until the first line of progress, and between two lines


def clean(text: str) -> str:
    """A text from a file without the characters that a terminal would obey."""
    return CONTROL.sub("", text)


def quoted(value: object) -> str:
    """Something from a file or from the user, ready for a text with markup: it is shown as it is."""
    return escape(clean(str(value)))


class SafeConsole(Console):
    """A console that shows no control character, whoever prints it. Its own colours and movements stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean(segment.text), segment.style)


out = SafeConsole(highlight=False)
err = SafeConsole(stderr=True, highlight=False)  # progress and errors, so that the JSON on stdout stays clean


def failure(message: object) -> None:
    err.print(f"[bold red]Error:[/] {quoted(message)}", soft_wrap=True)


def say(message: object) -> None:
    """A plain sentence on stderr. Brackets in a path are no markup."""
    err.print(quoted(message), soft_wrap=True)


def tell(message: object) -> None:
    """The same on stdout, for the result that was asked for."""
    out.print(quoted(message), soft_wrap=True)


def print_json(value: object) -> None:
    """JSON on stdout. Characters that the stream or a terminal cannot take are escaped, so nothing is lost."""
    unicode = "utf" in (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
    text = json.dumps(value, indent=2, ensure_ascii=not unicode, allow_nan=False)
    for characters in (CONTROL, SURROGATE):
        text = characters.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    print(text)


def counted(number: int, noun: str) -> str:
    """1 picture, 2 pictures."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr that the block advances; where stderr is no terminal, a line now and then."""
    if not err.is_terminal:
        yield _lines(title, total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(quoted(title), total=total)
        yield lambda amount: bar.advance(task, amount)


def _lines(title: str, total: int) -> Callable[[int], None]:
    done, following = 0, time.monotonic() + FIRST

    def advance(amount: int) -> None:
        nonlocal done, following
        done += amount
        if time.monotonic() >= following:
            following = time.monotonic() + EVERY
            say(f"{title.strip()}: {done:,} of {total:,}, {done / max(1, total):.0%}")

    return advance
