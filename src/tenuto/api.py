"""The two decisions of the package as functions: score a model, and schedule it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from tenuto import policies
from tenuto.checkpoint import ModuleTensors
from tenuto.errors import UsageError
from tenuto.journal import Journal
from tenuto.models import Model, open_model
from tenuto.schedules import Hold, Reuse, Schedule
from tenuto.scores import Progress, Scores, score_tensors, silent
from tenuto.spectrum import ETA

Policy = Literal["refresh", "lifetimes"]


def score(
    model: Model | str,
    *,
    eta: float = ETA,
    device: str | torch.device | None = None,
    progress: Progress = silent,
    journal: Path | None = None,
) -> Scores:
    """The score of every unit: of a loaded model, or of a checkpoint (name, path, hub id) without building it.

    `journal` names a file in which finished tensors of a checkpoint are noted, so that an interrupted call goes on
    where it stopped; it is removed when the scores are complete.
    """
    if isinstance(model, str):
        stored = open_model(model)
        job = {"model": model, "eta": eta, "files": stored.checkpoint.files_seen()}
        notes = Journal(journal, job) if journal else None
        scores = score_tensors(
            stored.checkpoint,
            stored.units,
            model=model,
            architecture=stored.architecture.name,
            eta=eta,
            device=device,
            progress=progress,
            journal=notes,
        )
        if notes:
            notes.done()
        return scores
    return score_tensors(
        ModuleTensors(model.network),
        model.units,
        model=model.name,
        architecture=model.architecture.name,
        eta=eta,
        device=device,
        progress=progress,
    )


def schedule(
    source: Scores | Model | str,
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

    source        scores, or the model to score first
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
