"""Regional compilation: the few functions that a network's branches consist of, each compiled once.

    class Block(nn.Module):
        @branch_function
        def attend(self, x, shift, scale): …

Within `compiling()` such a function runs compiled. If it is a unit's branch, the multiplication by the gate and the
addition to the stream are compiled with it (`computed`). Weights are among the inputs of a compiled function. Therefore
one compiled function serves every block of the same shapes and every pattern; a network compiled as a whole would be
compiled once for each pattern.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any, Literal

import torch
from torch import Tensor

from tenuto.runtime.private_torch import more_variants
from tenuto.runtime.residual import Branch

_on: ContextVar[bool] = ContextVar("compiling", default=False)
_deferring: ContextVar[bool] = ContextVar("deferring", default=False)
VARIANTS = 64  # of one function at most: a UNet has about twenty shapes
# Norms of uncommon widths run three times as fast when the kernels' block sizes are tried out.
TUNED: dict[str, Any] = {"max_autotune_pointwise": True, "coordinate_descent_tuning": True}


class branch_function:
    """A function of a block and tensors. Within `compiling()` it runs compiled.

    tuned  try out the kernels' block sizes. Not for functions of many shapes, because each shape takes seconds
    """

    def __init__(self, function: Callable[..., Any], tuned: bool = True) -> None:
        update_wrapper(self, function)
        self.function = function
        self.tuned = tuned
        self._compiled: dict[Callable[..., Any], Callable[..., Any]] = {}

    def __call__(self, *args: Any, **options: Any) -> Any:
        if _deferring.get():
            return _Call(self, args, options)
        if not _on.get():
            return self.function(*args, **options)
        return self.compiled(self.function)(*args, **options)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if function not in self._compiled:
            self._compiled[function] = torch.compile(function, dynamic=False, options=TUNED if self.tuned else None)
        return self._compiled[function]

    def __get__(self, block: Any, owner: Any = None) -> Any:
        return self if block is None else partial(self, block)


function_of_many_shapes = partial(branch_function, tuned=False)


@dataclass(frozen=True)
class _Call:
    """A call of a branch function that was deferred and not executed."""

    asked: branch_function
    args: tuple[Any, ...]
    options: dict[str, Any]


@contextmanager
def compiling(on: bool = True) -> Iterator[None]:
    """Within the block, branch functions run compiled; or, if not `on`, as they are written."""
    if on == _on.get():
        yield
        return
    token = _on.set(on)
    try:
        with more_variants(VARIANTS):
            yield
    finally:
        _on.reset(token)


def computed(
    h: Tensor, branch: Branch, gate: Branch | None, keep: Literal["branch", "update"] = "branch"
) -> tuple[Tensor, Tensor]:
    """The stream after a computed unit, h + gate · branch, and the branch or the update itself.

    Within `compiling()` the branch, the multiplication and the addition are one compiled function.
    """
    value = _put_off(branch) if _on.get() else branch()
    factor = None if gate is None else gate()
    if isinstance(value, _Call):
        call, sums = value, _sum_of_update if keep == "update" else _sum_of_branch
        result: tuple[Tensor, Tensor] = call.asked.compiled(sums)(
            h, factor, call.asked.function, *call.args, **call.options
        )
        return result
    if factor is None:
        return h + value, value
    if keep == "update":
        value, factor = factor * value, None
        return h + value, value
    if h.is_cuda and h.dtype == value.dtype == factor.dtype:
        return torch.addcmul(h, factor, value), value  # one kernel instead of two
    return h + factor * value, value


def at_once(function: Callable[..., Any], *args: Any) -> Any:
    """Call a branch function now, within a branch that goes on to use its value."""
    token = _deferring.set(False)
    try:
        return function(*args)
    finally:
        _deferring.reset(token)


def _put_off(branch: Branch) -> Any:
    token = _deferring.set(True)
    try:
        return branch()
    finally:
        _deferring.reset(token)


def _sum_of_branch(
    h: Tensor, factor: Tensor | None, function: Callable[..., Tensor], *args: Any, **options: Any
) -> tuple[Tensor, Tensor]:
    value = function(*args, **options)
    return h + (value if factor is None else factor * value), value


def _sum_of_update(
    h: Tensor, factor: Tensor | None, function: Callable[..., Tensor], *args: Any, **options: Any
) -> tuple[Tensor, Tensor]:
    value = function(*args, **options)
    update = value if factor is None else factor * value
    return h + update, update


def plainly(unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
    """Full inference in as few kernels as possible; `residual.plain` is its definition."""
    return computed(h, branch, gate)[0]
