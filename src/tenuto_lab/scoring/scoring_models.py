"""tenuto.score: the score of every unit of a model, a checkpoint or a pipeline."""

from pathlib import Path
from typing import Any

import torch

from tenuto import __version__
from tenuto.errors import UsageError, is_number
from tenuto.laboratory import offered
from tenuto.models import Model, Stored, open_model
from tenuto.models.checkpoint import ModuleTensors
from tenuto.scheduling.units import Granularity
from tenuto_lab.journal import Journal
from tenuto_lab.scoring.scores import Progress, Scores, score_tensors, silent
from tenuto_lab.scoring.spectrum import ETA

LARGEST_ETA = 1e100  # beyond it, spectra overflow


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
    if not is_number(eta) or not 0 < eta <= LARGEST_ETA:
        raise UsageError(f"η must be positive and at most {LARGEST_ETA:g}, not {eta}.")
    if isinstance(model, str | Path):
        model = open_model(str(model))
    if not isinstance(model, Model | Stored):
        scored: Scores = offered("denoiser_scores")(
            model, eta=eta, device=device, progress=progress, granularity=granularity
        )
        return scored
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


def journal_of(path: Path, stored: Stored, eta: float) -> Journal:
    """The journal for scoring a checkpoint; entries of another checkpoint, η or version are discarded."""
    files = stored.checkpoint.files_seen()
    return Journal(path, {"version": __version__, "model": stored.name, "eta": eta, "files": files})
