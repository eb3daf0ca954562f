"""What the paper's theory says, evaluated: the bounds of Lemma 2 and Theorem 1, and scores of quantised weights."""

from functools import partial
from typing import Any, get_args

import numpy as np

from tenuto.models.architecture import NoiseLevels
from tenuto_lab.judging.verdicts import Evidence
from tenuto_lab.paper.conditions import Lab
from tenuto_lab.paper.experiment_report import number
from tenuto_lab.paper.experiment_results import ClaimRow, ExperimentResult, spread
from tenuto_lab.paper.operating import TAU
from tenuto_lab.paper.trials import Bench
from tenuto_lab.probing.audit_inputs import ddim_betas
from tenuto_lab.probing.bound import DIRECT, bound, ddim_alphas, slopes
from tenuto_lab.probing.quantised import Bits, scores_quantised
from tenuto_lab.probing.sensitivity import spearman
from tenuto_lab.units.lifetimes import lifetimes

FROZEN = 0.35  # share of the steps before the freeze


def bounds(lab: Lab) -> ExperimentResult:
    rows: list[ClaimRow] = []
    for bench in lab.benches():
        name, noise = bench.model.name, bench.model.noise
        if bench.family not in DIRECT:
            why = "the argument does not cover it"
            rows.append(ClaimRow("Theorem 1: bound over true error, median of the units", name, None, None, note=why))
            continue
        measure = partial(_lemma, lab, bench) if noise is None else partial(_measured, lab, bench, noise)
        found = lab.once(f"{name}, {lab.steps or bench.steps} steps: bounds", measure)
        told = f"of {found['units']} units, {_trajectories(lab, bench)}"
        rows += [
            ClaimRow("Lemma 2: bound over measured slope, median of the units", name, None, found["lemma"], note=told),
            _none_above("Lemma 2: units whose measured slope is above the bound", name, found["steep"], told),
        ]
        if noise is None:
            why = "tokens take no DDIM step, and the theorem is about them"
            rows.append(ClaimRow("Theorem 1: bound over true error, median of the units", name, None, None, note=why))
            continue
        rows += [
            ClaimRow("Theorem 1: bound over true error, median of the units", name, None, found["theorem"], note=told),
            _none_above("Theorem 1: units whose true error is above the bound", name, found["broken"], told),
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
        f"Lemma 2 lies {_times(rows, 'Lemma 2: bound over')} times above the slope that was measured, and Theorem 1 "
        f"{_times(rows, 'Theorem 1: bound over')} times above the true error.",
        limits="Small networks (5 to 15 million parameters). One unit is frozen at a time, without guidance. Movement "
        "and amplification are measured, so only the weight-only factor is a bound. AdaLN's scale, shift and gate lie "
        "outside of the lemma; of SwiGLU, W₁ is gate and up stacked.",
    )


def _none_above(quantity: str, model: str, count: int, told: str) -> ClaimRow:
    """A bound that something lies above is none."""
    return ClaimRow(quantity, model, 0.0, count, holds="yes" if count == 0 else "no", note=told)


def _times(rows: list[ClaimRow], containing: str) -> str:
    found = [row.measured for row in rows if containing in row.quantity and row.measured is not None]
    return " to ".join(dict.fromkeys((number(min(found)), number(max(found))))) if found else "an unknown number of"


def _trajectories(lab: Lab, bench: Bench) -> str:
    count, steps = bench.samples, lab.steps or bench.steps
    return f"{count} {'trajectory' if count == 1 else 'trajectories'} of {steps} steps"


def _lemma(lab: Lab, bench: Bench) -> dict[str, Any]:
    """Lemma 2 alone, of a model that takes no steps of DDIM."""
    steps = lab.steps or bench.steps
    lab.say(f"{bench.model.name}: bounding the slopes of {len(bench.model.units)} units")
    last = max(1, round(FROZEN * steps))
    found = slopes(bench.model, bench.scores, bench.sample(steps, bench.samples), last=last)
    return {"lemma": found.lemma_looseness, "steep": found.too_steep, "units": len(found.units)}


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
        "steep": found.too_steep,
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
    changed: list[ClaimRow] = []
    others: list[ClaimRow] = []
    for bench in lab.benches():
        steps = lab.steps or bench.steps
        before = np.array([unit.score for unit in bench.scores.units])
        lives = np.array(lifetimes(bench.scores, steps, tau=TAU).lifetimes)
        for bits in get_args(Bits):
            scores = scores_quantised(bench.model, bits, bench.granularity)
            after = np.array([unit.score for unit in scores.units])
            moved = np.abs(np.array(lifetimes(scores, steps, tau=TAU).lifetimes) - lives)
            for quantity, value, kept in (
                ("unit-steps that change, share", float(moved.mean() / steps), changed),
                ("largest change of a lifetime, share of T", float(moved.max() / steps), others),
                ("rank correlation with the scores in full precision", spearman(before, after).rho, others),
                ("largest change of a score, relative", float((np.abs(after - before) / before).max()), others),
            ):
                row = ClaimRow(f"{bits}: {quantity}", bench.model.name, None, value, granularity=bench.granularity)
                kept.append(row)
    rows = [*changed, *others]  # a page that shows only some rows of a model shows the first ones
    return ExperimentResult(
        rows,
        f"Unit-steps that change: {spread(rows, 'int8: unit-steps')} under int8, "
        f"{spread(rows, 'fp8: unit-steps')} under fp8, {spread(rows, 'int4: unit-steps')} under 4 bits. The largest "
        f"change of a lifetime under 4 bits is {spread(rows, 'int4: largest change of a lifetime')} of T, and of a "
        f"score {spread(rows, 'int4: largest change of a score')} of it.",
        limits="The paper says only that scores should be recomputed after aggressive quantisation. Weights are "
        "rounded to nearest; methods that calibrate move weights differently.",
        rests_on="the weights alone",
    )
