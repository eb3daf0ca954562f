"""`tenuto lab results`: one page of what the experiments found."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from tenuto_lab.cli.app import RESULTS, app


@app.command(epilog="Example: tenuto lab results --html results.html")
def results(
    folder: Annotated[Path, typer.Argument(help="Where `tenuto lab experiment` wrote.")] = RESULTS,
    output: Annotated[Path, typer.Option("-o", "--output", help="The page, in Markdown.")] = Path("docs/results.md"),
    html: Annotated[Path | None, typer.Option(help="Also write a self-contained page here.")] = None,
    ladder: Annotated[
        Path, typer.Option(help="The speed of the full-size networks, as `python -m benchmarks.ladder` wrote it.")
    ] = Path("results/ladder/ladder.json"),
    modes: Annotated[
        Path, typer.Option(help="The same of every way of running, if it is not in the first file.")
    ] = Path("results/ladder/ladder_modes.json"),
    smallest: Annotated[
        Path, typer.Option(help="Core seconds, as `python -m benchmarks.smallest_experiments` wrote them.")
    ] = Path("results/smallest_experiments/smallest_experiments.json"),
    repeated: Annotated[
        Path, typer.Option(help="Where `tenuto lab experiment -o` wrote later runs of the same size.")
    ] = Path("results/experiments_repeated"),
    text: Annotated[
        Path, typer.Option(help="Results of a language model whose tasks can tell; they decide about text.")
    ] = Path("results/experiments_text"),
) -> None:
    """Write one page of what the experiments found."""
    from tenuto.cli.console import say
    from tenuto.errors import TenutoError
    from tenuto.extras import needs
    from tenuto.files import check_writable, write_text
    from tenuto_lab.cli.experiment import draw_one
    from tenuto_lab.paper import EXPERIMENTS
    from tenuto_lab.paper.experiment_results import read_experiment
    from tenuto_lab.paper.results_page import results_page
    from tenuto_lab.paper.smallest import read_smallest
    from tenuto_lab.speed.ladder_report import read_ladder

    needs("The page", "lab", "matplotlib")
    for path in (output, html):
        if path is not None:
            check_writable(path)
    records = [read_experiment(folder / f"{name}.json") for name in EXPERIMENTS if (folder / f"{name}.json").exists()]
    if not records:
        raise TenutoError(f"There are no results in {folder}; `tenuto lab experiment all` makes them.")
    for record in records:
        draw_one(record, folder)
    seen_from = Path(os.path.relpath(folder.resolve(), output.parent.resolve())).as_posix()
    timed = [read_ladder(file) for file in (ladder, modes) if file.is_file()]
    tried = read_smallest(smallest) if smallest.is_file() else {}
    again = [read_experiment(file) for file in sorted(repeated.glob("*.json"))]
    telling = [read_experiment(file) for file in sorted(text.rglob("*.json"))]
    write_text(output, results_page(records, seen_from, timed, tried, again, telling))
    say(f"Wrote {output}")
    if html is not None:
        _html(records, folder, html, timed, telling)
        say(f"Wrote {html}")


def _html(
    records: list[dict[str, Any]],
    folder: Path,
    path: Path,
    timed: list[dict[str, Any]],
    telling: list[dict[str, Any]],
) -> None:
    """The same as one file: first the verdicts, then figures and tables."""
    from PIL import Image

    from tenuto.showing.page import Table, write_page
    from tenuto_lab.paper.abstract import HEAD as ABSTRACT
    from tenuto_lab.paper.abstract import abstract_rows
    from tenuto_lab.paper.experiment_report import HEAD, cells, verdict, where_of
    from tenuto_lab.paper.results_page import BELOW, about_ladders, about_older, about_text, plain, retired_of, titled

    words = [Table("The words", (), (), plain(BELOW))]
    notes = [*retired_of(records), *about_text(telling), *about_older(records), *about_ladders(timed)]
    words += [Table(title, (), (), said) for title, said in map(titled, notes)]
    claims = [[plain(cell) for cell in row] for row in abstract_rows(records, timed, telling)]
    tables = []
    for record in records:
        rows = [cells(row) for row in record["rows"]]
        image = Image.open(folder / f"{record['name']}.png") if record.get("figure") else None
        said = f"The paper ({where_of(record)}): {record['claim']} Here: {verdict(record)}"
        tables.append(Table(record["title"], HEAD, rows, said, words=2, image=image))
    made = [record["provenance"] for record in records]
    write_page(
        path,
        title="The paper's experiments, done again",
        lead="Every claim of the abstract of Spectral-Guided Diffusion, tried on small models of the same kinds.",
        facts={key: ", ".join(sorted({one[key] for one in made})) for key in ("commit", "torch", "hardware", "date")},
        opening=[Table("Does it hold?", ABSTRACT, claims, prose=True), *words],
        tables=tables,
    )
