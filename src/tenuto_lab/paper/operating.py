"""The paper's operating point, untuned: τ = 1 and S_min = 0.1 T on every model. And the results as τ grows."""

from collections.abc import Sequence
from dataclasses import replace

from tenuto_lab.judging.verdicts import Verdict
from tenuto_lab.paper.conditions import Lab
from tenuto_lab.paper.experiment_results import ClaimRow, ExperimentResult, Figure, Panel, spread
from tenuto_lab.paper.trials import Bench, Trial
from tenuto_lab.paper.ways import (
    BUDGETS,
    FULL,
    drawn_title,
    drawn_value,
    in_full,
    named,
    ours,
    quality_rows,
    share_of_steps,
    spectral,
    time_row,
    tried,
)
from tenuto_lab.probing.sensitivity import scr_and_stable_rank
from tenuto_lab.units.lifetimes import lifetimes

TAU = 1.0
NEAR = 0.05  # of the paper's share of layer-steps
SPEEDUPS = {"llada": 3.0, "dit": 3.0, "uvit": 2.8, "unet": 3.0}
SPEARMAN = {"llada": -0.31, "dit": -0.27, "uvit": -0.24, "unet": -0.35}  # of SCR and stable rank
# The paper's losses: increase of FID, as a share of full inference's; change in the share of right answers.
LOST: dict[str, dict[str, float]] = {
    "llada": {"task": -0.002, "needle": -0.002},
    "dit": {"fid": 0.08 / FULL["dit"]},
    "uvit": {"fid": 0.07 / FULL["uvit"]},
    "unet": {"fid": 0.25 / FULL["unet"]},
}
# The paper's Pareto curves: τ -> (speed-up, loss).
SWEEP: dict[str, dict[float, tuple[float, float]]] = {
    "llada": {0.5: (1.5, -0.001), 1.0: (3.0, -0.002), 2.0: (4.5, -0.028)},
    "dit": {0.5: (1.5, 0.01 / 2.27), 1.0: (3.0, 0.08 / 2.27), 2.0: (4.5, 0.53 / 2.27)},
    "uvit": {0.5: (1.6, 0.01 / 3.08), 1.0: (2.8, 0.07 / 3.08), 2.0: (4.0, 0.57 / 3.08)},
    "unet": {0.5: (1.8, 0.04 / 7.84), 1.0: (3.0, 0.25 / 7.84), 2.0: (4.2, 1.26 / 7.84)},
}


def operating_points(lab: Lab) -> ExperimentResult:
    rows: list[ClaimRow] = []
    for bench in lab.benches():
        full = tried(lab, bench, "full", in_full(bench))
        paper = tried(lab, bench, named(bench, "spectral, τ = 1"), spectral(bench, tau=TAU), timed=True)
        name, family, budget = bench.model.name, bench.family, BUDGETS.get(bench.family, 0.35)
        rows.append(share_row(bench, lab.steps or bench.steps))
        rows.append(_speed_row(bench, "τ = 1", SPEEDUPS.get(family), paper))
        rows += quality_rows(bench, "τ = 1", paper, full, LOST.get(family, {}))
        matched = tried(lab, bench, named(bench, f"spectral at {budget:g}"), spectral(bench, budget))
        rows += quality_rows(bench, f"spectral at {budget:.0%}", matched, full, LOST.get(family, {}))
        if bench.granularity == lab.granularities[0]:  # the default does not depend on it
            default = tried(lab, bench, f"tenuto at {budget:g}", ours(bench, budget), timed=True)
            rows.append(ClaimRow("Tenuto's default: share of unit-steps", name, None, default.work))
            ours_rows = [_speed_row(bench, "Tenuto's default", None, default)]
            ours_rows += quality_rows(bench, "Tenuto's default", default, full, {}, claims=False)
            rows += [replace(row, granularity=None) for row in ours_rows]
    return ExperimentResult(
        rows,
        f"At the paper's budgets, units held for good leave pictures with "
        f"{spread(_from(rows, 'spectral at'), 'FID above')} times full inference's FID on top of it; the same work in "
        f"Tenuto's default leaves {spread(_from(rows, 'Tenuto'), 'FID above')} times.",
        limits=SMALL,
    )


def share_row(bench: Bench, steps: int) -> ClaimRow:
    """The share of layer-steps at τ = 1. It follows from the weights alone, so nothing is sampled."""
    claimed = BUDGETS.get(bench.family)
    share = share_of_steps(bench, lifetimes(bench.scores, steps, tau=TAU))
    holds: Verdict | None = None if claimed is None else "yes" if abs(share - claimed) <= NEAR else "no"
    counted = "blocks" if bench.granularity == "block" else "branches"
    return ClaimRow(
        f"τ = 1: share of layer-steps, counted by {counted}",
        bench.model.name,
        claimed,
        share,
        holds=holds,
        note=f"within {NEAR:g} of the paper's, or not",
        granularity=bench.granularity,
    )


def redundancy_row(bench: Bench) -> ClaimRow:
    """Whether SCR and stable rank order the branches alike. It follows from the weights alone."""
    both, told = scr_and_stable_rank(bench.scores), "the paper: related, not redundant"
    claimed, quantity = SPEARMAN.get(bench.family), "Spearman ρ of SCR and stable rank, of the branches"
    return ClaimRow(quantity, bench.model.name, claimed, both.rho, note=f"p = {both.p:.2g}, {both.n} branches; {told}")


def pareto(lab: Lab) -> ExperimentResult:
    rows: list[ClaimRow] = []
    panels: list[Panel] = []
    for bench in lab.benches():
        full = tried(lab, bench, "full", in_full(bench))
        points: list[tuple[float, float]] = []
        rivals: list[tuple[float, float]] = []
        for tau in sorted(SWEEP.get(bench.family, SWEEP["dit"])):
            trial = tried(lab, bench, named(bench, f"spectral, τ = {tau:g}"), spectral(bench, tau=tau), timed=True)
            speedup, lost = SWEEP.get(bench.family, {}).get(tau, (None, None))
            share = ClaimRow(f"τ = {tau:g}: share of unit-steps", bench.model.name, None, trial.work)
            rows.append(replace(share, granularity=bench.granularity))
            rows.append(_speed_row(bench, f"τ = {tau:g}", speedup, trial))
            claimed = {} if lost is None else {"task" if bench.writes else "fid": lost}
            rows += quality_rows(bench, f"τ = {tau:g}", trial, full, claimed)
            points.append((trial.work, drawn_value(bench, trial)))
            default = tried(lab, bench, f"tenuto at {trial.work:.2f}", ours(bench, trial.work))
            rivals.append((default.work, drawn_value(bench, default)))
        panels.append(
            Panel(
                f"{bench.model.name}, by {bench.granularity}",
                {"lifetimes by the score (the paper)": sorted(points), "Tenuto's default": sorted(rivals)},
                across="share of unit-steps computed",
                up=drawn_title(bench, full),
            )
        )
    return ExperimentResult(
        rows,
        f"Above full inference's FID: {spread(_at(rows, 0.5), 'FID above')} times it at τ = 0.5, and "
        f"{spread(_at(rows, 2), 'FID above')} times it at τ = 2.",
        Figure("lines", panels),
        SMALL,
    )


def maps(lab: Lab) -> ExperimentResult:
    """The lifetime of every unit at τ = 1, in the order in which the units run."""
    rows, panels = [], []
    for bench in lab.benches():
        steps = lab.steps or bench.steps
        made = lifetimes(bench.scores, steps, tau=TAU)
        last = list(made.lifetimes)
        kinds = [unit.kind for unit in bench.scores.units]
        counted = "blocks" if bench.granularity == "block" else "branches"
        panels.append(
            Panel(
                f"{bench.model.name}, by {counted}: {share_of_steps(bench, made):.0%}",
                {"lifetimes": last, "kinds": kinds, "steps": steps},
            )
        )
        half = len(last) // 2
        early, late = sum(last[:half]) / half / steps, sum(last[half:]) / (len(last) - half) / steps
        name, of = bench.model.name, {"granularity": bench.granularity}
        rows.append(share_row(bench, steps))
        rows.append(
            replace(ClaimRow("mean lifetime of the first half of the units, share of T", name, None, early), **of)  # type: ignore[arg-type]
        )
        grow: Verdict = "yes" if late > early else "no"
        told = "the paper's maps grow with depth"
        second = ClaimRow("mean lifetime of the second half, share of T", name, None, late, holds=grow, note=told)
        rows.append(replace(second, **of))  # type: ignore[arg-type]
        if bench.granularity == lab.granularities[0]:
            rows.append(redundancy_row(bench))
    return ExperimentResult(
        rows,
        f"At τ = 1 the share of layer-steps is {spread(rows, 'by branches')} counted by branches, and "
        f"{spread(rows, 'by blocks')} counted by blocks; the paper has 0.32 to 0.36. SCR and stable rank correlate at "
        f"{spread(rows, 'stable rank')}; the paper has -0.35 to -0.24.",
        Figure("map", panels),
        "Nothing is sampled here: the maps follow from the weights.",
        "the weights alone",
    )


def _speed_row(bench: Bench, way: str, paper: float | None, trial: Trial) -> ClaimRow:
    row = time_row(f"{way}: speed-up over eager full inference", bench, paper, trial.speedup)
    return replace(row, granularity=bench.granularity)


def _from(rows: Sequence[ClaimRow], beginning: str) -> list[ClaimRow]:
    return [row for row in rows if row.quantity.startswith(beginning)]


def _at(rows: Sequence[ClaimRow], tau: float) -> list[ClaimRow]:
    return _from(rows, f"τ = {tau:g}:")


SMALL = (
    "The reference models are small (2 to 15 million parameters, 32 x 32 pictures, short texts), and their Fréchet "
    "distances are taken in a small classifier's features: compare ways of running with each other, not with "
    "published FIDs. Large networks may hold better than small ones; this table cannot say."
)
