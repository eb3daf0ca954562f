"""The two decisions of the package as functions: score a model, and schedule it."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from tenuto import __version__, policies
from tenuto.checkpoint import ModuleTensors
from tenuto.errors import UsageError
from tenuto.journal import Journal
from tenuto.models import Model, Stored, open_model
from tenuto.schedules import Hold, Reuse, Schedule
from tenuto.scores import Progress, Scores, score_tensors, silent
from tenuto.spectrum import ETA

Policy = Literal["refresh", "lifetimes"]


def score(
    model: Model | Stored | str | Path | Any,
    *,
    eta: float = ETA,
    device: str | torch.device | None = None,
    progress: Progress = silent,
    journal: Journal | None = None,
) -> Scores:
    """The score of every unit: of a loaded model, or of a checkpoint (name, path, hub id) without building it.

    A diffusers pipeline, or its denoiser (a UNet2DConditionModel, a DiTTransformer2DModel), is scored as it is.

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

    denoiser = denoiser_of(target)
    name = type(denoiser).__name__
    return score_tensors(ModuleTensors(denoiser), units_in(denoiser), model=name, architecture=name, **options)


def journal_of(path: Path, stored: Stored, eta: float) -> Journal:
    """Where to note the scoring of a checkpoint; another checkpoint's, η's or version's notes do not count."""
    files = stored.checkpoint.files_seen()
    return Journal(path, {"version": __version__, "model": stored.name, "eta": eta, "files": files})


def schedule(
    source: Scores | Model | str | Path | Any,
    steps: int,
    *,
    policy: Policy = "refresh",
    budget: float | None = None,
    tau: float | None = None,
    min_lifetime: float | None = None,
    every: int | None = None,
    reuse: Reuse | None = None,
    hold: Hold | None = None,
) -> Schedule:
    """A schedule for `steps` network evaluations.

    source        scores, or the model to score first: anything that `score` takes
    policy        refresh: everything computed again every few steps (keeps the picture; the default)
                  lifetimes: the paper's, each unit computed until its lifetime ends and then held for good
    budget        share of unit-steps to compute; by default 0.25 for refresh, and what tau = 1 gives for lifetimes
    tau, min_lifetime   of lifetimes only
    every         the refresh period, of refresh only
    reuse, hold   override what the policy would choose
    """
    scores = source if isinstance(source, Scores) else score(source)
    only: dict[str, dict[str, Any]] = {
        "lifetimes": {"tau": tau, "min_lifetime": min_lifetime},
        "refresh": {"every": every},
    }
    if policy not in get_args(Policy):
        raise UsageError(f"The policy is one of {', '.join(get_args(Policy))}, not {policy!r}.")
    for other, options in only.items():
        for name, value in options.items():
            if other != policy and value is not None:
                raise UsageError(f"{name} belongs to the policy {other}, not to {policy}.")
    given = {name: value for name, value in {**only[policy], "reuse": reuse, "hold": hold}.items() if value is not None}
    make: Callable[..., Schedule] = policies.lifetimes if policy == "lifetimes" else policies.refresh
    return make(scores, steps, budget=budget, **given)
