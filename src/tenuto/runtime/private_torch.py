"""All private names of torch that Tenuto uses. If an upgrade of torch moves one of them, only this file breaks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map_only, tree_unflatten

__all__ = [
    "COMPILED",
    "HOOKS",
    "TorchDispatchMode",
    "TreeSpec",
    "fake_tensors",
    "inner_module",
    "linear_gelu",
    "more_variants",
    "own_tensors",
    "parts_of",
    "recordable_call",
    "runs_compiled",
    "tree_flatten",
    "tree_leaves",
    "tree_map_only",
    "tree_unflatten",
    "uncompiled_call",
    "version_of",
]

COMPILED = "_compiled_call_impl"  # the attribute with a module's compiled call, which torch calls
HOOKS = ("_forward_pre_hooks", "_forward_hooks")  # where a module keeps the hooks that run with its forward


def fake_tensors() -> Any:
    """A mode in which tensors have shapes and no values."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


@contextmanager
def more_variants(most: int) -> Iterator[None]:
    """Within the block, torch.compile may compile one function for up to `most` different inputs.

    It also notices hooks on modules. By default it does not: a function compiled for a module without hooks would leave
    out the hooks of the next module.
    """
    import torch._dynamo.config

    with torch._dynamo.config.patch(
        recompile_limit=most, accumulated_recompile_limit=4 * most, skip_nnmodule_hook_guards=False
    ):
        yield


def own_tensors(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """The dictionaries in which a module keeps its parameters and its buffers."""
    return module._parameters, module._buffers


def parts_of(module: nn.Module) -> list[nn.Module]:
    """A module and all modules in it, each once: twice as fast as `module.modules()`, which makes up names."""
    found: list[nn.Module] = []
    left, seen = [module], set()
    while left:
        one = left.pop()
        if id(one) not in seen:
            seen.add(id(one))
            found.append(one)
            left += [part for part in one._modules.values() if part is not None]
    return found


def inner_module(module: nn.Module) -> nn.Module:
    """The module that torch.compile(module) wrapped, or the module itself if it is not wrapped."""
    inner = getattr(module, "_orig_mod", module)
    assert isinstance(inner, nn.Module)
    return inner


def uncompiled_call(module: nn.Module) -> Callable[..., Any]:
    """What module(…) calls if nothing was compiled."""
    return module._call_impl


def runs_compiled(call: Any) -> bool:
    """Whether a module's call, if it has one of its own, was compiled."""
    return call is not None and getattr(call, "__func__", None) is not nn.Module._call_impl


def recordable_call(call: Any) -> bool:
    """Whether a compiled call is plain kernels that a CUDA graph can record: inductor's, without graphs of its own."""
    asked = getattr(call, "get_compiler_config", None)
    config = None if asked is None else asked()
    return config is not None and not config.get("triton.cudagraphs", True)


def version_of(tensor: Tensor) -> int:
    """A number that grows with every write into the tensor. Inference tensors have no such number: it is 0."""
    return 0 if tensor.is_inference() else tensor._version


def linear_gelu(bias: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """gelu(rows @ weightᵀ + bias) in one kernel."""
    return torch._addmm_activation(bias, rows, weight.t(), use_gelu=True)
