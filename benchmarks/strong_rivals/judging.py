"""How pictures are judged: by their distance to a run, picture by picture, and by their distance to real pictures."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tenuto.quality import psnr
from tenuto_lab.judging.judges import PictureJudge
from tenuto_lab.judging.ssim import WINDOW, ssim
from tenuto_lab.judging.statistics import mean_interval

HIGHEST = 200.0  # dB: equal pictures


@dataclass(frozen=True)
class Judges:
    """Whoever can judge a network's pictures; what is missing leaves its number out."""

    pictures: PictureJudge | None = None
    lpips: Callable[[Tensor, Tensor], Tensor] | None = None

    def nearness(self, pictures: Tensor, reference: Tensor) -> dict[str, float]:
        """dB with its interval."""
        value, low, high = mean_interval(psnr(pictures, reference).clamp(max=HIGHEST).cpu(), 500)
        return {"psnr": value, "low": low, "high": high}

    def details(self, pictures: Tensor, reference: Tensor) -> dict[str, float]:
        """The other numbers; the Fréchet distance is to real pictures, whatever the reference."""
        found: dict[str, Any] = {}
        if min(pictures.shape[2:]) >= WINDOW:
            found["ssim"] = ssim(pictures, reference)
        if self.lpips is not None:
            found["lpips"] = self.lpips(pictures, reference)
        if self.pictures is not None:
            found["perceptual"] = self.pictures.perceptual(pictures, reference)
        numbers = {name: round(float(values.mean()), 5) for name, values in found.items()}
        distance = None if self.pictures is None else self.pictures.value(pictures)
        return numbers if distance is None else {**numbers, "frechet": round(distance, 3)}
