"""`tenuto pull`: a schedule or a score file, from the Hugging Face hub."""

from pathlib import Path
from typing import Annotated

import typer

from tenuto.cli.app import AsJson, app


@app.command(epilog="Example: tenuto pull me/sdxl-50-steps@main -o pulled")
def pull(
    source: Annotated[str, typer.Argument(metavar="OWNER/NAME[@REVISION]", help="A repository on the hub.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory for schedule.json and scores.json.")],
    as_json: AsJson = False,
) -> None:
    """Fetch a schedule or a score file from the Hugging Face hub. With HF_HUB_OFFLINE=1 it comes from the hub's cache.

    If its scores were computed from other weights than your model's, `tenuto generate` refuses a schedule, and so does
    tenuto.enable with check_weights=True.
    """
    from tenuto.cli.console import print_json, say
    from tenuto.errors import UsageError
    from tenuto.files import check_writable
    from tenuto_lab import hub

    repository, at, revision = source.partition("@")
    if at and not revision:
        raise UsageError(f"{source} names no revision after the @.")
    for name in hub.NAMES.values():
        check_writable(output / name)
    written = hub.pull(repository, output, revision=revision or None)
    if as_json:
        print_json({"repository": repository, "revision": revision or None, "files": [str(path) for path in written]})
        return
    for path in written:
        say(f"Wrote {path}")
