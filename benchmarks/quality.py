"""Whether a quality that is asked for is reached: for each request, what was computed, what was estimated, what it was.

    python -m benchmarks.quality --device cuda                      # all shipped networks
    python -m benchmarks.quality --only tiny-dit --samples 2        # a try on the CPU

Every sample is drawn by itself, because the worst of a batch decides. Its distance to the full run is measured as the
estimate is: 10 log₁₀ of (four standard deviations)² over the mean squared difference. The constant of the estimate
(tenuto.runtime.pacing.SCALE) was chosen by the networks of CHOSEN_BY; the others show what it is worth.
"""

import math
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from benchmarks.places import own_network, results_of
from scripts.command_line import run
from tenuto.files import write_json, write_text
from tenuto.models import Model
from tenuto.provenance import origin, provenance
from tenuto.runtime.pacing import PEAK
from tenuto.sampling.pictures import generate
from tenuto_lab.frontier.cases import asked_for
from tenuto_lab.result_files import ORIGIN, both, makes, read_result, shaped

NETWORKS = ("tiny-dit", "tiny-sdxl", "tiny-uvit", "natural-dit")
CHOSEN_BY = ("tiny-dit", "tiny-sdxl")
ASKED, GUIDANCES, SOLVERS, STEPS = (30, 35, 40, 45), (1.5, 4.0, 7.5), ("ddim", "dpm++"), (50,)
WITHIN = 3.0  # dB


def distance(sample: Tensor, full: Tensor) -> float:
    error = float((sample - full).square().mean())
    return 100.0 if error == 0 else min(100.0, 10 * math.log10(PEAK**2 * float(full.var()) / error))


def measure(
    model: Model, guidance: float, solver: str, steps: int, asked: list[float], samples: int
) -> list[dict[str, Any]]:
    """A row for each sample and request."""
    kind = "classes" if model.architecture.asks_for == "class" else "captions"
    wanted = asked_for(model, samples)[1]
    how: dict[str, Any] = {"guidance": guidance, "solver": solver, "steps": steps}
    rows = []
    for seed, one in enumerate(wanted):
        request: dict[str, Any] = {kind: [one], "seeds": [seed]}
        full = generate(model, **request, **how)
        for quality in asked:
            told: list[tuple[int, float | None]] = []
            got = generate(model, **request, **how, quality=quality, told=lambda *one, told=told: told.append(one))
            row = {"asked": quality, "evaluations": told[0][0], "estimated": told[0][1]}
            rows.append({**row, "reached": round(distance(got, full), 2), "seed": seed})
    return rows


def summary(record: dict[str, Any]) -> str:
    """The table."""
    lines = [
        "# A quality that is asked for, and what was reached",
        "",
        str(__doc__).split("\n\n")[2].replace("\n", " "),
    ]
    lines += [
        "",
        f"*Reached* counts the results that are at most {WITHIN:g} dB below what was asked. "
        f"{record['samples']} samples each. {origin(record['provenance'])}",
        "",
        "| network | guidance | solver, steps | asked | evaluations | mean | lowest | estimated, mean | reached |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    good: dict[bool, list[bool]] = {True: [], False: []}
    for case in record["cases"]:
        for asked in sorted({row["asked"] for row in case["rows"]}):
            rows = [row for row in case["rows"] if row["asked"] == asked]
            reached = [row["reached"] for row in rows]
            hits = [one >= asked - WITHIN for one in reached]
            good[case["network"] in CHOSEN_BY] += hits
            estimates = [row["estimated"] for row in rows if row["estimated"] is not None] or [math.nan]
            count = sum(row["evaluations"] for row in rows) / len(rows)
            name = f"{case['network']} | {case['guidance']:g} | {case['solver']}, {case['steps']}"
            lines.append(
                f"| {name} | {asked:g} | {count:.1f} | {sum(reached) / len(reached):.1f} | "
                f"{min(reached):.1f} | {sum(estimates) / len(estimates):.1f} | "
                f"{sum(hits)} of {len(hits)} |"
            )
    said = []
    for chosen, name in ((False, "On networks that had no part in choosing the constant"), (True, "On the other two")):
        if good[chosen]:
            said.append(f"{name}: {sum(good[chosen])} of {len(good[chosen])} reached.")
    return "\n".join([*lines[:2], " ".join(said), "", *lines[2:], ""])


RECORD = both(
    shaped(
        {
            "samples": int,
            "provenance": ORIGIN,
            "cases": [
                {
                    **{"network": str, "guidance": float, "solver": str, "steps": int},
                    "rows": [
                        {"asked": float, "evaluations": int, "estimated": float | None, "reached": float, "seed": int}
                    ],
                }
            ],
        }
    ),
    makes(summary),
)


def main(
    out: Annotated[Path, typer.Option(help="The file to write; cases in it are not measured again.")] = results_of(
        "quality"
    ),
    only: Annotated[list[str] | None, typer.Option(help="Networks.")] = None,
    guidance: Annotated[list[float] | None, typer.Option(help="Scales.")] = None,
    solver: Annotated[list[str] | None, typer.Option(help="ddim, dpm++.")] = None,
    steps: Annotated[list[int] | None, typer.Option()] = None,
    asked: Annotated[list[float] | None, typer.Option(help="dB.")] = None,
    samples: Annotated[int, typer.Option(min=1)] = 8,
    seconds: Annotated[float, typer.Option(help="Begin no case after so many.")] = 1e9,
    device: Annotated[str, typer.Option()] = "cuda" if torch.cuda.is_available() else "cpu",
) -> None:
    """Ask for qualities on every network, and write what was reached."""
    began = time.monotonic()
    record: dict[str, Any] = read_result(out, "table of qualities", RECORD) if out.is_file() else {"cases": []}
    record |= {"provenance": provenance(device), "samples": samples}
    done = {(case["network"], case["guidance"], case["solver"], case["steps"]) for case in record["cases"]}
    for name in only or NETWORKS:
        model = own_network(name, device)
        for scale in guidance or GUIDANCES:
            for by in solver or SOLVERS:
                for count in steps or STEPS:
                    if (name, scale, by, count) in done or time.monotonic() - began > seconds:
                        continue
                    rows = measure(model, scale, by, count, list(asked or ASKED), samples)
                    case = {"network": name, "guidance": scale, "solver": by, "steps": count, "rows": rows}
                    record["cases"].append(case)
                    write_json(out, record)
                    write_text(out.with_suffix(".md"), summary(record))
                    brief = {row["asked"]: (row["evaluations"], row["reached"]) for row in rows if not row["seed"]}
                    print(f"{time.monotonic() - began:.0f} s {name} {scale:g} {by} {count}: {brief}", flush=True)


if __name__ == "__main__":
    run(main)
