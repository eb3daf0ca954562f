"""`tenuto lab …`, and `python -m tenuto_lab …`: one file here for each command, with its options and its work.

Every module imports what is heavy when its command runs, so that the help answers at once.
"""

from tenuto_lab.cli import (  # noqa: F401
    bench,
    eval_build,
    eval_compare,
    eval_lm,
    eval_mauve,
    eval_pictures,
    eval_samples,
    experiment,
    frontier,
    results,
    schedule,
    show,
)
from tenuto_lab.cli.app import app, evaluation

app.add_typer(evaluation)

__all__ = ["app"]
