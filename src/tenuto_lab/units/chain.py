"""How a network's units follow one another: found by watching one evaluation on tensors without values.

Nothing is computed: fake tensors have shapes, but no values. The watch sees which other operations read the residual
stream: parts of the network outside its units (embeddings, skips, shortcut convolutions, the final layer), and branches
that read a stream other than their own. If nothing reads the stream between two units, both may be added as one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tenuto.errors import ScheduleError
from tenuto.runtime.compilation import compiling
from tenuto.runtime.private_torch import HOOKS, TorchDispatchMode, fake_tensors, own_tensors, tree_leaves, tree_map_only
from tenuto.runtime.residual import Branch, Residual, SeamForward


@dataclass(frozen=True)
class Link:
    """One unit where it stands in the network."""

    unit: str
    shape: tuple[int, ...]  # of the stream at this unit, and therefore of the unit's update
    stride: tuple[int, ...]
    dtype: torch.dtype
    gated: bool
    joined: bool  # whether the next unit, and nothing else, reads the stream after this unit


Chain = tuple[Link, ...]


def chain_of(
    network: Callable[..., Any], inputs: Sequence[Any], named: Mapping[str, Any], module: nn.Module | None = None
) -> Chain:
    """The units of `network`, in the order they run on these inputs.

    module  the module that the network runs, if the network is not a module itself
    """
    watch = _Watch()
    watch.returned(_evaluate_fakes(network, inputs, named, module, watch, watch.residual))
    return watch.chain()


def _evaluate_fakes(
    network: Callable[..., Any],
    inputs: Sequence[Any],
    named: Mapping[str, Any],
    module: nn.Module | None,
    mode: TorchDispatchMode,
    residual: Residual,
) -> Any:
    module = network if module is None and isinstance(network, nn.Module) else module
    if module is not None and (hand := foreign_hand(module)):
        raise RuntimeError(hand)
    fake = fake_tensors()
    faked, faked_named = tree_map_only(Tensor, fake.from_tensor, (tuple(inputs), dict(named)))
    # Not compiled: if the compiler first sees a function with fake tensors, it gives up on that function for good.
    with _as_it_was(module), compiling(False), torch.inference_mode(), fake, mode:
        return network(*faked, **faked_named, residual=residual)


REGISTRIES = {"_diffusers_hook": "diffusers", "_hf_hook": "accelerate"}


def foreign_hand(module: nn.Module) -> str | None:
    """Which other code acts when the module runs: a hook, or a replaced forward. None if there is none.

    A hook may move or cast weights, and fake weights have no values. So a module with hooks is not run on fake tensors.
    """
    for path, part in module.named_modules():
        for registry, library in REGISTRIES.items():
            if hasattr(part, registry):
                return f"{library} has hooks in it, at {path or 'its root'}"
        if any(getattr(part, hooks, None) for hooks in HOOKS):
            return f"it has a forward hook, at {path or 'its root'}"
        if "forward" in vars(part) and not isinstance(vars(part)["forward"], SeamForward):
            return f"its forward was replaced, at {path or 'its root'}"
    return None


@contextmanager
def _as_it_was(module: nn.Module | None) -> Iterator[None]:
    """After the block, undo what an evaluation without values changed in a network: tables that the network computed
    and kept, and weights that it moved or cast."""
    parts = [] if module is None else list(module.modules())
    before = [(vars(part), *map(dict, (vars(part), *own_tensors(part)))) for part in parts]
    weights = {id(one): (one, one.data) for part in parts for one in _tensors(part)}
    try:
        yield
    finally:
        for part, (attributes, were, parameters, buffers) in zip(parts, before, strict=True):
            _restore(attributes, were)
            for now, kept in zip(own_tensors(part), (parameters, buffers), strict=True):
                _restore(now, kept)
        for tensor, data in weights.values():
            if tensor.dtype != data.dtype or tensor.device != data.device or tensor.data_ptr() != data.data_ptr():
                tensor.data = data


def _tensors(part: nn.Module) -> Iterator[Tensor]:
    """A module's own plain weights. Tensor classes of other libraries are left out: they may store values anywhere."""
    parameters, buffers = own_tensors(part)
    for tensor in (*parameters.values(), *buffers.values()):
        if tensor is not None and type(tensor) in (Tensor, nn.Parameter):
            yield tensor


def _restore(now: dict[str, Any], were: dict[str, Any]) -> None:
    if now.keys() != were.keys() or any(now[key] is not value for key, value in were.items()):
        now.clear()
        now.update(were)


def dense_stride(h: Tensor) -> tuple[int, ...]:
    """The strides of a sum with h in it: those of h if h is dense in memory, else those of a new tensor."""
    order = sorted(range(h.dim()), key=lambda i: (h.stride(i), h.shape[i]), reverse=True)
    dense, step = [0] * h.dim(), 1
    for i in reversed(order):
        dense[i] = step
        step *= h.shape[i]
    if all(h.shape[i] == 1 or h.stride(i) == dense[i] for i in order):
        return h.stride()
    return torch.empty(h.shape, device="meta").stride()


class _Watch(TorchDispatchMode):
    """Sees every operation, and which units' streams the operation reads."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: list[tuple[str, Tensor, bool]] = []  # (unit, its stream after it, is it gated?)
        self._follows: list[int | None] = []  # for each unit, the unit whose stream it was given, unchanged
        self._place: dict[int, int] = {}  # the id of a unit's stream -> the unit's place
        self._read: set[int] = set()

    def residual(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        if any(unit == name for name, _, _ in self._seen):
            raise ScheduleError(f"The network has two units named {unit}.")
        # A branch may read its own stream. If it reads another stream, that stream must exist when the branch runs.
        before, mine = set(self._read), self._place.get(id(h))
        branch()
        if mine is not None and mine not in before:
            self._read.discard(mine)
        if gate is not None:
            gate()
        after = torch.empty_strided(h.shape, dense_stride(h), dtype=h.dtype, device=h.device)
        self._follows.append(mine)
        self._place[id(after)] = len(self._seen)
        self._seen.append((unit, after, gate is not None))  # kept alive, so that ids stay unique
        return after

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Tensor) and id(value) in self._place:
                self._read.add(self._place[id(value)])
        return func(*args, **(kwargs or {}))

    def returned(self, output: Any) -> None:
        """A stream in the network's output counts as read."""
        self._read |= {self._place[id(value)] for value in tree_leaves(output) if id(value) in self._place}

    def chain(self) -> Chain:
        takers = [place for place in self._follows if place is not None]
        return tuple(
            Link(
                unit,
                tuple(stream.shape),
                stream.stride(),
                stream.dtype,
                gated,
                joined=self._follows[i + 1 : i + 2] == [i] and takers.count(i) == 1 and i not in self._read,
            )
            for i, (unit, stream, gated) in enumerate(self._seen)
        )
