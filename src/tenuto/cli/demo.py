"""`tenuto demo`: from the shipped weights to a page that shows what the schedule saved and what it kept."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenuto.cli.app import AsJson, Seed, app

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from tenuto.models import Model
    from tenuto.sampling.pictures import Sampling
    from tenuto.scheduling.schedule import Schedule

GAIN = 8  # of the difference image
COLUMNS = 5  # of a sheet of pictures
ROUND = 10_000  # between the seeds of two pictures of a class
HEAD = ("work", "FLOP-weighted", "seconds", "speed-up", "PSNR to full", "worst picture")


@dataclass(frozen=True)
class Scene:
    """What a model draws in the demo."""

    model: str
    about: str
    classes: tuple[str | int, ...]
    seeds: tuple[int, ...]
    scale: int  # of a pixel


NATURAL = Scene(
    "natural-dit",
    "64×64 pictures of landscapes, food and animals from a latent model of 27 million parameters, which was trained "
    "for five minutes. Classes and seeds were chosen because one recognises these pictures",
    (
        "alp",
        "coral reef",
        "lakeside",
        "seashore",
        "pizza",
        "guacamole",
        "monarch",
        "king penguin",
        "African elephant",
        "mushroom",
    ),
    (2000, 2002, 2003, 4, 2009, 1022, 1011, 1016, 17, 2021),
    scale=2,
)
CLOTHES = Scene(
    "tiny-dit",
    "pictures of clothes from the model that is part of the package",
    tuple(range(10)),
    tuple(range(10)),
    scale=3,
)
SCENES = {scene.model: scene for scene in (NATURAL, CLOTHES)}


@app.command(epilog="Example: tenuto demo --out demo")
def demo(
    out: Annotated[Path, typer.Option(help="Directory for the pictures and report.html.")] = Path("demo"),
    model: Annotated[
        str | None, typer.Option(help=f"{' or '.join(SCENES)}; by default the first whose weights are here.")
    ] = None,
    budget: Annotated[float, typer.Option(help="Share of the work to compute.")] = 0.25,
    steps: Annotated[int, typer.Option(help="Denoising steps.")] = 50,
    per_class: Annotated[int, typer.Option(min=1, max=10_000, help="Pictures of each of the ten classes.")] = 1,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """See it work: a shipped model draws the same pictures with a schedule and without, for you to compare."""
    from tenuto import deciding
    from tenuto.cli.console import print_json, say
    from tenuto.files import check_writable
    from tenuto.models import load
    from tenuto.provenance import provenance
    from tenuto.quality import psnr
    from tenuto.sampling.pictures import Sampling
    from tenuto.timing import doubt

    scene = _scene(model)
    sampling = Sampling(steps=steps)
    check_writable(out / "report.html")
    loaded = load(scene.model)
    schedule = deciding.schedule(loaded, steps, budget=budget)
    drawn = Drawn(loaded, scene, seed, per_class)
    full, held, full_seconds, held_seconds = drawn.timed(sampling, schedule)
    quality = psnr(held, full)
    result = provenance(
        model=scene.model,
        seed=seed,
        images=len(full),
        steps=steps,
        guidance=loaded.guidance,
        solver=sampling.solver,
        work=schedule.budget,
        flop_work=schedule.flop_budget,
        seconds_full=round(full_seconds, 3),
        seconds_scheduled=round(held_seconds, 3),
        speedup=round(full_seconds / held_seconds, 3),
        doubt=doubt(full_seconds / held_seconds, schedule.flop_budget),
        psnr_mean=round(float(quality.mean()), 2) if quality.isfinite().all() else None,
        psnr_worst=round(float(quality.min()), 2) if quality.isfinite().any() else None,
    )
    rows = _rows(result)
    _write(out, scene, result, rows, schedule, full, held)
    if as_json:
        print_json(result)
    else:
        _print(schedule, rows, out)
        if result["doubt"]:
            say(result["doubt"])


class Drawn:
    """The pictures of a scene, drawn in different ways from the same noise."""

    def __init__(self, model: "Model", scene: Scene, seed: int, per_class: int) -> None:
        from tenuto.sampling.decoding import decoder_of

        self.model, self.decode = model, decoder_of(model)
        self.classes = list(scene.classes) * per_class
        self.seeds = [seed + own + ROUND * i for i in range(per_class) for own in scene.seeds]

    def by(
        self,
        sampling: "Sampling",
        schedule: "Schedule | None",
        advance: "Callable[[int], object]" = lambda images: None,
        part: slice = slice(None),
    ) -> "Tensor":
        from tenuto.sampling.pictures import generate

        asked = {"seeds": self.seeds[part], "sampling": sampling, "schedule": schedule, "progress": advance}
        return self.decode(generate(self.model, self.classes[part], **asked))

    def timed(self, sampling: "Sampling", schedule: "Schedule") -> "tuple[Tensor, Tensor, float, float]":
        """The pictures in full and under the schedule, and the seconds of both, with decoding.

        A few pictures at a time are drawn in both ways, so that other work on the machine slows both alike.
        """
        import torch

        from tenuto.cli.console import progress
        from tenuto.sampling.pictures import Sampling
        from tenuto.timing import equal_parts, in_turns

        parts = equal_parts(len(self.classes))
        self.by(Sampling(steps=1), None, part=parts[0])  # warm-up, untimed
        with progress("Drawing", 2 * len(self.classes) * sampling.steps) as advance:
            ways = [
                lambda turn, by=by: self.by(sampling, by, advance, parts[turn])  # type: ignore[misc]
                for by in (None, schedule)
            ]
            full, held = in_turns(ways, len(parts))
        return torch.cat(full.made), torch.cat(held.made), full.total, held.total


def _scene(model: str | None) -> Scene:
    """The scene of a model, or the first scene whose weights are here."""
    from tenuto.errors import UsageError
    from tenuto.models import place_of

    if model is not None:
        if model not in SCENES:
            raise UsageError(f"The demo draws with {' or '.join(SCENES)}, not with {model!r}.")
        return SCENES[model]
    return NATURAL if place_of(NATURAL.model) else CLOTHES  # an installed package has only the small model


def _write(
    folder: Path,
    scene: Scene,
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
    pictures = [(title, grid(images, COLUMNS, scale=scene.scale)) for title, images in sheets.values()]
    for name, (_, sheet) in zip(sheets, pictures, strict=True):
        save_image(sheet, folder / f"{name}.png")
    doubted = f" {result['doubt']}" if result["doubt"] else ""
    write_page(
        folder / "report.html",
        title=_headline(result),
        lead=f"{result['images']} {scene.about}. {result['steps']} steps of {result['solver'].upper()} with guidance "
        f"{result['guidance']}, drawn twice from the same noise.{doubted}",
        figures=[
            (f"{result['speedup']:.1f}×", "wall-clock speed-up"),
            (f"{schedule.budget:.0%}", "of the steps evaluated"),
            (_decibels(result["psnr_mean"]), "PSNR to the full run"),
        ],
        pictures=pictures,
        tables=[Table("In numbers", ["", *HEAD], rows)],
        schedule=schedule,
        facts={**schedule_facts(schedule), **{k: v for k, v in result.items() if k not in ("model", "steps")}},
    )


def _headline(result: dict[str, Any]) -> str:
    from tenuto.quality import ALIKE

    most = 1 / result["flop_work"]  # what other work on the machine adds is no speed-up
    speed = f"{min(result['speedup'], most):.1f} times faster" if result["speedup"] > 1.05 else "no faster"
    if result["psnr_mean"] is None:
        return f"{result['model']}: identical pictures, {speed}"
    if result["psnr_worst"] >= ALIKE:
        return f"{result['model']}: the same pictures to the eye, {speed}"
    return f"{result['model']}: pictures {result['psnr_mean']:.0f} dB from the full run's, {speed}"


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
