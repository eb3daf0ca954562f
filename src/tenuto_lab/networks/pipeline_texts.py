"""A pipeline directory's text encoders: what the UNet of SDXL or Stable Diffusion is told of captions."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tenuto.errors import CheckpointError, UsageError, first_line


def precision(dtype: torch.dtype | None) -> dict[str, torch.dtype]:
    """The option of `from_pretrained` for a precision. Its name changed, and the older one warns."""
    if dtype is None:
        return {}
    renamed = tuple(map(int, version("diffusers").split(".")[:2])) >= (0, 42)
    return {"dtype" if renamed else "torch_dtype": dtype}


class PipelineTexts:
    """Encodes captions as the pipeline does; each caption once."""

    def __init__(self, directory: Path, device: torch.device, dtype: torch.dtype) -> None:
        from diffusers import DiffusionPipeline

        try:  # without the UNet, which is loaded already, and without the VAE, which is not needed here
            pipe: Any = DiffusionPipeline.from_pretrained(str(directory), unet=None, **precision(dtype))
        except Exception as error:  # a damaged directory may raise any error
            raise CheckpointError(f"{directory} is no pipeline that diffusers can load: {first_line(error)}") from error
        if not hasattr(pipe, "encode_prompt"):
            raise UsageError(f"{type(pipe).__name__} encodes no prompts, so it cannot be asked for captions.")
        self._pipe, self._device = pipe.to(device), device
        self._known: dict[str, tuple[Tensor, Tensor | None]] = {}

    def conditions(self, captions: Sequence[str], shape: Sequence[int], dtype: torch.dtype) -> tuple[Any, ...]:
        """Vectors of the tokens; for SDXL also one of each caption, and the picture's size in pixels."""
        found = [self._encoded(caption) for caption in captions]
        tokens = torch.cat([one for one, _ in found]).to(dtype)
        pooled = [one for _, one in found if one is not None]
        if not pooled:
            return (tokens,)
        height, width = (side * self._pipe.vae_scale_factor for side in shape[-2:])
        sizes = torch.tensor([height, width, 0, 0, height, width], device=self._device).expand(len(captions), -1)
        return tokens, {"text_embeds": torch.cat(pooled).to(dtype), "time_ids": sizes.to(dtype)}

    @torch.no_grad()
    def _encoded(self, caption: str) -> tuple[Tensor, Tensor | None]:
        if caption not in self._known:
            made = self._pipe.encode_prompt(
                prompt=caption, device=self._device, num_images_per_prompt=1, do_classifier_free_guidance=False
            )
            self._known[caption] = made[0], made[2] if len(made) == 4 else None  # SDXL also gives pooled vectors
        return self._known[caption]
