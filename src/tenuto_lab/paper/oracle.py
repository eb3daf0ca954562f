"""How few units must be computed if the outcome is known?"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from tenuto.runtime.executor import Executor
from tenuto_lab.frontier.measurements import timed
from tenuto_lab.judging.statistics import mean_interval
from tenuto_lab.judging.verdicts import Verdict, at_most
from tenuto_lab.paper.conditions import Lab
from tenuto_lab.paper.experiment_results import ClaimRow, ExperimentResult, spread
from tenuto_lab.paper.operating import SMALL
from tenuto_lab.paper.trials import Bench
from tenuto_lab.paper.ways import BUDGETS, time_row
from tenuto_lab.probing.trajectory import record, relative
from tenuto_lab.rivals import TOLERANCE, oracle_replay, schedule_for
from tenuto_lab.units.lifetimes import lifetimes

UNITS = 40  # with more, the search takes hours on a CPU: a step takes up to units² trials
ENOUGH = 5  # inputs, for a verdict without any spread
TIMED = 5  # inputs whose replay is timed
STEPS = 10  # of the searched trajectories; the replay of a found pattern takes as many


def oracle(lab: Lab) -> ExperimentResult:
    rows: list[ClaimRow] = []
    for bench in lab.benches():
        inputs = bench.samples
        if len(bench.model.units) > UNITS and bench.model.device.type == "cpu":
            note = "too many units to try one by one on a CPU"
            rows.append(ClaimRow("share of unit-steps found", bench.model.name, None, None, note=note))
            continue
        steps = lab.steps or STEPS
        paper = 930 / 3200 if bench.writes else None
        for ceiling in (None, BUDGETS.get(bench.family, 0.35)):
            found = [
                lab.once(
                    f"{bench.model.name}, {steps} steps: oracle of input {place}, ceiling {ceiling}",
                    partial(_searched, lab, bench, steps, ceiling, place),
                )
                for place in range(inputs)
            ]
            kind = "within the tolerance" if ceiling is None else f"at most {ceiling:.0%}"
            work = mean_interval([one["work"] for one in found], 500)
            deviation = float(np.std([one["work"] for one in found]))
            forced = sum(one["forced"] for one in found)
            least = BUDGETS.get(bench.family, 0.35)
            said = at_most(work, least) if ceiling is None and work[1] < work[2] else None
            holds: Verdict | None = None  # if every input needs as much, that is no lack of evidence
            if ceiling is None and said is None:
                holds = "cannot tell" if inputs < ENOUGH else "yes" if work[0] <= least else "no"
            rows += [
                replace(
                    ClaimRow.of(
                        f"oracle, {kind}: share of unit-steps found",
                        bench.model.name,
                        paper,
                        work,
                        said,
                        f"s.d. {deviation:.2g}; "
                        + (
                            f"{forced} unit-steps frozen beyond the tolerance of {TOLERANCE:g}"
                            if ceiling
                            else "the paper: the tolerance did not bind before the ceiling of 35 %"
                        ),
                    ),
                    holds=holds,
                ),
                ClaimRow.of(
                    f"oracle, {kind}: {'tokens that differ' if bench.writes else 'relative error of the picture'}",
                    bench.model.name,
                    None,
                    mean_interval([one["error"] for one in found], 500),
                    None,
                    f"spectral lifetimes at the same work: {np.mean([one['spectral'] for one in found]):.2g}",
                ),
                _time_row(lab, bench, steps, ceiling, kind, found),
            ]
    return ExperimentResult(
        rows,
        f"Within a tolerance of {TOLERANCE:g} the search leaves "
        f"{spread(rows, 'within the tolerance: share')} of the unit-steps computed.",
        limits=SMALL + f" Trajectories of {lab.steps or STEPS} steps; branches, not blocks, are frozen.",
        rests_on=f"{lab.samples} inputs, a search of each",
    )


def _searched(lab: Lab, bench: Bench, steps: int, ceiling: float | None, place: int) -> dict[str, Any]:
    model = bench.model
    sample = bench.sample(steps, 1, place)
    trajectory = record(model.network, sample)[0]
    most = None if ceiling is None else max(len(model.units), round(ceiling * len(model.units) * steps))
    found = oracle_replay(model, trajectory, ceiling=most)
    lab.say(f"{model.name}: oracle of input {place}, {found.schedule.budget:.0%} computed")
    work = found.schedule.budget
    full = sample(Executor(model.network, mode="eager"))
    replayed = sample(Executor(model.network, found.schedule, mode="skip"))
    static = sample(Executor(model.network, lifetimes(bench.scores, steps, budget=max(work, 0.1)), mode="skip"))
    return {
        "work": work,
        "forced": found.forced,
        "error": _distance(bench, replayed, full),
        "spectral": _distance(bench, static, full),
        "active": ["".join("01"[on] for on in row) for row in found.schedule.active.astype(int)],
    }


def _time_row(
    lab: Lab, bench: Bench, steps: int, ceiling: float | None, kind: str, found: list[dict[str, Any]]
) -> ClaimRow:
    """The time of replaying the patterns found, beside eager full inference."""
    quantity = f"oracle, {kind}: time of the replay, of eager full inference"
    paper = 125 / 450 if bench.writes else None

    def measure() -> dict[str, Any]:
        model, shares = bench.model, []
        for place, one in enumerate(found[:TIMED]):
            sample = bench.sample(steps, 1, place)
            active = np.array([[on == "1" for on in row] for row in one["active"]])
            executors = [Executor(model.network, mode="eager")]
            executors.append(Executor(model.network, schedule_for(model, active, "update", {"name": "oracle_replay"})))
            took = []
            for executor in executors:
                sample(executor)  # records graphs, if there are any
                took.append(timed(partial(sample, executor), model.device)[1])
                executor.release()
            shares.append(took[1] / took[0])
        return {"shares": shares}

    noted = lab.time(f"{bench.model.name}, {steps} steps: oracle's time, ceiling {ceiling}", measure)
    if not noted:
        return time_row(quantity, bench, paper, None)
    told = f"{len(noted['shares'])} inputs"
    return ClaimRow.of(quantity, bench.model.name, paper, mean_interval(noted["shares"], 500), note=told)


def _distance(bench: Bench, made: Tensor, full: Tensor) -> float:
    """For text, the share of tokens that differ; for pictures, the relative error."""
    return float((made != full).double().mean()) if bench.writes else relative(made.double(), full.double())
