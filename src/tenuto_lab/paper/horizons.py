"""Short horizons: does the order of the units still matter when the full run has fewer steps?"""

import math

from tenuto_lab.paper.conditions import Lab
from tenuto_lab.paper.experiment_results import ClaimRow, ExperimentResult, Figure, Panel
from tenuto_lab.paper.operating import SMALL
from tenuto_lab.paper.static_rankings import ranked_way
from tenuto_lab.paper.trials import Trial, difference
from tenuto_lab.paper.ways import BUDGETS, above, in_full, ours, paired_row, relative, tried

HORIZONS = (100, 50, 30, 20, 10)
ORDERS = ("spectral", "depth", "random")
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
    rows: list[ClaimRow] = []
    panels: list[Panel] = []
    for bench in lab.benches():
        text = bench.writes
        lines: dict[str, list[tuple[float, float]]] = {order: [] for order in (*ORDERS, "Tenuto's default")}
        for steps in HORIZONS:
            count = _steps(steps, text)
            title = f"T = {steps}" if count == steps else f"T = {steps}, here {count}"
            budget = BUDGETS.get(bench.family, 0.35)
            full = tried(lab, bench, "full", in_full(bench), count)
            found: dict[str, Trial] = {}
            for place, order in enumerate(ORDERS):
                found[order] = tried(lab, bench, f"{order} at {budget:g}", ranked_way(bench, order, budget), count)
                claimed = PAPER.get(bench.family, {}).get(steps)
                rows.append(_row(bench.model.name, title, order, found[order], full, text, claimed and claimed[place]))
                lines[order].append((steps, found[order].mean(bench.quality)[0]))
            default = tried(lab, bench, f"tenuto at {budget:g}", ours(bench, budget), count)
            rows.append(_row(bench.model.name, title, "Tenuto's default", default, full, text, None))
            lines["Tenuto's default"].append((steps, default.mean(bench.quality)[0]))
            for other in ORDERS[1:]:
                quantity = f"{title}: spectral less {other}, {bench.quality}"
                rows.append(paired_row(bench, quantity, (found["spectral"], found[other]), bench.quality, above))
        panels.append(Panel(bench.model.name, lines, across="steps of the full run", up=bench.quality_title))
    return ExperimentResult(
        rows,
        "A comparison holds where the spectral order is better than depth's or chance's by more "
        "than the interval of the paired difference.",
        Figure("lines", panels),
        SMALL,
    )


def _steps(steps: int, text: bool) -> int:
    """Text is written in four blocks, so its number of steps is rounded up to a multiple of four."""
    return max(4, 4 * math.ceil(steps / 4)) if text else steps


def _row(model: str, title: str, order: str, trial: Trial, full: Trial, text: bool, claimed: float | None) -> ClaimRow:
    if text:
        change, _ = difference(trial, full, "arithmetic")
        paper = None if claimed is None else claimed / 100
        return ClaimRow.of(f"{title}: {order}, arithmetic, change in right answers", model, paper, change)
    if "fid_delta" in trial.figures:
        shares = relative(trial.figures["fid_delta"], trial.figures["full_fid"][0])
        paper = None if claimed is None else claimed / 2.27
        return ClaimRow.of(f"{title}: {order}, FID above full inference's, share of it", model, paper, shares)
    return ClaimRow.of(f"{title}: {order}, dB to the full run's picture", model, None, trial.mean("psnr"))
