"""Whether a quality that is asked for is reached, and how far the estimates of all summaries can be trusted.

    python -m benchmarks.quality --device cuda                      # all shipped networks
    python -m benchmarks.quality --only tiny-dit --samples 2        # a try on the CPU

Every sample is drawn by itself, because the worst of a batch decides. Its distance to the full run is measured as the
estimate is: 10 log₁₀ of (four standard deviations)² over the mean squared difference. The constant of the estimate
(tenuto.runtime.pacing.SCALE) was chosen by the networks of CHOSEN_BY; the others show what it is worth. A run with a
number of evaluations, and no quality, is estimated in the same way.
"""

import math
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor

import tenuto
from benchmarks.places import own_network, results_of
from scripts.command_line import run
from tenuto.files import write_json, write_text
from tenuto.models import Model
from tenuto.provenance import origin, provenance
from tenuto.quality import PEAK
from tenuto.sampling.pictures import generate
from tenuto_lab.frontier.cases import asked_for
from tenuto_lab.result_files import ORIGIN, both, fields, listed, makes, read_result, shaped, whole

NETWORKS = ("tiny-dit", "tiny-sdxl", "tiny-uvit", "natural-dit")
CHOSEN_BY = ("tiny-dit", "tiny-sdxl")
ASKED, GUIDANCES, SOLVERS, STEPS = (30, 35, 40, 45), (1.5, 4.0, 7.5), ("ddim", "dpm++"), (50,)
EVALUATIONS = (8, 12, 17)  # without a quality
WITHIN = 3.0  # dB


def distance(sample: Tensor, full: Tensor) -> float:
    error = float((sample - full).square().mean())
    return 100.0 if error == 0 else min(100.0, 10 * math.log10(PEAK**2 * float(full.var()) / error))


def measure(
    model: Model, guidance: float, solver: str, steps: int, asked: list[float], samples: int
) -> list[dict[str, Any]]:
    """A row for each sample and request; asked is None where a number of evaluations was asked for."""
    requests: list[tuple[float | None, dict[str, Any]]] = [(one, {"quality": one}) for one in asked]
    requests += [(None, {"schedule": tenuto.schedule(model, steps, evaluations=one)}) for one in EVALUATIONS]
    kind = "classes" if model.architecture.asks_for == "class" else "captions"
    wanted = asked_for(model, samples)[1]
    how: dict[str, Any] = {"guidance": guidance, "solver": solver, "steps": steps}
    rows = []
    for seed, one in enumerate(wanted):
        request: dict[str, Any] = {kind: [one], "seeds": [seed]}
        full = generate(model, **request, **how)
        for quality, held in requests:
            told: list[tuple[int, float | None]] = []
            got = generate(model, **request, **how, **held, told=lambda *one, told=told: told.append(one))
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
        f"*Reached* counts the results that are at most {WITHIN:g} dB below what was asked.{_origin_if_one(record)}",
        "",
        "| network | guidance | solver, steps | asked | evaluations | mean | lowest | estimated, mean | reached |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    good: dict[bool, list[bool]] = {True: [], False: []}
    for case in record["cases"]:
        for asked in sorted({row["asked"] for row in _asked(case)}):
            rows = [row for row in case["rows"] if row["asked"] == asked]
            reached = [row["reached"] for row in rows]
            hits = [_is_reached(row) for row in rows]
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
    for chosen, name in ((False, "had no part in choosing the constant"), (True, "chose it")):
        names = sorted({case["network"] for case in record["cases"] if (case["network"] in CHOSEN_BY) == chosen})
        if names:
            said.append(f"{', '.join(names)} ({name}): {sum(good[chosen])} of {len(good[chosen])} reached.")
    missed = [
        (case["network"], case["guidance"], row["seed"])
        for case in record["cases"]
        for row in _asked(case)
        if not _is_reached(row)
    ]
    if missed:
        said.append(
            f"Results that missed: {len(missed)}, of {len(set(missed))} pictures (a network, a guidance, a seed)."
        )
    lines = [*lines[:2], " ".join(said), "", *lines[2:], "", *trust(record["cases"])]
    if len(made := _origins(record)) > 1:
        lines += ["", "## Where the rows come from", "", *(f"- {one}" for one in made)]
    return "\n".join([*lines, ""])


def _asked(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a case in which a quality was asked for."""
    return [row for row in case["rows"] if row["asked"] is not None]


def _is_reached(row: dict[str, Any]) -> bool:
    return bool(row["reached"] >= row["asked"] - WITHIN)


def _origin_if_one(record: dict[str, Any]) -> str:
    made = _origins(record)
    return f" {made[0]}" if len(made) == 1 else ""


def _origins(record: dict[str, Any]) -> list[str]:
    """Where the cases come from. Older cases have no origin of their own, but the file's."""
    made: dict[str, list[str]] = {}
    for case in record["cases"]:
        of = case if "provenance" in case else record
        if "provenance" in of and "samples" in of:
            about = f"{of['samples']} samples each. {origin(of['provenance'])}"
            made.setdefault(about, []).append(case["network"])
    if len(made) == 1:
        return list(made)
    return [f"{', '.join(dict.fromkeys(names))}: {about}." for about, names in made.items()]


def trust(cases: list[dict[str, Any]]) -> list[str]:
    """A table: how far results were from what had been estimated of them."""
    lines = [
        "## What the estimates are worth",
        "",
        "What was reached, less what was estimated, in dB, over all requests of a network and guidance: qualities, and "
        f"{', '.join(map(str, EVALUATIONS))} evaluations of {', '.join(map(str, STEPS))} steps. *Worst tenth*: nine of "
        "ten results are better than this. Below zero, a result is further from the full run than was estimated. "
        "*Reached*: as above, over all solvers and qualities.",
        "",
        "| network | guidance | reached | results | median | worst tenth | worst |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    groups: dict[tuple[str, float], list[float]] = {}
    hits: dict[tuple[str, float], list[bool]] = {}
    for case in cases:
        hits.setdefault((case["network"], case["guidance"]), []).extend(map(_is_reached, _asked(case)))
        rows = [row for row in case["rows"] if row["estimated"] is not None and math.isfinite(row["estimated"])]
        groups.setdefault((case["network"], case["guidance"]), []).extend(
            row["reached"] - row["estimated"] for row in rows
        )
    for (network, guidance), apart in groups.items():
        if apart:
            worst, middle = (float(one) for one in np.quantile(apart, (0.1, 0.5)))
            good = hits[network, guidance]
            lines.append(
                f"| {network} | {guidance:g} | {sum(good)} of {len(good)} | {len(apart)} | {middle:+.1f} | "
                f"{worst:+.1f} | {min(apart):+.1f} |"
            )
    return lines


ROW = {"asked": float | None, "evaluations": int, "seed": int, "estimated": float | None, "reached": float}
CASE = {"network": str, "guidance": float, "solver": str, "steps": int, "rows": [ROW]}
MADE = {"samples": whole(), "provenance": shaped(ORIGIN)}  # of the file, or of a case that says so itself
RECORD = both(
    fields({"cases": listed(both(shaped(CASE), fields({}, MADE, others=True)))}, MADE, others=True),
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
    made = {"provenance": provenance(device), "samples": samples}
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
                    record["cases"].append({**case, **made})
                    write_json(out, record)
                    write_text(out.with_suffix(".md"), summary(record))
                    brief = [(row["asked"], row["evaluations"], row["reached"]) for row in rows if not row["seed"]]
                    print(f"{time.monotonic() - began:.0f} s {name} {scale:g} {by} {count}: {brief}", flush=True)


if __name__ == "__main__":
    run(main)
