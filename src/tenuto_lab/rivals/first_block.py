"""The first-block cache of ParaAttention."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from tenuto.errors import UsageError
from tenuto.runtime.residual import Branch, plain
from tenuto_lab.rivals.common import Rival, RivalGeneration


class FirstBlock(Rival):
    """Always computes the first block. Computes the other blocks only if the first block's update has changed enough.

    The change is mean |a − b| / mean |b|: a is the update of the first block now, b its update at the last full
    evaluation. Below the threshold, the updates of all other units are held. The published code holds their sum, the
    difference of the stream across the other blocks. Single updates add up to the same sum, and work with long skips.

    One decision is made for the whole batch, so a sample depends on the other samples of its batch. The host waits for
    the decision at every step.

    first      the names of the first block's units, in the order in which they run: `first_block` finds them
    threshold  0 computes everything
    """

    def __init__(self, network: Callable[..., Any], first: Sequence[str], threshold: float) -> None:
        super().__init__(network)
        if not first:
            raise UsageError("The first block has at least one unit; none was named.")
        if not threshold >= 0:
            raise UsageError(f"The threshold is a relative change, not negative, and {threshold} is no such number.")
        self.first = tuple(first)
        self.threshold = threshold

    def start(self) -> Any:
        return _Watching(self)


class _Watching(RivalGeneration):
    def __init__(self, rival: FirstBlock) -> None:
        super().__init__(rival)
        self._rival = rival
        self._before: Tensor | None = None  # the stream before the first block
        self._reference: Tensor | None = None  # the first block's update at the last full evaluation
        self._full: bool | None = None  # whether this evaluation is full; unknown until the first block ends
        self._held: dict[str, Tensor] = {}

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        self._full = None
        return super().__call__(*inputs, **named)

    def residual(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        first = self._rival.first
        if unit in first:
            if unit == first[0]:
                self._before = h
            self._rival.count(unit, True)
            after = plain(unit, h, branch, gate)
            if unit == first[-1]:
                assert self._before is not None
                self._decide(after - self._before)
            return after
        if self._full is None:
            raise UsageError(f"The network runs {unit} before the end of what was named as its first block.")
        self._rival.count(unit, self._full)
        if self._full:
            self._held[unit] = branch() if gate is None else gate() * branch()
        return h + self._held[unit]

    def _decide(self, difference: Tensor) -> None:
        self._full = True
        if self._reference is not None:
            moved = (difference - self._reference).float().abs().mean() / self._reference.float().abs().mean()
            self._full = not moved.item() < self._rival.threshold
        if self._full:
            self._reference = difference


def first_block(units: Sequence[str]) -> list[str]:
    """The units in the block of the first unit. A block is named by the unit's name up to its last number.

    The block of blocks.0.attn is blocks.0; a UNet's first unit, down_blocks.0.resnets.0, is a block by itself.
    """
    if not units:
        raise UsageError("There are no units, and so no first block.")
    parts = units[0].split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdecimal()]
    block = parts[: numbers[-1] + 1 if numbers else len(parts)]
    return [unit for unit in units if unit.split(".")[: len(block)] == block]
