"""Measure the family's networks, and draw what is known.

    python -m benchmarks.scaling --device cuda --network weights/natural-dit --network data/family/large --guidance 3

Every network at every guidance is one case. A case that the file holds already is left out unless --again is given, so
an interrupted run goes on with the case at which it stopped. Several processes may measure a network each, every one
with an --out of its own; --join puts their cases together. docs/benchmarks.md says how the networks are trained.
"""

import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.kept import Kept
from benchmarks.places import ROOT, results_of
from benchmarks.scaling import judging
from benchmarks.scaling.drawing import opened
from benchmarks.scaling.figure import draw
from benchmarks.scaling.measuring import BUDGETS, measure
from benchmarks.scaling.report import RECORD, tables
from benchmarks.scaling.ways import WAYS
from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.files import write_json, write_text
from tenuto.provenance import provenance
from tenuto_lab.result_files import read_result

RESULTS = results_of("scaling")
KEPT = ROOT / "data" / "scaling"
GUIDANCES = (3.0, 1.5, 5.0)


def main(
    out: Annotated[Path, typer.Option(help="The file to write, and to go on from.")] = RESULTS,
    networks: Annotated[
        list[Path] | None,
        typer.Option("--network", help="Folders that training.family or family_unet wrote; repeat."),
    ] = None,
    guidances: Annotated[
        list[float] | None, typer.Option("--guidance", help="Repeat; 3, 1.5 and 5 by default.")
    ] = None,
    budgets: Annotated[list[float] | None, typer.Option("--budget", help="Shares of the work; repeat.")] = None,
    near: Annotated[int, typer.Option(min=1, help="Samples for dB.")] = 64,
    judged: Annotated[int, typer.Option(min=0, help="Samples for Fréchet distances; 0: none.")] = 600,
    seconds: Annotated[
        float | None, typer.Option(help="Begin no case after so long; with --distances, no part of the pictures.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to run.")] = "cuda" if torch.cuda.is_available() else "cpu",
    few: Annotated[bool, typer.Option("--few", help="Rivals with few settings, for a CPU.")] = False,
    distances: Annotated[
        bool,
        typer.Option(
            "--distances",
            help="Of a case that the file holds, measure Fréchet distances and class accuracies alone, with --judged "
            "pictures of the settings that came nearest. The rest stays.",
        ),
    ] = False,
    ways: Annotated[
        list[str] | None, typer.Option("--way", help=f"With --distances: {'; '.join(WAYS)}; Tenuto and solver if none.")
    ] = None,
    again: Annotated[bool, typer.Option(help="Measure what the file holds already, too.")] = False,
    join: Annotated[
        list[Path] | None, typer.Option(help="Other files of this command, whose cases are taken over; repeat.")
    ] = None,
    draw_only: Annotated[bool, typer.Option("--draw-only", help="Measure nothing; draw what the file holds.")] = False,
) -> None:
    """Measure how ways of spending less work change with the size of the network."""
    # Products of float32 in tensor cores' own format: three times as fast, and alike to 60 dB.
    torch.set_float32_matmul_precision("high" if device.startswith("cuda") else "highest")
    record: dict[str, Any] = read_result(out, "record of sizes", RECORD) if out.is_file() else {"cases": {}}
    for other in join or ():
        record["cases"] |= read_result(other, "record of sizes", RECORD)["cases"]
    if join:
        write_json(out, record)
    began, shares = time.monotonic(), budgets or BUDGETS
    for guidance in () if draw_only else guidances or GUIDANCES:
        for path in networks or [ROOT / "weights" / "natural-dit"]:
            case = f"{path.name}, guidance {guidance:g}"
            known = record["cases"].get(case)
            left = None if seconds is None else seconds - (time.monotonic() - began)
            if distances:
                if known is None:
                    raise UsageError(f"{out} holds no case {case!r}; measure it first, without --distances.")
                network = opened(path, torch.device(device))
                parts = judging.judged(network, known, judged, shares, ways or judging.JUDGED, left, say, Kept(KEPT))
                made = "provenance_of_distances"
            elif (known is None or not known["complete"] or again) and (left is None or left > 0):
                network = opened(path, torch.device(device))
                parts, made = measure(network, guidance, near, judged, shares, say, few), "provenance"
            else:
                continue
            start = time.monotonic()
            for found in parts:
                record["cases"][case] = {**found, made: provenance(device, seed=0)}
                write_json(out, record)
            say(f"{case}: {time.monotonic() - start:.0f} s")
    write_text(out.with_suffix(".md"), tables(record))
    draw(record, out.with_suffix(".png"))


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    run(main)
