"""Which parts of a pipeline are denoisers."""

import re
from typing import Any

from diffusers import DiffusionPipeline
from torch import nn

from tenuto.errors import TenutoError, UsageError
from tenuto.runtime.private_torch import inner_module

FIRST = ("unet", "transformer", "transformer_2")
# Parts that a loop may call between two steps for another purpose than to denoise.
OTHERS = re.compile(
    r"(text|image|vision|audio|visual|speech|condition)_?(en|de)coder|.*vae|vq|movq|vocoder|safety|watermark|tokenizer|"
    r"feature_extractor|language_model|upsampler|bert|clip|clap|tagger|mllm|processor"
)


def denoiser_of(target: Any) -> nn.Module:
    """The denoiser of a pipeline, or the given denoiser, without torch.compile's wrapper."""
    if isinstance(target, nn.Module):
        return inner_module(target)
    if isinstance(target, DiffusionPipeline):
        return inner_module(getattr(target, names_in(target)[0]))
    raise UsageError(f"A model, its name or path, or a diffusers pipeline is needed, not a {type(target).__name__}.")


def names_in(pipeline: Any) -> list[str]:
    """The attribute names of a pipeline's networks that its loop evaluates: denoisers, and what runs beside them."""
    parts = {name: part for name, part in pipeline.components.items() if isinstance(part, nn.Module)}
    names = [name for name in FIRST if name in parts]
    names += [name for name in parts if name not in FIRST and not OTHERS.match(name)]
    if not names:
        raise TenutoError(f"A {type(pipeline).__name__} has no network that denoises (a unet, a transformer, a prior).")
    return names
