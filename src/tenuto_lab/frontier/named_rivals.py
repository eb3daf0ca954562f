"""Rivals by name on a frontier: each draws the frontier's samples at its best setting, chosen with hindsight."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tenuto.models import Model
from tenuto_lab.rivals import rival_points


@dataclass
class RivalDrawing:
    """The samples of a rival at one setting. Batches may find different thresholds; they count as one setting."""

    setting: str
    images: list[Tensor]
    evaluations: float = 0.0  # of the network for one sample, averaged over the samples
    seconds: float = 0.0

    @property
    def all_images(self) -> Tensor:
        return torch.cat(self.images).clamp(-1, 1)


def best_drawing(
    model: Model,
    wanted: Sequence[Any],
    noise: Tensor,
    steps: int,
    evaluations: int,
    name: str,
    judge: Callable[[Tensor], float],
    batch: int,
) -> RivalDrawing | str:
    """What a rival draws at the setting that the judge likes most; the reason if the rival cannot run."""
    drawings: dict[str, RivalDrawing] = {}
    reason = ""
    for start in range(0, len(noise), batch):
        some, chosen = noise[start : start + batch], list(wanted)[start : start + batch]
        for point in rival_points(model, chosen, some, steps, evaluations, [name]):
            if isinstance(point.x, str):
                reason = point.x
                continue
            drawing = drawings.setdefault(point.setting.split(", threshold")[0], RivalDrawing(point.setting, []))
            drawing.images.append(point.x)
            drawing.evaluations += point.evaluations * len(some) / len(noise)
            drawing.seconds += point.seconds
    whole = [one for one in drawings.values() if sum(map(len, one.images)) == len(noise)]
    finite = [one for one in whole if bool(torch.isfinite(one.all_images).all())]
    if not finite:
        return reason or f"every setting diverges with {evaluations} evaluations"
    return max(finite, key=lambda one: judge(one.all_images))


def noise_of(model: Model, seed: int, samples: int) -> Tensor:
    """The noise that `generate` starts from: each sample has its own seed."""
    generators = [torch.Generator().manual_seed(seed + i) for i in range(samples)]
    return torch.stack([torch.randn(model.config.sample_shape, generator=one) for one in generators]).to(model.device)
