"""Steps with a KV cache: all blocks at all tokens, or at some tokens, the cache supplying the others.

If no unit is held, nothing needs to come between two blocks. There are two ways, and both compute what
`LanguageBlock.forward` computes:

by_kernels    on a GPU: kernels of our own (kernel_step). For few tokens they contain the matrix products
by_functions  everything from one attention to the next is one function: compiled, it runs in half as many kernels, and
              the cache is written by the kernel that computes the keys
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tenuto.models.kernel_step import by_kernels, suits
from tenuto.models.language_block import LanguageBlock
from tenuto.runtime.compilation import branch_function
from tenuto.runtime.keys import Keys
from tenuto.runtime.residual import Deferred


def cached_step(
    h: Tensor,
    blocks: Sequence[LanguageBlock],
    norm: Any,
    rope: Deferred,
    mask: Tensor | None,
    keys: Keys,
    rows: Tensor | None,
) -> Tensor:
    """h [B, P, width], the tokens at rows [B, P] -> the stream behind the last block and the last norm.

    Without rows, h holds all tokens; this is for what `suits` our kernels.
    """
    if rows is None or suits(h, blocks):
        return by_kernels(h, blocks, norm, rope, mask, keys, rows)
    return by_functions(h, blocks, norm, rope, mask, keys, rows)


def by_functions(
    h: Tensor, blocks: Sequence[LanguageBlock], norm: Any, rope: Deferred, mask: Tensor | None, keys: Keys, rows: Tensor
) -> Tensor:
    first, last = blocks[0], blocks[-1]
    q = enter(first, h, rope[0], rope[1], *keys.of(first.name), rows)
    for block, after in pairwise(blocks):
        seen = block.seen(q, *keys.of(block.name), mask)
        h, q = cross(block, after, h, seen, rope[0], rope[1], *keys.of(after.name), rows)
    left: Tensor = leave(last, norm, h, last.seen(q, *keys.of(last.name), mask))
    return left


@branch_function
def enter(
    block: LanguageBlock, h: Tensor, cosines: Tensor, sines: Tensor, all_keys: Tensor, all_values: Tensor, rows: Tensor
) -> Tensor:
    """The queries of a block; its keys and values are written into the cache."""
    return _entered(block, h, cosines, sines, all_keys, all_values, rows)


@branch_function
def cross(block: LanguageBlock, after: LanguageBlock, h: Tensor, seen: Tensor, *entering: Tensor) -> tuple[Tensor, ...]:
    """From what a block's attention saw to the stream behind the block and the next block's queries."""
    h = _left(block, h, seen)
    return h, _entered(after, h, *entering)


@branch_function
def leave(block: LanguageBlock, norm: Any, h: Tensor, seen: Tensor) -> Tensor:
    left: Tensor = norm(_left(block, h, seen))
    return left


def _entered(
    block: LanguageBlock, h: Tensor, cosines: Tensor, sines: Tensor, all_keys: Tensor, all_values: Tensor, rows: Tensor
) -> Tensor:
    q, k, v = block.projected(h, cosines, sines)
    row = torch.arange(len(rows), device=rows.device)[:, None, None]
    head = torch.arange(k.shape[1], device=rows.device)[None, :, None]
    all_keys.index_put_((row, head, rows[:, None, :]), k.to(all_keys.dtype))
    all_values.index_put_((row, head, rows[:, None, :]), v.to(all_values.dtype))
    return q


def _left(block: LanguageBlock, h: Tensor, seen: Tensor) -> Tensor:
    h = h + block.merged(seen)
    return h + block.fed(h)
