"""A picture model as one function of the sample and the time: the noise in the sample, after guidance.

Solvers and whole-output caches need nothing else. The function counts how often it evaluates the network.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.models.architecture import NoiseLevels
from tenuto.runtime.executor import Executor
from tenuto.sampling.pictures import guide

Item = TypeVar("Item")


class Denoise(Protocol):
    """The noise in a sample x [B, C, H, W] at a time, which is a training timestep counted from 0, or between two."""

    def __call__(self, x: Tensor, time: float) -> Tensor: ...


class Denoiser:
    """A model's prediction of the noise for one batch of requests. Requests are classes or captions.

    Every network here embeds the time by sines and cosines, so the time need not be a whole number.

    guidance  the model's own scale if None; 1 means none
    executor  runs the network; if None, the network is evaluated in full
    """

    def __init__(
        self, model: Model, wanted: Sequence[Any], guidance: float | None = None, executor: Executor | None = None
    ) -> None:
        if model.noise is None:
            raise UsageError(f"{model.name} makes no pictures from noise, so no solver can sample from it.")
        self.model = model
        self.noise: NoiseLevels = model.noise
        self.guidance = model.guidance if guidance is None else guidance
        self.evaluations = 0
        self._first = getattr(model.config, "first_timestep", 0)
        self._conditions = conditions_of(model, wanted, self.guided)
        self._evaluate = model.network if executor is None else executor.start()

    @property
    def guided(self) -> bool:
        return self.guidance != 1

    def __call__(self, x: Tensor, time: float) -> Tensor:
        self.evaluations += 1
        inputs = torch.cat([x, x]) if self.guided else x
        times = torch.full((len(inputs),), time + self._first, device=x.device, dtype=torch.float32)
        output: Tensor = self._evaluate(inputs.to(self.model.dtype), times, *self._conditions)
        noise = output[:, : x.shape[1]].float()  # without a learned variance
        return guide(noise, self.guidance) if self.guided else noise


def conditions_of(model: Model, wanted: Sequence[Any], guided: bool) -> tuple[Any, ...]:
    """What the network takes beside the sample and the time. If guided, the requests come first, then empty ones."""
    if model.architecture.asks_for == "class":
        labels = torch.tensor(list(wanted), device=model.device)
        return (torch.cat([labels, torch.full_like(labels, model.config.null_class)]) if guided else labels,)
    texts = [*wanted, *([""] * len(wanted) if guided else [])]
    tokens, pooled = model.text_encoder(model.text_encoder.tokenize(texts).to(model.device))
    _, height, width = model.config.sample_shape
    sizes = torch.tensor([height, width, 0, 0, height, width], device=model.device).expand(len(texts), -1)
    return tokens.to(model.dtype), {"text_embeds": pooled.to(model.dtype), "time_ids": sizes.to(model.dtype)}


def timed_each(items: Iterable[Item], device: torch.device) -> Iterator[tuple[Item, float]]:
    """Each item, and the seconds until it was there and the device had finished."""
    remaining = iter(items)
    while True:
        start = time.perf_counter()
        try:
            item = next(remaining)
        except StopIteration:
            return
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        yield item, time.perf_counter() - start
