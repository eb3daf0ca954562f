"""`tenuto push`: a schedule or a score file, to the Hugging Face hub."""

from pathlib import Path
from typing import Annotated

import typer

from tenuto.cli.app import AsJson, app


@app.command(epilog="Example: tenuto push schedule.json me/sdxl-50-steps --base-model owner/sdxl")
def push(
    file: Annotated[Path, typer.Argument(help="A schedule or a score file.")],
    repository: Annotated[
        str, typer.Argument(metavar="OWNER/NAME", help="A repository on the hub. It is made if there is none.")
    ],
    base_model: Annotated[
        str | None,
        typer.Option(help="Hub id of the weights that the file is for. Default: the model's name, if it is a hub id."),
    ] = None,
    private: Annotated[
        bool | None, typer.Option("--private/--public", help="Whether a new repository is private.")
    ] = None,
    message: Annotated[str | None, typer.Option("-m", "--message", help="The message of the commit.")] = None,
    as_json: AsJson = False,
) -> None:
    """Share a schedule or a score file on the Hugging Face hub, with a card that shows it.

    The token comes from HF_TOKEN, or from `hf auth login`.
    """
    from tenuto.cli.console import out, print_json
    from tenuto_lab import hub

    address = hub.push(file, repository, base_model=base_model, private=private, message=message)
    if as_json:
        print_json({"repository": repository, "commit": address})
    else:
        out.print(address, markup=False, soft_wrap=True)
