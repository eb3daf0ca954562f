"""Draws samples by the default and by its rivals with as many evaluations, and compares them with two full runs."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

import tenuto
from benchmarks.fingerprints import digest, digest_of_code, fingerprint, same
from benchmarks.kept import Kept
from benchmarks.networks_of_others import case as case_code
from benchmarks.networks_of_others import solvers as solver_code
from benchmarks.networks_of_others.case import Case
from benchmarks.networks_of_others.solvers import FEWER, solvers_for
from tenuto.errors import UsageError
from tenuto_lab.frontier.measurements import HIGHEST, compared
from tenuto_lab.judging.statistics import mean_interval

EVALUATIONS = (25, 17, 12, 10, 8, 6)  # of each number of steps, those that are at most half of the steps
MANY = 250  # steps in which the default aims at the converged sample, if they divide the network's levels
MOST = 500  # steps of the run that is taken for converged, if the network has so many levels
AGREE = 35.0  # dB between runs of half and of all these steps, from which on the latter is taken for converged
FULL, OURS, LONG = "full", "tenuto", "tenuto, many steps"
TARGETS = ("full", "converged")
Say = Callable[[str], object]
Near = dict[str, Tensor]  # for each target, the dB of each sample


class Drawn:
    """The samples of one network by every way; none is drawn twice. Full runs and rivals are kept on disk, if asked."""

    def __init__(
        self, case: Case, samples: int, seeds: int, kept: Kept | None = None, say: Say = lambda text: 0
    ) -> None:
        self.case, self.samples, self.seeds, self.kept, self.say = case, samples, seeds, kept, say
        self.evaluated = 0
        self._known: dict[tuple[Any, ...], tuple[Tensor, int]] = {}
        case.network.register_forward_hook(self._count)

    def full(self, steps: int) -> Tensor:
        return self._stored((FULL, steps), self.case.pipeline(), steps)[0]

    def solved(self, solver: str, steps: int) -> tuple[Tensor, int]:
        scheduler = solvers_for(self.case)[solver](self.case)
        return self._stored((solver, steps), self.case.pipeline(scheduler), steps)

    def ours(self, steps: int, evaluations: int) -> tuple[Tensor, int]:
        """The samples under the default schedule, and the number of evaluations. These are never kept on disk."""
        key = (OURS, steps, evaluations)
        if key not in self._known:
            pipeline = self.case.pipeline()
            with tenuto.accelerated(pipeline, evaluations=evaluations, mode="skip"):  # figures of speed are elsewhere
                self._known[key] = self._drawn(pipeline, steps)
        return self._known[key]

    @cached_property
    def _beginning(self) -> dict[str, Any]:
        """What all samples depend on, whatever the solver."""
        case = self.case
        return {
            "network": [case.name, digest(*case.network.state_dict().values())],
            "noise": digest(case.noise(range(self.seeds), self.samples), *case.conditions(self.samples)),
            "code": digest_of_code(case_code, solver_code),
            "device": next(case.network.parameters()).device.type,
            "versions": [version("torch"), version("diffusers")],
        }

    def _stored(self, key: tuple[Any, ...], pipeline: Any, steps: int) -> tuple[Tensor, int]:
        if key in self._known:
            return self._known[key]
        scheduler = pipeline.scheduler
        config = {name: value for name, value in scheduler.config.items() if not name.startswith("_")}  # those vary
        name = [type(scheduler).__name__, key[0], config]
        depends = {**self._beginning, "scheduler": name, "steps": steps} if self.kept else {}
        found = self.kept.find(depends) if self.kept else None
        if found is None:
            began = time.perf_counter()
            found = self._drawn(pipeline, steps)
            self.say(f"{self.case.name}: {key[0]}, {steps} steps drawn in {time.perf_counter() - began:.0f} s")
            if self.kept:
                self.kept.keep(depends, *found)
        self._known[key] = found
        return found

    def _drawn(self, pipeline: Any, steps: int) -> tuple[Tensor, int]:
        self.evaluated = 0
        made = self.case.draw(pipeline, steps, range(self.seeds), self.samples)
        return made.cpu(), self.evaluated

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
    evaluations: Sequence[int],
    samples: int,
    seeds: int,
    say: Say = lambda text: None,
    *,
    kept: Kept | None = None,
    before: Mapping[str, Any] | None = None,
    solvers: Sequence[str] | None = None,
    agreement: bool = True,
) -> dict[str, Any]:
    """What is known of the network, a row for each way, and comparisons of ours with its rivals.

    kept       where full runs and rivals' samples are kept
    before     what an earlier run found. If it is given, ours alone is measured, and all else is taken from it
    solvers    the rivals; by default every one that suits the network. DDIM is always one of them
    agreement  whether a run of half as many steps is drawn, to see whether the longest run has converged
    """
    if before is not None:
        check_before(case.name, before, steps, evaluations, samples * seeds)
    drawn = Drawn(case, samples, seeds, kept, say)
    most = min(MOST, len(case.betas))
    converged = drawn.full(most)
    peak = float(converged.max() - converged.min())
    say(f"{case.name}: range {peak:.2f}")
    known: dict[str, Any] = {
        "about": case.about,
        "source": case.source,
        "parameters": sum(value.numel() for value in case.network.parameters()),
        "peak": peak,
        "levels": len(case.betas),
        "most": most,
        "agree": None,
        "converged": None,
        "other_noise": float(decibels(converged, converged.roll(samples, 0), peak).mean()) if seeds > 1 else None,
        "fingerprint": fingerprint(converged * (2 / peak)),
    }
    if before is not None:
        _check_same(case.name, known["fingerprint"], before["network"]["fingerprint"])
        known |= {name: before["network"][name] for name in ("agree", "converged")}
    elif agreement:
        agree = round(float(decibels(drawn.full(most // 2), converged, peak).mean()), 2)
        known |= {"agree": agree, "converged": agree >= AGREE}
        say(f"{case.name}: {most // 2} and {most} steps agree to {agree:.1f} dB")
    rows, comparisons = [], []
    for count in steps:
        full = drawn.full(count)
        near = {"full": decibels(full, full, peak), "converged": decibels(full, converged, peak)}
        rows.append({"way": FULL, "steps": count, "evaluations": count, **summary(near)})
        for _, wanted in points([count], evaluations):
            at = {"steps": count, "of_ours": wanted}
            found = ours(drawn, count, wanted)
            if before is None:
                found |= solved(drawn, wanted, solvers)
            each = {
                way: ({"full": decibels(made, full, peak), "converged": decibels(made, converged, peak)}, number)
                for way, (made, number) in found.items()
            }
            if before is not None:
                each |= _measured_before(case.name, before, at)
            rows += [
                {"way": way, **at, "evaluations": number, **summary(near), "each": listed(near)}
                for way, (near, number) in each.items()
            ]
            all_near = {way: near for way, (near, _) in each.items()}
            comparisons += [{**at, **one} for one in compare(case.name, count, all_near)]
            told = (
                f"{way} {near['full'].mean():.1f} / {near['converged'].mean():.1f}" for way, near in all_near.items()
            )
            say(f"{case.name}, {wanted} of {count}: {', '.join(told)} dB")
    return {"network": known, "rows": rows, "comparisons": comparisons}


def ours(drawn: Drawn, steps: int, evaluations: int) -> dict[str, tuple[Tensor, int]]:
    """The samples under the default schedule, in the full run's steps and in many, and the number of evaluations."""
    return {OURS: drawn.ours(steps, evaluations), LONG: drawn.ours(many_steps(len(drawn.case.betas)), evaluations)}


def many_steps(levels: int) -> int:
    """In how many steps the default aims at the converged sample.

    diffusers' DDIM steps down by the whole part of levels / steps. If 250 steps are taken of 300 levels, each step goes
    down by one level and the next begins 1.2 levels lower, so even the full run of 250 steps is far from the converged
    one. All levels are taken then.
    """
    return MANY if levels % MANY == 0 else min(MOST, levels)


def solved(drawn: Drawn, evaluations: int, among: Sequence[str] | None = None) -> dict[str, tuple[Tensor, int]]:
    """The samples by each solver in as many steps."""
    chosen = [one for one in solvers_for(drawn.case) if among is None or one in (FEWER, *among)]
    return {solver: drawn.solved(solver, evaluations) for solver in chosen}


def compare(name: str, steps: int, near: Mapping[str, Near]) -> list[dict[str, Any]]:
    """For each target, the better of our two ways less each rival, sample by sample."""
    found = []
    for target in TARGETS:
        best = max((OURS, LONG), key=lambda way: float(near[way][target].mean()))
        for title, rival in rivals(near, target).items():
            one = compared(name, steps, target, (best, near[best][target]), (rival, near[rival][target]))
            found.append({"rival": title, **one.to_json()})
    return found


def rivals(near: Mapping[str, Near], target: str) -> dict[str, str]:
    """Fewer steps of DDIM, and the solver that came nearest; a user could not know which that is."""
    best = max((way for way in near if way not in (OURS, LONG)), key=lambda way: float(near[way][target].mean()))
    return {"fewer steps": FEWER, "best solver": best}


def summary(each: Near) -> dict[str, float]:
    """Means and 95 % intervals, in dB."""
    numbers = {}
    for target, values in each.items():
        for name, value in zip(("dB", "low", "high"), mean_interval(values), strict=True):
            numbers[f"{target}_{name}"] = round(value, 4)
    return numbers


def listed(near: Near) -> dict[str, list[float]]:
    return {target: [round(value, 3) for value in values.tolist()] for target, values in near.items()}


def check_before(
    name: str, before: Mapping[str, Any], steps: Sequence[int], evaluations: Sequence[int], samples: int
) -> None:
    """Whether the rivals' rows of an earlier run can stand beside ours; asked before anything is drawn."""
    known = before["network"].get("fingerprint")
    if known is None:
        raise UsageError(
            f"The rivals' rows of {name} have no fingerprint of their samples, so nobody can tell whether ours would "
            "be of the same samples. Measure the rivals again: leave out --ours-only."
        )
    if len(known) != samples:
        raise UsageError(
            f"The rivals' rows of {name} are of {len(known)} samples, and {samples} were asked for. Give the same "
            "--samples and --seeds, or leave out --ours-only."
        )
    for count, wanted in points(steps, evaluations):
        _measured_before(name, before, {"steps": count, "of_ours": wanted})


def points(steps: Sequence[int], evaluations: Sequence[int]) -> list[tuple[int, int]]:
    """Numbers of steps and of evaluations: of each number of steps, at most half of them are evaluated."""
    return [(count, wanted) for count in steps for wanted in evaluations if 2 * wanted <= count]


def _check_same(name: str, found: Sequence[Sequence[float]], before: Sequence[Sequence[float]]) -> None:
    if not same(found, before):
        raise UsageError(
            f"The rivals' rows of {name} were measured on other samples, so ours cannot be compared. Measure the "
            "rivals again: leave out --ours-only."
        )


def _measured_before(name: str, before: Mapping[str, Any], at: Mapping[str, int]) -> dict[str, tuple[Near, int]]:
    """The rivals' rows at a point, from an earlier run."""
    rows = [row for row in before["rows"] if row["way"] not in (FULL, OURS, LONG) and at.items() <= row.items()]
    if not rows or any("each" not in row for row in rows):
        raise UsageError(
            f"No rivals of {name} were measured at {at['of_ours']} evaluations for {at['steps']} steps, sample by "
            "sample. Leave out --ours-only, or give --evaluations and --steps that were measured."
        )
    return {
        row["way"]: ({target: torch.tensor(row["each"][target]) for target in TARGETS}, row["evaluations"])
        for row in rows
    }
