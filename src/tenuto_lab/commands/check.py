"""`tenuto check`: whether a schedule is safe for a model, where it errs, and which schedule would be safe."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tenuto.cli.app import MOST, AsJson, Device, ModelName, Seed, app, real_text

if TYPE_CHECKING:
    from tenuto.models import Model
    from tenuto.scheduling.schedule import Schedule
    from tenuto_lab.checking import Check

Precision = Literal["float32", "bfloat16", "float16"]
APART = (
    "These differences are of values inside the run, not of pictures: near the end little noise is left, so even a "
    "large difference of the network's output changes a picture little."
)
CAPTIONS = ("a red car", "a horse", "a ship", "a dog")
PROMPTS = ("sort: 42 48 7 25 53 40 ->", "close: {<>{<<{<()[[]<{ ->")


@app.command(epilog="Example: tenuto check tiny-dit --schedule schedule.json")
def check(
    model: ModelName,
    schedule: Annotated[Path, typer.Option(help="The schedule file to check.")],
    wanted: Annotated[
        list[str] | None,
        typer.Option("--for", callback=real_text, help="A class, caption or prompt to try; repeat for more."),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, max=10_000, help="How many samples, without --for.")] = 4,
    length: Annotated[int, typer.Option(min=1, max=MOST, help="Text: how many tokens to write.")] = 64,
    seed: Seed = 0,
    dtype: Annotated[Precision | None, typer.Option(help="Precision to run in. Default: the checkpoint's own.")] = None,
    png: Annotated[
        Path | None, typer.Option(help="Draw how far off the output, or each unit, was at each step.")
    ] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Say whether a schedule is safe: compare a few samples with it and without. Ends with 1 if it is not safe."""
    import torch

    from tenuto.cli.app import check_device
    from tenuto.cli.console import print_json, progress
    from tenuto.errors import UsageError
    from tenuto.extras import needs
    from tenuto.files import check_writable
    from tenuto.models import load
    from tenuto.sampling.masked import block_length_for
    from tenuto.scheduling.schedule import load_schedule
    from tenuto_lab.checking import check as compare
    from tenuto_lab.checking import safe_alternative

    if png is not None:
        needs("--png", "plots")
    place, given = check_device(device), load_schedule(schedule)
    if png is not None:
        check_writable(png, reads=[model, schedule])
    loaded = load(model, device=place, dtype=None if dtype is None else getattr(torch, dtype))
    asked = wanted or _asked(loaded, samples)
    options: dict[str, Any] = {}
    if loaded.architecture.asks_for == "prompt":
        options = {"length": length, "block_length": block_length_for(length, given)}
        if given.steps > length:
            raise UsageError(
                f"The schedule has {given.steps} steps, and each step writes at least one token: {length} tokens are "
                "too few. See --length."
            )

    def look(one: "Schedule") -> "Check":
        with progress(f"Checking {one.budget:.0%}", 2 * len(asked) * one.steps) as advance:
            return compare(loaded, one, asked, seed=seed, progress=advance, **options)

    result = look(given)
    better = None if result.safe or result.text else safe_alternative(look, given)
    if png is not None:
        from tenuto_lab.judging.error_map import save_errors_png

        save_errors_png(given, result.errors, png)
    if as_json:
        print_json(_record(result, better, asked))
    else:
        _tell(result, better, given, png)
    if not result.safe:
        raise typer.Exit(1)


def _asked(model: "Model", samples: int) -> list[Any]:
    asks_for = model.architecture.asks_for
    if asks_for == "class":
        return [i * model.config.classes // samples % model.config.classes for i in range(samples)]
    choice = CAPTIONS if asks_for == "caption" else PROMPTS
    return [choice[i % len(choice)] for i in range(samples)]


def _record(result: "Check", better: "Check | None", asked: list[Any]) -> dict[str, Any]:
    return {
        "safe": result.safe,
        "verdict": result.verdict,
        # JSON knows no infinity: null stands for identical pictures.
        "likeness": [value if math.isfinite(value) else None for value in result.likeness],
        "asked_for": asked,
        "worst_units": [{"unit": u, "step": s, "error": e} for u, s, e in result.worst_units(10)],
        "safe_alternative": None if better is None else _alternative(better),
    }


def _alternative(better: "Check") -> dict[str, Any]:
    return {**better.schedule.policy, "clearly_safe": better.clearly_safe, "verdict": better.verdict}


def _tell(result: "Check", better: "Check | None", schedule: "Schedule", png: Path | None) -> None:
    from tenuto.cli.console import counted, out, quoted, say
    from tenuto.deciding import advice
    from tenuto_lab.checking import MARGIN

    word = "Safe" if result.safe else "Not safe"
    out.print(f"[bold]{word}[/]: {quoted(result.verdict)} ({counted(len(result.likeness), 'sample')} compared).")
    worst = result.worst_units()
    for unit, step, error in worst:
        out.print(f"  furthest off: {quoted(unit)} at step {step}, by {error:.1%}")
    if worst and not result.text:
        out.print(f"  {APART}")
    if advised := advice(schedule, result.text):
        out.print(quoted(advised))
    if better is not None:
        count, predict = better.schedule.policy["evaluations"], better.schedule.predict
        spare = f"at least {MARGIN:g} dB to spare" if better.clearly_safe else f"less than {MARGIN:g} dB to spare"
        out.print(
            f"Nearest to what you asked for and safe, with {spare}: --evaluations {count} --predict {predict} "
            f"({better.schedule.budget:.0%} of the work): {better.verdict}."
        )
    elif not result.safe and not result.text:
        out.print("No number of evaluations that was tried is safe for this model and number of steps.")
    if png is not None:
        say(f"Wrote {png}")
