"""Caches that decide at each step whether the blocks run or what they added last time is added again.

TeaCache  (Liu et al., CVPR 2025; github.com/ali-vilab/TeaCache)  how far the first attention's input has moved
SeaCache  (CVPR 2026; github.com/jiwoogit/SeaCache)               the same behind a Wiener filter of the noise level
MagCache  (arXiv 2506.09045; github.com/Zehong-Ma/MagCache)       how far the size of the blocks' sum has moved

One decision is made for the whole batch, as in the published code, so a sample depends on the other samples of its
batch.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.scheduling.units import Unit
from tenuto_lab.rivals.common import Rival, RivalGeneration
from tenuto_lab.rivals.trunk import Stem, evaluated, stem_of, why_not

Decide = Callable[[Stem, int], bool]  # whether a step is evaluated; called at every step, in order
DEGREE = 4  # of TeaCache's polynomial
POWER = 2.0  # SeaCache: the power spectrum of pictures falls with this power of the frequency


class TokenCache(Rival):
    """Runs the blocks, or adds to the tokens what the blocks added at the last evaluation.

    decide  makes the decisions of one generation
    """

    def __init__(self, network: Callable[..., Any], decide: Callable[[], Decide]) -> None:
        super().__init__(network)
        if (reason := why_not(network)) is not None:
            raise UsageError(f"This cache cannot run: {reason}.")
        self.decide = decide

    def start(self) -> Any:
        return _Deciding(self)

    def flop_work(self, units: Iterable[Unit]) -> float:
        return self.work  # all units are computed together


class _Deciding(RivalGeneration):
    def __init__(self, rival: TokenCache) -> None:
        super().__init__(rival)
        self._rival, self._decide = rival, rival.decide()
        self._added: Tensor | None = None  # what the blocks added at the last evaluation

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        self.step += 1
        stem = stem_of(self._network, *inputs)
        full = self._decide(stem, self.step) or self._added is None
        self._rival.count("network", full)
        if not full:
            assert self._added is not None
            return stem.head(stem.tokens + self._added)
        output, after = evaluated(self._network, *inputs)
        self._added = after - stem.tokens
        return output


@dataclass
class MovedInput:
    """TeaCache's and SeaCache's decision: evaluate when the first attention's input has changed enough, in sum.

    changed  estimates the output's change from the input's relative change
    seen     what is compared, at a step: TeaCache compares the input itself
    """

    steps: int
    threshold: float
    changed: Callable[[float], float] = lambda change: change
    seen: Callable[[Stem, int], Tensor] = lambda stem, step: stem.attended
    total: float = 0.0
    last: Tensor | None = None

    def __call__(self, stem: Stem, step: int) -> bool:
        now = self.seen(stem, step)
        full = self.last is None or step == self.steps - 1
        if self.last is not None:
            self.total += self.changed(relative_l1(now, self.last))
            full = full or not self.total < self.threshold
        if full:
            self.total = 0.0
        self.last = now
        return full


@dataclass
class MovedSize:
    """MagCache's decision: evaluate once the accumulated error of the calibrated magnitude ratios exceeds a threshold.

    ratios   [T]: the mean size of what the blocks add to a token, relative to the step before
    longest  how many steps in a row may be held
    retained the share of first steps that are always evaluated
    """

    ratios: Sequence[float]
    threshold: float
    longest: int
    retained: float = 0.1
    ratio: float = field(default=1.0, init=False)
    error: float = field(default=0.0, init=False)
    held: int = field(default=0, init=False)

    def __call__(self, stem: Stem | None, step: int) -> bool:
        if step < max(1, int(self.retained * len(self.ratios) + 0.5)):
            return True
        self.ratio *= self.ratios[step]
        self.error += abs(1 - self.ratio)
        self.held += 1
        if self.error <= self.threshold and self.held <= self.longest:
            return False
        self.ratio, self.error, self.held = 1.0, 0.0, 0
        return True


class Calibration(Rival):
    """A full run that measures what TeaCache and MagCache must know of a network before they can run."""

    def __init__(self, network: Callable[..., Any]) -> None:
        super().__init__(network)
        if (reason := why_not(network)) is not None:
            raise UsageError(f"Nothing can be calibrated: {reason}.")
        self.inputs: list[float] = []  # relative change of the first attention's input since the step before
        self.outputs: list[float] = []  # relative change of the output
        self.ratios: list[float] = []  # MagCache's magnitude ratios; 1 at the first step

    def start(self) -> Any:
        for measured in (self.inputs, self.outputs, self.ratios):
            measured.clear()
        return _Measuring(self)

    def polynomial(self) -> Callable[[float], float]:
        """TeaCache's estimate of the output's change from the input's: a polynomial of degree 4, by least squares."""
        x, y = np.array(self.inputs[1:]), np.array(self.outputs[1:])
        fitted: NDArray[np.float64] = np.polyfit(x, y, min(DEGREE, max(1, len(x) - 1)))
        return lambda change: float(np.polyval(fitted, change))


class _Measuring(RivalGeneration):
    def __init__(self, calibration: Calibration) -> None:
        super().__init__(calibration)
        self._into = calibration
        self._last: tuple[Tensor, Tensor, Tensor] | None = None

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        self.step += 1
        stem = stem_of(self._network, *inputs)
        output, after = evaluated(self._network, *inputs)
        attended, added = stem.attended, after - stem.tokens
        before = self._last or (attended, output, added)
        self._into.inputs.append(relative_l1(attended, before[0]))
        self._into.outputs.append(relative_l1(output, before[1]))
        self._into.ratios.append(float((added.float().norm(dim=-1) / before[2].float().norm(dim=-1)).mean()))
        self._last = (attended, output, added)
        return output


def filtered(stem: Stem, sigma: float) -> Tensor:
    """SeaCache's view of the first attention's input: its patches behind a Wiener filter for the noise level σ/α.

    Along both axes of the picture the gain is α S / (α² S + σ²), where S = 1/f² is the spectrum of pictures. The
    mean gain is scaled to 1. (The published code compares the second step with an unfiltered first one; here both
    are filtered.)
    """
    side = round(stem.pictured**0.5)
    alpha, noise = 1 / (1 + sigma**2) ** 0.5, sigma / (1 + sigma**2) ** 0.5
    patches = stem.attended[:, -stem.pictured :].float().unflatten(1, (side, side))
    frequency = torch.fft.fftfreq(side, device=patches.device).abs()
    power = 1 / (frequency**POWER + 1e-16)
    gain = alpha * power / (alpha**2 * power + noise**2 + 1e-16)
    both = gain[:, None] * gain[None, :]
    both = both / both.mean()
    return torch.fft.ifftn(torch.fft.fftn(patches, dim=(1, 2)) * both[None, :, :, None], dim=(1, 2)).real


def relative_l1(now: Tensor, before: Tensor) -> float:
    """mean |now − before| / mean |before|."""
    return float((now.float() - before.float()).abs().mean() / before.float().abs().mean().clamp_min(1e-16))
