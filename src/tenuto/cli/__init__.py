"""The command line: thin commands over the library. Exit status: 0 done, 1 failed, 2 misused."""

import sys
import warnings

from tenuto.cli.app import app
from tenuto.cli.evaluation import evaluation
from tenuto.errors import TenutoError, UsageError

app.add_typer(evaluation)

INTERRUPTED = 130  # what typer makes of Ctrl-C


def main() -> None:
    from tenuto.cli.console import failure, say

    # A sentence, as everything else here; a path into the package says nothing to whoever reads it.
    warnings.showwarning = lambda message, *where: say(f"Warning: {message}")
    try:
        status = app(standalone_mode=False)
    except TenutoError as error:
        failure(error)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except OSError as error:
        failure(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "") + ".")
        sys.exit(1)
    except Exception as error:
        # typer's own errors carry their text; which class they are of has moved between its versions
        if not hasattr(error, "show"):
            raise
        error.show()
        sys.exit(2)
    if status == INTERRUPTED:
        failure("Interrupted. Whatever was finished and written is kept; nothing half-written was left behind.")
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)
