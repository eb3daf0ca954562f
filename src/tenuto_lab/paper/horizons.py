"""Short horizons: does the order of the units still matter when the full run has fewer steps?"""

import math
from functools import partial

import numpy as np

from tenuto_lab.paper.conditions import Lab, OutOfTime
from tenuto_lab.paper.experiment_results import ClaimRow, ExperimentResult, Figure, Panel
from tenuto_lab.paper.operating import SMALL
from tenuto_lab.paper.static_rankings import OURS, ranked
from tenuto_lab.paper.trials import Bench, Trial
from tenuto_lab.paper.ways import (
    BUDGETS,
    FULL,
    comparison,
    drawn_title,
    drawn_value,
    in_full,
    ours,
    quality_rows,
    tried,
)

HORIZONS = (100, 50, 30, 20, 10)
ORDERS = {"spectral": OURS, "depth": "depth", "random": "random"}
# The paper: T -> (spectral, depth, random), difference from full inference at that T: FID; for LLaDA, GSM8K.
PAPER = {
    "dit": {
        100: (0.08, 0.60, 0.94),
        50: (0.11, 0.67, 0.98),
        30: (0.16, 0.82, 1.17),
        20: (0.23, 1.03, 1.39),
        10: (0.39, 1.36, 1.76),
    },
    "llada": {
        100: (-0.2, -2.1, -4.9),
        50: (-0.3, -2.7, -5.7),
        30: (-0.4, -3.6, -7.0),
        20: (-0.6, -4.2, -8.1),
        10: (-1.1, -5.6, -9.5),
    },
}


def horizons(lab: Lab) -> ExperimentResult:
    """With `lab.steps`, that horizon alone."""
    rows: list[ClaimRow] = []
    panels: list[Panel] = []
    for bench in lab.benches():
        budget, up = BUDGETS.get(bench.family, 0.35), ""
        lines: dict[str, list[tuple[float, float]]] = {order: [] for order in (*ORDERS, "Tenuto's default")}
        for steps in (lab.steps,) if lab.steps else HORIZONS:
            count = steps_of(steps, bench.writes)
            title = f"T = {steps}" if count == steps else f"T = {steps}, here {count}"
            claimed = PAPER.get(bench.family, {}).get(steps)
            unit = 100 if bench.writes else FULL.get(bench.family, 1.0)
            what = f"{bench.model.name} by {bench.granularity}: T = {steps}"
            measured = lab.optional(what, partial(_measured, lab, bench, budget, count))
            if measured is None:
                continue
            full, found, default = measured
            for place, (order, trials) in enumerate(found.items()):
                said = {} if claimed is None else {"task" if bench.writes else "fid": claimed[place] / unit}
                rows += quality_rows(bench, f"{title}: {order}", trials[0], full, said, claims=False)[:2]
                lines[order].append((steps, float(np.mean([drawn_value(bench, one) for one in trials]))))
            rows += quality_rows(bench, f"{title}: Tenuto's default", default, full, {}, claims=False)[:1]
            lines["Tenuto's default"].append((steps, drawn_value(bench, default)))
            up = drawn_title(bench, default)
            for place, other in enumerate(list(ORDERS)[1:], 1):
                gain = None if claimed is None else abs(claimed[place] - claimed[0]) / unit
                pair = found["spectral"][0], found[other]
                rows.append(comparison(bench, f"{title}: spectral", other, pair, paper=gain, full=full))
        if not lines["spectral"]:
            raise OutOfTime("no horizon of it is complete")
        title = f"{bench.model.name}, by {bench.granularity}"
        panels.append(Panel(title, lines, across="steps of the full run", up=up))
    return ExperimentResult(
        rows,
        "The paper tried LLaDA and DiT only; U-ViT and SDXL are tried here as well.",
        Figure("lines", panels),
        SMALL,
    )


def _measured(lab: Lab, bench: Bench, budget: float, count: int) -> tuple[Trial, dict[str, list[Trial]], Trial]:
    """Full inference, every order, and Tenuto's default, at one number of steps."""
    full = tried(lab, bench, "full", in_full(bench), count)
    found = {order: ranked(lab, bench, ranking, budget, count) for order, ranking in ORDERS.items()}
    return full, found, tried(lab, bench, f"tenuto at {budget:g}", ours(bench, budget), count)


def steps_of(steps: int, text: bool) -> int:
    """Text is written in four blocks, so its number of steps is rounded up to a multiple of four."""
    return max(4, 4 * math.ceil(steps / 4)) if text else steps
