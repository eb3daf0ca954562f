"""TaylorSeer (Liu et al.)."""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from tenuto.errors import UsageError
from tenuto.runtime.residual import Branch
from tenuto_lab.rivals.common import Rival, RivalGeneration, check_order, check_period

WARMUP = 2  # steps that are computed before the first predicted step


class TaylorSeer(Rival):
    """Computes every unit at the first steps and then at every N-th step. In between, a branch is Σ_i Δⁱ xⁱ / i!.

    x is the number of steps since the last refresh. Finite differences replace derivatives: Δ⁰ is the branch at the
    last refresh; Δⁱ is the change of Δⁱ⁻¹ since the refresh before, divided by the steps between the two refreshes.
    From the second order on, this is not the polynomial through the last refreshes. As published, the branch is
    predicted before its gate.

    every   N
    order   the highest i; lower while there are too few refreshes
    warmup  how many first steps are computed, at least one. Differences are taken from the last of these steps on
    """

    def __init__(self, network: Callable[..., Any], every: int, order: int, warmup: int = WARMUP) -> None:
        super().__init__(network)
        check_period(every)
        check_order(order)
        if warmup < 0:
            raise UsageError(f"The number of first steps to compute cannot be negative, and {warmup} is.")
        self.every = every
        self.order = order
        self.warmup = max(1, warmup)

    def refreshes(self, step: int) -> bool:
        """Whether a step, counted from 0, computes all units."""
        return step < self.warmup or (step - self.warmup + 1) % self.every == 0

    def start(self) -> Any:
        return _Seeing(self)


class _Seeing(RivalGeneration):
    def __init__(self, rival: TaylorSeer) -> None:
        super().__init__(rival)
        self._rival = rival
        self._last = 0  # step of the last refresh
        self._apart = 0  # steps since the last refresh; at a refresh, since the refresh before
        self._differences: dict[str, list[Tensor]] = {}  # Δ⁰, Δ¹, … of each unit

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        self._apart = self.step + 1 - self._last
        if self._rival.refreshes(self.step + 1):
            self._last = self.step + 1
        return super().__call__(*inputs, **named)

    def residual(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        refresh = self._last == self.step
        self._rival.count(unit, refresh)
        value = self._refresh(unit, branch()) if refresh else self._predict(unit)
        return h + (value if gate is None else gate() * value)

    def _refresh(self, unit: str, value: Tensor) -> Tensor:
        differences = [value]
        if self.step >= self._rival.warmup - 1:
            for before in self._differences.get(unit, [])[: self._rival.order]:
                differences.append((differences[-1] - before) / self._apart)
        self._differences[unit] = differences
        return value

    def _predict(self, unit: str) -> Tensor:
        value, *changes = self._differences[unit]
        for i, change in enumerate(changes, 1):
            value = value + change * (self._apart**i / math.factorial(i))
        return value
