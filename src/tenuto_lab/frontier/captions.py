"""Captions by a pipeline's own text encoders, for experiments on a real SDXL or Stable Diffusion directory.

The UNet runs at the seam, under whatever executor an experiment brings; text encoders and noise levels are the
pipeline's.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tenuto.errors import CheckpointError, UsageError, first_line
from tenuto.models import Model, find
from tenuto.runtime.executor import Executor
from tenuto.sampling.pictures import Sampling, denoised, guidance_of

Draw = Callable[[Executor, Sampling, Sequence[str], int], Tensor]  # (executor, sampling, captions, first seed)


class PipelineTexts:
    """Draws the latents of captions; each caption is encoded once."""

    def __init__(self, model: Model, batch: int) -> None:
        self.model, self.batch = model, batch
        self._pipe = _pipeline(model)
        self._known: dict[str, tuple[Tensor, Tensor | None]] = {}

    @torch.inference_mode()
    def __call__(self, executor: Executor, sampling: Sampling, captions: Sequence[str], seed: int) -> Tensor:
        parts = range(0, len(captions), self.batch)
        return torch.cat([self._draw(executor, sampling, captions[i : i + self.batch], seed + i) for i in parts])

    def _draw(self, executor: Executor, sampling: Sampling, captions: Sequence[str], seed: int) -> Tensor:
        model = self.model
        generators = [torch.Generator().manual_seed(seed + i) for i in range(len(captions))]
        x = torch.stack([torch.randn(model.config.sample_shape, generator=one) for one in generators]).to(model.device)
        guided = guidance_of(model, sampling) != 1
        conditions = self._conditions([*captions, *([""] * len(captions) if guided else [])])
        return denoised(model, executor, conditions, x, sampling)

    def _conditions(self, texts: Sequence[str]) -> tuple[Any, ...]:
        found = [self._encoded(text) for text in texts]
        tokens = torch.cat([one for one, _ in found]).to(self.model.dtype)
        pooled = [one for _, one in found if one is not None]
        if not pooled:
            return (tokens,)
        side = self.model.config.sample_shape[-1] * self._pipe.vae_scale_factor  # pixels, as SDXL is told
        sizes = torch.tensor([side, side, 0, 0, side, side], device=self.model.device).expand(len(texts), -1)
        return tokens, {"text_embeds": torch.cat(pooled).to(self.model.dtype), "time_ids": sizes.to(self.model.dtype)}

    def _encoded(self, text: str) -> tuple[Tensor, Tensor | None]:
        if text not in self._known:
            made = self._pipe.encode_prompt(
                prompt=text, device=self.model.device, num_images_per_prompt=1, do_classifier_free_guidance=False
            )
            self._known[text] = made[0], made[2] if len(made) == 4 else None  # SDXL also gives pooled vectors
        return self._known[text]


def _pipeline(model: Model) -> Any:
    """The pipeline without its UNet, whose place the model's own network takes."""
    from diffusers import DiffusionPipeline

    try:
        pipe = DiffusionPipeline.from_pretrained(str(find(model.name)), unet=None, torch_dtype=model.dtype)
    except Exception as error:  # a damaged directory may raise any error
        raise CheckpointError(f"{model.name} is no pipeline that diffusers can load: {first_line(error)}") from error
    if not hasattr(pipe, "encode_prompt"):
        raise UsageError(f"{type(pipe).__name__} encodes no prompts, so it cannot be asked for captions.")
    return pipe.to(model.device)
