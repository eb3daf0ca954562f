"""Runs a script's function as a command line; an error of ours is one sentence and no traceback."""

from collections.abc import Callable
from typing import Any

import typer

from tenuto.errors import TenutoError, UsageError


def run(command: Callable[..., Any]) -> None:
    """Exit codes are those of `tenuto`: 1 (failed), 2 (wrong usage)."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    run_app(app)


def run_app(app: typer.Typer) -> None:
    """The same for several commands."""
    try:
        app()
    except TenutoError as error:
        typer.echo(f"Error: {error}", err=True)
        raise SystemExit(2 if isinstance(error, UsageError) else 1) from None
