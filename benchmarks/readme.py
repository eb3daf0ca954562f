"""The README's table and picture: the shipped model under several schedules and their honest rival, fewer steps.

    python -m benchmarks.readme            # writes results/readme/, docs/images/demo.png and the README's table
    python -m benchmarks.readme --draw-only            # the tables again, from what was measured

Every row makes the same pictures from the same noise. The rows take turns with one picture of every class at a time;
seconds are medians of these rounds, for all pictures.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

import tenuto
from benchmarks.places import ROOT, results_of
from scripts.command_line import run
from tenuto.errors import TenutoError
from tenuto.files import replacing, write_json, write_text
from tenuto.models import shipped
from tenuto.provenance import provenance
from tenuto.quality import psnr
from tenuto.sampling.pictures import Sampling
from tenuto.scheduling.schedule import Schedule
from tenuto.showing.images import difference, grid
from tenuto.timing import in_turns
from tenuto_lab.judging.classifier import load_classifier
from tenuto_lab.result_files import ORIGIN, both, makes, read_result, shaped

MODEL = "tiny-dit"
STEPS = 50
RESULTS, PICTURE, README = results_of("readme"), ROOT / "docs" / "images" / "demo.png", ROOT / "README.md"
BEGIN, END = "<!-- headline: benchmarks/readme.py -->", "<!-- end of headline -->"
HEADLINE = ("everything computed", "Tenuto", "fewer steps: 13 of", "fewer steps: 10 of DPM")  # how its rows begin


@dataclass(frozen=True)
class Row:
    name: str
    sampling: Sampling
    schedule: Schedule | None = None

    @property
    def work(self) -> float:
        """Unit-steps computed, as a share of the full run's."""
        return (self.schedule.budget if self.schedule else 1.0) * self.sampling.steps / STEPS

    @property
    def flop_work(self) -> float:
        """The same, with each unit counted by its operations."""
        return (self.schedule.flop_budget if self.schedule else 1.0) * self.sampling.steps / STEPS


def rows_to_measure(model: tenuto.Model) -> list[Row]:
    scores = tenuto.score(model)
    full = Sampling(steps=STEPS)
    rows = [Row(f"everything computed, {STEPS} DDIM steps", full)]
    for budget in (0.5, 0.34, 0.25, 0.2, 0.13):
        name = f"Tenuto, budget {budget:g}" + (" (default)" if budget == 0.25 else "")
        rows.append(Row(name, full, tenuto.schedule(scores, STEPS, budget=budget)))
    for keep in ("branch", "update"):
        each = tenuto.schedule(scores, STEPS, budget=0.25, keep=keep, predict="quadratic")
        rows.append(Row(f"the same budget, every unit's {keep} held instead of the output", full, each))
    held = tenuto.schedule(scores, STEPS, every=4, predict="constant", keep="update")
    rows.append(Row("everything every 4th step, held as it was", full, held))
    paper = tenuto.schedule(scores, STEPS, policy="lifetimes", budget=0.35)
    rows.append(Row("the paper's lifetimes, held for good", full, paper))
    for steps in (25, 17, 13, 10):
        rows.append(Row(f"fewer steps: {steps} of DDIM", Sampling(steps=steps)))
    for steps in (17, 13, 10):
        rows.append(Row(f"fewer steps: {steps} of DPM-Solver++", Sampling(steps=steps, solver="dpm++")))
    return rows


def measure(model: tenuto.Model, rows: list[Row], per_class: int, repeats: int, seed: int) -> tuple[Any, Any]:
    """(one record a row, the pictures of each row)."""
    judge = load_classifier(shipped("fashion-classifier"))
    classes = list(range(model.config.classes))
    tenuto.generate(model, classes, sampling=Sampling(steps=2))  # warm-up

    def drawing(row: Row) -> Callable[[int], Tensor]:
        def draw(turn: int) -> Tensor:
            first = seed + turn % per_class * len(classes)
            asked = {"seed": first, "sampling": row.sampling, "schedule": row.schedule, "batch": len(classes)}
            return tenuto.generate(model, classes, **asked)

        return draw

    def told(turn: int, i: int, seconds: float) -> None:
        print(f"{turn + 1}/{per_class * repeats}  {rows[i].name}: {seconds:.2f} s", flush=True)

    timed = in_turns([drawing(row) for row in rows], per_class * repeats, told)
    pictures = [torch.cat(one.made[:per_class]) for one in timed]
    full = statistics.median(timed[0].seconds)
    records = []
    with torch.inference_mode():
        for row, one, made in zip(rows, timed, pictures, strict=True):
            median, work = statistics.median(one.seconds), row.flop_work
            quality = psnr(made, pictures[0])
            agreement = judge(made.clamp(-1, 1)).argmax(1) == torch.tensor(classes * per_class)
            records.append(
                {
                    "row": row.name,
                    "work": row.work,
                    "flop_work": work,
                    "seconds": per_class * median,
                    "seconds_all": [per_class * seconds for seconds in one.seconds],
                    "speedup": full / median,
                    "psnr": float(quality.mean()) if quality.isfinite().all() else None,
                    "psnr_worst": float(quality.min()) if quality.isfinite().all() else None,
                    "agreement": float(agreement.float().mean()),
                }
            )
    return records, pictures


def table(result: dict[str, Any]) -> str:
    """Every row, in Markdown."""
    lines = [
        "# The shipped model under several schedules\n",
        f"{conditions(result)}; seconds are the median and half the range.{doubted(result)}\n",
        f"| {STEPS}-step pictures from the same noise | work | seconds | speed-up | PSNR to full | worst "
        "| of the class asked for |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for r in result["rows"]:
        times = f"{r['seconds']:.1f} ± {(max(r['seconds_all']) - min(r['seconds_all'])) / 2:.1f}"
        lines.append(
            f"| {r['row']} | {r['work']:.0%} | {times} | {r['speedup']:.2f}× | {decibels(r['psnr'])} "
            f"| {decibels(r['psnr_worst'])} | {r['agreement']:.0%} |"
        )
    return "\n".join(lines) + "\n"


def doubted(result: dict[str, Any]) -> str:
    """How far speed-ups are above what the work saved allows: this is noise. Empty if none is."""
    above = max(row["speedup"] * row["flop_work"] for row in result["rows"]) - 1
    return f" Speed-ups: ± {above:.0%}." if above > 0 else ""


def headline(result: dict[str, Any]) -> str:
    """The README's table: the default at several budgets, and its nearest rivals."""
    lines = [
        f"| {result['model']}, {STEPS}-step pictures from the same noise | steps evaluated | seconds | speed-up "
        f"| PSNR to the {STEPS}-step run | worst picture |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for r in result["rows"]:
        if r["row"].startswith(HEADLINE):
            bold = "**" if "default" in r["row"] else ""
            quality = f" {bold}{decibels(r['psnr'])}{bold} | {decibels(r['psnr_worst'])} |" if r["psnr"] else " | |"
            lines.append(
                f"| {bold}{r['row']}{bold} | {r['work']:.0%} | {r['seconds']:.1f} | {bold}{r['speedup']:.2f}×{bold} "
                f"|{quality}"
            )
    text = f"{conditions(result)}; [every row](results/readme/readme.md).{doubted(result)}"
    return "\n".join([*lines, "", *wrap(text, 120, break_long_words=False, break_on_hyphens=False)])


def conditions(result: dict[str, Any]) -> str:
    made, rounds = result["provenance"], len(result["rows"][0]["seconds_all"])
    runs = "one run" if rounds == 1 else f"median of {rounds} rounds"
    return (
        f"{result['images']} pictures, guidance 1.5, float32, {runs}; {made['hardware']}; "
        f"torch {made['torch']}; seed {made['seed']}; commit `{made['commit']}`; `{made['command']}`"
    )


def decibels(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} dB"


def draw(path: Path, rows: list[Row], pictures: list[Tensor], records: list[dict[str, Any]]) -> None:
    """Four strips: everything computed, the default schedule, their difference, and the paper's lifetimes."""
    names = [row.name for row in rows]
    default = next(i for i, name in enumerate(names) if "default" in name)
    paper = next(i for i, name in enumerate(names) if "paper" in name)
    first = slice(0, 10)
    seconds, work = ({i: records[i][name] for i in (0, default, paper)} for name in ("seconds", "work"))
    strips = [
        (f"everything computed: {seconds[0]:.1f} s", pictures[0][first]),
        (f"Tenuto, {work[default]:.0%} computed: {seconds[default]:.1f} s", pictures[default][first]),
        ("the difference between the two, 8 times amplified", difference(pictures[default], pictures[0], 8)[first]),
        (f"the paper's lifetimes, {work[paper]:.0%} computed", pictures[paper][first]),
    ]
    save_strips(path, strips, columns=10, gap=8, height=4.6, dpi=150)


def save_strips(
    path: Path, strips: list[tuple[str, Tensor]], *, columns: int, gap: int, height: float, dpi: int
) -> None:
    """Rows of samples, each under its caption."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, height), layout="constrained", dpi=dpi)
    for axes, (caption, samples) in zip(figure.subplots(len(strips), 1), strips, strict=True):
        axes.imshow(grid(samples, columns, scale=4, gap=gap), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axes.set_title(caption, fontsize=9, loc="left")
        axes.axis("off")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


def insert_between(page: Path, begin: str, end: str, new: str) -> None:
    """Replace what stands between two marks of a page."""
    text = page.read_text(encoding="utf-8")
    if begin not in text or end not in text:
        raise TenutoError(f"{page} has no place for it (between {begin} and {end}).")
    before, rest = text.split(begin, 1)
    write_text(page, f"{before}{begin}\n{new}\n{end}{rest.split(end, 1)[1]}")


RECORD = both(
    shaped(
        {
            **{"model": str, "images": int, "repeats": int, "provenance": {**ORIGIN, "seed": int}},
            "rows": [
                {
                    **{"row": str, "seconds_all": [float], "psnr": float | None, "psnr_worst": float | None},
                    **dict.fromkeys(("work", "flop_work", "seconds", "speedup", "agreement"), float),
                }
            ],
        }
    ),
    makes(lambda result: (table(result), headline(result))),
)


def main(
    per_class: Annotated[int, typer.Option(help="Pictures of each of the ten classes.")] = 3,
    repeats: Annotated[int, typer.Option(help="Times every picture of a row is drawn.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the first picture.")] = 0,
    out: Annotated[Path, typer.Option(help="The file to write; what it holds is replaced.")] = RESULTS,
    draw_only: Annotated[bool, typer.Option("--draw-only", help="Measure nothing; write the tables again.")] = False,
) -> None:
    """Measure, and write the README's table and picture."""
    if draw_only:
        result = read_result(out, "table of the README", RECORD)
    else:
        model = tenuto.load(MODEL)
        rows = rows_to_measure(model)
        records, pictures = measure(model, rows, per_class, repeats, seed)
        result = {
            "provenance": provenance(seed=seed),
            "model": MODEL,
            "images": per_class * model.config.classes,
            "repeats": repeats,
            "rows": records,
        }
        write_json(out, result)
        draw(PICTURE if out == RESULTS else out.with_suffix(".png"), rows, pictures, records)
    write_text(out.with_suffix(".md"), table(result))
    if out == RESULTS:
        insert_between(README, BEGIN, END, headline(result))


if __name__ == "__main__":
    run(main)
