"""`tenuto demo`: from the shipped weights to a page that shows what the schedule saved and what it kept."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenuto.cli.app import AsJson, Seed, app

if TYPE_CHECKING:
    from torch import Tensor

    from tenuto.models import Model
    from tenuto.sampling.pictures import Sampling
    from tenuto.scheduling.schedule import Schedule

MODEL = "tiny-dit"
GAIN = 8  # of the difference image
COLUMNS = 5  # of a sheet of pictures
HEAD = ("work", "FLOP-weighted", "seconds", "speed-up", "PSNR to full", "worst picture")


@app.command(epilog="Example: tenuto demo --out demo")
def demo(
    out: Annotated[Path, typer.Option(help="Directory for the pictures and report.html.")] = Path("demo"),
    budget: Annotated[float, typer.Option(help="Share of the work to compute.")] = 0.25,
    steps: Annotated[int, typer.Option(help="Denoising steps.")] = 50,
    per_class: Annotated[int, typer.Option(min=1, max=10_000, help="Pictures of each of the ten classes.")] = 1,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """See it work: the shipped model draws the same pictures with a schedule and without, for you to compare."""
    from tenuto import deciding
    from tenuto.cli.console import print_json
    from tenuto.files import check_writable
    from tenuto.models import load
    from tenuto.provenance import provenance
    from tenuto.quality import psnr
    from tenuto.sampling.pictures import Sampling, generate

    sampling = Sampling(steps=steps, guidance=1.5)
    check_writable(out / "report.html")
    model = load(MODEL)
    schedule = deciding.schedule(model, steps, budget=budget)
    classes = [c for _ in range(per_class) for c in range(model.config.classes)]
    generate(model, classes, seed=seed, steps=1)  # warm-up, untimed
    full, full_seconds = _timed("In full", model, classes, seed, sampling, None)
    held, held_seconds = _timed("Scheduled", model, classes, seed, sampling, schedule)
    quality = psnr(held, full)
    result = provenance(
        model=MODEL,
        seed=seed,
        images=len(classes),
        steps=steps,
        guidance=sampling.guidance,
        solver=sampling.solver,
        work=schedule.budget,
        flop_work=schedule.flop_budget,
        seconds_full=round(full_seconds, 3),
        seconds_scheduled=round(held_seconds, 3),
        speedup=round(full_seconds / held_seconds, 3),
        psnr_mean=round(float(quality.mean()), 2) if quality.isfinite().all() else None,
        psnr_worst=round(float(quality.min()), 2) if quality.isfinite().any() else None,
    )
    rows = _rows(result)
    _write(out, result, rows, schedule, full, held)
    if as_json:
        print_json(result)
    else:
        _print(schedule, rows, out)


def _timed(
    title: str, model: "Model", classes: list[int], seed: int, sampling: "Sampling", schedule: "Schedule | None"
) -> "tuple[Tensor, float]":
    from tenuto.cli.console import progress
    from tenuto.sampling.pictures import generate

    with progress(f"{title:>9}", len(classes) * sampling.steps) as advance:
        started = time.perf_counter()
        samples = generate(model, classes, seed=seed, sampling=sampling, schedule=schedule, progress=advance)
        return samples, time.perf_counter() - started


def _write(
    folder: Path,
    result: dict[str, Any],
    rows: list[list[str]],
    schedule: "Schedule",
    full: "Tensor",
    held: "Tensor",
) -> None:
    """The schedule, the figures, the pictures, and a page with all of it."""
    from tenuto.files import write_json
    from tenuto.showing.facts import schedule_facts
    from tenuto.showing.images import difference, grid, save_image
    from tenuto.showing.page import Table, write_page

    schedule.save(folder / "schedule.json")
    write_json(folder / "demo.json", result)
    sheets = {
        "full": (f"Everything computed: {result['seconds_full']:.1f} s", full),
        "scheduled": (f"{schedule.budget:.0%} computed: {result['seconds_scheduled']:.1f} s", held),
        "difference": (f"The difference, {GAIN} times amplified", difference(held, full, GAIN)),
    }
    pictures = [(title, grid(images, COLUMNS, scale=3)) for title, images in sheets.values()]
    for name, (_, sheet) in zip(sheets, pictures, strict=True):
        save_image(sheet, folder / f"{name}.png")
    write_page(
        folder / "report.html",
        title=_headline(result),
        lead=f"{result['images']} pictures of clothes from the model that ships with Tenuto. {result['steps']} steps "
        f"of {result['solver'].upper()} with guidance {result['guidance']}, drawn twice from the same noise.",
        figures=[
            (f"{result['speedup']:.1f}×", "wall-clock speed-up"),
            (f"{schedule.budget:.0%}", "of unit-steps computed"),
            (_decibels(result["psnr_mean"]), "PSNR to the full run"),
        ],
        pictures=pictures,
        tables=[Table("In numbers", ["", *HEAD], rows)],
        schedule=schedule,
        facts={**schedule_facts(schedule), **{k: v for k, v in result.items() if k not in ("model", "steps")}},
    )


def _headline(result: dict[str, Any]) -> str:
    from tenuto.quality import ALIKE

    speed = f"{result['speedup']:.1f} times faster" if result["speedup"] > 1.05 else "no faster"
    if result["psnr_mean"] is None:
        return f"{MODEL}: identical pictures, {speed}"
    if result["psnr_worst"] >= ALIKE:
        return f"{MODEL}: the same pictures to the eye, {speed}"
    return f"{MODEL}: pictures {result['psnr_mean']:.0f} dB from the full run's, {speed}"


def _rows(result: dict[str, Any]) -> list[list[str]]:
    return [
        ["full", "100.0%", "100.0%", f"{result['seconds_full']:.2f}", "1.00×", "", ""],
        [
            "scheduled",
            f"{result['work']:.1%}",
            f"{result['flop_work']:.1%}",
            f"{result['seconds_scheduled']:.2f}",
            f"{result['speedup']:.2f}×",
            _decibels(result["psnr_mean"]),
            _decibels(result["psnr_worst"]),
        ],
    ]


def _decibels(value: float | None) -> str:
    return "identical" if value is None else f"{value:.1f} dB"


def _print(schedule: "Schedule", rows: list[list[str]], folder: Path) -> None:
    from rich.table import Table

    from tenuto.cli.console import out, say
    from tenuto.cli.show import terminal_map

    out.print(terminal_map(schedule, out.width))
    table = Table(box=None, pad_edge=False)
    for name in ("", *HEAD):
        table.add_column(name, justify="left" if not name else "right")
    for row in rows:
        table.add_row(*row)
    out.print()
    out.print(table)
    say(f"\nOpen {folder / 'report.html'} to look at the pictures.")
