"""A lane: the same call of a denoiser in successive steps, with the prompt or without it."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from tenuto.runtime.executor import Generation
from tenuto.runtime.private_torch import tree_map_only

Key = tuple[str, int]  # a denoiser, and which of its calls in one step


@dataclass(frozen=True)
class Lane:
    start: int
    shape: tuple[int, ...] | None  # of the sample
    generation: Generation | None
    last: Any = None  # the output of the last evaluation

    def fitted(self, shape: tuple[int, ...] | None) -> "Lane | None":
        """This lane for a call of another batch; its last output is cut or repeated. None if it does not fit."""
        if self.last is None or self.shape == shape:
            return None if self.last is None else self
        if self.shape is None or shape is None or self.shape[1:] != shape[1:]:
            return None
        before, batch = self.shape[0], shape[0]

        def resized(one: Tensor) -> Tensor:
            return one[:1].expand(batch, *one.shape[1:]) if one.dim() and len(one) == before else one

        return replace(self, shape=shape, last=tree_map_only(Tensor, resized, self.last))


def shape_of(sample: Tensor | None) -> tuple[int, ...] | None:
    return None if sample is None else tuple(sample.shape)
