"""Does the score predict what freezing a unit costs? And do the terms that it leaves out matter?"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tenuto.errors import UsageError
from tenuto_lab.candidates.ranked_lifetimes import lifetimes_by
from tenuto_lab.judging.verdicts import Evidence, Verdict
from tenuto_lab.paper.conditions import Lab
from tenuto_lab.paper.experiment_results import ClaimRow, ExperimentResult, Figure, Panel, spread
from tenuto_lab.paper.operating import SMALL
from tenuto_lab.paper.trials import Bench, scheduled
from tenuto_lab.paper.ways import BUDGETS, UNCERTAIN, comparison, in_full, named, spectral, tried
from tenuto_lab.probing.audit import audit
from tenuto_lab.probing.audit_inputs import conditioning_of, ddim_betas
from tenuto_lab.probing.audit_results import Audit, from_json, joined, to_json
from tenuto_lab.probing.sensitivity import Correlation, depth_regression, freeze_errors, spearman
from tenuto_lab.units.lifetimes import lifetimes_at

FEW_STEPS, FEW_SAMPLES = 20, 8  # of the runs that orient rankings
TOGETHER = 32  # samples that are audited at a time
BETA = "β of SCR beside depth, kind and Frobenius norm"
LEAST_PAIRS = 3  # of a correlation
FROZEN = 0.35  # share of the steps before the freeze
MOST_CV, LEAST_R2 = 0.41, 0.8  # the paper's largest CV, and the least R² of what counts as a linear drift
CV_TOLD = "at most 0.41, the paper's largest, or not"
R2_TOLD = "at least 0.8, or not"
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


def freeze_errors_of(
    lab: Lab, bench: Bench, at_lifetime: bool = False, steps: int | None = None, count: int | None = None
) -> NDArray[np.float64]:
    """[unit]: the error of freezing it alone, after the same step for all units, or after its lifetime at τ = 1.

    steps and count: by default few, which is enough for the sign of a correlation
    """
    steps, count = steps or min(lab.steps or FEW_STEPS, FEW_STEPS), count or FEW_SAMPLES
    units = len(bench.model.units)
    values = [unit.score for unit in bench.scores.units]
    last = lifetimes_at(values, steps, 1.0) if at_lifetime else [max(1, round(FROZEN * steps))] * units
    which = "its lifetime" if at_lifetime else "one step for all"

    def measure() -> dict[str, Any]:
        lab.say(f"{bench.model.name}: freezing each of {units} units behind {which}")
        found = freeze_errors(bench.model, last, bench.sample(steps, count))
        return {"errors": [None if np.isnan(error) else float(error) for error in found.errors]}

    key = f"{bench.model.name}, {steps} steps, {count} samples: freeze errors behind {which}"
    noted = lab.once(key, measure)
    return np.array([np.nan if error is None else error for error in noted["errors"]])


def freeze_error(lab: Lab) -> ExperimentResult:
    rows: list[ClaimRow] = []
    panels: list[Panel] = []
    for bench in lab.benches():
        name, family = bench.model.name, bench.family
        values = [unit.score for unit in bench.scores.units]
        same, own = (
            freeze_errors_of(lab, bench, at_lifetime, lab.steps or bench.steps, bench.samples)
            for at_lifetime in (False, True)
        )
        found = spearman(values, same)
        rows.append(_same_step(bench, found))
        rows.append(_at_own_lifetime(bench, values, own))
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


def _same_step(bench: Bench, found: Correlation) -> ClaimRow:
    """The paper's claim: the score orders the errors of freezing each unit behind the same step."""
    quantity, paper = (
        "Spearman ρ of score and freeze error, all frozen behind the same step",
        SPEARMAN.get(bench.family),
    )
    if np.isnan(found.rho):
        told = "no unit's freezing changes more than another's"
        return ClaimRow(quantity, bench.model.name, paper, None, holds="cannot tell", note=told)
    note = f"p = {found.p:.2g}, {found.n} units"
    row = ClaimRow(quantity, bench.model.name, paper, found.rho, _fisher(found.rho, found.n), note=note)
    return replace(row, evidence=Evidence(found.p, found.rho > 0))


def _at_own_lifetime(bench: Bench, values: list[float], errors: NDArray[np.float64]) -> ClaimRow:
    """The correlation over the units that are frozen at all. In few steps, too few of them may be."""
    quantity, paper = "the same, each frozen behind its lifetime at τ = 1", SPEARMAN.get(bench.family)
    frozen = int(np.isfinite(errors).sum())
    if frozen < LEAST_PAIRS:
        return ClaimRow(quantity, bench.model.name, paper, None, note=f"only {frozen} units are frozen at all")
    found = spearman(values, errors)
    told = f"p = {found.p:.2g}, {found.n} units that are frozen at all: a high score freezes late"
    return ClaimRow(quantity, bench.model.name, paper, _number(found.rho), note=told)


def _regression(name: str, family: str, bench: Bench, errors: NDArray[np.float64]) -> list[ClaimRow]:
    paper = REGRESSION.get(family, (None, None, None, None))
    try:
        found = depth_regression(bench.scores, errors)
    except UsageError as error:  # too few units, or a number that is the same for all of them
        told = str(error)
        return [ClaimRow(BETA, name, paper[0], None, holds="cannot tell", note=told)]
    scr = next(one for one in found.coefficients if one.name == "scr")
    return [
        ClaimRow(
            BETA,
            name,
            paper[0],
            scr.beta,
            (scr.low, scr.high),
            evidence=Evidence(scr.p, scr.beta > 0),
            note=f"p = {scr.p:.2g}",
        ),
        ClaimRow("R² of depth alone", name, paper[2], found.r2_depth),
        ClaimRow("R² of all", name, paper[3], found.r2_full),
    ]


def audited(lab: Lab) -> ExperimentResult:
    rows: list[ClaimRow] = []
    for bench in lab.benches():
        name, steps = bench.model.name, lab.steps or bench.steps
        paper = AUDIT.get(bench.family, (None, None, None, None))

        found = _audit(lab, bench, steps)
        noted = {"rho_b": found.score_and_b.rho, "rho_q": found.score_and_q.rho, "p_q": found.score_and_q.p}
        noted |= {"cv": found.cv, "r2": found.median_drift_r2, "r2_each": found.median_drift_r2_each}
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
                evidence=Evidence(noted["p_q"], False),
                note="the paper: hardly aligned; it cannot be told from a correlation of zero unless this is sure",
            ),
            ClaimRow(
                "coefficient of variation of Q",
                name,
                paper[2],
                noted["cv"],
                holds=_yes(noted["cv"] <= MOST_CV),
                note=CV_TOLD,
            ),
            ClaimRow(
                "median R² of drift against age, all trajectories pooled",
                name,
                paper[3],
                noted["r2"],
                holds=_yes(noted["r2"] >= LEAST_R2),
                note=f"{found.trajectories} trajectories; {R2_TOLD}",
            ),
            ClaimRow(
                "median R² of drift against age, a line for each trajectory",
                name,
                paper[3],
                noted["r2_each"],
                holds=_yes(noted["r2_each"] >= LEAST_R2),
                note=f"the paper does not say which of the two it means; {R2_TOLD}",
            ),
        ]
        rows += _reordered(lab, bench, found.b.tolist())
    return ExperimentResult(
        rows,
        f"Q varies by {spread(rows, 'variation of Q')} of its mean over the units, where the paper has 0.26 to 0.41.",
        limits=SMALL,
    )


def _audit(lab: Lab, bench: Bench, steps: int) -> Audit:
    """The audit of all samples, some at a time, so that an interrupted run goes on."""
    noise = bench.model.noise
    betas, count = None if noise is None else ddim_betas(noise, steps), bench.samples

    def measure(first: int) -> dict[str, Any]:
        lab.say(f"{bench.model.name}: probing {len(bench.model.units)} units on samples from {first} of {count} on")
        sample = bench.sample(steps, min(TOGETHER, count - first), first)
        conditioning = conditioning_of(bench.model)
        return to_json(audit(bench.model, bench.scores, sample, betas=betas, conditioning=conditioning))

    key = f"{bench.model.name}, {steps} steps: audit of samples from"
    parts = [lab.once(f"{key} {first}", partial(measure, first)) for first in range(0, count, TOGETHER)]
    return joined([from_json(part) for part in parts])


def _reordered(lab: Lab, bench: Bench, b: list[float]) -> list[ClaimRow]:
    """The effect of ordering lifetimes by B instead of the score, at the paper's budget."""
    budget = BUDGETS.get(bench.family, 0.35)

    by_b = scheduled(bench.model, lambda steps, blocks: lifetimes_by(bench.scores, steps, b, "B, measured", budget))
    tried(lab, bench, "full", in_full(bench))
    weights = tried(lab, bench, named(bench, f"spectral at {budget:g}"), spectral(bench, budget))
    product = tried(lab, bench, named(bench, f"by B at {budget:g}"), by_b)
    margin = UNCERTAIN.get(bench.family, 0.01)
    told = f"the paper: marginal, here {margin:.2g}"
    return [
        comparison(bench, "order by B", "order by the score", (product, weights), "alike", margin=margin, note=told)
    ]


def _yes(true: bool) -> Verdict:
    return "yes" if true else "no"


def _fisher(rho: float, n: int) -> tuple[float, float] | None:
    """The 95 % interval of a rank correlation."""
    if n < 5 or not abs(rho) < 1:
        return None
    center, width = np.arctanh(rho), 1.96 * 1.03 / np.sqrt(n - 3)
    return float(np.tanh(center - width)), float(np.tanh(center + width))


def _number(value: float) -> float | None:
    return None if np.isnan(value) else value
