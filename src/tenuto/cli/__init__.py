"""The command line. Each command is one file here, with its options and its work.

Exit status: 0 done, 1 failed, 2 misused, 130 interrupted.

This module imports nothing heavy, so that Ctrl-C is answered by a sentence while the other modules are imported.
"""

import _thread
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

INTERRUPTED = 130  # the shell's number for a command that Ctrl-C ended
STREAMS = ("stdin", "stdout", "stderr")


def main() -> NoReturn:
    """`tenuto …`, as the arguments of this process say."""

    def command() -> Any:
        from tenuto.cli.app import app_for

        return app_for(sys.argv[1:])(prog_name="tenuto", standalone_mode=False)

    run(command)


def run(command: Callable[[], Any]) -> NoReturn:
    """Run a command and end the process. A failure is told in a sentence, never by a traceback."""
    _forgive_encodings()
    with _interrupts() as heard:
        try:
            status = _warned(command)
        except SystemExit:
            raise
        except BaseException as error:
            # A library that is interrupted while it is imported often fails with an error of its own.
            interrupted = heard or isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort"
            status = INTERRUPTED if interrupted else _failed(error)
        if status == INTERRUPTED:
            with suppress(ValueError):
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C does not interrupt the sentence
            _tell("Interrupted. Finished files are kept, and no half-written file is left behind.")
    sys.exit(status if isinstance(status, int) else 0)


def _warned(command: Callable[[], Any]) -> Any:
    """Run a command whose warnings are sentences: a path into the package says nothing to a user."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        return command()


def _show_warning(message: Warning | str, *where: Any, **more: Any) -> None:
    _say(f"Warning: {message}")


def _failed(error: BaseException) -> int:
    """Tell an error, and return the exit status. An error that is a bug of ours is raised again."""
    from tenuto.errors import TenutoError, UsageError

    if isinstance(error, TenutoError):
        _tell(error)
        return 2 if isinstance(error, UsageError) else 1
    if isinstance(error, ModuleNotFoundError) and (sentence := _missing(error)):
        _tell(sentence)
        return 1
    if isinstance(error, UnicodeError):
        _tell(f"A text or a file name here is not valid Unicode: {error}.")
        return 1
    if isinstance(error, OSError):
        _tell(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "") + ".")
        return 1
    if isinstance(error, MemoryError):
        _tell("There is not enough memory for this. Ask for fewer steps, fewer samples or a smaller batch.")
        return 1
    if hasattr(error, "show"):  # typer's own errors: their classes have moved between its versions
        error.show()
        if example := getattr(getattr(getattr(error, "ctx", None), "command", None), "epilog", None):
            _say(example)
        return 2
    raise error


def _missing(error: ModuleNotFoundError) -> str | None:
    from tenuto.extras import sentence_for

    return sentence_for((error.name or "").partition(".")[0])


def _tell(message: object) -> None:
    from tenuto.cli.console import failure

    failure(message)


def _say(message: object) -> None:
    from tenuto.cli.console import say

    say(message)


def _forgive_encodings() -> None:
    """Where a stream cannot encode or decode a character, a replacement stands for it."""
    for name in STREAMS:
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """A list that is empty until Ctrl-C was pressed.

    Python swallows an interrupt that arrives in a destructor or in a callback of the garbage collector. Such an
    interrupt is raised once more.
    """
    heard: list[int] = []
    hook = sys.unraisablehook

    def interrupt(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    def unraisable(swallowed: Any) -> None:
        if isinstance(swallowed.exc_value, KeyboardInterrupt):
            again = threading.Timer(0.01, _thread.interrupt_main)  # here it would be swallowed once more
            again.daemon = True
            again.start()
        else:
            hook(swallowed)

    try:
        before = signal.signal(signal.SIGINT, interrupt)
    except ValueError:  # not in the main thread, where nobody hears signals
        yield heard
        return
    sys.unraisablehook = unraisable
    try:
        yield heard
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, before)
