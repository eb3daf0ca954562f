"""`tenuto check`: whether a schedule is safe for a model, where it errs, and which one would be."""

from pathlib import Path
from typing import Any

import typer

from tenuto.cli.console import out, print_json, progress, say
from tenuto.cli.generate import check_device
from tenuto.errors import UsageError
from tenuto.files import check_writable
from tenuto.measure.check import Check, check, safe_alternative
from tenuto.models import Model, load
from tenuto.report.maps import save_errors_png
from tenuto.samplers.masked import block_length_for
from tenuto.schedules import Schedule, load_schedule

CAPTIONS = ("a red car", "a horse", "a ship", "a dog")
PROMPTS = ("The old man looked at the sea, and", "It was a cold evening, and")


def run(
    name: str,
    schedule_path: Path,
    wanted: list[str],
    samples: int,
    length: int,
    seed: int,
    png: Path | None,
    device: str,
    as_json: bool,
) -> None:
    place, schedule = check_device(device), load_schedule(schedule_path)
    if png is not None:
        check_writable(png, reads=[name, schedule_path])
    model = load(name, device=place)
    asked = wanted or _asked(model, samples)
    options: dict[str, Any] = {}
    if model.architecture.asks_for == "prompt":
        options = {"length": length, "block_length": block_length_for(length, schedule)}
        if schedule.steps > length:
            raise UsageError(f"{schedule.steps} steps for {length} tokens are more than one a token; see --length.")

    def look(one: Schedule) -> Check:
        with progress(f"Checking {one.budget:.0%}", 2 * len(asked) * one.steps) as advance:
            return check(model, one, asked, seed=seed, progress=advance, **options)

    result = look(schedule)
    idle = int((~schedule.active).all(axis=0).sum())
    better = None if result.safe or result.text else safe_alternative(look, schedule)
    if png is not None:
        save_errors_png(schedule, result.errors, png)
    if as_json:
        print_json(_record(result, better, asked))
    else:
        _tell(result, better, schedule, idle, png)
    if not result.safe:
        raise typer.Exit(1)


def _asked(model: Model, samples: int) -> list[Any]:
    asks_for = model.architecture.asks_for
    if asks_for == "class":
        return [i * model.config.classes // samples % model.config.classes for i in range(samples)]
    choice = CAPTIONS if asks_for == "caption" else PROMPTS
    return [choice[i % len(choice)] for i in range(samples)]


def _record(result: Check, better: Check | None, asked: list[Any]) -> dict[str, Any]:
    return {
        "safe": result.safe,
        "verdict": result.verdict,
        "likeness": list(result.likeness),
        "asked_for": asked,
        "worst_units": [{"unit": u, "step": s, "error": e} for u, s, e in result.worst_units(10)],
        "safe_alternative": None if better is None else {**better.schedule.policy, "verdict": better.verdict},
    }


def _tell(result: Check, better: Check | None, schedule: Schedule, idle: int, png: Path | None) -> None:
    out.print(f"[bold]{'Safe' if result.safe else 'Not safe'}[/]: {result.verdict} ({len(result.likeness)} compared).")
    for unit, step, error in result.worst_units():
        out.print(f"  furthest off: {unit} at step {step}, by {error:.1%}")
    if result.text and idle:
        out.print(
            f"At {idle} of {schedule.steps} steps every unit is held. A language model has no timestep to tell those "
            "steps apart, so that is the same as taking fewer steps."
        )
    if better is not None:
        out.print(
            f"Safe would be: --every {better.schedule.policy['every']} --reuse {better.schedule.reuse} "
            f"({better.schedule.budget:.0%} of the work): {better.verdict}."
        )
    elif not result.safe and not result.text:
        out.print("No refresh period tried is safe for this model and number of steps.")
    if png is not None:
        say(f"Wrote {png}")
