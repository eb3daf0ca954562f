"""The two decisions of the package as functions: score a model's units, and schedule what is computed when."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch

from tenuto import __version__
from tenuto.errors import UsageError
from tenuto.journal import Journal
from tenuto.models import ARCHITECTURES, Model, Stored, architecture, open_model
from tenuto.models.architecture import Architecture
from tenuto.scheduling.schedule import Schedule
from tenuto.scoring.checkpoint import ModuleTensors
from tenuto.scoring.scores import Progress, Scores, score_tensors, silent
from tenuto.scoring.spectrum import ETA
from tenuto.scoring.units import WHOLE, Granularity, Subject, Unscored

FEW_STEPS = 12  # with so many steps or fewer, users are told what can be gained
Policy = Literal["refresh", "rewrite", "lifetimes"]


@dataclass(frozen=True)
class PolicyKind:
    """A scheduling policy: its options besides steps and budget, and whether it reads scores.

    The policy, its function and the function's module share one name. The module is imported when it is needed.
    """

    name: str
    options: tuple[str, ...]
    reads_scores: bool = False

    @property
    def make(self) -> Callable[..., Schedule]:
        made: Callable[..., Schedule] = getattr(import_module(f"tenuto.scheduling.{self.name}"), self.name)
        return made


POLICIES: Mapping[str, PolicyKind] = {
    "refresh": PolicyKind("refresh", ("evaluations", "every", "predict", "keep", "correction", "log_snr")),
    "rewrite": PolicyKind("rewrite", ("every", "blocks", "rows", "held")),
    "lifetimes": PolicyKind("lifetimes", ("tau", "min_lifetime", "predict", "keep", "granularity"), reads_scores=True),
}


def score(
    model: Model | Stored | str | Path | Any,
    *,
    eta: float = ETA,
    device: str | torch.device | None = None,
    progress: Progress = silent,
    journal: Journal | None = None,
    granularity: Granularity = "branch",
) -> Scores:
    """The score of every unit: of a loaded model, or of a checkpoint (name, path, hub id) without building it.

    A diffusers pipeline, or its denoiser (a UNet2DConditionModel, a FluxTransformer2DModel, …), is scored with its
    current weights: dequantised, and with its active adapters.

    With `granularity="block"` the units of a block share one score, the sum over its branches, as the paper counts.
    A `journal` (see `journal_of`) records finished tensors, so that an interrupted call can continue where it stopped.
    """
    if not 0 < eta < math.inf:
        raise UsageError(f"η must be positive and finite, not {eta}.")
    if isinstance(model, str | Path):
        model = open_model(str(model))
    if not isinstance(model, Model | Stored):
        return _score_denoiser(model, eta=eta, device=device, progress=progress, granularity=granularity)
    return score_tensors(
        model.checkpoint if isinstance(model, Stored) else ModuleTensors(model.network),
        model.units,
        model=model.name,
        architecture=model.architecture.name,
        eta=eta,
        device=device,
        progress=progress,
        journal=journal,
        granularity=granularity,
    )


def _score_denoiser(target: Any, **options: Any) -> Scores:
    from tenuto.models.diffusers.attachment import units_in
    from tenuto.models.diffusers.denoisers import denoiser_of
    from tenuto.models.diffusers.live_weights import LiveTensors

    denoiser = denoiser_of(target)
    name, units = type(denoiser).__name__, units_in(denoiser)
    tensors = LiveTensors(denoiser, [key for unit in units for key in unit.tensors()])
    return score_tensors(tensors, units, model=name, architecture=name, **options)


def journal_of(path: Path, stored: Stored, eta: float) -> Journal:
    """The journal for scoring a checkpoint; entries of another checkpoint, η or version are discarded."""
    files = stored.checkpoint.files_seen()
    return Journal(path, {"version": __version__, "model": stored.name, "eta": eta, "files": files})


def subject_of(source: Any) -> Subject:
    """What a schedule is made for: scores, or a model's units. This reads no weight."""
    if isinstance(source, Scores | Unscored):
        return source
    if isinstance(source, str | Path):
        source = open_model(str(source))
    if isinstance(source, Model | Stored):
        return Unscored(source.name, source.architecture.name, source.units)
    from tenuto.models.diffusers.attachment import units_in
    from tenuto.models.diffusers.blocks import DENOISERS
    from tenuto.models.diffusers.denoisers import denoiser_of

    denoiser = denoiser_of(source)
    units = units_in(denoiser) if isinstance(denoiser, tuple(DENOISERS)) else (WHOLE,)
    return Unscored(type(denoiser).__name__, type(denoiser).__name__, units)


def schedule(
    source: Subject | Model | Stored | str | Path | Any,
    steps: int,
    *,
    budget: float | None = None,
    speedup: float | None = None,
    policy: Policy | None = None,
    **options: Any,
) -> Schedule:
    """A schedule for `steps` network evaluations. Usually a budget or a speed-up is all it needs.

    source   a model: anything that `score` takes, or its scores. Only lifetimes reads scores; if a model is given,
             lifetimes computes its scores
    budget   share of unit-steps to compute; by default 0.25 (lifetimes: what tau = 1 gives)
    speedup  instead of a budget: how many times as fast as full inference
    policy   refresh: compute everything every few steps, and extrapolate in between; the default for pictures
             rewrite: the same for text, but compute held units at the positions that matter; the default for text
             lifetimes: the paper's policy; compute each unit until its lifetime ends, then hold it to the end
    options  of the policy, instead of its own choices. refresh: evaluations, every, predict, keep, correction, log_snr,
             ahead; rewrite: every, blocks, rows, held; lifetimes: tau, min_lifetime, predict, keep, granularity
    """
    subject = subject_of(source)
    family = family_of(subject)
    text = family is not None and family.asks_for == "prompt"
    policy = policy or ("rewrite" if text else "refresh")
    if policy not in POLICIES:
        raise UsageError(f"The policy is one of {', '.join(POLICIES)}, not {policy!r}.")
    kind = POLICIES[policy]
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in kind.options and not (name == "ahead" and policy == "refresh"):  # which no pipeline takes
            owners = [other for other, one in POLICIES.items() if name in one.options]
            belongs = f"belongs to the policy {' or '.join(owners)}" if owners else "is an option of no policy"
            raise UsageError(f"{name} {belongs}, not to {policy}." if owners else f"{name} {belongs}.")
    if policy == "rewrite" and not text:
        raise UsageError(f"rewrite is for language models, and {subject.model} draws; take refresh.")
    if speedup is not None:
        if budget is not None:
            raise UsageError("Give a budget or a speed-up, not both: one follows from the other.")
        free = policy == "refresh" and given.get("keep", "output") == "output"  # steps in between cost nothing
        budget = budget_for(speedup, 0.0 if free or family is None else family.held_time)
    if budget is not None:
        given["budget"] = budget
    if policy == "refresh" and "every" not in given and "log_snr" not in options:
        given |= {"log_snr": _log_snr(source, family, steps), "ahead": True, **given}
    if kind.reads_scores and not isinstance(subject, Scores):
        subject = score(source)
    return kind.make(subject, steps, **given)


def _log_snr(source: Any, family: Architecture | None, steps: int) -> Sequence[float] | None:
    """The noise levels of our own sampler's default solver; None if they are unknown."""
    from tenuto.models.solvers import nature_for

    noise = getattr(source, "noise", None) or (None if family is None else family.noise)
    if noise is None or not isinstance(steps, int) or not 2 <= steps <= noise.timesteps:
        return None
    try:
        levels = nature_for(noise, steps).levels
    except UsageError:
        return None
    return None if levels is None else levels.log_snr


def budget_for(speedup: float, held_time: float) -> float:
    """The budget for a speed-up, if what is never held takes the share `held_time` of the time."""
    if isinstance(speedup, bool) or not isinstance(speedup, int | float) or not 1 <= speedup < math.inf:
        raise UsageError(f"A speed-up is a number from 1 on, not {speedup!r}.")
    budget = (1 / speedup - held_time) / (1 - held_time)
    if budget <= 0:
        raise UsageError(
            f"It cannot become {speedup:g} times as fast: what is never held takes {held_time:.0%} of the time, so "
            f"less than {1 / held_time:.1f} times is there to be had."
        )
    return budget


def family_of(subject: Subject) -> Architecture | None:
    """The architecture of a subject, by its own name or diffusers'; None if it is not known."""
    if subject.architecture in ARCHITECTURES:
        return architecture(subject.architecture)
    known = map(architecture, ARCHITECTURES) if subject.architecture[:1].isupper() else ()  # as diffusers' classes are
    return next((one for one in known if subject.architecture in one.class_names), None)


def advice(made: Schedule, text: bool) -> str | None:
    """A warning about a schedule that is worth less than it seems; None if there is nothing to warn about."""
    from tenuto.scheduling.refresh import LEAST

    idle = int((~made.active).all(axis=0).sum())
    if text and made.rows == "none" and idle:
        return (
            f"At {idle} of {made.steps} steps every unit is held. A language model has no timestep to tell those steps "
            f"apart, so this is the same as taking {made.steps - idle} steps: take those, or compute some rows."
        )
    refreshes = int(made.full_steps.sum())
    if not text and idle and refreshes < LEAST:
        return (
            f"Only {refreshes} of {made.steps} steps compute everything, which is too few to extrapolate from: "
            f"a good solver with {max(refreshes, 5)} to {2 * LEAST} full steps (dpm++) may serve you better."
        )
    asked_for_less = (made.policy.get("budget") or 0) < 1
    if not text and made.keep == "output" and made.steps <= FEW_STEPS and asked_for_less:
        return _few(made.steps, refreshes)
    return None


def _few(steps: int, evaluations: int) -> str | None:
    """What few steps gain, and what that costs (`python -m benchmarks.few_steps`); None if all is well."""
    if evaluations >= steps:
        return f"All {steps} steps are evaluated, and nothing is gained: so few steps leave nothing to predict from."
    if steps > 8 and 3 * evaluations >= 2 * steps:
        return None
    gain = f"{evaluations} of {steps} steps are evaluated: at most {steps / evaluations:.2f} times as fast."
    if steps <= 8:
        return f"{gain} With so few steps, {evaluations} plain steps of the same scheduler may come as near."
    better = -(-2 * steps // 3)
    return f"{gain} With so few steps the picture changes less if two thirds are evaluated: evaluations={better}."
