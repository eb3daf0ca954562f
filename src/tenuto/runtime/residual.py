"""The one seam in a model: every residual addition goes through a callable that the executor supplies.

    h = residual(unit, h, branch, gate)        # h + gate · branch

Full inference is `plain`, below. Everything else the package does to a network (holding, drift recording,
probing, graph capture) is another `Residual`; none of them edits the model.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from torch import Tensor

Branch = Callable[..., Tensor]


class SeamForward(partial[Any]):
    """A forward that uses the seam and replaces the forward of a block's class."""


class Residual(Protocol):
    """How one unit's update reaches the residual stream.

    unit    the unit's name, as listed by its architecture
    h       the live part: the current stream, or a shortcut convolution of it
    branch  computes F(h; c); not called when the unit is held. A branch that can compute single positions takes their
            `rows`, [B, P]: in language models, held units are still computed at the positions written meanwhile
    gate    computes the factor of the branch (AdaLN's gate), broadcastable to the branch; None means one.
            The gate is a function, too, so that a unit held after its gate computes no conditioning at all.
    """

    def __call__(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor: ...


def plain(unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
    """The network as it was trained: every unit computed, nothing remembered."""
    update = branch()
    return h + (update if gate is None else gate() * update)


class Deferred:
    """A value that is computed once, when it is first read: conditioning that two units of a block share."""

    def __init__(self, compute: Callable[[], tuple[Tensor, ...]]) -> None:
        self._compute = compute
        self._value: tuple[Tensor, ...] | None = None

    def __getitem__(self, index: int) -> Tensor:
        if self._value is None:
            self._value = self._compute()
        return self._value[index]
