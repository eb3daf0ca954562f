"""`tenuto experiment`: the paper's experiments, one by one or all of them, and the page of what they found."""

from pathlib import Path
from typing import Any

from tenuto import __version__
from tenuto.cli.console import err, failure, out, print_json, say
from tenuto.cli.generate import check_device
from tenuto.errors import TenutoError, UsageError, first_line
from tenuto.experiments import EXPERIMENTS, Experiment, Lab
from tenuto.files import check_writable, read_json, write_json, write_text
from tenuto.journal import Journal
from tenuto.provenance import commit, hardware, provenance
from tenuto.report.experiments import HEAD, cells, draw, experiment_table, results_page, verdict


def run(
    names: list[str],
    models: list[str] | None,
    checkpoint: Path | None,
    samples: int | None,
    seeds: int | None,
    steps: int | None,
    resume: bool,
    folder: Path,
    device: str,
    as_json: bool,
) -> None:
    place = check_device(device)
    if models and checkpoint:
        raise UsageError("Give models, or a checkpoint to do the experiment on, not both.")
    chosen = [experiment(name) for name in (EXPERIMENTS if names == ["all"] else names)]
    for one in chosen:
        check_writable(folder / f"{one.name}.json")
    notes = folder / ".trials.jsonl"
    if not resume:
        notes.unlink(missing_ok=True)
    # What other code or another machine measured is not mixed with this.
    journal = Journal(notes, {"tenuto": __version__, "commit": commit(), "hardware": hardware(place)})
    records, failed = [], {}
    for one in chosen:
        on = [str(checkpoint)] if checkpoint else models or list(one.models)
        try:
            record = _done(one, on, samples or one.samples, seeds or one.seeds, steps, folder, str(place), journal)
        except Exception as error:  # the others are to be done nonetheless
            if len(chosen) == 1:
                raise
            failed[one.name] = first_line(error)
            failure(f"{one.name}: {failed[one.name]}")
            continue
        records.append(record)
        if not as_json:
            _tell(record)
    if failed:
        raise TenutoError(f"{', '.join(failed)} failed; with --resume what was measured need not be measured again.")
    journal.done()
    if as_json:
        print_json(records[0] if len(records) == 1 else records)


def experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise UsageError(f"There is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}, and all.")
    return EXPERIMENTS[name]


def _done(
    one: Experiment,
    models: list[str],
    samples: int,
    seeds: int,
    steps: int | None,
    folder: Path,
    device: str,
    journal: Journal,
) -> dict[str, Any]:
    with err.status(one.title) as status:
        lab = Lab(
            models,
            samples,
            seeds,
            steps,
            device,
            journal,
            lambda text: status.console.print(text, markup=False, soft_wrap=True),
        )
        result = one.run(lab)
    record = {
        "provenance": provenance(device, seed=0, seeds=seeds, samples=samples, models=models),
        "name": one.name,
        "title": one.title,
        "claim": one.claim,
        "where": one.where,
        "finding": result.finding,
        "limits": result.limits,
        "rests_on": result.rests_on,
        "rows": [row.to_json() for row in result.rows],
        "figure": result.figure.to_json() if result.figure else None,
    }
    write_json(folder / f"{one.name}.json", record)
    draw_one(record, folder)
    return record


def draw_one(record: dict[str, Any], folder: Path) -> None:
    """The table and the figure of what a file holds."""
    write_text(folder / f"{record['name']}.md", experiment_table(record))
    if record["figure"]:
        draw(record, folder / f"{record['name']}.png")


def page(folder: Path, output: Path, html: Path | None) -> None:
    """One page of all that was found."""
    records = [
        read_json(folder / f"{name}.json", "experiment") for name in EXPERIMENTS if (folder / f"{name}.json").exists()
    ]
    if not records:
        raise TenutoError(f"There are no results in {folder}; `tenuto experiment all` makes them.")
    for record in records:
        draw_one(record, folder)
    write_text(output, results_page(records, _seen_from(folder, output.parent)))
    say(f"Wrote {output}")
    if html is not None:
        _html(records, folder, html)
        say(f"Wrote {html}")


def _seen_from(folder: Path, page_folder: Path) -> str:
    import os

    return Path(os.path.relpath(folder.resolve(), page_folder.resolve())).as_posix()


def _html(records: list[dict[str, Any]], folder: Path, path: Path) -> None:
    from PIL import Image

    from tenuto.report.page import Table, write_page

    tables, pictures = [], []
    for record in records:
        rows = [cells(row) for row in record["rows"]]
        tables.append(Table(record["title"], HEAD, rows, f"The paper: {record['claim']} Here: {verdict(record)}"))
        if record["figure"]:
            pictures.append((record["title"], Image.open(folder / f"{record['name']}.png")))
    made = [record["provenance"] for record in records]
    write_page(
        path,
        title="The paper's experiments, done again",
        lead="What the paper says, what was measured on the reference models, and whether the claim holds there.",
        facts={key: ", ".join(sorted({one[key] for one in made})) for key in ("commit", "torch", "hardware", "date")},
        pictures=pictures,
        tables=tables,
    )


def _tell(record: dict[str, Any]) -> None:
    from rich.table import Table

    out.print(f"[bold]{record['title']}[/]  ({record['where']})")
    out.print(f"The paper: {record['claim']}", markup=False)
    out.print(f"Here: {verdict(record)}", markup=False)
    table = Table(box=None, pad_edge=False)
    for column in HEAD:
        table.add_column(column, justify="right" if column in ("paper", "measured") else "left")
    for row in record["rows"]:
        table.add_row(*cells(row))
    out.print(table)
