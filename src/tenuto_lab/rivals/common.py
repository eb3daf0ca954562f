"""What the rivals share: an executor that counts the units it computes, and a function that makes schedules."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tenuto.deciding import subject_of
from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.runtime.executor import Executor
from tenuto.runtime.residual import Branch
from tenuto.scheduling.making import make
from tenuto.scheduling.schedule import Keep, Schedule
from tenuto.scheduling.units import Unit


class Rival(Executor):
    """An executor without a schedule. It counts the unit-steps that it computes."""

    def __init__(self, network: Callable[..., Any]) -> None:
        super().__init__(network, None, mode="skip")
        self.computed: Counter[str] = Counter()  # steps at which each unit was computed, over all generations
        self.met: Counter[str] = Counter()  # steps at which each unit was computed or held

    def count(self, unit: str, computed: int, of: int = 1) -> None:
        self.met[unit] += of
        self.computed[unit] += computed

    def forget(self) -> None:
        """Reset the counts."""
        self.met.clear()
        self.computed.clear()

    @property
    def work(self) -> float:
        """Share of unit-steps computed so far."""
        if not self.met:
            raise UsageError("Nothing was generated yet, so there is no work to speak of.")
        return self.computed.total() / self.met.total()

    def flop_work(self, units: Iterable[Unit]) -> float:
        """Share of the FLOPs computed so far."""
        if not self.met:
            raise UsageError("Nothing was generated yet, so there is no work to speak of.")
        flops = {unit.name: unit.flops for unit in units}
        done, all_of_it = (sum(flops[unit] * n for unit, n in count.items()) for count in (self.computed, self.met))
        return done / all_of_it


class RivalGeneration:
    """One generation of a rival. It counts its steps and gives the network its residual."""

    def __init__(self, executor: Executor) -> None:
        self._network = executor.network
        self.step = -1

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        self.step += 1
        return self._network(*inputs, **named, residual=self.residual)

    def residual(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        raise NotImplementedError


def schedule_for(model: Model, active: NDArray[np.bool_], keep: Keep, policy: dict[str, Any]) -> Schedule:
    """A rival's schedule. It predicts by a constant and uses no scores."""
    return make(subject_of(model), active, "constant", keep, policy)


def check_period(every: int) -> None:
    if every < 1:
        raise UsageError(f"The period must be at least 1 step, not {every}.")


def check_order(order: int) -> None:
    if order < 0:
        raise UsageError(f"An order cannot be negative, and {order} is.")
