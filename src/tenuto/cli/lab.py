"""`tenuto lab`: the laboratory's commands, to which everything is passed on."""

from typing import Annotated

import typer

from tenuto.cli.app import app

ASIDE = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


@app.command(context_settings=ASIDE, add_help_option=False, epilog="Example: tenuto lab --help")
def lab(arguments: Annotated[list[str] | None, typer.Argument(metavar="COMMAND …", show_default=False)] = None) -> None:
    """The laboratory: other methods, benchmarks, full-size evaluation, and the paper's experiments."""
    from tenuto.errors import TenutoError
    from tenuto.extras import EXTRAS, install
    from tenuto.laboratory import COMMANDS, offered

    try:
        laboratory = offered("lab", COMMANDS)
    except ImportError as error:
        needed = (error.name or "").partition(".")[0]
        extra = "eval" if needed in EXTRAS["eval"] else "lab"
        raise TenutoError(f"The laboratory cannot be loaded ({error}): {install(extra)}") from error
    status = laboratory(args=arguments or [], prog_name="tenuto lab", standalone_mode=False)
    if isinstance(status, int):
        raise typer.Exit(status)
