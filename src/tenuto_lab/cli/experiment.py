"""`tenuto lab experiment`: the paper's experiments, one by one or all of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenuto.cli.app import AsJson, Device
from tenuto_lab.cli.app import RESULTS, app, telling

if TYPE_CHECKING:
    from tenuto.journal import Journal
    from tenuto_lab.paper import Experiment

NEEDS = {  # packages of the extra lab, besides matplotlib
    "rankings": ("scipy",),
    "freeze-error": ("scipy", "statsmodels"),
    "audit": ("scipy",),
    "freezing": ("peft",),
}


@app.command(
    "experiment",
    epilog="Example: tenuto lab experiment rankings --model tiny-dit --samples 20"
    " · tenuto lab experiment all --device cuda --resume",
)
def run_experiments(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME…",
            help="operating-points, rankings, execution, language, horizons, input-aware, oracle, comparisons, "
            "freeze-error, audit, pareto, maps, failures, freezing; or all.",
        ),
    ],
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="A model as for `tenuto score`; repeat. Default: the reference models."),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="A checkpoint to use instead, of full size for example.")
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="Samples for each seed. Default: the experiment's own, for a GPU."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Rounds, each from other noise. Default: mostly 3.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=4, max=1000, help="Steps of the full run. Default: 50; 64 for text.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")] = False,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Directory for the results: JSON, a table and a figure of each.")
    ] = RESULTS,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Do the paper's experiments, and put its figures beside those that are measured here."""
    from tenuto import __version__
    from tenuto.cli.app import check_device
    from tenuto.cli.console import failure, print_json
    from tenuto.cli.extras import needs
    from tenuto.errors import TenutoError, UsageError, first_line
    from tenuto.files import check_writable
    from tenuto.journal import Journal
    from tenuto.provenance import commit, hardware
    from tenuto_lab.paper import EXPERIMENTS

    place = check_device(device)
    if models and checkpoint:
        raise UsageError("Give models, or a checkpoint to do the experiment on, not both.")
    chosen = [experiment(name) for name in (EXPERIMENTS if names == ["all"] else names)]
    for one in chosen:
        needs(f"The experiment {one.name}", "lab", "matplotlib", *NEEDS.get(one.name, ()))
        check_writable(output / f"{one.name}.json")
    notes = output / ".trials.jsonl"
    if not resume:
        notes.unlink(missing_ok=True)
    # What other code or another machine measured is not mixed with this run.
    journal = Journal(notes, {"tenuto": __version__, "commit": commit(), "hardware": hardware(place)})
    records, failed = [], {}
    for one in chosen:
        on = [str(checkpoint)] if checkpoint else models or list(one.models)
        try:
            record = _done(one, on, samples or one.samples, seeds or one.seeds, steps, output, str(place), journal)
        except Exception as error:  # the other experiments are done nonetheless
            if len(chosen) == 1:
                raise
            failed[one.name] = first_line(error)
            failure(f"{one.name}: {failed[one.name]}")
            continue
        records.append(record)
        if not as_json:
            _tell(record)
    if failed:
        raise TenutoError(
            f"{', '.join(failed)} failed. With --resume the next run does not measure again what was measured."
        )
    journal.done()
    if as_json:
        print_json(records[0] if len(records) == 1 else records)


def experiment(name: str) -> "Experiment":
    """The experiment of this name."""
    from difflib import get_close_matches

    from tenuto.errors import UsageError
    from tenuto_lab.paper import EXPERIMENTS

    if name not in EXPERIMENTS:
        near = get_close_matches(name, EXPERIMENTS, n=1)
        meant = f" Did you mean {near[0]}?" if near else ""
        raise UsageError(f"There is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}, and all.{meant}")
    return EXPERIMENTS[name]


def _done(
    one: "Experiment",
    models: list[str],
    samples: int,
    seeds: int,
    steps: int | None,
    folder: Path,
    device: str,
    journal: "Journal",
) -> dict[str, Any]:
    from tenuto.files import write_json
    from tenuto.provenance import provenance
    from tenuto_lab.paper import Lab

    with telling(one.title) as tell:
        result = one.run(Lab(models, samples, seeds, steps, device, journal, tell))
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
    """The table and the figure of what a result file holds."""
    from tenuto.files import write_text
    from tenuto_lab.paper.experiment_report import draw, experiment_table

    write_text(folder / f"{record['name']}.md", experiment_table(record))
    if record.get("figure"):
        draw(record, folder / f"{record['name']}.png")


def _tell(record: dict[str, Any]) -> None:
    from rich.table import Table

    from tenuto.cli.console import out, quoted
    from tenuto_lab.paper.experiment_report import HEAD, cells, verdict

    out.print(f"[bold]{quoted(record['title'])}[/]  ({quoted(record['where'])})")
    out.print(f"The paper: {record['claim']}", markup=False)
    out.print(f"Here: {verdict(record)}", markup=False)
    table = Table(box=None, pad_edge=False)
    for column in HEAD:
        table.add_column(column, justify="right" if column in ("paper", "measured") else "left")
    for row in record["rows"]:
        table.add_row(*map(quoted, cells(row)))
    out.print(table)
