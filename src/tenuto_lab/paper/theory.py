"""What the paper's theory says, evaluated: the bounds of Lemma 2 and Theorem 1, and scores of quantised weights."""

from functools import partial
from typing import Any, get_args

import numpy as np

from tenuto.models.architecture import NoiseLevels
from tenuto_lab.judging.verdicts import Evidence
from tenuto_lab.paper.conditions import Lab
from tenuto_lab.paper.experiment_results import ClaimRow, ExperimentResult, spread
from tenuto_lab.paper.operating import SMALL, TAU
from tenuto_lab.paper.trials import Bench
from tenuto_lab.probing.audit_inputs import ddim_betas
from tenuto_lab.probing.bound import DIRECT, bound, ddim_alphas
from tenuto_lab.probing.quantised import Bits, scores_quantised
from tenuto_lab.probing.sensitivity import spearman
from tenuto_lab.units.lifetimes import lifetimes

FROZEN = 0.35  # share of the steps before the freeze


def bounds(lab: Lab) -> ExperimentResult:
    rows: list[ClaimRow] = []
    for bench in lab.benches():
        name, noise = bench.model.name, bench.model.noise
        if bench.family not in DIRECT or noise is None:
            why = "the argument does not cover it" if bench.family not in DIRECT else "tokens take no DDIM step"
            rows.append(ClaimRow("Theorem 1: bound over true error, median of the units", name, None, None, note=why))
            continue
        found = lab.once(f"{name}, {lab.steps or bench.steps} steps: bounds", partial(_measured, lab, bench, noise))
        rows += [
            ClaimRow("Lemma 2: bound over measured slope, median of the units", name, None, found["lemma"]),
            ClaimRow("Theorem 1: bound over true error, median of the units", name, None, found["theorem"]),
            ClaimRow(
                "Theorem 1: units whose true error is above the bound",
                name,
                0.0,
                found["broken"],
                holds="yes" if found["broken"] == 0 else "no",
                note=f"of {found['units']}",
            ),
            ClaimRow(
                "Theorem 1: rank correlation of bound and true error",
                name,
                None,
                found["rho"],
                evidence=Evidence(found["p"], found["rho"] > 0),
                note="does the bound order the units?",
            ),
            ClaimRow(
                "the same of the score and the true error",
                name,
                None,
                found["rho_score"],
                note=f"p = {found['p_score']:.2g}",
            ),
        ]
    return ExperimentResult(
        rows,
        f"Lemma 2 lies {spread(rows, 'Lemma 2')} times above the slope that was measured, and Theorem 1 "
        f"{spread(rows, 'Theorem 1: bound over')} times above the true error.",
        limits=SMALL
        + " One unit is frozen at a time. Movement and amplification are measured, so only the weight-only "
        "factor is a bound. AdaLN's scale, shift and gate lie outside of the lemma.",
    )


def _measured(lab: Lab, bench: Bench, noise: NoiseLevels) -> dict[str, Any]:
    from tenuto.sampling.pictures import Sampling, generate, make_solver

    steps = lab.steps or bench.steps
    solver = make_solver(noise, Sampling(steps=steps))
    levels = [float(solver.alphas_cumprod[t]) for t in solver.timesteps] + [float(solver.final_alpha_cumprod)]
    lab.say(f"{bench.model.name}: bounding {len(bench.model.units)} units")
    found = bound(
        bench.model,
        bench.scores,
        # Without guidance and without clamping: the theorem speaks of one network and of z_0 itself.
        lambda executor: generate(
            bench.model,
            [i % bench.model.config.classes for i in range(lab.samples)],
            executor=executor,
            sampling=Sampling(steps=steps, guidance=1.0),
            batch=lab.samples,
        ),
        ddim_betas(noise, steps),
        ddim_alphas(levels),
        last=max(1, round(FROZEN * steps)),
    )
    of_score = spearman([unit.score for unit in bench.scores.units], found.errors)
    return {
        "lemma": found.lemma_looseness,
        "theorem": found.theorem_looseness,
        "broken": found.broken,
        "units": len(found.units),
        "rho": found.order.rho,
        "p": found.order.p,
        "rho_score": of_score.rho,
        "p_score": of_score.p,
    }


def quantisation(lab: Lab) -> ExperimentResult:
    """From the weights alone; nothing is sampled."""
    rows: list[ClaimRow] = []
    for bench in lab.benches():
        steps = lab.steps or bench.steps
        before = np.array([unit.score for unit in bench.scores.units])
        lives = np.array(lifetimes(bench.scores, steps, tau=TAU).lifetimes)
        for bits in get_args(Bits):
            scores = scores_quantised(bench.model, bits, bench.granularity)
            after = np.array([unit.score for unit in scores.units])
            moved = np.abs(np.array(lifetimes(scores, steps, tau=TAU).lifetimes) - lives)
            for quantity, value in (
                ("rank correlation with the scores in full precision", spearman(before, after).rho),
                ("largest change of a score, relative", float((np.abs(after - before) / before).max())),
                ("largest change of a lifetime, share of T", float(moved.max() / steps)),
                ("unit-steps that change, share", float(moved.mean() / steps)),
            ):
                row = ClaimRow(f"{bits}: {quantity}", bench.model.name, None, value, granularity=bench.granularity)
                rows.append(row)
    return ExperimentResult(
        rows,
        f"Unit-steps that change: {spread(rows, 'int8: unit-steps')} under int8, "
        f"{spread(rows, 'fp8: unit-steps')} under fp8, {spread(rows, 'int4: unit-steps')} under 4 bits.",
        limits="The paper says only that scores should be recomputed after aggressive quantisation. Weights are "
        "rounded to nearest; methods that calibrate move weights differently.",
        rests_on="the weights alone",
    )
