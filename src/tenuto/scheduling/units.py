"""What a unit is made of: which stored tensors are its weight matrices, and what one evaluation of it costs.

An architecture lists its units from a config alone, so that a checkpoint can be scored without building the
network. Nothing here touches a tensor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

ComponentKind = Literal["attention", "cross_attention", "mlp", "conv"]
# What has a score and a lifetime of its own: every residual branch, or every block, whose branches share both. The
# paper counts its layer-steps by blocks.
Granularity = Literal["branch", "block"]

MOST_FLOPS = 1e30  # of a unit: no machine computes more, and sums over many units and steps stay finite

# The matrices that the score of each kind of component needs, in the paper's order.
ROLES: Mapping[ComponentKind, tuple[str, ...]] = {
    "attention": ("q", "k", "v", "o"),
    "cross_attention": ("q", "k", "v", "o"),
    "mlp": ("w1", "w2"),
    "conv": ("kernel",),
}


@dataclass(frozen=True)
class Matrix:
    """A weight matrix as a checkpoint stores it: whole tensors stacked by rows, or one equal part of a fused tensor."""

    keys: tuple[str, ...]
    part: tuple[int, int] | None = None  # (index, of): the index-th of `of` equal row blocks

    @classmethod
    def whole(cls, *keys: str) -> "Matrix":
        return cls(keys)

    @classmethod
    def split(cls, key: str, index: int, of: int) -> "Matrix":
        return cls((key,), (index, of))

    def __str__(self) -> str:
        text = " + ".join(self.keys)
        return text if self.part is None else f"{text}[{self.part[0] + 1}/{self.part[1]}]"


@dataclass(frozen=True)
class Component:
    """One scorable piece of a unit: its kind, and a matrix for each of the kind's roles."""

    kind: ComponentKind
    matrices: Mapping[str, Matrix]
    head_dim: int | None = None  # d_h, for attention only

    def __post_init__(self) -> None:
        if tuple(self.matrices) != ROLES[self.kind]:
            raise ValueError(f"a component of kind {self.kind} needs {ROLES[self.kind]}, got {tuple(self.matrices)}")
        if (self.head_dim is None) == (self.kind in ("attention", "cross_attention")):
            raise ValueError(f"head_dim belongs to attention and to nothing else, not to {self.kind}")


@dataclass(frozen=True)
class Unit:
    """One residual branch that can be held, or an atomic group of them."""

    name: str
    components: tuple[Component, ...]
    flops: float  # for one evaluation of one sample at the model's own input size

    @property
    def kind(self) -> str:
        """The kind that all its components share, or "group" if they differ."""
        kinds = {component.kind for component in self.components}
        return kinds.pop() if len(kinds) == 1 else "group"

    def tensors(self) -> tuple[str, ...]:
        """The stored tensors that the unit's score needs, each once, in the order of first mention."""
        mentioned = (key for part in self.components for matrix in part.matrices.values() for key in matrix.keys)
        return tuple(dict.fromkeys(mentioned))


def block_of(unit: str) -> str:
    """The block of a unit: the unit's name up to its last number, or without its last part.

    blocks.3.attn -> blocks.3, mid_block.mlp -> mid_block, down_blocks.0.resnets.1 -> itself
    """
    parts = unit.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[: numbers[-1] + 1] if numbers else parts[:-1] or parts)


WHOLE = Unit("network", (), 1.0)  # a whole network, where its single units are not needed


class Costed(Protocol):
    """A unit as a policy sees it."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def flops(self) -> float: ...


@runtime_checkable
class Subject(Protocol):
    """What a schedule is made for: a model's units in the order they run, and what each costs.

    Scores are a subject with a number for each unit. A policy without scores uses `Unscored`, which reads no weight.
    """

    @property
    def model(self) -> str: ...

    @property
    def architecture(self) -> str: ...

    @property
    def units(self) -> Sequence[Costed]: ...


@dataclass(frozen=True)
class Unscored:
    """A subject without scores, made without reading weights."""

    model: str
    architecture: str
    units: tuple[Unit, ...]
