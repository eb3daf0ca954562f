"""What each part of the default is worth: the same pictures with one part of it changed at a time.

    python -m benchmarks.ablation                      # a quarter of an hour on two CPU cores
    python -m benchmarks.ablation --only tiny-dit --samples 4

The default evaluates the network at steps that the noise levels place, holds its output, predicts the clean estimate in
between, and at each refresh integrates again what was predicted since the last. Every row is drawn from the same
noise and compared with the run that computes everything. Results are written after each network.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import tenuto
from benchmarks.places import results_of
from scripts.command_line import run
from tenuto.deciding import subject_of
from tenuto.files import write_json, write_text
from tenuto.models.solvers import nature_for
from tenuto.provenance import origin, provenance
from tenuto.quality import psnr
from tenuto.runtime.executor import Executor
from tenuto.scheduling.refresh import refresh
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.frontier.cases import asked_for
from tenuto_lab.frontier.drawing import DrawingCase
from tenuto_lab.frontier.points import everything
from tenuto_lab.judging.statistics import mean_interval
from tenuto_lab.result_files import ORIGIN, both, makes, read_result, shaped

RESULTS = results_of("ablation")
NETWORKS = ("tiny-dit", "tiny-uvit", "tiny-sdxl")
STEPS, BUDGET = 50, 0.25
THIRD: dict[str, Any] = {"every": 3, "keep": "branch"}
WAYS: dict[str, dict[str, Any]] = {  # what `refresh` is told instead of the default's
    "every third step, every branch held as it was": {**THIRD, "predict": "constant"},
    "the same, linear": {**THIRD, "predict": "linear"},
    "the same, quadratic": {**THIRD, "predict": "quadratic"},
    "the default at a quarter": {},
    "without correction": {"correction": False},
    "evaluations spread evenly over the steps": {"log_snr": None},
    "every fourth step instead": {"every": 4},
    "linear": {"predict": "linear"},
    "cubic": {"predict": "cubic"},
    "every branch held instead of the output": {"keep": "branch"},
    "every update held instead of the output": {"keep": "update"},
}


def measure(name: str, samples: int, seeds: int, device: str) -> list[dict[str, Any]]:
    model = tenuto.load(name, device=torch.device(device), dtype=torch.float32)
    subject = subject_of(model)
    case = DrawingCase(model, STEPS, asked_for(model, samples)[1], range(seeds), samples)

    def drawn(schedule: Schedule) -> torch.Tensor:
        executor = Executor(model.network, schedule)
        return torch.cat([case.draw(executor, STEPS, "ddim", seed).cpu() for seed in case.seeds])

    full, rows = drawn(everything(subject, STEPS)), []
    assert model.noise is not None
    levels = nature_for(model.noise, STEPS).levels
    log_snr = None if levels is None else levels.log_snr
    for way, changed in WAYS.items():
        options = {"log_snr": log_snr, "ahead": True, **({} if "every" in changed else {"budget": BUDGET}), **changed}
        schedule = refresh(subject, STEPS, **options)
        value, low, high = mean_interval(psnr(drawn(schedule), full), 500)
        rows.append({"way": way, "work": schedule.budget, "psnr": value, "low": low, "high": high})
        print(f"{name}, {way}: {schedule.budget:.0%}, {value:.1f} dB", flush=True)
    return rows


def table(record: Mapping[str, Any]) -> str:
    names: Sequence[str] = list(record["networks"])
    lines = [
        "# What each part of the default is worth\n",
        f"{STEPS} steps of DDIM, dB to the pictures of the run that computes everything, with 95 % intervals; in "
        f"brackets the share of steps computed. {origin(record['provenance'])}; {record['samples']} pictures of each "
        f"of {record['seeds']} seeds.\n",
        f"| | {' | '.join(names)} |",
        "|---|" + "---:|" * len(names),
    ]
    for i, way in enumerate(WAYS):
        rows = [record["networks"][name][i] for name in names]
        cells = [f"{row['psnr']:.1f} [{row['low']:.1f}, {row['high']:.1f}] ({row['work']:.0%})" for row in rows]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


RECORD = both(
    shaped(
        {
            "samples": int,
            "seeds": int,
            "provenance": ORIGIN,
            "networks": {str: [{"way": str, **dict.fromkeys(("work", "psnr", "low", "high"), float)}]},
        }
    ),
    makes(table),
)


def main(
    out: Annotated[Path, typer.Option(help="The file to write; what it holds is replaced.")] = RESULTS,
    only: Annotated[list[str] | None, typer.Option(help=f"Networks: {', '.join(NETWORKS)}.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Of each seed.")] = 4,
    seeds: Annotated[int, typer.Option(min=1, help="Rounds, each from other noise.")] = 3,
    device: Annotated[str, typer.Option(help="Where to run.")] = "cuda" if torch.cuda.is_available() else "cpu",
    draw_only: Annotated[bool, typer.Option("--draw-only", help="Measure nothing; write the table again.")] = False,
) -> None:
    """Change the default part by part, and see what that costs."""
    if draw_only:
        write_text(out.with_suffix(".md"), table(read_result(out, "ablation", RECORD)))
        return
    record: dict[str, Any] = {"provenance": provenance(device, seed=0), "samples": samples, "seeds": seeds}
    record["networks"] = {}
    for name in only or NETWORKS:
        record["networks"][name] = measure(name, samples, seeds, device)
        write_json(out, record)
        write_text(out.with_suffix(".md"), table(record))


if __name__ == "__main__":
    run(main)
