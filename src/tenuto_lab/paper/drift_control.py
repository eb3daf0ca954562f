"""A schedule from weights alone, compared with choosing units by the activation drift of each input."""

from tenuto.scheduling.lifetimes import lifetimes
from tenuto_lab.paper.conditions import Lab
from tenuto_lab.paper.experiment_results import ClaimRow, ExperimentResult
from tenuto_lab.paper.operating import SMALL
from tenuto_lab.paper.trials import Bench, Trial, Way
from tenuto_lab.paper.ways import BUDGETS, in_full, ours, paired_row, quality_rows, spectral, tried, within
from tenuto_lab.rivals import ActivationDrift

# The paper: (spectral, drift) latency divided by full inference's, and the loss of quality.
LATENCY = {"llada": (150 / 450, 171 / 450), "dit": (0.61 / 1.82, 0.69 / 1.82), "unet": (1.60 / 4.80, 1.78 / 4.80)}
LOST: dict[str, tuple[dict[str, float], dict[str, float]]] = {
    "llada": ({"arithmetic": -0.002}, {"arithmetic": -0.001}),
    "dit": ({"fid": 0.08 / 2.27}, {"fid": 0.05 / 2.27}),
    "unet": ({"fid": 0.25 / 7.84}, {"fid": 0.18 / 7.84}),
}


def input_aware(lab: Lab) -> ExperimentResult:
    rows: list[ClaimRow] = []
    for bench in lab.benches():
        name, budget = bench.model.name, BUDGETS.get(bench.family, 0.35)
        full = tried(lab, bench, "full", in_full(bench))
        static = tried(lab, bench, f"spectral at {budget:g}", spectral(bench, budget))
        drift = tried(lab, bench, f"activation drift at {budget:g}", _drift(bench, budget))
        default = tried(lab, bench, f"tenuto at {budget:g}", ours(bench, budget))
        times, lost = LATENCY.get(bench.family, (None, None)), LOST.get(bench.family, ({}, {}))
        for title, trial, paper, claimed in (
            ("spectral static", static, times[0], lost[0]),
            ("activation drift", drift, times[1], lost[1]),
            ("Tenuto's default", default, None, {}),
        ):
            rows.append(ClaimRow(f"{title}: share of unit-steps", name, None, trial.work))
            rows.append(ClaimRow(f"{title}: time, of eager full inference", name, paper, 1 / trial.speedup))
            rows += quality_rows(bench, title, trial, full, claimed, claims=False)
        rows += _claims(bench, static, drift)
    return ExperimentResult(
        rows,
        "The paper's claims are that drift is slower, and as good within the displayed uncertainty.",
        limits=SMALL + " Drift decides for a whole batch at once.",
    )


def _drift(bench: Bench, budget: float) -> Way:
    return lambda steps, blocks: ActivationDrift(bench.model.network, lifetimes(bench.scores, steps, budget=budget))


def _claims(bench: Bench, static: Trial, drift: Trial) -> list[ClaimRow]:
    slower = static.speedup / drift.speedup
    return [
        ClaimRow(
            "time of activation drift, of the static schedule's",
            bench.model.name,
            times[1] / times[0] if (times := LATENCY.get(bench.family)) else None,
            slower,
            holds=slower > 1,
        ),
        paired_row(
            bench,
            f"activation drift less spectral static, {bench.quality}",
            (drift, static),
            bench.quality,
            within,
            note="within uncertainty, says the paper; {test}",
        ),
    ]
