"""Regional compilation: the few functions that a network's branches consist of, each compiled once.

    class Block(nn.Module):
        @branch_function
        def attend(self, x, shift, scale): …

Within `compiling()` such a function runs compiled. One compiled function serves every block of the same shapes and
every pattern, for weights are among its inputs; a network compiled whole would be compiled once for each pattern.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, update_wrapper
from typing import Any

import torch

_on: ContextVar[bool] = ContextVar("compiling", default=False)
VARIANTS = 64  # of one function: a UNet has a score of shapes


class branch_function:
    """A function of a block and tensors, compiled where that is asked for."""

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self.function = function
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **options: Any) -> Any:
        if not _on.get():
            return self.function(*args, **options)
        if self._compiled is None:
            self._compiled = torch.compile(self.function, dynamic=False)
        return self._compiled(*args, **options)

    def __get__(self, block: Any, owner: Any = None) -> Any:
        return self if block is None else partial(self, block)


@contextmanager
def compiling(on: bool = True) -> Iterator[None]:
    """Within the block, branch functions run compiled."""
    if not on:
        yield
        return
    import torch._dynamo.config

    token = _on.set(True)
    try:
        with torch._dynamo.config.patch(recompile_limit=VARIANTS, accumulated_recompile_limit=4 * VARIANTS):
            yield
    finally:
        _on.reset(token)
