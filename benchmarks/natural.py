"""A picture of natural pictures: natural-dit in full, by the default, with fewer steps, and by the paper's lifetimes.

    python -m benchmarks.natural          # a minute on two cores; writes results/natural/ and docs/images/natural.png

Classes and seeds are the demo's. They were chosen because one recognises these pictures in the full run, before any
other way drew them.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from torch import Tensor

import tenuto
from benchmarks.places import ROOT, results_of
from benchmarks.readme import save_strips
from scripts.command_line import run
from tenuto.cli.demo import NATURAL
from tenuto.files import write_json
from tenuto.provenance import provenance
from tenuto.quality import psnr
from tenuto.sampling.pictures import Sampling, decode, vae_of
from tenuto.scheduling.schedule import Schedule

RESULTS, PICTURE = results_of("natural"), ROOT / "docs" / "images" / "natural.png"
STEPS, BUDGET, PAPER = 50, 0.25, 0.35


def ways(model: tenuto.Model) -> dict[str, tuple[Sampling, Schedule | None]]:
    """How the pictures are drawn, the full run first."""
    full, default = Sampling(steps=STEPS), tenuto.schedule(model, STEPS, budget=BUDGET)
    evaluations = int(default.full_steps.sum())
    return {
        f"everything computed, {STEPS} steps": (full, None),
        f"Tenuto, {evaluations} of {STEPS} steps evaluated": (full, default),
        f"{evaluations} steps of DDIM": (Sampling(steps=evaluations), None),
        f"the paper's lifetimes, {PAPER:.0%} of the work": (
            full,
            tenuto.schedule(model, STEPS, policy="lifetimes", budget=PAPER),
        ),
    }


def main(
    out: Annotated[Path, typer.Option(help="The file to write.")] = RESULTS,
    picture: Annotated[Path, typer.Option(help="The picture to draw.")] = PICTURE,
    pictures: Annotated[int, typer.Option(min=1, help="How many of the demo's.")] = len(NATURAL.classes),
) -> None:
    """Draw natural pictures by several ways."""
    model = tenuto.load(NATURAL.model)
    vae, strips, rows = vae_of(model), list[tuple[str, Tensor]](), list[dict[str, Any]]()
    for name, (sampling, schedule) in ways(model).items():
        latents = tenuto.generate(
            model,
            NATURAL.classes[:pictures],
            seeds=NATURAL.seeds[:pictures],
            sampling=sampling,
            schedule=schedule,
            batch=pictures,
        )
        drawn = decode(latents, vae).clamp(-1, 1)
        near = None if not strips else psnr(drawn, strips[0][1])
        known = {} if near is None else {"psnr": float(near.mean()), "psnr_worst": float(near.min())}
        rows.append({"way": name, **known})
        dB = "" if near is None else f", {float(near.mean()):.1f} dB to the full run"
        strips.append((name + dB, drawn))
        print(rows[-1], flush=True)
    write_json(out, {"provenance": provenance("cpu"), "model": NATURAL.model, "guidance": model.guidance, "rows": rows})
    save_strips(picture, strips, columns=pictures, gap=8, height=4.6, dpi=120)


if __name__ == "__main__":
    run(main)
