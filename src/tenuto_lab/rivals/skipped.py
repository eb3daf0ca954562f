"""Skips whole evaluations: the cheapest cache there is."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from tenuto.runtime.prediction import lagrange
from tenuto.runtime.residual import plain
from tenuto.scheduling.units import Unit
from tenuto_lab.rivals.common import Rival, RivalGeneration, check_order, check_period


class SkippedEvaluations(Rival):
    """Evaluates the network at every R-th step. In between, extrapolates its last outputs.

    every  R
    order  of the polynomial; 0 repeats the last output
    """

    def __init__(self, network: Callable[..., Any], every: int, order: int = 1) -> None:
        super().__init__(network)
        check_period(every)
        check_order(order)
        self.every = every
        self.order = order

    def start(self) -> Any:
        return _Skipping(self)

    def evaluates(self, step: int) -> bool:
        return step % self.every == 0

    def flop_work(self, units: Iterable[Unit]) -> float:
        return self.work  # all units are computed together


class _Skipping(RivalGeneration):
    def __init__(self, rival: SkippedEvaluations) -> None:
        super().__init__(rival)
        self._rival = rival
        self._outputs: deque[tuple[int, Tensor]] = deque(maxlen=rival.order + 1)  # newest first

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        self.step += 1
        evaluated = self._rival.evaluates(self.step)
        self._rival.count("network", evaluated)
        if evaluated:
            output: Tensor = self._network(*inputs, **named, residual=plain)
            self._outputs.appendleft((self.step, output))
            return output
        weights = lagrange([step for step, _ in self._outputs], self.step)
        newest = self._outputs[0][1]
        total = torch.zeros_like(newest, dtype=torch.promote_types(newest.dtype, torch.float32))
        for weight, (_, output) in zip(weights, self._outputs, strict=True):
            total.add_(output, alpha=weight)
        return total.to(newest.dtype)
