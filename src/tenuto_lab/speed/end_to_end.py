"""Whole generations, from the request to pixels or tokens, beside the denoiser alone.

A generation has the sampler, guidance and the VAE's decoding of every picture (text: the masked sampler). The VAE is
Stable Diffusion's, with random weights. Captions come as vectors: SDXL's text encoders run once for a generation, and
are left out.
"""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tenuto.models import Model, architecture
from tenuto.runtime.executor import Executor
from tenuto.sampling.masked import MaskedSampling, generate_tokens
from tenuto.sampling.pictures import Sampling, decode, generate
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.speed.ladder import TimedNetwork, seconds_of

SOLVED = 32  # tokens that a text generation writes at least; it writes one a step


def end_to_end(subject: TimedNetwork, family: str, schedule: Schedule, repeats: int = 3) -> dict[str, Any]:
    """Seconds of a whole generation: full and eager, and under a schedule of single units; the share that is not the
    network's.

    family: llada, dit, uvit or sdxl
    """
    known = architecture("unet" if family == "sdxl" else family)
    model = Model(subject.model, known, subject.network.config, (), subject.units, subject.network)
    run = _writing(model, subject, schedule.steps) if family == "llada" else _drawing(model, subject, family, schedule)
    found = {}
    for name, executor in (
        ("eager", Executor(subject.network, mode="eager")),
        ("scheduled", Executor(subject.network, schedule, compiled=subject.device.type == "cuda")),
    ):
        run(executor)  # records graphs
        if subject.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        once = partial(run, executor)
        found[f"{name}_s"] = statistics.median(seconds_of(once, subject.device) for _ in range(repeats))
        if subject.device.type == "cuda":
            found[f"{name}_peak_bytes"] = torch.cuda.max_memory_reserved()
        executor.release()
    return {**found, "steps": schedule.steps, "speedup": found["eager_s"] / found["scheduled_s"]}


def _drawing(model: Model, subject: TimedNetwork, family: str, schedule: Schedule) -> Callable[[Executor], object]:
    pictures = max(1, subject.batch // 2)  # guidance takes two rows for a picture
    vae = _vae(model).to(subject.device)
    if family == "sdxl":
        vars(model)["text_encoder"] = _Vectors(model)
    asked: dict[str, Any] = {"captions": [""] * pictures} if family == "sdxl" else {"classes": [0] * pictures}

    def run(executor: Executor) -> Tensor:
        sampling = Sampling(steps=schedule.steps)
        return decode(generate(model, **asked, executor=executor, sampling=sampling, batch=pictures).float(), vae)

    return run


def _writing(model: Model, subject: TimedNetwork, steps: int) -> Callable[[Executor], object]:
    length = int(subject.setting.split("x")[1])
    written = min(max(steps, SOLVED), length - 1)
    prompt = list(range(2, 2 + length - written))
    sampling = MaskedSampling(steps=steps, length=written, block_length=written, stop_at_eos=False)
    return lambda executor: generate_tokens(executor, [prompt], sampling=sampling)


class _Vectors:
    """Stands where the text encoder would: random vectors of the right shape."""

    def __init__(self, model: Model) -> None:
        config = model.config
        self._width = config.get("cross_attention_dim", 1280)
        self._pooled = config.get("projection_class_embeddings_input_dim", 0) - 6 * config.get(
            "addition_time_embed_dim", 0
        )
        self._like = next(model.network.parameters())

    def conditions(self, captions: list[str], shape: Any, dtype: torch.dtype) -> tuple[Any, ...]:
        made, texts = self._like.new_zeros, len(captions)
        named = {"text_embeds": made(texts, self._pooled, dtype=dtype), "time_ids": made(texts, 6, dtype=dtype)}
        return made(texts, 77, self._width, dtype=dtype), named


def _vae(model: Model) -> Any:
    """Stable Diffusion's VAE; a small one where the latents are small, which is only for trying this out."""
    from diffusers import AutoencoderKL

    channels, side = model.config.sample_shape[0], model.config.sample_shape[-1]
    widths = (128, 256, 512, 512) if side >= 32 and next(model.network.parameters()).is_cuda else (32,)
    down, up = ("DownEncoderBlock2D",) * len(widths), ("UpDecoderBlock2D",) * len(widths)
    torch.manual_seed(0)
    return AutoencoderKL(
        latent_channels=channels,
        block_out_channels=widths,
        down_block_types=down,
        up_block_types=up,
        layers_per_block=2 if len(widths) > 1 else 1,
    ).eval()
