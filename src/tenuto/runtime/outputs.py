"""Keeps the network's output: extrapolates it at steps that do not evaluate the network, corrects it at the others."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tenuto.errors import ScheduleError
from tenuto.runtime.prediction import recipes
from tenuto.runtime.private_torch import tree_flatten, tree_map_only, tree_unflatten
from tenuto.scheduling.schedule import Schedule


class Outputs:
    """The last outputs of the network: extrapolated at steps that do not evaluate it, corrected at those that do."""

    def __init__(self, schedule: Schedule, course: Sequence[float] | None = None) -> None:
        """course  how much each step's output counts in the final sample; None if this is unknown"""
        if course is not None and len(course) != schedule.steps:
            raise ScheduleError(f"A course of {len(course)} steps was given for a schedule of {schedule.steps}.")
        self._order = schedule.order
        self._recipes = recipes(schedule.full_steps.tolist(), schedule.order, course if schedule.corrected else None)
        self._kept: dict[int, Any] = {}  # by step, the newest last

    @property
    def bytes(self) -> int:
        leaves, _ = tree_flatten(list(self._kept.values()))
        return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor))

    def take(self, step: int, output: Any) -> Any:
        """Keep a computed output, and return the output for the sampler.

        Both include the correction of the outputs predicted since the last refresh. They share no memory, because the
        sampler may write into its output.
        """
        for leaf in tree_flatten(output)[0]:
            if not isinstance(leaf, Tensor | None | bool | int | float | str):
                raise ScheduleError(
                    f"The network gives a {type(leaf).__name__}, which cannot be extrapolated; keep its units instead "
                    "of its output (keep='branch')."
                )
        recipe = self._recipes[step]
        if len(recipe.given) == 1:
            self._kept[step] = tree_map_only(Tensor, torch.clone, output)
            given = output
        else:
            self._kept[step] = output
            given, self._kept[step] = self._summed(recipe.given), self._summed(recipe.kept)
        while len(self._kept) > self._order + 1:
            del self._kept[next(iter(self._kept))]
        return given

    def at(self, step: int) -> Any:
        """The predicted output of a step that does not evaluate the network."""
        return self._summed(self._recipes[step].given)

    def _summed(self, amounts: dict[int, float]) -> Any:
        weights, trees = list(amounts.values()), [tree_flatten(self._kept[node]) for node in amounts]
        leaves = [
            _weighted(values, weights) if isinstance(values[0], Tensor) else values[0]
            for values in zip(*(leaves for leaves, _ in trees), strict=True)
        ]
        return tree_unflatten(leaves, trees[0][1])


def _weighted(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The weighted sum, in float32 at least, because weights may be larger than one and of both signs."""
    wide = torch.promote_types(values[0].dtype, torch.float32)
    total = weights[0] * values[0].to(wide)
    for value, weight in zip(values[1:], weights[1:], strict=True):
        total.add_(value.to(wide), alpha=weight)
    return total.to(values[0].dtype)
