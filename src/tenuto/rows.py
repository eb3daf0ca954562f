"""Some positions of sequences, different ones in each: taken out, and put back."""

import torch
from torch import Tensor


def take(x: Tensor, rows: Tensor) -> Tensor:
    """x [B, N, D] at rows [B, P]: [B, P, D]."""
    return x.gather(1, rows[:, :, None].expand(-1, -1, x.shape[-1]))


def put_(x: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    """Write values [B, P, D] into x [B, N, D] at rows [B, P]; a row that is named twice must have one value."""
    return x.scatter_(1, rows[:, :, None].expand(-1, -1, x.shape[-1]), values.to(x.dtype))


def places_of(wanted: Tensor, rows: Tensor) -> Tensor:
    """Where each of the wanted positions [B, P] stands among rows [B, R]: [B, P]."""
    return (wanted[:, :, None] == rows[:, None, :]).to(torch.uint8).argmax(-1)


class Keys:
    """The keys and values of every attention, [B, heads, N, d_h] each, in buffers that never move."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Tensor, Tensor]] = {}

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for pair in self._kept.values() for tensor in pair)

    def write(self, name: str, keys: Tensor, values: Tensor) -> None:
        """Those of all positions."""
        if name not in self._kept:
            with torch.inference_mode(False):  # so that they may be used within it and without
                self._kept[name] = (torch.empty_like(keys).contiguous(), torch.empty_like(values).contiguous())
        for kept, given in zip(self._kept[name], (keys, values), strict=True):
            kept.copy_(given)

    def update(self, name: str, rows: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Those of some positions [B, P]; returns those of all."""
        kept = self._kept[name]
        index = rows[:, None, :, None].expand(-1, keys.shape[1], -1, keys.shape[-1])
        for all_of_them, given in zip(kept, (keys, values), strict=True):
            all_of_them.scatter_(2, index, given.to(all_of_them.dtype))
        return kept
