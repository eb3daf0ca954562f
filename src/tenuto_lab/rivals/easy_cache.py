"""EasyCache (Zhou et al. 2025, arXiv 2507.02860; github.com/H-EmbodVis/EasyCache)."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

from torch import Tensor

from tenuto.errors import UsageError
from tenuto.runtime.residual import plain
from tenuto.scheduling.units import Unit
from tenuto_lab.rivals.common import Rival, RivalGeneration

Hold = Literal["difference", "output"]


class EasyCache(Rival):
    """Evaluates the network once the estimated change of its output reaches a threshold. Needs no calibration.

    The estimate is k · mean |x − x_before| / mean |v|, summed since the last evaluation: v is the last evaluated
    output, and k = |Δv| / |Δx| between the last two evaluations. The published code looks at the conditional half
    of the batch only; here the whole batch decides.

    retained  how many first steps are always evaluated (10 as published); the last step always is
    hold      what a held step returns: x + (v − x_then), the published difference, meant for networks that predict a
              velocity; or v, the output itself
    """

    def __init__(
        self, network: Callable[..., Any], steps: int, threshold: float, retained: int = 10, hold: Hold = "difference"
    ) -> None:
        super().__init__(network)
        if not threshold >= 0:
            raise UsageError(f"The threshold is a relative change, not negative, and {threshold} is no such number.")
        self.steps, self.threshold, self.retained, self.hold = steps, threshold, retained, hold

    def start(self) -> Any:
        return _Easy(self)

    def flop_work(self, units: Iterable[Unit]) -> float:
        return self.work  # all units are computed together


class _Easy(RivalGeneration):
    def __init__(self, rival: EasyCache) -> None:
        super().__init__(rival)
        self._rival = rival
        self._before: Tensor | None = None  # the input of the step before
        self._evaluated: tuple[Tensor, Tensor] | None = None  # input and output of the last evaluation
        self._rate: float | None = None  # k
        self._total = 0.0

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        self.step += 1
        x: Tensor = inputs[0]
        full = self._full(x)
        self._before = x
        self._rival.count("network", full)
        if not full:
            assert self._evaluated is not None
            then, output = self._evaluated
            return output if self._rival.hold == "output" else x + (output - then)
        output = self._network(*inputs, **named, residual=plain)
        if output.shape != x.shape:
            raise UsageError("EasyCache adds the output's difference from the input, so both must have the same shape.")
        if self._evaluated is not None:
            self._rate = _mean(output - self._evaluated[1]) / max(_mean(x - self._evaluated[0]), 1e-16)
        self._evaluated, self._total = (x, output), 0.0
        return output

    def _full(self, x: Tensor) -> bool:
        rival = self._rival
        if self.step < rival.retained or self.step >= rival.steps - 1 or self._evaluated is None or self._rate is None:
            return True
        assert self._before is not None
        self._total += self._rate * _mean(x - self._before) / max(_mean(self._evaluated[1]), 1e-16)
        return not self._total < rival.threshold


def _mean(x: Tensor) -> float:
    return float(x.float().abs().mean())
