"""The two decisions of the package as functions: score a model, and schedule it."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch

from tenuto import __version__, policies
from tenuto.checkpoint import ModuleTensors
from tenuto.errors import UsageError
from tenuto.journal import Journal
from tenuto.models import ARCHITECTURES, Model, Stored, architecture, open_model
from tenuto.models.architecture import Architecture
from tenuto.policies.refreshing import FEW
from tenuto.schedules import Schedule
from tenuto.scores import Progress, Scores, score_tensors, silent
from tenuto.spectrum import ETA

Policy = Literal["refresh", "rewrite", "lifetimes", "noise", "anchors", "allocated"]


def score(
    model: Model | Stored | str | Path | Any,
    *,
    eta: float = ETA,
    device: str | torch.device | None = None,
    progress: Progress = silent,
    journal: Journal | None = None,
) -> Scores:
    """The score of every unit: of a loaded model, or of a checkpoint (name, path, hub id) without building it.

    A diffusers pipeline, or its denoiser (a UNet2DConditionModel, a FluxTransformer2DModel, …), is scored as it is,
    with the adapters that are switched on, and dequantised.

    In a `journal` (see `journal_of`) finished tensors are noted, so that an interrupted call goes on where it stopped.
    """
    if not 0 < eta < math.inf:
        raise UsageError(f"η must be positive and finite, not {eta}.")
    if isinstance(model, str | Path):
        model = open_model(str(model))
    if not isinstance(model, Model | Stored):
        return _score_diffusers(model, eta=eta, device=device, progress=progress)
    return score_tensors(
        model.checkpoint if isinstance(model, Stored) else ModuleTensors(model.network),
        model.units,
        model=model.name,
        architecture=model.architecture.name,
        eta=eta,
        device=device,
        progress=progress,
        journal=journal,
    )


def _score_diffusers(target: Any, **options: Any) -> Scores:
    from tenuto.integrations.diffusers import denoiser_of, units_in
    from tenuto.integrations.live_weights import LiveTensors

    denoiser = denoiser_of(target)
    name, units = type(denoiser).__name__, units_in(denoiser)
    tensors = LiveTensors(denoiser, [key for unit in units for key in unit.tensors()])
    return score_tensors(tensors, units, model=name, architecture=name, **options)


def journal_of(path: Path, stored: Stored, eta: float) -> Journal:
    """Where to note the scoring of a checkpoint; another checkpoint's, η's or version's notes do not count."""
    files = stored.checkpoint.files_seen()
    return Journal(path, {"version": __version__, "model": stored.name, "eta": eta, "files": files})


# The options of each policy besides steps and budget; the functions in tenuto.policies say what they mean.
OPTIONS: dict[str, tuple[Callable[..., Schedule], tuple[str, ...]]] = {
    "refresh": (policies.refresh, ("every", "opening", "closing", "reuse", "hold", "correction")),
    "rewrite": (policies.rewrite, ("every", "blocks", "rows", "held")),
    "lifetimes": (policies.lifetimes, ("tau", "min_lifetime", "reuse", "hold")),
    "noise": (policies.by_noise, ("levels", "evenness", "reuse", "hold")),
    "anchors": (policies.anchors, ("every", "share", "ranking", "closing", "seed", "reuse", "hold")),
    "allocated": (policies.allocated, ("ranking", "reuse", "hold")),
}


def schedule(
    source: Scores | Model | str | Path | Any,
    steps: int,
    *,
    budget: float | None = None,
    speedup: float | None = None,
    policy: Policy | None = None,
    **options: Any,
) -> Schedule:
    """A schedule for `steps` network evaluations. The budget, or the speed-up, is all that need be said.

    source   scores, or the model to score first: anything that `score` takes
    budget   share of unit-steps to compute; by default 0.25 (of lifetimes: what tau = 1 gives)
    speedup  how many times as fast as full inference, instead of a budget
    policy   refresh: everything computed again every few steps and extrapolated in between; the default for pictures
             rewrite: the same for text, and held units computed at the positions that matter; the default for text
             lifetimes: the paper's, each unit computed until its lifetime ends and then held for good
             noise, anchors, allocated: see tenuto.policies
    options  of the policy, instead of what it would choose: every, opening, closing, reuse, hold and correction of
             refresh; every, blocks, rows and held of rewrite; tau and min_lifetime of lifetimes; …
    """
    scores = source if isinstance(source, Scores) else score(source)
    family = family_of(scores)
    text = family is not None and family.asks_for == "prompt"
    policy = policy or ("rewrite" if text else "refresh")
    if policy not in OPTIONS:
        raise UsageError(f"The policy is one of {', '.join(OPTIONS)}, not {policy!r}.")
    make, known = OPTIONS[policy]
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in known:
            owners = [other for other, (_, names) in OPTIONS.items() if name in names]
            belongs = f"belongs to the policy {' or '.join(owners)}" if owners else "is an option of no policy"
            raise UsageError(f"{name} {belongs}, not to {policy}." if owners else f"{name} {belongs}.")
    if policy == "rewrite" and not text:
        raise UsageError(f"rewrite is for language models, and {scores.model} draws; take refresh.")
    if speedup is not None:
        if budget is not None:
            raise UsageError("Give a budget or a speed-up, not both: one follows from the other.")
        free = policy == "refresh" and given.get("hold", "output") == "output"  # steps in between cost nothing
        budget = budget_for(speedup, 0.0 if free or family is None else family.held_time)
    if policy == "noise" and "levels" not in given:
        given["levels"] = noise_levels(source, steps)
    if budget is not None:
        given["budget"] = budget
    return make(scores, steps, **given)


def budget_for(speedup: float, held_time: float) -> float:
    """The share of the work that is left, if what is never held takes this share of the time."""
    if not 1 <= speedup < math.inf:
        raise UsageError(f"A speed-up is a number from 1 on, not {speedup}.")
    budget = (1 / speedup - held_time) / (1 - held_time)
    if budget <= 0:
        raise UsageError(
            f"It cannot become {speedup:g} times as fast: what is never held takes {held_time:.0%} of the time, so "
            f"less than {1 / held_time:.1f} times is there to be had."
        )
    return budget


def family_of(scores: Scores) -> Architecture | None:
    """The architecture that was scored, by its own name or diffusers'; None if it is not known."""
    if scores.architecture in ARCHITECTURES:
        return architecture(scores.architecture)
    known = map(architecture, ARCHITECTURES) if scores.architecture[:1].isupper() else ()  # as diffusers' classes are
    return next((one for one in known if scores.architecture in one.class_names), None)


def advice(made: Schedule, text: bool) -> str | None:
    """What to say of a schedule that would be sold for more than it is."""
    idle = int((~made.active).all(axis=0).sum())
    if text and made.rows == "none" and idle:
        return (
            f"At {idle} of {made.steps} steps every unit is held. A language model has no timestep to tell those steps "
            f"apart, so this is the same as taking {made.steps - idle} steps: take those, or compute some rows."
        )
    refreshes = int(made.full_steps.sum())
    if not text and idle and refreshes < FEW:
        return (
            f"Only {refreshes} of {made.steps} steps compute everything, which is too few to extrapolate from: "
            f"a good solver with {max(refreshes, 5)} to {2 * FEW} full steps (dpm++) may serve you better."
        )
    return None


def noise_levels(source: Any, steps: int) -> list[float]:
    """How far along the trajectory each step is, as a model's own sampler goes."""
    from tenuto.samplers.diffusion import Sampling, log_snr

    noise = source.architecture.noise if isinstance(source, Model | Stored) else None
    if noise is None:
        raise UsageError("Give the noise level of each step (levels); only a model that draws has its own.")
    return log_snr(noise, Sampling(steps=steps))
