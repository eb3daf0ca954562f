"""`tenuto lab show`: a frontier as a table, a page or a picture."""

from pathlib import Path
from typing import Annotated

import typer

from tenuto.cli.app import AsJson
from tenuto_lab.cli.app import app


@app.command(epilog="Example: tenuto lab show frontier.json --html frontier.html")
def show(
    file: Annotated[Path, typer.Argument(help="What `tenuto lab frontier -o` wrote.")],
    html: Annotated[Path | None, typer.Option(help="Write a self-contained page here.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write a picture here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Look at a frontier: as a table in the terminal, as a page, or as a picture."""
    from tenuto.cli.console import out, print_json, say
    from tenuto.errors import TenutoError, UsageError
    from tenuto.extras import needs
    from tenuto.files import check_writable
    from tenuto.showing.page import write_page
    from tenuto_lab.frontier.frontier_report import (
        frontier_image,
        frontier_picture,
        frontier_tables,
        models_of,
        page_tables,
    )
    from tenuto_lab.frontier.known import read_frontier

    for option, written in (("--html", html), ("--png", png)):
        if written:
            needs(option, "lab", "matplotlib")
            check_writable(written, reads=[file])
    record = read_frontier(file)
    if not record.get("cases") or not record.get("rows"):
        raise TenutoError(
            f"{file} is no frontier; `tenuto lab frontier -o` writes one. `tenuto show` shows scores and schedules."
        )
    models = models_of(record)
    if png and len(models) > 1:
        raise UsageError(f"--png draws one model, and {file} has {len(models)}: {', '.join(models)}. --html has all.")
    if png:
        frontier_picture(record, models[0], png)
    if html:
        write_page(
            html,
            title="Quality against work and time",
            lead="Every way of spending less work, each on the same network from the same noise. The thick line is "
            "Tenuto's, and its band is the 95 % interval.",
            drawings=[(model, image) for model in models if (image := frontier_image(record, model))],
            tables=page_tables(record),
            facts={"file": file, **{case: made["hardware"] for case, made in record["cases"].items()}},
        )
    if as_json:
        print_json(record)
    else:
        out.print(frontier_tables(record), markup=False, soft_wrap=True)
    for written in (html, png):
        if written:
            say(f"Wrote {written}")
