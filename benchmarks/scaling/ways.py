"""The ways of drawing with N evaluations in place of T steps: ours, the paper's lifetimes, and the main rivals.

A rival with settings is drawn with each of them, so that it can be judged at its best with hindsight.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from diffusers import DPMSolverMultistepScheduler, UniPCMultistepScheduler
from torch import Tensor

from benchmarks.scaling.drawing import Requests, set_times
from tenuto.errors import UsageError
from tenuto.runtime.executor import Executor
from tenuto_lab.rivals.strong_solvers import Course, Setting, course, sample, settings
from tenuto_lab.rivals.whole_output import Cache, full_run, methods, sample_held
from tenuto_lab.scoring.scores import Scores
from tenuto_lab.units.lifetimes import lifetimes

OURS, MANY = "tenuto", "tenuto, 250 steps"
FEWER, SOLVER, PREDICTOR = "fewer steps", "best solver", "best output predictor"
BLOCK, BRANCH = "lifetimes by block", "lifetimes by branch"
WAYS = (OURS, MANY, FEWER, SOLVER, PREDICTOR, BLOCK, BRANCH)
STEPS, MANY_STEPS = 50, 250
FEW = (  # settings, for machines without a GPU: every setting that was best for the large network is among them
    "Euler",
    "UniPC 2",
    "DPM-Solver++ 2",
    "DDIM leading zero",
    "DDIM trailing zero",
    "UniPC 2 karras exact zero",
    "UniPC 2 linspace sigma_min",
    "DPM-Solver++ 2 karras exact zero",
    "DEIS 2 linspace sigma_min",
    "DEIS 3 linspace sigma_min",
    "DEIS 2 karras exact sigma_min",
    "DEIS 3 karras exact sigma_min",
    "TaylorSeer (output), order 2, evenly first 1 last 0",
    "TaylorSeer (output), order 3, periodic warmup 1",
    "TaylorSeer (output), order 2, periodic warmup 1",
    "TaylorSeer (output), order 3, evenly first 1 last 0",
    "FoCa, scaled True, evenly first 1 last 0",
    "FoCa, scaled True, periodic warmup 1",
    "FoCa, scaled True, horizon 3.0, periodic warmup 1",
    "FoCa, scaled False, horizon 3.0, periodic warmup 1",
    "FoCa, scaled False, horizon 3.0, evenly first 1 last 0",
)
PREDICTORS = ("TaylorSeer (output)", "FoCa")
FLOWS: Mapping[str, tuple[Any, int]] = {
    f"{name} {order}": (kind, order)
    for name, kind in (("UniPC", UniPCMultistepScheduler), ("DPM-Solver++", DPMSolverMultistepScheduler))
    for order in (2, 3)
}


class Way(NamedTuple):
    """A way at one setting, which can be drawn for any number of samples."""

    name: str
    setting: str
    draw: Any  # Requests -> latents


def rivals(flow: bool, evaluations: int, few: bool = False) -> Iterator[Way]:
    """Every setting of every rival, with so many evaluations; with `few`, those that were best most often elsewhere."""
    yield from (way for way in _all_rivals(flow, evaluations) if not few or way.setting in FEW)


def _all_rivals(flow: bool, evaluations: int) -> Iterator[Way]:
    if flow:
        yield Way(FEWER, "Euler", lambda asked: asked.drawn(evaluations))
        for name in FLOWS:
            yield Way(SOLVER, name, lambda asked, name=name: _flow_solved(asked, name, evaluations))
    else:
        for setting in settings():
            if (kind := _kind(setting)) is not None:
                yield Way(kind, str(setting), lambda asked, setting=setting: _solved(asked, setting, evaluations))
    seen = set()
    for method in PREDICTORS:
        for cache in methods()[method]:
            same = (method, cache.named_predictor, cache.placement(STEPS, evaluations))
            if same not in seen:
                seen.add(same)
                called = f"{method}, {cache}"
                yield Way(PREDICTOR, called, lambda asked, cache=cache: _predicted(asked, cache, evaluations))


def paper(scores: Scores, budget: float) -> Iterator[tuple[Way, float]]:
    """The paper's schedules at a budget, with the share of the work that they compute."""
    for name, granularity in ((BLOCK, "block"), (BRANCH, "branch")):
        schedule = lifetimes(scores, STEPS, budget=budget, granularity=granularity)  # type: ignore[arg-type]

        def draw(asked: Requests, schedule: Any = schedule) -> Tensor:
            executor = Executor(asked.network.model.network, schedule, mode="skip")
            return asked.drawn(STEPS, network=executor.start())

        yield Way(name, "", draw), schedule.flop_budget


def _kind(setting: Setting) -> str | None:
    """Fewer steps of DDIM with every spacing; UniPC, DPM-Solver++ and DEIS on trained or Karras levels."""
    if setting.method == "DDIM":
        return FEWER
    placed = (setting.levels, setting.spacing if setting.levels == "trained" else setting.time)
    strong = setting.method in ("UniPC", "DPM-Solver++", "DEIS")
    return SOLVER if strong and placed in (("trained", "linspace"), ("karras", "exact")) else None


def _solved(asked: Requests, setting: Setting, evaluations: int) -> Tensor | None:
    levels = asked.network.model.noise
    assert levels is not None
    try:
        return sample(asked.denoiser(), levels, asked.noise, setting, evaluations)
    except UsageError:  # the levels have no such steps
        return None


def _flow_solved(asked: Requests, name: str, evaluations: int) -> Tensor:
    kind, order = FLOWS[name]
    scheduler = kind(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=1.0, solver_order=order)
    set_times(scheduler, evaluations)
    # diffusers rounds the times to whole timesteps; the network is told the exact ones.
    times = [1000 * float(sigma) for sigma in scheduler.sigmas[:evaluations]]
    denoise, x = asked.denoiser(), asked.noise
    with torch.inference_mode():
        for time, t in zip(times, scheduler.timesteps, strict=True):
            x = scheduler.step(denoise(x, time), t, x, return_dict=False)[0]
    return x


def _predicted(asked: Requests, cache: Cache, evaluations: int) -> Tensor:
    return sample_held(asked.denoiser(), _course(asked), asked.noise, cache, evaluations)


def _course(asked: Requests) -> Course:
    """The steps of the full run."""
    if asked.network.prediction == "noise":
        levels = asked.network.model.noise
        assert levels is not None
        return course(levels, full_run(levels), STEPS)
    scheduler = asked.network.scheduler()
    set_times(scheduler, STEPS)
    return Course(scheduler, tuple(scheduler.timesteps.tolist()), tuple(scheduler.sigmas.tolist()))
