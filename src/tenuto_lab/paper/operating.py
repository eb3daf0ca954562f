"""The paper's operating point, untuned: τ = 1 and S_min = 0.1 T on every model. And the results as τ grows."""

from collections.abc import Sequence
from dataclasses import replace

from tenuto.quality import ALIKE
from tenuto.scheduling.lifetimes import lifetimes
from tenuto_lab.paper.conditions import Lab
from tenuto_lab.paper.experiment_results import ClaimRow, ExperimentResult, Figure, Panel, spread
from tenuto_lab.paper.trials import Bench, Trial
from tenuto_lab.paper.ways import BUDGETS, in_full, ours, quality_rows, spectral, tried

TAU = 1.0
SPEEDUPS = {"llada": 3.0, "dit": 3.0, "uvit": 2.8, "unet": 3.0}
# The paper's losses: increase of FID, as a share of full inference's; change in the share of right answers.
LOST: dict[str, dict[str, float]] = {
    "llada": {"arithmetic": -0.002, "needle": -0.002},
    "dit": {"fid": 0.08 / 2.27},
    "uvit": {"fid": 0.07 / 3.08},
    "unet": {"fid": 0.25 / 7.84},
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
        paper = tried(lab, bench, "spectral, τ = 1", spectral(bench, tau=TAU))
        name, family, budget = bench.model.name, bench.family, BUDGETS.get(bench.family, 0.35)
        work = ClaimRow("τ = 1: share of unit-steps", name, BUDGETS.get(family), paper.work)
        if family in BUDGETS:
            work = ClaimRow(
                work.quantity, name, work.paper, paper.work, holds=abs(paper.work - BUDGETS[family]) <= 0.05
            )
        rows += [work, ClaimRow("τ = 1: speed-up over eager full inference", name, SPEEDUPS.get(family), paper.speedup)]
        rows += quality_rows(bench, "τ = 1", paper, full, LOST.get(family, {}))
        matched = tried(lab, bench, f"spectral at {budget:g}", spectral(bench, budget))
        rows += quality_rows(bench, f"spectral at {matched.work:.0%}", matched, full, LOST.get(family, {}))
        default = tried(lab, bench, f"tenuto at {budget:g}", ours(bench, budget))
        rows.append(ClaimRow("Tenuto's default: share of unit-steps", name, None, default.work))
        rows.append(ClaimRow("Tenuto's default: speed-up over eager full inference", name, None, default.speedup))
        rows += quality_rows(bench, "Tenuto's default", default, full, LOST.get(family, {}), claims=False)
    return ExperimentResult(
        rows,
        f"At the paper's budgets, units held for good leave pictures at "
        f"{spread([row for row in rows if row.quantity.startswith('spectral at')], 'dB')} dB from the full run's; "
        f"the same work in Tenuto's default leaves them at {spread(rows, 'default: dB')} dB.",
        limits=SMALL,
    )


def pareto(lab: Lab) -> ExperimentResult:
    rows: list[ClaimRow] = []
    panels: list[Panel] = []
    for bench in lab.benches():
        full = tried(lab, bench, "full", in_full(bench))
        points: list[tuple[float, float]] = []
        rivals: list[tuple[float, float]] = []
        for tau in sorted(SWEEP.get(bench.family, SWEEP["dit"])):
            trial = tried(lab, bench, f"spectral, τ = {tau:g}", spectral(bench, tau=tau))
            speedup, lost = SWEEP.get(bench.family, {}).get(tau, (None, None))
            rows.append(ClaimRow(f"τ = {tau:g}: share of unit-steps", bench.model.name, None, trial.work))
            rows.append(ClaimRow(f"τ = {tau:g}: speed-up", bench.model.name, speedup, trial.speedup))
            claimed = {} if lost is None else {"arithmetic" if bench.writes else "fid": lost}
            found = quality_rows(bench, f"τ = {tau:g}", trial, full, claimed)
            rows += [degraded_little(row) for row in found] if tau <= TAU else found
            points.append((trial.work, _shown(bench, trial)))
            default = tried(lab, bench, f"tenuto at {trial.work:.2f}", ours(bench, trial.work))
            rivals.append((default.work, _shown(bench, default)))
        panels.append(
            Panel(
                bench.model.name,
                {"lifetimes by the score (the paper)": sorted(points), "Tenuto's default": sorted(rivals)},
                across="share of unit-steps computed",
                up=bench.quality_title,
            )
        )
    return ExperimentResult(
        rows,
        f"Pictures lie {spread(_at(rows, 0.5), 'dB')} dB from the full run's at τ = 0.5, and "
        f"{spread(_at(rows, 2), 'dB')} dB at τ = 2.",
        Figure("lines", panels),
        SMALL,
    )


def _at(rows: Sequence[ClaimRow], tau: float) -> list[ClaimRow]:
    return [row for row in rows if row.quantity.startswith(f"τ = {tau:g}:")]


def degraded_little(row: ClaimRow) -> ClaimRow:
    """The paper reports little degradation up to τ = 1, so pictures should be hard to tell apart.

    For text the likelihood proves little, because repetitive text is likely, too.
    """
    if "dB to the full" not in row.quantity or row.measured is None:
        return row
    return replace(row, holds=row.measured >= ALIKE, note=f"little degradation: {ALIKE:g} at least")


def maps(lab: Lab) -> ExperimentResult:
    """The lifetime of every unit at τ = 1, in the order in which the units run."""
    rows, panels = [], []
    for bench in lab.benches():
        steps = lab.steps or (50 if bench.family == "unet" else 100)
        made = lifetimes(bench.scores, steps, tau=TAU)
        last = list(made.lifetimes)
        kinds = [unit.kind for unit in bench.scores.units]
        panels.append(
            Panel(
                f"{bench.model.name}: {made.budget:.0%} of unit-steps",
                {"lifetimes": last, "kinds": kinds, "steps": steps},
            )
        )
        half = len(last) // 2
        early, late = sum(last[:half]) / half / steps, sum(last[half:]) / (len(last) - half) / steps
        rows.append(ClaimRow("mean lifetime of the first half of the units, share of T", bench.model.name, None, early))
        rows.append(
            ClaimRow(
                "mean lifetime of the second half, share of T",
                bench.model.name,
                None,
                late,
                holds=late > early,
                note="the paper's maps grow with depth",
            )
        )
    return ExperimentResult(
        rows,
        "In the paper's maps lifetimes grow with depth.",
        Figure("map", panels),
    )


def _shown(bench: Bench, trial: Trial) -> float:
    return trial.mean(bench.quality)[0]


SMALL = (
    "The reference models are small (2 to 15 million parameters, 32 x 32 pictures, short texts), and their Fréchet "
    "distances are taken in a small classifier's features: compare ways of running with each other, not with "
    "published FIDs. Large networks may hold better than small ones; this table cannot say."
)
