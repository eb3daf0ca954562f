"""How few units must be computed if the outcome is known?"""

from functools import partial
from typing import Any

from torch import Tensor

from tenuto.runtime.executor import Executor
from tenuto.scheduling.lifetimes import lifetimes
from tenuto_lab.paper.conditions import Lab
from tenuto_lab.paper.experiment_results import ClaimRow, ExperimentResult, spread
from tenuto_lab.paper.operating import SMALL
from tenuto_lab.paper.trials import Bench
from tenuto_lab.paper.ways import BUDGETS
from tenuto_lab.probing.trajectory import record, relative
from tenuto_lab.rivals import TOLERANCE, oracle_replay

STEPS = 10
UNITS = 40  # with more, the search takes hours on a CPU: a step takes up to units² trials


def oracle(lab: Lab) -> ExperimentResult:
    rows: list[ClaimRow] = []
    for bench in lab.benches():
        if len(bench.model.units) > UNITS and bench.model.device.type == "cpu":
            note = "too many units to try one by one on a CPU"
            rows.append(ClaimRow("share of unit-steps found", bench.model.name, None, None, note=note))
            continue
        steps = min(lab.steps or STEPS, STEPS)
        paper = 930 / 3200 if bench.writes else None
        for ceiling in (None, BUDGETS.get(bench.family, 0.35)):
            key = f"{bench.model.name}, {steps} steps: oracle, ceiling {ceiling}"
            noted = lab.once(key, partial(_searched, lab, bench, steps, ceiling))
            kind = "within the tolerance" if ceiling is None else f"at most {ceiling:.0%}"
            rows += [
                ClaimRow(
                    f"oracle, {kind}: share of unit-steps found",
                    bench.model.name,
                    paper,
                    noted["work"],
                    holds=noted["work"] <= BUDGETS.get(bench.family, 0.35) if ceiling is None else None,
                    note=f"{noted['forced']} unit-steps frozen beyond the tolerance of {TOLERANCE:g}"
                    if ceiling
                    else "the paper: the tolerance did not bind before the ceiling of 35 %",
                ),
                ClaimRow(
                    f"oracle, {kind}: {'tokens that differ' if bench.writes else 'relative error of the picture'}",
                    bench.model.name,
                    None,
                    noted["error"],
                    note=f"spectral lifetimes at the same work: {noted['spectral']:.2g}",
                ),
            ]
    return ExperimentResult(
        rows,
        f"Within a tolerance of {TOLERANCE:g} the search leaves "
        f"{spread(rows, 'within the tolerance: share')} of the unit-steps computed.",
        limits=SMALL + f" Trajectories of {STEPS} steps.",
        rests_on="one sample a search",
    )


def _searched(lab: Lab, bench: Bench, steps: int, ceiling: float | None) -> dict[str, Any]:
    model = bench.model
    sample = bench.sample(steps, count=1)
    trajectory = record(model.network, sample)[0]
    most = None if ceiling is None else max(len(model.units), round(ceiling * len(model.units) * steps))
    found = oracle_replay(
        model,
        trajectory,
        ceiling=most,
        progress=lambda step, active: lab.say(f"{model.name}: step {step} of {steps}, {active} units computed"),
    )
    work = found.schedule.budget
    full, replayed = sample(Executor(model.network, mode="eager")), sample(Executor(model.network, found.schedule))
    static = sample(Executor(model.network, lifetimes(bench.scores, steps, budget=max(work, 0.1))))
    return {
        "work": work,
        "forced": found.forced,
        "error": _distance(bench, replayed, full),
        "spectral": _distance(bench, static, full),
    }


def _distance(bench: Bench, made: Tensor, full: Tensor) -> float:
    """For text, the share of tokens that differ; for pictures, the relative error."""
    return float((made != full).double().mean()) if bench.writes else relative(made.double(), full.double())
