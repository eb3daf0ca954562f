"""The KV cache: keys and values of attention, kept from one step of a text to the next."""

import torch
from torch import Tensor


class Keys:
    """The keys and values of every attention, [B, heads, N, d_h] each, in buffers that never move."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Tensor, Tensor]] = {}

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for pair in self._kept.values() for tensor in pair)

    def of(self, name: str) -> tuple[Tensor, Tensor]:
        """The buffers of one attention: keys and values of all positions."""
        return self._kept[name]

    def write(self, name: str, keys: Tensor, values: Tensor) -> None:
        """Keep the keys and values of all positions."""
        if name not in self._kept:
            with torch.inference_mode(False):  # so that they can be used inside and outside of inference mode
                self._kept[name] = (torch.empty_like(keys).contiguous(), torch.empty_like(values).contiguous())
        for kept, given in zip(self._kept[name], (keys, values), strict=True):
            kept.copy_(given)

    def update(self, name: str, rows: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Overwrite the keys and values at some positions [B, P]; return those of all positions."""
        kept = self._kept[name]
        index = rows[:, None, :, None].expand(-1, keys.shape[1], -1, keys.shape[-1])
        for all_of_them, given in zip(kept, (keys, values), strict=True):
            all_of_them.scatter_(2, index, given.to(all_of_them.dtype))
        return kept
