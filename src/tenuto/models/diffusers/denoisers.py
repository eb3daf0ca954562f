"""Which parts of a pipeline are denoisers."""

from typing import Any

from diffusers import DiffusionPipeline
from torch import nn

from tenuto.errors import TenutoError, UsageError
from tenuto.runtime.private_torch import inner_module


def denoiser_of(target: Any) -> nn.Module:
    """The denoiser of a pipeline, or the given denoiser, without torch.compile's wrapper."""
    if isinstance(target, nn.Module):
        return inner_module(target)
    if isinstance(target, DiffusionPipeline):
        return inner_module(getattr(target, names_in(target)[0]))
    raise UsageError(f"A model, its name or path, or a diffusers pipeline is needed, not a {type(target).__name__}.")


def names_in(pipeline: DiffusionPipeline) -> list[str]:
    """The attribute names of a pipeline's denoisers; most pipelines have one."""
    names = [name for name in ("unet", "transformer", "transformer_2") if getattr(pipeline, name, None) is not None]
    if not names:
        raise TenutoError(f"A {type(pipeline).__name__} has neither a unet nor a transformer to schedule.")
    return names
