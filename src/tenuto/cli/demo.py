"""`tenuto demo`: the whole path, from the shipped weights to a page that shows what the schedule saved and kept."""

import time
from pathlib import Path
from typing import Any

from PIL import Image
from rich.table import Table
from torch import Tensor

from tenuto import api
from tenuto.cli.console import out, print_json, progress, say
from tenuto.cli.decide import score_with_progress
from tenuto.cli.show import schedule_facts
from tenuto.errors import UsageError
from tenuto.files import check_writable, write_json
from tenuto.measure.quality import ALIKE, psnr
from tenuto.models import Model, load, open_model
from tenuto.provenance import provenance
from tenuto.report.frontier import frontier_image
from tenuto.report.images import difference, grid, save_image
from tenuto.report.maps import terminal_map
from tenuto.report.page import Table as PageTable
from tenuto.report.page import write_page
from tenuto.report.results import known_frontier, results_folder
from tenuto.samplers.diffusion import Sampling, generate
from tenuto.schedules import Schedule

MODEL = "tiny-dit"
GAIN = 8  # of the difference image


def run(out_dir: Path, *, budget: float, steps: int, per_class: int, seed: int, as_json: bool) -> None:
    if per_class < 1:
        raise UsageError(f"--per-class must be at least 1, not {per_class}.")
    sampling = Sampling(steps=steps, guidance=1.5)
    check_writable(out_dir / "report.html")
    scores = score_with_progress(open_model(MODEL))
    schedule = api.schedule(scores, steps, budget=budget)
    model = load(MODEL)
    classes = [c for _ in range(per_class) for c in range(model.config.classes)]
    generate(model, classes, seed=seed, steps=1)  # warm-up, untimed
    full, full_seconds = _timed("Full", model, classes, seed, sampling, None)
    held, held_seconds = _timed("Scheduled", model, classes, seed, sampling, schedule)

    scores.save(out_dir / "scores.json")
    schedule.save(out_dir / "schedule.json")
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
        psnr_worst=round(float(quality.min()), 2) if quality.isfinite().all() else None,
    )
    columns = 5
    sheets = {
        "full.png": (f"Everything computed: {full_seconds:.1f} s", grid(full, columns, scale=3)),
        "scheduled.png": (f"{schedule.budget:.0%} computed: {held_seconds:.1f} s", grid(held, columns, scale=3)),
        "difference.png": (
            f"The difference, {GAIN} times amplified",
            grid(difference(held, full, GAIN), columns, scale=3),
        ),
    }
    for name, (_, sheet) in sheets.items():
        save_image(sheet, out_dir / name)
    write_json(out_dir / "demo.json", result)
    rows = _rows(result)
    write_page(
        out_dir / "report.html",
        title=_headline(result),
        lead=f"{len(classes)} pictures of clothes from the model that ships with Tenuto, {steps} steps of "
        f"{sampling.solver.upper()}, guidance {sampling.guidance}, drawn twice from the same noise.",
        figures=[
            (f"{result['speedup']:.1f}×", "wall-clock speed-up"),
            (f"{schedule.budget:.0%}", "of unit-steps computed"),
            (_decibels(result["psnr_mean"]), "PSNR to the full run"),
        ],
        pictures=list(sheets.values()),
        drawings=_frontier(),
        tables=[PageTable("In numbers", ["", *HEAD], rows)],
        schedule=schedule,
        scores=scores,
        facts={**schedule_facts(schedule), **{k: v for k, v in result.items() if k not in ("model", "steps")}},
    )
    if as_json:
        print_json(result)
    else:
        _print(schedule, rows, out_dir)


def _frontier() -> list[tuple[str, Image.Image]]:
    """Quality against work and time, where that has been measured."""
    image = frontier_image(known_frontier(results_folder()) or {}, MODEL)
    return [("Against its rivals, as measured by tenuto frontier", image)] if image else []


def _headline(result: dict[str, Any]) -> str:
    speed = f"{result['speedup']:.1f} times faster" if result["speedup"] > 1.05 else "no faster"
    if result["psnr_mean"] is None:
        return f"{MODEL}: identical pictures, {speed}"
    if result["psnr_worst"] >= ALIKE:
        return f"{MODEL}: the same pictures to the eye, {speed}"
    return f"{MODEL}: pictures {result['psnr_mean']:.0f} dB from the full run's, {speed}"


def _timed(
    title: str, model: Model, classes: list[int], seed: int, sampling: Sampling, schedule: Schedule | None
) -> tuple[Tensor, float]:
    with progress(f"{title:>9}", len(classes) * sampling.steps) as advance:
        started = time.perf_counter()
        samples = generate(model, classes, seed=seed, sampling=sampling, schedule=schedule, progress=advance)
        return samples, time.perf_counter() - started


HEAD = ("work", "FLOP-weighted", "seconds", "speed-up", "PSNR to full", "worst picture")


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


def _print(schedule: Schedule, rows: list[list[str]], out_dir: Path) -> None:
    out.print(terminal_map(schedule, max(20, out.width - max(len(u) for u in schedule.units) - 2)))
    table = Table(box=None, pad_edge=False)
    for name in ("", *HEAD):
        table.add_column(name, justify="left" if not name else "right")
    for row in rows:
        table.add_row(*row)
    out.print()
    out.print(table)
    say(f"\nOpen {out_dir / 'report.html'} to look at the pictures.")
