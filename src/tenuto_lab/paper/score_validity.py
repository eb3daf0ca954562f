"""Does the score predict what freezing a unit costs? And do the terms that it leaves out matter?"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tenuto.scheduling.lifetimes import lifetimes_at
from tenuto_lab.candidates.ranked_lifetimes import lifetimes_by
from tenuto_lab.paper.conditions import Lab
from tenuto_lab.paper.experiment_results import ClaimRow, ExperimentResult, Figure, Panel, spread
from tenuto_lab.paper.operating import SMALL
from tenuto_lab.paper.trials import Bench, scheduled
from tenuto_lab.paper.ways import BUDGETS, in_full, paired_row, spectral, tried, within
from tenuto_lab.probing.audit import audit, conditioning_of, ddim_betas
from tenuto_lab.probing.sensitivity import depth_regression, freeze_errors, spearman

STEPS = 20  # steps of the runs in which units are frozen one by one
FROZEN = 0.35  # share of the steps before the freeze
ENOUGH = 10  # least number of pairs for a claim about their difference
SPEARMAN = {"llada": 0.76, "dit": 0.70, "uvit": 0.66, "unet": 0.71}
# The paper: β of SCR, its standard error, R² of depth alone, R² of all regressors.
REGRESSION = {
    "llada": (0.42, 0.08, 0.31, 0.49),
    "dit": (0.36, 0.07, 0.28, 0.42),
    "uvit": (0.31, 0.08, 0.25, 0.36),
    "unet": (0.39, 0.09, 0.22, 0.38),
}
# The paper: ρ(score, B), ρ(score, Q), CV of Q, R² of the drift.
AUDIT = {
    "llada": (0.91, 0.12, 0.29, 0.94),
    "dit": (0.88, 0.09, 0.26, 0.92),
    "uvit": (0.84, 0.06, 0.33, 0.90),
    "unet": (0.79, -0.04, 0.41, 0.86),
}


def freeze_errors_of(lab: Lab, bench: Bench, at_lifetime: bool = False) -> NDArray[np.float64]:
    """[unit]: the error of freezing it alone, after the same step for all units, or after its lifetime at τ = 1."""
    steps = min(lab.steps or STEPS, STEPS)
    count = len(bench.model.units)
    values = [unit.score for unit in bench.scores.units]
    last = lifetimes_at(values, steps, 1.0) if at_lifetime else [max(1, round(FROZEN * steps))] * count
    which = "its lifetime" if at_lifetime else "one step for all"

    def measure() -> dict[str, Any]:
        lab.say(f"{bench.model.name}: freezing each of {count} units behind {which}")
        found = freeze_errors(bench.model, last, bench.sample(steps))
        return {"errors": [None if np.isnan(error) else float(error) for error in found.errors]}

    noted = lab.once(f"{bench.model.name}, {steps} steps: freeze errors behind {which}", measure)
    return np.array([np.nan if error is None else error for error in noted["errors"]])


def freeze_error(lab: Lab) -> ExperimentResult:
    rows: list[ClaimRow] = []
    panels: list[Panel] = []
    for bench in lab.benches():
        name, family = bench.model.name, bench.family
        values = [unit.score for unit in bench.scores.units]
        same, own = freeze_errors_of(lab, bench), freeze_errors_of(lab, bench, at_lifetime=True)
        found = spearman(values, same)
        rows.append(
            ClaimRow(
                "Spearman ρ of score and freeze error, all frozen behind the same step",
                name,
                SPEARMAN.get(family),
                found.rho,
                _fisher(found.rho, found.n),
                holds=found.rho > 0 and found.p < 0.05,
                note=f"p = {found.p:.2g}, {found.n} units",
            )
        )
        at_own = spearman(values, own)
        rows.append(
            ClaimRow(
                "the same, each frozen behind its lifetime at τ = 1",
                name,
                SPEARMAN.get(family),
                _number(at_own.rho),
                note=f"p = {at_own.p:.2g}, {at_own.n} units that are frozen at all: a high score freezes late",
            )
        )
        rows += _regression(name, family, bench, same)
        kinds: dict[str, list[tuple[float, float]]] = {}
        for unit, error in zip(bench.scores.units, same.tolist(), strict=True):
            kinds.setdefault(unit.kind, []).append((unit.score, error))
        panels.append(Panel(f"{name}: ρ = {found.rho:.2f}", kinds, across="score", up="freeze error"))
    return ExperimentResult(
        rows,
        f"Spearman's ρ lies at {spread(rows, 'same step')}; the paper has 0.66 to 0.76.",
        Figure("scatter", panels),
        SMALL,
    )


def _regression(name: str, family: str, bench: Bench, errors: NDArray[np.float64]) -> list[ClaimRow]:
    paper = REGRESSION.get(family, (None, None, None, None))
    found = depth_regression(bench.scores, errors)
    scr = next(one for one in found.coefficients if one.name == "scr")
    return [
        ClaimRow(
            "β of SCR beside depth, kind and Frobenius norm",
            name,
            paper[0],
            scr.beta,
            (scr.low, scr.high),
            holds=scr.low > 0,
            note=f"p = {scr.p:.2g}",
        ),
        ClaimRow("R² of depth alone", name, paper[2], found.r2_depth),
        ClaimRow("R² of all", name, paper[3], found.r2_full),
    ]


def audited(lab: Lab) -> ExperimentResult:
    rows: list[ClaimRow] = []
    for bench in lab.benches():
        name, steps = bench.model.name, min(lab.steps or STEPS, STEPS)
        paper = AUDIT.get(bench.family, (None, None, None, None))

        def measure(bench: Bench = bench, steps: int = steps) -> dict[str, Any]:
            lab.say(f"{bench.model.name}: probing {len(bench.model.units)} units")
            noise = bench.model.noise
            found = audit(
                bench.model,
                bench.scores,
                bench.sample(steps),
                betas=None if noise is None else ddim_betas(noise, steps),
                conditioning=conditioning_of(bench.model),
            )
            return {
                "b": found.b.tolist(),
                "q": found.q.tolist(),
                "rho_b": found.score_and_b.rho,
                "rho_q": found.score_and_q.rho,
                "p_q": found.score_and_q.p,
                "cv": found.cv,
                "r2": found.median_drift_r2,
            }

        noted = lab.once(f"{name}, {steps} steps: audit", measure)
        rows += [
            ClaimRow(
                "ρ of score and B",
                name,
                paper[0],
                noted["rho_b"],
                note="mechanical in part: the score is a factor of B",
            ),
            ClaimRow(
                "ρ of score and Q, what the score leaves out",
                name,
                paper[1],
                noted["rho_q"],
                holds=noted["p_q"] >= 0.05,
                note=f"p = {noted['p_q']:.2g}; the paper: hardly aligned",
            ),
            ClaimRow("coefficient of variation of Q", name, paper[2], noted["cv"], holds=noted["cv"] <= 0.5),
            ClaimRow("median R² of drift against age", name, paper[3], noted["r2"], holds=noted["r2"] >= 0.8),
        ]
        rows += _reordered(lab, bench, noted["b"])
    return ExperimentResult(
        rows,
        f"Q varies by {spread(rows, 'variation of Q')} of its mean over the units, where the paper has 0.26 to 0.41.",
        limits=SMALL + " Few trajectories of few steps: the paper has 128 of 100.",
    )


def _reordered(lab: Lab, bench: Bench, b: list[float]) -> list[ClaimRow]:
    """The effect of ordering lifetimes by B instead of the score, at the paper's budget."""
    budget = BUDGETS.get(bench.family, 0.35)

    by_b = scheduled(bench.model, lambda steps, blocks: lifetimes_by(bench.scores, steps, b, "B, measured", budget))
    tried(lab, bench, "full", in_full(bench))
    weights = tried(lab, bench, f"spectral at {budget:g}", spectral(bench, budget))
    product = tried(lab, bench, f"by B at {budget:g}", by_b)
    quantity = f"order by B less order by the score, {bench.quality}"
    claim = within if len(weights.values[bench.quality]) >= ENOUGH else None
    return [paired_row(bench, quantity, (product, weights), bench.quality, claim, note="the paper: marginal; {test}")]


def _fisher(rho: float, n: int) -> tuple[float, float] | None:
    """The 95 % interval of a rank correlation."""
    if n < 5 or not abs(rho) < 1:
        return None
    center, width = np.arctanh(rho), 1.96 * 1.03 / np.sqrt(n - 3)
    return float(np.tanh(center - width)), float(np.tanh(center + width))


def _number(value: float) -> float | None:
    return None if np.isnan(value) else value
