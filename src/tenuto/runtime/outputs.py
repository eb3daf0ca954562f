"""Keeps the network's output, and extrapolates it at the steps that do not evaluate the network.

This serves loops in which no scheduler can be seen. If a scheduler can be seen, outputs are held where the scheduler
reads them (tenuto.runtime.stepping).
"""

from typing import Any

import torch
from torch import Tensor

from tenuto.errors import ScheduleError
from tenuto.runtime.prediction import polynomial_weights, weighted
from tenuto.runtime.private_torch import tree_flatten, tree_map_only, tree_unflatten


class Outputs:
    """The last outputs of the network, by step."""

    def __init__(self, order: int) -> None:
        """order: the degree of the polynomial that extrapolates them"""
        self._order = order
        self._kept: dict[int, Any] = {}  # by step, the newest last

    @property
    def bytes(self) -> int:
        leaves, _ = tree_flatten(list(self._kept.values()))
        return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor))

    def take(self, step: int, output: Any) -> Any:
        """Keep a copy of a computed output, because the sampler may write into the output."""
        check_predictable(output)
        self._kept[step] = tree_map_only(Tensor, torch.clone, output)
        while len(self._kept) > self._order + 1:
            del self._kept[next(iter(self._kept))]
        return output

    def at(self, step: int) -> Any:
        """The predicted output of a step that does not evaluate the network."""
        weights = polynomial_weights(list(self._kept), step)
        trees = [tree_flatten(tree) for tree in self._kept.values()]
        leaves = [
            weighted(values, weights).to(values[0].dtype) if isinstance(values[0], Tensor) else values[0]
            for values in zip(*(leaves for leaves, _ in trees), strict=True)
        ]
        return tree_unflatten(leaves, trees[0][1])


def check_predictable(output: Any) -> None:
    for leaf in tree_flatten(output)[0]:
        if not isinstance(leaf, Tensor | None | bool | int | float | str):
            raise ScheduleError(
                f"The network gives a {type(leaf).__name__}, which cannot be extrapolated; keep its units instead "
                "of its output (keep='branch')."
            )
