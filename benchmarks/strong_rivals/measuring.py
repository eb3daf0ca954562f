"""Draws the same pictures by Tenuto and by every rival, and judges them by the full and by the converged run."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

import tenuto
from benchmarks.fingerprints import digest, fingerprint
from benchmarks.kept import Kept
from benchmarks.strong_rivals.judging import Judges
from tenuto.models import Model
from tenuto.sampling.pictures import decode, vae_of
from tenuto_lab.frontier.cases import asked_for
from tenuto_lab.frontier.named_rivals import noise_of
from tenuto_lab.rivals import RivalPoint, rival_points
from tenuto_lab.rivals.by_name import SOLVERS, WHOLE_OUTPUT, settings_of
from tenuto_lab.rivals.noise_prediction import Denoiser
from tenuto_lab.rivals.strong_solvers import sample
from tenuto_lab.rivals.whole_output import full_run, methods

STEPS, CONVERGED = 50, 500
OURS = (50, 100, 250)  # steps
SEED = 0
SOME = 6  # about as many settings are tried of a rival that decides while it runs


@dataclass(eq=False)
class Scene:
    """The pictures of one network at one guidance, and the two runs that they are compared with."""

    model: Model
    samples: int
    guidance: float | None
    kept: Kept | None = None
    judges: Judges = field(default_factory=Judges)

    @cached_property
    def wanted(self) -> list[Any]:
        return asked_for(self.model, self.samples)[1]

    @cached_property
    def noise(self) -> Tensor:
        return noise_of(self.model, SEED, self.samples)

    @cached_property
    def goals(self) -> dict[str, Tensor]:
        """The pictures of the full and of the converged run."""
        return {goal: self.shown(self._full(count)) for goal, count in steps_of_goals().items()}

    @cached_property
    def _vae(self) -> Any:
        return vae_of(self.model)

    def shown(self, x: Tensor) -> Tensor:
        """Latents are compared as the pictures that they show."""
        return x if self._vae is None else decode(x, self._vae)

    def fingerprints(self) -> dict[str, list[list[float]]]:
        return {goal: fingerprint(pictures.clamp(-1, 1)) for goal, pictures in self.goals.items()}

    def ours(self, evaluations: int) -> Iterator[RivalPoint]:
        """Tenuto with each number of steps: the steps in between cost nothing."""
        by_class = self.model.architecture.asks_for == "class"
        for steps in OURS:
            schedule = tenuto.schedule(self.model, steps, evaluations=evaluations)
            began = time.perf_counter()
            x = tenuto.generate(
                self.model,
                self.wanted if by_class else None,
                captions=None if by_class else self.wanted,
                schedule=schedule,
                guidance=self.guidance,
                seed=SEED,
                batch=self.samples,
                mode="skip",
            )
            yield RivalPoint(f"Tenuto, {steps} steps", "", evaluations, x, time.perf_counter() - began)

    def rival(self, name: str, evaluations: int, among: Collection[str] | None = None) -> Iterator[RivalPoint]:
        """Every setting of a rival, or those of a solver among some."""
        asked = (self.model, self.wanted, self.noise, STEPS, evaluations, [name])
        return rival_points(*asked, guidance=self.guidance, among=among)

    def best(self, points: Iterable[RivalPoint]) -> dict[str, Any]:
        """The best point of each way for each goal, or the reason why there is none."""
        return best_for(points, self.goals, self.shown, self.judges)

    def _full(self, steps: int) -> Tensor:
        key = {
            "network": [self.model.name, digest(*self.model.network.state_dict().values())],
            "noise": digest(self.noise),
            "requests": [str(one) for one in self.wanted],
            "guidance": self.model.guidance if self.guidance is None else self.guidance,
            "steps": steps,
            "device": self.model.device.type,
            "versions": [version("torch"), version("diffusers")],
        }
        if self.kept is not None and (found := self.kept.find(key)):
            return found[0].to(self.model.device)
        denoiser = Denoiser(self.model, self.wanted, self.guidance)
        x = sample(denoiser, denoiser.noise, self.noise, full_run(denoiser.noise), steps)
        if self.kept is not None:
            self.kept.keep(key, x.cpu(), steps)
        return x


def steps_of_goals() -> dict[str, int]:
    return {"full": STEPS, "converged": CONVERGED}


def best_for(
    points: Iterable[RivalPoint],
    goals: Mapping[str, Tensor],
    shown: Callable[[Tensor], Tensor],
    judges: Judges,
) -> dict[str, Any]:
    """The best point of each rival for each goal, by dB. The other numbers are of that point."""
    found: dict[str, Any] = {}
    pictures: dict[tuple[str, str], Tensor] = {}
    for point in points:
        best = found.setdefault(point.name, {})
        if isinstance(point.x, str):
            best.setdefault("reason", point.x)
            continue
        if not bool(torch.isfinite(point.x).all()):
            continue
        picture = shown(point.x)
        for goal, reference in goals.items():
            near = judges.nearness(picture, reference)
            if goal not in best or near["psnr"] > best[goal]["psnr"]:
                cost = {"evaluations": round(point.evaluations, 2), "seconds": round(point.seconds, 4)}
                best[goal] = {**near, "setting": point.setting, **cost}
                pictures[point.name, goal] = picture
    for (name, goal), picture in pictures.items():
        found[name][goal] |= judges.details(picture, goals[goal])
    return found


def cost_of(name: str, evaluations: int, among: Collection[str] | None = None) -> int:
    """About how often a rival evaluates the network at all its settings; for an estimate of the time that is left."""
    if name in SOLVERS:
        return evaluations * len(settings_of(name, among))
    return evaluations * (len(methods()[name]) if name in WHOLE_OUTPUT else SOME)


def winners(cases: Mapping[str, Mapping[str, Any]], names: Sequence[str], most: int) -> list[str]:
    """The settings of solvers that came nearest at a point and to a goal, those that did so most often first."""
    counted: dict[str, int] = {}
    for by_count in cases.values():
        for found in by_count.values():
            for goal in steps_of_goals():
                near = [one[goal] for name, one in found.items() if name in names and goal in one]
                if near:
                    best = str(max(near, key=lambda one: float(one["psnr"]))["setting"])
                    counted[best] = counted.get(best, 0) + 1
    return sorted(counted, key=lambda setting: -counted[setting])[:most]
