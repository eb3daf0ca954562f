"""`tenuto lab experiment`: the paper's experiments, one by one or all of them."""

import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tenuto.cli.app import AsJson, Device
from tenuto_lab.cli.app import RESULTS, Precision, app, telling

if TYPE_CHECKING:
    from tenuto_lab.journal import Journal
    from tenuto_lab.paper import Experiment, Lab

NEEDS = {"freezing": ("peft",)}  # packages of the extra lab, besides matplotlib
Granularity = Literal["branch", "block", "both"]
REAL = "On a checkpoint of your own"


@app.command(
    "experiment",
    epilog="Example: tenuto lab experiment rankings --model tiny-dit --samples 20"
    " · tenuto lab experiment all --device cuda --resume --minutes 9",
)
def run_experiments(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME…",
            help="operating-points, rankings, execution, language, horizons, input-aware, oracle, comparisons, "
            "freeze-error, audit, pareto, maps, failures, freezing, bounds, quantisation; or all.",
        ),
    ],
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="A model as for `tenuto score`; repeat. Default: the reference models."),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="A checkpoint to use instead, of full size for example.", rich_help_panel=REAL)
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="Samples for each seed. Default: the experiment's own, for a GPU."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Rounds, each from other noise. Default: mostly 10.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=4, max=1000, help="Steps of the full run. Default: 100; 50 for SDXL.")
    ] = None,
    granularity: Annotated[
        Granularity | None,
        typer.Option(help="What has a lifetime of its own. Default: the experiment's; the paper counts blocks."),
    ] = None,
    dtype: Annotated[Precision, typer.Option(help="Precision to run in.")] = "float32",
    guidance: Annotated[float | None, typer.Option(help="Guidance. Default: the paper's, 1.5; 7.5 for SDXL.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, max=65_536, help="Samples at a time.")] = None,
    vae: Annotated[
        Path | None, typer.Option(help="A VAE directory, for latents. Default: beside it.", rich_help_panel=REAL)
    ] = None,
    captions: Annotated[
        Path | None, typer.Option(help="A file of captions, one on each line.", rich_help_panel=REAL)
    ] = None,
    problems: Annotated[
        Path | None, typer.Option(help="A JSONL file: task, prompt and answer.", rich_help_panel=REAL)
    ] = None,
    answer_length: Annotated[
        int, typer.Option(min=1, max=4096, help="Tokens of an answer.", rich_help_panel=REAL)
    ] = 16,
    tasks: Annotated[
        list[str] | None, typer.Option("--task", help="A kind of problem to ask; repeat. Default: all.")
    ] = None,
    orders: Annotated[int, typer.Option(min=1, max=1000, help="Random orders that rankings are compared with.")] = 10,
    inception: Annotated[
        Path | None,
        typer.Option(help="Inception weights: torch-fidelity's file, or TorchScript.", rich_help_panel=REAL),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="Real pictures or their statistics: judge by Inception features.", rich_help_panel=REAL),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")] = False,
    minutes: Annotated[
        float | None,
        typer.Option(min=0, help="Stop after so long, between two trials; --resume goes on. 0: measure nothing new."),
    ] = None,
    trials: Annotated[
        list[Path] | None,
        typer.Option(help="Also use what runs beside this one measured: their .trials.jsonl, or folders; repeat."),
    ] = None,
    times: Annotated[
        bool, typer.Option("--times", help="Only take the times of what was measured with --beside, for a later run.")
    ] = False,
    beside: Annotated[
        bool, typer.Option("--beside", help="Other work runs on this device, so take no times. A later run adds them.")
    ] = False,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Directory for the results: JSON, a table and a figure of each.")
    ] = RESULTS,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Do the paper's experiments, and put its figures beside those that are measured here."""
    from tenuto import __version__
    from tenuto.cli.app import check_device
    from tenuto.cli.console import failure, print_json, say
    from tenuto.errors import TenutoError, UsageError, first_line
    from tenuto.extras import needs
    from tenuto.files import check_writable
    from tenuto.provenance import command, commit, hardware
    from tenuto_lab.paper import EXPERIMENTS, Lab, Protocol
    from tenuto_lab.paper.conditions import OutOfTime, float32_products
    from tenuto_lab.paper.notes import RUN, joined

    place = check_device(device)
    if times and beside:
        raise UsageError("Times are taken without other work on the device, not --beside it.")
    if models and checkpoint:
        raise UsageError("Give models, or a checkpoint to do the experiment on, not both.")
    chosen = [experiment(name) for name in (EXPERIMENTS if names == ["all"] else names)]

    def models_of(one: "Experiment") -> list[str]:
        return [str(checkpoint)] if checkpoint else models or list(one.models)

    for one in chosen:
        needs(f"The experiment {one.name}", "lab", "matplotlib", *NEEDS.get(one.name, ()))
        check_writable(output / f"{one.name}.json")
    for one in chosen:
        _check_steps(one, steps, models_of(one))
    protocol = Protocol(
        dtype, guidance, vae, captions, problems, answer_length, tuple(tasks or ()), inception, reference, batch
    )
    protocol.check_used(sorted({name for one in chosen for name in models_of(one)}))
    if reference is not None and (inception is None or inception.suffix != ".pt"):
        needs("--reference", "eval", "torch_fidelity")
    notes = output / ".trials.jsonl"
    if not resume:
        notes.unlink(missing_ok=True)
    # What other code or another machine measured is not mixed with this run.
    products = float32_products(place)
    job = {"tenuto": __version__, "commit": commit(), "hardware": hardware(place), "float32_products": products}
    job |= {"torch": version("torch"), "python": python_version()}
    journal, made = joined(notes, trials or [], None if minutes == 0 else job)
    if minutes != 0:
        journal.note(f"{RUN}{command()}", {"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")})
    ends = None if minutes is None else time.monotonic() + 60 * minutes
    records, failed = [], {}
    benches: dict[str, Any] = {}  # loaded once for all experiments of the same samples
    for one in chosen:
        on = models_of(one)
        counted = (
            one.granularities
            if granularity is None
            else ("block", "branch")
            if granularity == "both"
            else (granularity,)
        )
        each, of_text, rounds = samples or one.samples, samples or one.text_samples, seeds or one.seeds
        lab = Lab(
            on, each, rounds, steps, str(place), journal, granularities=counted, protocol=protocol,
            text_samples=of_text, orders=orders, ends=ends, takes_time=not beside, made={} if one.on_cpu else made,
            _benches=benches.setdefault(f"{each} {of_text} {rounds}", {}),
        )  # fmt: skip
        if times:
            take_times(one, replace(lab, only_times=True))
            continue
        try:
            lab = lab if minutes != 0 else complete(one, lab)
            record = _known(one, lab, journal, output) or _done(one, lab, output)
        except OutOfTime as error:
            if minutes == 0:  # what nobody measured is left out
                failed[one.name] = "nothing of it is complete"
                say(f"{one.name}: {failed[one.name]}")
                continue
            say(f"{one.name}: {error}")
            raise typer.Exit(STOPPED) from error
        except Exception as error:  # the other experiments are done nonetheless
            if len(chosen) == 1:
                raise
            failed[one.name] = first_line(error)
            failure(f"{one.name}: {failed[one.name]}")
            continue
        records.append(record)
        if not as_json:
            _tell(record)
    if times:
        raise typer.Exit(STOPPED if ends is not None and time.monotonic() >= ends else 0)
    if failed and minutes == 0:
        raise typer.Exit(STOPPED)
    if failed:
        raise TenutoError(
            f"{', '.join(failed)} failed. With --resume the next run does not measure again what was measured."
        )
    if not beside and not trials:  # a later run may want to add times, or another one to use these
        journal.done()
    if as_json:
        print_json(records[0] if len(records) == 1 else records)


def _check_steps(one: "Experiment", steps: int | None, models: list[str]) -> None:
    """Text is written in blocks of as many steps each. A number of steps that does not fit is refused at once."""
    from tenuto.errors import UsageError
    from tenuto.models import open_model
    from tenuto_lab.paper.writing_bench import BLOCKS

    if steps is None or steps % BLOCKS == 0 or not one.in_blocks:
        return
    for name in models:
        if open_model(name).architecture.asks_for == "prompt":
            below = steps - steps % BLOCKS
            raise UsageError(
                f"The experiment {one.name} lets {name} write in {BLOCKS} blocks of as many steps each, so {steps} "
                f"steps do not fit: take --steps {below} or {below + BLOCKS}, or only models that draw."
            )


# Of the columns of a table in the terminal. Together with the spaces between them: 99.
WIDTHS = {"quantity": 32, "paper": 11, "here": 9, "95 % interval": 11, "holds": 8, "nearness": 9, "nearer": 7}
STOPPED = 75  # the exit status of a run that stopped in time and wants to be resumed


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


def take_times(one: "Experiment", lab: "Lab") -> None:
    """The times of an experiment, for each model and granularity of which the rest was measured."""
    from tenuto_lab.paper.conditions import OutOfTime

    with telling(one.title) as tell:
        for model, counted in product(lab.models, lab.granularities):
            with suppress(OutOfTime):
                one.run(replace(lab, only=frozenset([(model, counted)]), say=tell))


def complete(one: "Experiment", lab: "Lab") -> "Lab":
    """The lab with those pairs of model and granularity of which the experiment is complete in the journal."""
    from tenuto.cli.console import say
    from tenuto_lab.paper.conditions import OutOfTime

    def runs(some: "Lab") -> bool:
        try:
            one.run(some)
        except OutOfTime:
            return False
        return True

    if runs(lab):
        return lab
    pairs = list(product(lab.models, lab.granularities))
    done = frozenset(pair for pair in pairs if runs(replace(lab, only=frozenset([pair]))))
    if not done:
        raise OutOfTime("nothing of it is complete")
    left = [f"{model} by {counted}" for model, counted in pairs if (model, counted) not in done]
    say(f"{one.name}: not measured completely, left out: {', '.join(left)}")
    models = [model for model in lab.models if any(model == found for found, _ in done)]
    return replace(lab, models=models, only=done, left_out=left)


def _conditions(lab: "Lab") -> dict[str, Any]:
    """What a result depends on, besides code and machine."""
    return {
        "seeds": lab.seeds,
        "samples": lab.samples,
        "text_samples": lab.text_samples,
        "orders": lab.orders,
        "models": list(lab.models),
        "steps": lab.steps,
        "granularities": list(lab.granularities),
        "protocol": lab.protocol.described(),
        **({"left_out": lab.left_out} if lab.left_out else {}),
    }


def _known(one: "Experiment", lab: "Lab", journal: "Journal", folder: Path) -> dict[str, Any] | None:
    """The result of an earlier call of this run, if the journal says that the experiment is done."""
    from tenuto_lab.paper.experiment_results import read_experiment

    file = folder / f"{one.name}.json"
    if journal.get(f"done: {one.name}") != _conditions(lab) or not file.is_file():
        return None
    return read_experiment(file)


def _done(one: "Experiment", lab: "Lab", folder: Path) -> dict[str, Any]:
    from tenuto.cli.console import say
    from tenuto.files import write_json

    total = one.trials(lab) * len(lab.models) * len(lab.granularities)
    counted = f"; here about {total} trials" if total else ""
    gpu = f"about {one.minutes:g} minutes on an H200 with the default samples (an estimate){counted}"
    say(f"{one.name}: {'seconds, without a GPU' if one.on_cpu else gpu}")
    begun = time.monotonic()
    with telling(one.title) as tell:
        lab.say = lambda text: tell(f"[{_progress(lab, total, time.monotonic() - begun)}] {text}")
        result = one.run(lab)
    record = {
        "provenance": _provenance(one, lab, round(time.monotonic() - begun)),
        "name": one.name,
        "title": one.title,
        "claim": one.claim,
        "where": one.where,
        "finding": result.finding,
        "limits": result.limits,
        "rests_on": result.rests_on,
        "rows": [replace(row, model=Path(row.model).name).to_json() for row in result.rows],
        "figure": result.figure.to_json() if result.figure else None,
    }
    write_json(folder / f"{one.name}.json", record)
    draw_one(record, folder)
    if lab.journal is not None:
        lab.journal.note(f"done: {one.name}", _conditions(lab))
    return record


def _provenance(one: "Experiment", lab: "Lab", seconds: int) -> dict[str, Any]:
    """Of this run. If it measured nothing itself, also of the runs that did."""
    from tenuto.provenance import provenance

    spent = {"seconds_of_the_last_part" if lab.resumed else "seconds": seconds}
    made = provenance(lab.device, seed=0, weights=lab.fingerprints(), **spent, **_conditions(lab))
    if not lab.made:
        return made
    runs = {run: when for run, when in lab.made["runs"].items() if one.name in run.split()}
    about = {key: value for key, value in lab.made.items() if key != "runs"}
    return {**made, **about, "date": max(runs.values(), default=made["date"]), "measured_by": sorted(runs)}


def _progress(lab: "Lab", total: int, seconds: float) -> str:
    """The time so far, and about how much is left, if the trials to come take as long as those so far."""
    left = lab.left(total)
    return _clock(seconds) + (f", about {_clock(left)} left" if left > 0 else "")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes}:{rest:02d}"


def draw_one(record: dict[str, Any], folder: Path) -> None:
    """The table and the figure of what a result file holds."""
    from tenuto.files import write_text
    from tenuto_lab.paper.experiment_figures import draw
    from tenuto_lab.paper.experiment_report import experiment_table

    write_text(folder / f"{record['name']}.md", experiment_table(record))
    if record.get("figure"):
        draw(record, folder / f"{record['name']}.png")


def _tell(record: dict[str, Any]) -> None:
    from rich.table import Table

    from tenuto.cli.console import out, quoted
    from tenuto_lab.paper.experiment_report import HEAD, cells, verdict, where_of

    out.print(f"[bold]{quoted(record['title'])}[/]  ({quoted(where_of(record))})")
    out.print(f"The paper: {record['claim']}", markup=False)
    out.print(f"Here: {verdict(record)}", markup=False)
    for model in dict.fromkeys(row["model"] for row in record["rows"]):
        out.print(f"\n[bold]{quoted(model)}[/]")
        found = [cells(row)[1:] for row in record["rows"] if row["model"] == model]
        used = [i for i in range(len(HEAD) - 1) if any(row[i] for row in found)]  # empty columns are left out
        table = Table(box=None, pad_edge=False)
        for i in used:  # long texts are folded, never cut: a table fits a terminal of 100 columns
            column = HEAD[1:][i]
            right = column in ("paper", "here", "nearness")
            table.add_column(column, justify="right" if right else "left", overflow="fold", max_width=WIDTHS[column])
        for row in found:
            table.add_row(*(quoted(row[i]) for i in used))
        out.print(table)
