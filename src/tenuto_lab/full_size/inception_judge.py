"""Inception features as a judge of experiments: the Fréchet distance as it is published."""

from pathlib import Path

import torch
from torch import Tensor

from tenuto.errors import UsageError
from tenuto_lab.full_size.fidelity import Reference, read_reference
from tenuto_lab.full_size.inception import load_inception
from tenuto_lab.judging.judges import resamples_for
from tenuto_lab.judging.statistics import Distance, Statistics, frechet

BATCH = 64  # pictures looked at at a time


class InceptionJudge:
    """Inception, and the statistics of real pictures in its features."""

    least = 2

    def __init__(self, inception: "object", reference: Reference, device: str | torch.device) -> None:
        self._inception, self._device = inception, torch.device(device)
        self.name = getattr(inception, "name", "Inception")
        statistics = reference.statistics
        if statistics is None and reference.pixels is not None:
            real = torch.from_numpy(reference.pixels).permute(0, 3, 1, 2)
            statistics = Statistics.of(self._features(real))
        if statistics is None:
            raise UsageError(f"{reference.name} holds neither pictures nor statistics of them.")
        self.statistics = statistics.to(self._device)
        self.enough = len(self.statistics.mean) + 1

    def distance(self, images: Tensor) -> Distance | None:
        """As in Judge. Fewer pictures than features have no invertible covariance, but a distance all the same."""
        if len(images) < self.least:
            return None
        features = self._seen(images)
        if features.shape[1] != len(self.statistics.mean):
            raise UsageError(
                f"The reference has {len(self.statistics.mean)} features, and {self.name} {features.shape[1]}."
            )
        return Distance.of(features, self.statistics, resamples_for(features.shape[1]))

    def value(self, images: Tensor) -> float | None:
        """As in Judge."""
        return frechet(Statistics.of(self._seen(images)), self.statistics) if len(images) > 1 else None

    def _seen(self, images: Tensor) -> Tensor:
        return self._features(((images.float().cpu() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8))

    def agrees(self, images: Tensor, labels: Tensor) -> Tensor:
        raise UsageError("Inception's features know no classes of this model.")

    @torch.no_grad()
    def _features(self, pixels: Tensor) -> Tensor:
        coloured = pixels.expand(-1, 3, -1, -1) if pixels.shape[1] == 1 else pixels
        see = self._inception
        parts = [see(part.to(self._device))[0] for part in coloured.split(BATCH)]  # type: ignore[operator]
        return torch.cat(parts)


def inception_judge(weights: Path | None, reference: Path, device: str | torch.device) -> InceptionJudge:
    """weights: of torch-fidelity's Inception, or a TorchScript file; None: torch-fidelity downloads its own."""
    return InceptionJudge(load_inception(weights, device), read_reference(reference), device)
