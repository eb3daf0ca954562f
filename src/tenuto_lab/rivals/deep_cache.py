"""DeepCache (Ma et al.), for networks with long skips: UNets, and U-ViT."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.runtime.compilation import computed
from tenuto.runtime.residual import Branch, plain
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.rivals.common import Rival, RivalGeneration, check_period, schedule_for
from tenuto_lab.rivals.delta_dit import blocks_of


class DeepCache(Rival):
    """Computes the whole network at every N-th step. In between, only the shallow part runs, on cached deep features.

    As published, the features themselves are cached, not the updates of the units: the stream behind a deep unit stays
    the same, whatever its input is.

    units   names of the network's units
    every   N
    depth   the skip branch up to which the UNet is shallow, from 0 (the published cache_branch_id): see `deep_cache`
    ends    a schedule of lifetimes: a unit that DeepCache would compute after its lifetime adds its held update
    """

    def __init__(
        self,
        network: Callable[..., Any],
        units: Sequence[str],
        every: int,
        depth: int = 0,
        ends: Schedule | None = None,
    ) -> None:
        super().__init__(network)
        self.lives = None if ends is None else dict(zip(ends.units, ends.lifetimes, strict=True))
        check_period(every)
        self.every = every
        self.shallow = shallow_units(units, depth)

    def start(self) -> Any:
        return _Deep(self)


class _Deep(RivalGeneration):
    def __init__(self, rival: DeepCache) -> None:
        super().__init__(rival)
        self._rival = rival
        self._features: dict[str, Tensor] = {}  # the stream behind each deep unit
        self._updates: dict[str, Tensor] = {}  # of units whose lifetime has ended

    def residual(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        shallow, refresh = unit in self._rival.shallow, self.step % self._rival.every == 0
        lives = self._rival.lives
        ended = lives is not None and self.step >= lives[unit]
        self._rival.count(unit, (shallow or refresh) and not ended)
        if not shallow and not refresh:
            return self._features[unit]
        if ended:
            after = h + self._updates[unit]
        elif lives is None:
            after = plain(unit, h, branch, gate)
        else:
            after, self._updates[unit] = computed(h, branch, gate, "update")
        if not shallow:
            self._features[unit] = after
        return after


def deep_cache(units: Sequence[str], steps: int, every: int, depth: int = 0) -> NDArray[np.bool_]:
    """[unit, step]: every unit is computed at every N-th step, the shallow units of a UNet at every step.

    Skip branches are counted from the outermost, as published: branch 0 leads from the first convolution to the last
    layer of the last up block, branch 1 from the first layer of the first down block to the last layer but one, and so
    on. Units inside branch `depth` are held. So at depth 0 only the last layer of the last up block is computed between
    refreshes. Each further depth adds one up layer, and the down layer whose output the branch carries.
    """
    check_period(every)
    shallow = shallow_units(units, depth)
    return np.array([unit in shallow for unit in units])[:, None] | (np.arange(steps) % every == 0)[None, :]


def deep_cache_schedule(model: Model, steps: int, every: int, depth: int = 0) -> Schedule:
    """A schedule that computes the same units as DeepCache and holds the updates of the other units.

    A schedule adds held updates to the live stream. The published method replaces the stream by cached features; only
    the executor `DeepCache` can do that.
    """
    active = deep_cache([unit.name for unit in model.units], steps, every, depth)
    return schedule_for(model, active, "update", {"name": "deep_cache", "every": every, "depth": depth})


def outer_live_schedule(model: Model, steps: int, every: int) -> Schedule:
    """What comes nearest to DeepCache without long skips (DiT): the outer blocks are always live, the others held."""
    check_period(every)
    blocks = np.array(blocks_of([unit.name for unit in model.units]))
    outer = (blocks == 0) | (blocks == blocks[-1])
    active = outer[:, None] | (np.arange(steps) % every == 0)[None, :]
    return schedule_for(model, active, "update", {"name": "deep_cache", "every": every})


def has_long_skips(model: Model) -> bool:
    return any(unit.name.startswith("in_blocks.") or _PLACE.match(unit.name) for unit in model.units)


def shallow_units(units: Sequence[str], depth: int) -> frozenset[str]:
    """The units outside skip branch `depth`. They are computed at every step."""
    if any(unit.startswith("in_blocks.") for unit in units):
        return _shallow_blocks(units, depth)
    places = {unit: _PLACE.match(unit) for unit in units}
    layers: dict[int, int] = {}  # number of layers in each up block
    for place in places.values():
        if place is not None and place["way"] == "up":
            block = int(place["block"])
            layers[block] = max(layers.get(block, 0), int(place["layer"]) + 1)
    if not layers:
        raise UsageError("DeepCache needs long skips, and these units are in no down and up blocks.")
    most = max(layers.values())  # layers in an up block = skip branches that end in it; 3 in all published UNets
    if not 0 <= depth < len(layers) * most:
        raise UsageError(f"This UNet has the skip branches 0 to {len(layers) * most - 1}, and none of depth {depth}.")

    def is_shallow(place: re.Match[str] | None) -> bool:
        if place is None:
            return False  # in the middle block
        block, layer = int(place["block"]), int(place["layer"])
        if place["way"] == "down":
            return block * most + layer < depth
        return (max(layers) - block) * most + layers[block] - 1 - layer <= depth

    return frozenset(unit for unit, place in places.items() if is_shallow(place))


def _shallow_blocks(units: Sequence[str], depth: int) -> frozenset[str]:
    """Of U-ViT: skip branch i leads from behind in_blocks.i into the i-th last of out_blocks."""
    found = {unit: re.match(r"(in|out)_blocks\.(\d+)\.", unit) for unit in units}
    count = 1 + max((int(one[2]) for one in found.values() if one is not None), default=-1)
    if not 0 <= depth < count:
        raise UsageError(f"This network has the skip branches 0 to {count - 1}, and none of depth {depth}.")

    def is_shallow(place: re.Match[str] | None) -> bool:
        if place is None:
            return False  # in the middle block
        return int(place[2]) <= depth if place[1] == "in" else int(place[2]) >= count - 1 - depth

    return frozenset(unit for unit, place in found.items() if is_shallow(place))


_PLACE = re.compile(r"(?P<way>down|up)_blocks\.(?P<block>\d+)\.(?:resnets|attentions)\.(?P<layer>\d+)(?:\.|$)")
