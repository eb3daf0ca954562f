"""What a step of parallel decoding computes and writes: functions of tensors of fixed shapes, decided on the device.

The words are those of `tenuto.sampling.parallel`. Nothing is sorted, so each function is compiled to a few kernels.

    tokens  [B, length]: the answers while they are written
    stale   bool [B, shift + length]: places whose keys and values were computed before the token was written. A token
            is predicted `shift` positions before it, so the places begin at −shift
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tenuto.runtime.compilation import function_of_many_shapes
from tenuto.scheduling.schedule import Rows


@dataclass(frozen=True)
class Rules:
    mask: int  # the mask token
    end: int | None  # the token that ends a text; None: every mask is written
    block: int  # tokens of a block
    shift: int
    rows: Rows  # which positions a step with a KV cache computes
    sliding: bool


@function_of_many_shapes
def plan(
    tokens: Tensor, stale: Tensor, rules: Rules, full: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The places of each row's block [B, block], which of them may be written, the computed positions and their number.

    computed  [B, P], counted from the ends of the prompts; None: the schedule treats all positions alike
    needed    [B]: how many of them are needed, from the left; the others repeat the first. 0 if the row has ended

    For a row that has ended, the block is arbitrary. `stale` is updated for the positions that will be computed.
    """
    n, count = torch.arange(tokens.shape[1], device=tokens.device), rules.block
    masked = tokens == rules.mask
    wanted = _wanted(tokens, rules)
    if rules.sliding:
        block = smallest(torch.where(masked, 0, len(n)) + n, count)
        inside = masked & (masked.cumsum(1) <= count)
    else:
        first = torch.where(wanted, n, len(n)).amin(1, keepdim=True)
        first = torch.where(first < len(n), first, 0) // count * count
        block, inside = first + n[:count], (n >= first) & (n < first + count)
    if rules.rows != "block":
        everywhere = torch.arange(-rules.shift, len(n), device=tokens.device).expand(len(tokens), -1)
        return block, masked.gather(1, block), None if rules.rows == "none" else everywhere, None
    # A mask is predicted `shift` positions before it: the mask at p is predicted at place p of `stale`.
    shift = rules.shift
    needed = F.pad(masked & inside, (0, shift))
    rank = torch.where(stale, 0, torch.where(needed, 1, 2))
    position = _position(rank * stale.shape[1] + torch.arange(stale.shape[1], device=tokens.device))
    most = max(count, 2) + shift  # of two: a token just written, and a mask
    chosen = (position < most) & (rank < 2)
    size = chosen.sum(1, keepdim=True)
    computed = _at(position, most)
    computed = torch.where(torch.arange(most, device=tokens.device) < size, computed, computed[:, :1])
    ready = masked if full else masked & chosen[:, : len(n)]
    stale.copy_(torch.zeros_like(stale) if full else stale & ~chosen)
    return block, ready.gather(1, block), computed - shift, torch.where(wanted.any(1), size[:, 0], 0)


@function_of_many_shapes
def packing(needed: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Which of the computed positions [B, most] are needed, as one list [B · most], and where each row begins in it.

    Entries of the list behind the last row are undefined. [B + 1]: where the rows begin, and where the last one ends.
    """
    starts = F.pad(needed.cumsum(0), (1, 0))
    place = torch.arange(most, device=needed.device)
    size = len(needed) * most
    to = torch.where(place < needed[:, None], starts[:-1, None] + place, size).flatten()
    every = torch.arange(size, device=needed.device)
    return torch.zeros(size + 1, dtype=torch.long, device=needed.device).scatter(0, to, every)[:size], starts


@function_of_many_shapes
def settle(tokens: Tensor, stale: Tensor, places: Tensor, guesses: Tensor, chosen: Tensor, rules: Rules) -> Tensor:
    """Write the chosen guesses at places [B, P], unless a row has ended. What the host is told: [B, 3 P + 1].

    That is the places, the guesses and which of them were written, and at last whether the row has ended.
    """
    chosen = chosen & _wanted(tokens, rules).any(1, keepdim=True)
    written = tokens.scatter(1, places, torch.where(chosen, guesses, tokens.gather(1, places)))
    at = places + rules.shift
    stale.copy_(stale.scatter(1, at, stale.gather(1, at) | chosen))
    ended = ~_wanted(written, rules).any(1, keepdim=True)
    tokens.copy_(written)
    return torch.cat([places, guesses, chosen.long(), ended.long()], 1)


def _wanted(tokens: Tensor, rules: Rules) -> Tensor:
    """[B, length]: the masks that must still be written: those before the first end-of-text."""
    masked = tokens == rules.mask
    if rules.end is None:
        return masked
    n = torch.arange(tokens.shape[1], device=tokens.device)
    return masked & (n < torch.where(tokens == rules.end, n, len(n)).amin(1, keepdim=True))


def smallest(keys: Tensor, count: int) -> Tensor:
    """[B, n] different numbers -> where the `count` smallest of each row stand, the smallest first."""
    return _at(_position(keys), count)


def _position(keys: Tensor) -> Tensor:
    """[B, n]: how many of a row are smaller. Counting takes one small kernel, and sorting takes several."""
    return (keys[:, None, :] < keys[:, :, None]).sum(2)


def _at(position: Tensor, count: int) -> Tensor:
    """The inverse of `_position`: which entry has the position 0, 1, …, count − 1."""
    n = torch.arange(position.shape[1], device=position.device)
    return torch.where(position[:, None, :] == n[:count, None], n, 0).sum(2)
