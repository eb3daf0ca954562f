"""The speed that skipping, padded graphs and jagged graphs each contribute, and their cost in memory."""

from functools import partial
from typing import Any

import torch

from tenuto_lab.paper.conditions import Lab, OutOfTime
from tenuto_lab.paper.experiment_results import ClaimRow, ExperimentResult, spread
from tenuto_lab.paper.trials import Bench
from tenuto_lab.paper.ways import BUDGETS
from tenuto_lab.speed.ladder import Rung, TimedNetwork, Timing, everything, measure, spectral_lifetimes, timed_network

PAPER = {"skip": 1.9, "padded": 2.7, "jagged": 3.0}  # the paper's speed-up over eager, LLaDA-8B
MEMORY = {"llada": 0.17, "dit": 0.11, "uvit": 0.10, "unet": 0.22}
BATCHES = {"llada": 1, "dit": 32, "uvit": 32, "unet": 16}  # including both halves of guidance
TOKENS = 512
GENERATIONS = 3  # timed generations for each way


def execution(lab: Lab) -> ExperimentResult:
    gpu = torch.device(lab.device).type == "cuda"
    rows: list[ClaimRow] = []
    for bench in lab.benches():
        subject = _subject(bench)
        rungs = _rungs(bench, subject, lab.steps or bench.steps, gpu)
        found = lab.time(f"{bench.model.name}: execution", partial(_timed, subject, rungs, lab))
        if not found:
            raise OutOfTime("this experiment takes times only")
        eager = found["eager"]
        for mode, timing in found.items():
            if mode == "eager":
                continue
            paper = PAPER.get(mode) if bench.writes else None
            rows.append(
                ClaimRow(f"{mode}: speed-up over eager full inference", bench.model.name, paper, timing["speedup"])
            )
        if "jagged" in found and "padded" in found:
            jagged, padded = found["jagged"]["speedup"], found["padded"]["speedup"]
            claimed = PAPER["jagged"] / PAPER["padded"] if bench.writes else None
            rows.append(
                ClaimRow(
                    "jagged over padded",
                    bench.model.name,
                    claimed,
                    jagged / padded,
                    holds="yes" if jagged > padded else "no",
                )
            )
            more = found["jagged"]["peak_bytes"] / eager["peak_bytes"] - 1
            rows.append(
                ClaimRow("peak memory above full inference's, share", bench.model.name, MEMORY.get(bench.family), more)
            )
    finding = "Graphs need a GPU; here units are skipped by Python."
    if gpu:
        finding = f"Jagged graphs are {spread(rows, 'jagged over padded')} times as fast as padded ones."
    return ExperimentResult(
        rows,
        finding,
        limits="Small networks leave a GPU idle between launches, which flatters graphs. The full-size networks are "
        "timed by benchmarks.ladder; its table is in results/ladder/ladder.md.",
        rests_on=f"{GENERATIONS} timed generations of each way",
    )


def _subject(bench: Bench) -> TimedNetwork:
    model = bench.model
    tokens = min(TOKENS, model.config.max_sequence_length) if bench.writes else None
    batch = BATCHES.get(bench.family, 32) if model.device.type == "cuda" else 2
    return timed_network(model.name, model.network, model.architecture, model.config, batch=batch, tokens=tokens)


def _rungs(bench: Bench, subject: TimedNetwork, steps: int, gpu: bool) -> list[Rung]:
    budget, branches = BUDGETS.get(bench.family, 0.35), bench.at("branch").scores
    paper = spectral_lifetimes(subject.units, steps, budget, branches, bench.granularity)
    rungs = [Rung("full", "eager", False, None), Rung("lifetimes", "skip", False, paper)]
    if gpu:
        rungs.append(Rung("full", "jagged", False, everything(subject.units, 8)))
        rungs += [Rung("lifetimes", "padded", False, paper), Rung("lifetimes", "jagged", False, paper)]
    return rungs


def _timed(subject: TimedNetwork, rungs: list[Rung], lab: Lab) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for row in measure(subject, rungs, GENERATIONS, lab.say):
        mode = "jagged, everything computed" if row.schedule == "full" and row.mode == "jagged" else row.mode
        found[mode] = _kept(row)
    return found


def _kept(row: Timing) -> dict[str, Any]:
    return {
        "ms": row.ms_per_evaluation,
        "speedup": row.speedup_over_eager or 1.0,
        "peak_bytes": row.peak_bytes or 0,
        "graphs": row.graphs,
    }
