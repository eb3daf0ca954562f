"""The command line: thin commands over the library. Exit status: 0 done, 1 failed, 2 misused."""

import sys

from tenuto.cli.app import app


def main() -> None:
    from tenuto.cli.console import failure
    from tenuto.errors import TenutoError, UsageError

    try:
        status = app(standalone_mode=False)
    except UsageError as error:
        failure(error)
        sys.exit(2)
    except TenutoError as error:
        failure(error)
        sys.exit(1)
    except Exception as error:
        sys.exit(_other(error))
    sys.exit(status if isinstance(status, int) else 0)


def _other(error: Exception) -> int:
    """click's own errors (misuse, Ctrl-C) and what the machine refuses; anything else is a bug and shows its trace."""
    from tenuto.cli.console import failure

    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "Abort" in kinds:
        failure("Interrupted. What was finished is kept; nothing half-written was left behind.")
        return 1
    if "ClickException" in kinds:
        error.show()  # type: ignore[attr-defined]
        return 2
    if isinstance(error, OSError):
        failure(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "") + ".")
        return 1
    raise error
