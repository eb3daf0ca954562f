"""DBCache, the dual block cache of cache-dit (github.com/vipshop/cache-dit, 1.5)."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from tenuto.errors import UsageError
from tenuto.runtime.residual import Branch, plain
from tenuto_lab.rivals.common import Rival, RivalGeneration
from tenuto_lab.rivals.delta_dit import blocks_of
from tenuto_lab.rivals.token_caches import relative_l1


class DualBlock(Rival):
    """Always computes the first F and the last B blocks, and the others when the first blocks' update has moved.

    The relative change of what the first blocks add, since the last full evaluation, decides. What is held is
    predicted by TaylorSeer's series if `order` is not 0 (cache-dit's calibrator).

    warmup   how many first steps are always full
    longest  how many steps in a row may be held; None means any number
    """

    def __init__(
        self,
        network: Callable[..., Any],
        units: Sequence[str],
        threshold: float,
        first: int = 1,
        last: int = 0,
        *,
        order: int = 0,
        warmup: int = 1,
        longest: int | None = None,
    ) -> None:
        super().__init__(network)
        block = blocks_of(units)
        if not (first >= 1 and last >= 0 and first + last <= block[-1]):
            raise UsageError(f"Of {block[-1] + 1} blocks, {first} first and {last} last ones leave none to hold.")
        if order not in (0, 1):
            raise UsageError(
                f"What is held is repeated (order 0) or continued linearly (order 1), not by order {order}."
            )
        if not threshold >= 0:
            raise UsageError(f"The threshold is a relative change, not negative, and {threshold} is no such number.")
        self.first = [unit for unit, place in zip(units, block, strict=True) if place < first]
        self.last = frozenset(unit for unit, place in zip(units, block, strict=True) if place > block[-1] - last)
        self.threshold, self.order, self.warmup, self.longest = threshold, order, max(1, warmup), longest

    def start(self) -> Any:
        return _Dual(self)


class _Dual(RivalGeneration):
    def __init__(self, rival: DualBlock) -> None:
        super().__init__(rival)
        self._rival = rival
        self._before: Tensor | None = None  # the stream before the first block
        self._reference: Tensor | None = None  # what the first blocks added at the last full evaluation
        self._full = True
        self._steps: list[int] = []  # of the last two full evaluations
        self._held: dict[str, list[Tensor]] = {}  # each held unit's updates there

    def residual(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        rival = self._rival
        if unit in rival.first or unit in rival.last:
            if unit == rival.first[0]:
                self._before = h
            rival.count(unit, True)
            after = plain(unit, h, branch, gate)
            if unit == rival.first[-1]:
                assert self._before is not None
                self._decide(after - self._before)
            return after
        rival.count(unit, self._full)
        if self._full:
            update = branch() if gate is None else gate() * branch()
            self._held[unit] = [*self._held.get(unit, [])[-1:], update]
            return h + update
        return h + self._predicted(self._held[unit])

    def _predicted(self, updates: list[Tensor]) -> Tensor:
        if self._rival.order == 0 or len(updates) < 2:
            return updates[-1]
        before, last = self._steps
        return updates[-1] + (self.step - last) / (last - before) * (updates[-1] - updates[-2])

    def _decide(self, added: Tensor) -> None:
        rival = self._rival
        held = self.step - self._steps[-1] - 1 if self._steps else 0  # steps held in a row so far
        self._full = (
            self._reference is None
            or self.step < rival.warmup
            or (rival.longest is not None and held >= rival.longest)
            or not relative_l1(added, self._reference) < rival.threshold
        )
        if self._full:
            self._reference = added
            self._steps = [*self._steps[-1:], self.step]
