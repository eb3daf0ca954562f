"""Take some positions out of sequences, different ones in each sequence, and put them back."""

import torch
from torch import Tensor


def take(x: Tensor, rows: Tensor) -> Tensor:
    """x [B, N, D] at rows [B, P]: [B, P, D]."""
    return x.gather(1, rows[:, :, None].expand(-1, -1, x.shape[-1]))


def put_(x: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    """Write values [B, P, D] into x [B, N, D] at rows [B, P]. If a row is named twice, both values must be equal."""
    return x.scatter_(1, rows[:, :, None].expand(-1, -1, x.shape[-1]), values.to(x.dtype))


def places_of(wanted: Tensor, rows: Tensor) -> Tensor:
    """Where each of the wanted positions [B, P] stands among rows [B, R]: [B, P]."""
    return (wanted[:, :, None] == rows[:, None, :]).to(torch.uint8).argmax(-1)
