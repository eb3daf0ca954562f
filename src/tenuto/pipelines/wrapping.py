"""Replaces a method of one instance and restores it; finds out what others wrapped: torch.compile, xDiT."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import update_wrapper
from typing import Any

from torch import nn

from tenuto.runtime.private_torch import (
    COMPILED,
    inner_module,
    parts_of,
    recordable_call,
    runs_compiled,
    uncompiled_call,
)


class Replacement:
    """Replaces owner.name(…) by wrapper(owner.name, …).

    A copy of the owner gets the method of its class back; if `copied`, its method is replaced like the owner's.
    """

    def __init__(
        self, owner: Any, name: str, original: Callable[..., Any], wrapper: Callable[..., Any], copied: bool = False
    ) -> None:
        update_wrapper(self, original)  # diffusers inspects a method's arguments before it calls the method
        self.original = original
        self._owner, self._name, self._wrapper, self._copied = owner, name, wrapper, copied

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapper(self.original, *args, **kwargs)

    @property
    def __self__(self) -> Any:
        """The owner, under the name that bound methods use."""
        return self._owner

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        twin = memo.get(id(self._owner))
        if twin is None:
            return self
        method = getattr(type(twin), self._name).__get__(twin)
        return Replacement(twin, self._name, method, self._wrapper, True) if self._copied else method

    def __reduce__(self) -> Any:
        """What is unpickled has the method of its class."""
        return getattr, (self._owner, self._name)


@contextmanager
def wrapped(
    owner: Any, name: str, wrapper: Callable[..., Any], original: Any = None, copied: bool = False
) -> Iterator[None]:
    """Within the block, owner.name(…) is wrapper(owner.name, …); afterwards the instance is as it was.

    original  what is wrapped, if that is not owner.name
    copied    whether the method of a copy of the owner is replaced as well
    """
    missing = object()
    before = vars(owner).get(name, missing)
    replacement = Replacement(owner, name, getattr(owner, name) if original is None else original, wrapper, copied)
    vars(owner)[name] = replacement
    try:
        yield
    finally:
        if vars(owner).get(name) is replacement:  # if other code replaced it later, leave that
            if before is missing:
                del vars(owner)[name]
            else:
                vars(owner)[name] = before


def through(module: nn.Module, wrapper: Callable[..., Any]) -> AbstractContextManager[None]:
    """Within the block, module(…) is wrapper(module, …), whatever other code does to its forward meanwhile.

    If `module.compile()` was called, torch calls the module through an attribute that it set. That attribute is
    replaced here. The forward is not, because accelerate's hooks replace and restore it in every generation.
    """
    return wrapped(module, COMPILED, wrapper, original=getattr(module, COMPILED) or uncompiled_call(module))


def scheduler_inside(scheduler: Any) -> Any:
    """The scheduler that another library put into an object of its own (xDiT's have it as their `module`).

    It has all of the state, and it can be copied: xDiT's object cannot, a try never ends.
    """
    inside = vars(scheduler).get("module")
    return inside if hasattr(inside, "step") and hasattr(inside, "set_timesteps") else scheduler


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile was applied to a module: as a whole, in place, or block by block."""
    return next(_compiled_calls(module), None) is not None


def is_recordable(module: nn.Module) -> bool:
    """Whether CUDA graphs can record a module as far as torch.compile is concerned."""
    return all(recordable_call(call) for call in _compiled_calls(module))


def _compiled_calls(module: nn.Module) -> Iterator[Any]:
    """What torch.compile made of a module and of its parts."""
    if inner_module(module) is not module:
        yield module
    for part in parts_of(module):
        call = vars(part).get(COMPILED)
        while isinstance(call, Replacement):
            call = call.original
        if call is not None and runs_compiled(call):
            yield call
