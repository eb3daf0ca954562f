"""Draws samples by the default and by its rivals with as many evaluations, and compares them with two full runs."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import tenuto
from benchmarks.networks_of_others.case import Case
from benchmarks.networks_of_others.solvers import FEWER, solvers_for
from tenuto_lab.frontier.measurements import HIGHEST, compared
from tenuto_lab.judging.statistics import mean_interval

BUDGETS = (0.5, 0.34, 0.25, 0.2, 0.13)
MANY = 250  # steps in which the default aims at the converged sample, if the network has so many levels
MOST = 500  # steps of the run that is taken for converged, if the network has so many levels
AGREE = 35.0  # dB between runs of half and of all these steps, from which on the latter is taken for converged
FULL, OURS, LONG = "full", "tenuto", "tenuto, many steps"
Say = Callable[[str], object]


class Drawn:
    """The samples of one network by every way; none is drawn twice."""

    def __init__(self, case: Case, samples: int, seeds: int) -> None:
        self.case, self.samples, self.seeds = case, samples, seeds
        self.evaluated = 0
        self._known: dict[tuple[Any, ...], tuple[Tensor, int]] = {}
        case.network.register_forward_hook(self._count)

    def full(self, steps: int) -> Tensor:
        return self._drawn((FULL, steps), self.case.pipeline, steps)[0]

    def solved(self, solver: str, steps: int) -> tuple[Tensor, int]:
        scheduler = solvers_for(self.case)[solver]
        return self._drawn((solver, steps), lambda: self.case.pipeline(scheduler(self.case)), steps)

    def ours(self, steps: int, budget: float) -> tuple[Tensor, int]:
        """The samples under the default schedule, and the number of evaluations."""
        key = (OURS, steps, round(budget * steps))
        if key not in self._known:
            pipeline = self.case.pipeline()
            with tenuto.accelerated(pipeline, budget, mode="skip"):  # figures of speed are elsewhere
                self._drawn(key, lambda: pipeline, steps)
        return self._known[key]

    def _drawn(self, key: tuple[Any, ...], pipeline: Callable[[], Any], steps: int) -> tuple[Tensor, int]:
        if key not in self._known:
            self.evaluated = 0
            made = self.case.draw(pipeline(), steps, range(self.seeds), self.samples)
            self._known[key] = made.cpu(), self.evaluated
        return self._known[key]

    def _count(self, *_: object) -> None:
        self.evaluated += 1


def decibels(samples: Tensor, reference: Tensor, peak: float) -> Tensor:
    """Of each sample, peak² over its mean squared distance; as high as is told apart where they are equal."""
    if samples.shape != reference.shape:
        raise ValueError(f"samples of shape {tuple(samples.shape)} cannot be compared with {tuple(reference.shape)}")
    error = (samples.double() - reference.double()).square().flatten(1).mean(dim=1)
    found = (10 * torch.log10(peak**2 / error)).clamp(max=HIGHEST)
    return found.nan_to_num(nan=-HIGHEST, neginf=-HIGHEST)  # a solver that diverged


def measure(
    case: Case,
    steps: Sequence[int],
    budgets: Sequence[float],
    samples: int,
    seeds: int,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """What is known of the network, a row for each way, and comparisons of ours with its rivals."""
    drawn = Drawn(case, samples, seeds)
    most = min(MOST, len(case.betas))
    converged = drawn.full(most)
    peak = float(converged.max() - converged.min())
    agree = float(decibels(drawn.full(most // 2), converged, peak).mean())
    say(f"{case.name}: range {peak:.2f}; {most // 2} and {most} steps agree to {agree:.1f} dB")
    known = {
        "about": case.about,
        "source": case.source,
        "parameters": sum(value.numel() for value in case.network.parameters()),
        "peak": peak,
        "levels": len(case.betas),
        "most": most,
        "agree": round(agree, 2),
        "converged": agree >= AGREE,
        "other_noise": float(decibels(converged, converged.roll(samples, 0), peak).mean()) if seeds > 1 else None,
    }
    rows, comparisons = [], []
    for count in steps:
        full = drawn.full(count)
        each = {"full": decibels(full, full, peak), "converged": decibels(full, converged, peak)}
        rows.append({"way": FULL, "steps": count, "evaluations": count, **summary(each)})
        known_already = set()
        for budget in budgets:
            if (evaluations := drawn.ours(count, budget)[1]) in known_already:
                continue  # in few steps, two budgets can mean the same schedule
            known_already.add(evaluations)
            found = ways(drawn, count, budget)
            near = {
                way: {"full": decibels(made, full, peak), "converged": decibels(made, converged, peak)}
                for way, (made, _) in found.items()
            }
            at = {"steps": count, "budget": budget, "of_ours": evaluations}
            rows += [{"way": way, **at, "evaluations": found[way][1], **summary(each)} for way, each in near.items()]
            for target in ("full", "converged"):
                ours = max((OURS, LONG), key=lambda way: float(near[way][target].mean()))
                for name, rival in rivals(near, target).items():
                    one = compared(case.name, count, target, (ours, near[ours][target]), (rival, near[rival][target]))
                    comparisons.append({**at, "rival": name, **one.to_json()})
            told = (f"{way} {each['full'].mean():.1f} / {each['converged'].mean():.1f}" for way, each in near.items())
            say(f"{case.name}, {evaluations} of {count}: {', '.join(told)} dB")
    return {"network": known, "rows": rows, "comparisons": comparisons}


def ways(drawn: Drawn, steps: int, budget: float) -> dict[str, tuple[Tensor, int]]:
    """The samples by each way, and how often each evaluated the network: as often as ours, or nearly."""
    ours = drawn.ours(steps, budget)
    many = min(MANY, len(drawn.case.betas))
    found = {OURS: ours, LONG: drawn.ours(many, ours[1] / many)}
    return found | {solver: drawn.solved(solver, ours[1]) for solver in solvers_for(drawn.case)}


def rivals(near: dict[str, dict[str, Tensor]], target: str) -> dict[str, str]:
    """Fewer steps of DDIM, and the solver that came nearest; a user could not know which that is."""
    best = max((way for way in near if way not in (OURS, LONG)), key=lambda way: float(near[way][target].mean()))
    return {"fewer steps": FEWER, "best solver": best}


def summary(each: dict[str, Tensor]) -> dict[str, float]:
    """Means and 95 % intervals, in dB."""
    numbers = {}
    for target, values in each.items():
        for name, value in zip(("dB", "low", "high"), mean_interval(values), strict=True):
            numbers[f"{target}_{name}"] = round(value, 4)
    return numbers
