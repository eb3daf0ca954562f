"""`tenuto score`: a score for every unit of a checkpoint, from its weights."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tenuto.cli.app import AsJson, Device, ModelName, app

if TYPE_CHECKING:
    from tenuto_lab.scoring.scores import Scores


@app.command(epilog="Example: tenuto score tiny-dit -o scores.json")
def score(
    model: ModelName,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the score file here.")] = None,
    eta: Annotated[float, typer.Option(help="η, the regulariser of the spectral concentration ratio.")] = 1e-6,
    granularity: Annotated[
        Literal["branch", "block"],
        typer.Option(help="One score for each branch, or one for all branches of a block, as the paper counts."),
    ] = "branch",
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Score every unit of a checkpoint from its weights. Tensors are read one by one, and no model is built."""
    from tenuto.cli.app import check_device
    from tenuto.cli.console import print_json, say
    from tenuto.cli.schedule import score_with_progress
    from tenuto.errors import CheckpointError
    from tenuto.files import check_writable
    from tenuto.models import open_model
    from tenuto_lab.scoring.scores import to_json
    from tenuto_lab.scoring.scoring_models import journal_of

    place, stored, journal = check_device(device), open_model(model), None
    if output is not None:
        check_writable(output, reads=[stored.path])
    if output is not None and (output.is_file() or not output.exists()):
        # A large checkpoint takes minutes. The journal beside the score file keeps finished tensors if this ends early.
        journal = journal_of(output.with_name(f"{output.name}.journal"), stored, eta)
    try:
        scores = score_with_progress(stored, eta=eta, device=place, journal=journal, granularity=granularity)
    except CheckpointError:
        if journal:
            journal.done()  # the same weights would fail again
        raise
    if output is not None:
        scores.save(output)
    if journal:
        journal.done()
    if as_json:
        print_json(to_json(scores))
    else:
        print_scores(scores)
    if output is not None:
        say(f"Wrote {output}")


def show_scores(record: dict[str, Any], file: Path, html: Path | None, png: Path | None, as_json: bool) -> None:
    """`tenuto show` of a score file."""
    from tenuto.showing.page import write_page
    from tenuto_lab.scoring.score_pictures import kinds_in, save_scores_png, scores_facts, scores_svg
    from tenuto_lab.scoring.scores import from_json

    scores = from_json(record, str(file))
    if png:
        save_scores_png(scores, png)
    if html:
        title, bars, kinds = f"Scores of {scores.model}", scores_svg(scores), kinds_in(scores)
        write_page(html, title=title, lead=str(file), facts=scores_facts(scores), bars=bars, kinds=kinds)
    if not as_json:
        print_scores(scores)


def print_scores(scores: "Scores") -> None:
    from rich.bar import Bar
    from rich.table import Table

    from tenuto.cli.console import clean, counted, out, quoted

    shared = ", one score for each block" if scores.granularity == "block" else ""
    title = f"{quoted(scores.model)}: {counted(len(scores.units), 'unit')}{shared}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("unit", no_wrap=True, min_width=max(len(clean(unit.name)) for unit in scores.units))
    table.add_column("kind", no_wrap=True)
    for name in ("matrices", "raw q̃", "score Λ̂", "GFLOPs"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", max_width=20)  # bars, of the width that is left
    for unit in scores.units:
        matrices = sum(len(part.spectra) for part in unit.components)
        cells = f"{unit.raw:.4g}", f"{unit.score:.4f}", f"{unit.flops / 1e9:.3g}"
        table.add_row(quoted(unit.name), quoted(unit.kind), str(matrices), *cells, Bar(1, 0, unit.score, color="cyan"))
    out.print(table)
