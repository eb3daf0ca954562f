"""A schedule from weights alone, compared with choosing units by the activation drift of each input."""

from dataclasses import replace

from tenuto_lab.judging.statistics import mean_interval
from tenuto_lab.paper.conditions import Lab
from tenuto_lab.paper.experiment_results import ClaimRow, ExperimentResult
from tenuto_lab.paper.operating import SMALL
from tenuto_lab.paper.trials import Bench, Way
from tenuto_lab.paper.ways import (
    BUDGETS,
    UNCERTAIN,
    comparison,
    in_full,
    named,
    ours,
    quality_rows,
    spectral,
    time_row,
    tried,
)
from tenuto_lab.rivals import ActivationDrift
from tenuto_lab.units.lifetimes import lifetimes

FEW = 8  # samples whose patterns are looked up in the graph library

# The paper: (spectral, drift) latency divided by full inference's, and the loss of quality.
LATENCY = {"llada": (150 / 450, 171 / 450), "dit": (0.61 / 1.82, 0.69 / 1.82), "unet": (1.60 / 4.80, 1.78 / 4.80)}
LOST: dict[str, tuple[dict[str, float], dict[str, float]]] = {
    "llada": ({"task": -0.002}, {"task": -0.001}),
    "dit": ({"fid": 0.08 / 2.27}, {"fid": 0.05 / 2.27}),
    "unet": ({"fid": 0.25 / 7.84}, {"fid": 0.18 / 7.84}),
}


def input_aware(lab: Lab) -> ExperimentResult:
    rows: list[ClaimRow] = []
    for bench in lab.benches():
        name, budget = bench.model.name, BUDGETS.get(bench.family, 0.35)
        full = tried(lab, bench, "full", in_full(bench))
        static = tried(lab, bench, named(bench, f"spectral at {budget:g}"), spectral(bench, budget), timed=True)
        way = _drift(bench, budget, False)
        together = tried(lab, bench, named(bench, f"activation drift at {budget:g}"), way, timed=True)
        drift = tried(lab, bench, named(bench, f"drift of each sample at {budget:g}"), _drift(bench, budget, True))
        default = tried(lab, bench, f"tenuto at {budget:g}", ours(bench, budget), timed=True)
        times, lost = LATENCY.get(bench.family, (None, None)), LOST.get(bench.family, ({}, {}))
        for title, trial, paper, claimed in (
            ("spectral static", static, times[0], lost[0]),
            ("activation drift", drift, None, lost[1]),
            ("activation drift, one decision for a batch", together, times[1], {}),
            ("Tenuto's default", default, None, {}),
        ):
            rows.append(ClaimRow(f"{title}: share of unit-steps", name, None, trial.work))
            rows.append(time_row(f"{title}: time, of eager full inference", bench, paper, trial.share_of_time))
            rows += quality_rows(bench, title, trial, full, claimed, claims=False)
        rows.append(_known_row(lab, bench, budget))
        slower = static.speedup / together.speedup if static.speedup and together.speedup else None
        in_paper = times[1] / times[0] if times[0] and times[1] else None
        row = time_row("time of activation drift, of the static schedule's", bench, in_paper, slower)
        rows.append(replace(row, holds=None if slower is None else "yes" if slower > 1 else "no"))
        margin = UNCERTAIN.get(bench.family, 0.01)
        told = f"the paper: alike within its uncertainty, here {margin:.2g}"
        rows.append(
            comparison(bench, "activation drift", "spectral static", (drift, static), "alike", margin=margin, note=told)
        )
    return ExperimentResult(
        rows,
        "The paper's claims are that drift is slower, and as good within the displayed uncertainty.",
        limits=SMALL
        + " Quality is that of every sample deciding for itself; time is that of one decision for a batch. On a GPU, "
        "steps whose pattern is one of the static schedule's replay its graph, and the others run eagerly.",
    )


def _known_row(lab: Lab, bench: Bench, budget: float) -> ClaimRow:
    """How often the drift of one sample chooses a pattern for which the static schedule has a graph."""
    steps = lab.steps or bench.steps

    def measure() -> dict[str, object]:
        rival = ActivationDrift(bench.model.network, lifetimes(bench.scores, steps, budget=budget))
        found = []
        for place in range(FEW):
            bench.sample(steps, 1, place % bench.samples)(rival)
            found.append(sum(one in rival.library for one in rival.patterns) / len(rival.patterns))
            rival.forget()
        rival.release()
        return {"found": found}

    noted = lab.once(f"{bench.model.name}, {steps} steps: patterns of drift, {bench.granularity}", measure)
    told = f"{FEW} samples, one at a time; the others run eagerly"
    found = mean_interval(noted["found"], 500)
    quantity = "activation drift: steps whose pattern the graph library has, share"
    return replace(ClaimRow.of(quantity, bench.model.name, None, found, note=told), granularity=bench.granularity)


def _drift(bench: Bench, budget: float, apart: bool) -> Way:
    halves = None if not apart else 1 if bench.writes or getattr(bench, "guidance", None) == 1 else 2
    return lambda steps, blocks: ActivationDrift(
        bench.model.network, lifetimes(bench.scores, steps, budget=budget), halves
    )
