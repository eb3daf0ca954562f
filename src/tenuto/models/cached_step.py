"""A step with a KV cache: all blocks at some tokens, the cache supplying the others.

If no unit is held, nothing needs to come between two blocks. There are two ways, and both compute what
`LanguageBlock.forward` computes:

by_kernels    on a GPU, for few tokens: kernels of our own (block_kernels), eight a block
by_functions  everything from one attention to the next is one function: compiled, it runs in half as many kernels, and
              the cache is written by the kernel that computes the keys
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tenuto.models.kernel_settings import Settings, fastest
from tenuto.models.language_block import LanguageBlock
from tenuto.runtime.compilation import branch_function
from tenuto.runtime.keys import Keys
from tenuto.runtime.residual import Deferred

FEW = 64  # tokens, of all texts together; for more, computing takes longer than reading the weights
LEAST_HEAD = 32  # channels
MOST_PARTS = 16  # into which attention divides the keys
BY_KERNELS = True  # for measurements


def cached_step(
    h: Tensor, blocks: Sequence[LanguageBlock], norm: Any, rope: Deferred, mask: Tensor | None, keys: Keys, rows: Tensor
) -> Tensor:
    """h [B, P, width], the tokens at rows [B, P] -> the stream behind the last block and the last norm."""
    tuned = tuned_for(h, blocks, rope, keys, rows) if suits(h, blocks) else None
    if tuned is not None:
        return by_kernels(h, blocks, norm, rope, mask, keys, rows, tuned)
    return by_functions(h, blocks, norm, rope, mask, keys, rows)


# Functions


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


# Kernels


@dataclass(frozen=True)
class Tuned:
    """The settings of the matrix products."""

    rotary: Settings
    swiglu: Settings
    out: Settings
    down: Settings


def suits(h: Tensor, blocks: Sequence[LanguageBlock]) -> bool:
    """Whether kernels of our own are made for such a step."""
    width = blocks[0].head_dim
    return (
        BY_KERNELS
        and h.is_cuda
        and h.dtype in (torch.bfloat16, torch.float16)
        and h.shape[0] * h.shape[1] <= FEW
        and width >= LEAST_HEAD
        and width & (width - 1) == 0
        and all(block.qkv is not None and block.gate_up is not None for block in blocks)
        and has_triton()
    )


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None


def by_kernels(
    h: Tensor,
    blocks: Sequence[LanguageBlock],
    norm: Any,
    rope: Deferred,
    mask: Tensor | None,
    keys: Keys,
    rows: Tensor,
    tuned: Tuned,
) -> Tensor:
    from tenuto.models import block_kernels as kernels

    shape, angles, rows = h.shape, _angles(rope, h), rows.contiguous()
    h = h.flatten(0, 1).clone()  # the stream is changed in place
    real = None if mask is None else mask[:, 0, 0].contiguous()
    x = kernels.added(h, None, blocks[0].attn_norm)
    for block, after in zip(blocks, [one.attn_norm for one in blocks[1:]] + [norm], strict=True):
        kept = keys.of(block.name)
        heads = block.attn_out.weight.shape[1] // block.head_dim
        q = kernels.rotary(x, block.qkv, block.qkv_bias, angles, rows, *kept, heads, tuned.rotary)  # type: ignore[arg-type]
        seen = kernels.attended(q, *kept, real, parts_for(q, kept[0]))
        x = kernels.added(h, kernels.projected(seen, block.attn_out.weight, tuned.out), block.ff_norm)
        fed = kernels.swiglu(x, block.gate_up, tuned.swiglu)  # type: ignore[arg-type]
        x = kernels.added(h, kernels.projected(fed, block.ff_out.weight, tuned.down), after)
    return x.view(shape)


def _angles(rope: Deferred, h: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of all tokens, [M, d / 2] each."""
    cosines, sines = (one[:, 0].expand(len(h), -1, -1).flatten(0, 1).contiguous() for one in (rope[0], rope[1]))
    return cosines, sines


def parts_for(q: Tensor, k: Tensor) -> int:
    """Into how many parts the keys are divided: as many as keep all processors of a GPU busy."""
    queries = q.shape[1] // k.shape[1] * q.shape[2]
    at_once = len(q) * k.shape[1] * -(-queries // 64)
    processors = torch.cuda.get_device_properties(q.device).multi_processor_count if q.is_cuda else 1
    return max(1, min(MOST_PARTS, 2 * processors // at_once))


_tuned: dict[Any, Tuned | None] = {}


def tuned_for(h: Tensor, blocks: Sequence[LanguageBlock], rope: Deferred, keys: Keys, rows: Tensor) -> Tuned | None:
    """The fastest settings for these shapes, tried out when they are first needed. None: no kernel runs on this GPU."""
    first = blocks[0]
    shapes = tuple(tuple(one.shape) for one in (first.qkv, first.gate_up, first.attn_out.weight) if one is not None)
    what = (h.shape, shapes, first.head_dim, h.dtype, h.device)
    if what not in _tuned:
        tried = _products(h, blocks, rope, keys, rows)
        found = [fastest(settings, run, min(len(blocks), 8)) for settings, run in tried]
        _tuned[what] = None if None in found else Tuned(*found)  # type: ignore[arg-type]
        if _tuned[what] is None:
            warnings.warn("The kernels for text do not run on this GPU; a slower path is used.", stacklevel=2)
    return _tuned[what]


def _products(h: Tensor, blocks: Sequence[LanguageBlock], rope: Deferred, keys: Keys, rows: Tensor) -> list[Any]:
    """For each matrix product: the settings that fit, and how to run it with one of them on a block."""
    from tenuto.models import block_kernels as kernels

    first, angles, rows = blocks[0], _angles(rope, h), rows.contiguous()
    width, half, hidden = h.shape[2], first.head_dim // 2, first.ff_out.weight.shape[1]
    heads = first.attn_out.weight.shape[1] // first.head_dim

    def tokens(channels: int) -> Tensor:
        return torch.zeros(h.shape[0] * h.shape[1], channels, dtype=h.dtype, device=h.device)

    def rotary(setting: Settings, i: int) -> None:
        # This writes into the cache at rows, where the step itself will write before it reads.
        one = blocks[i]
        kernels.rotary(x, one.qkv, one.qkv_bias, angles, rows, *keys.of(one.name), heads, setting)  # type: ignore[arg-type]

    def projecting(name: str) -> tuple[Any, Any]:
        n, k = getattr(first, name).weight.shape
        given = tokens(k)
        fitting = [s for s in kernels.PROJECTED if n % s.block_n == 0 and k % (s.split * s.block_k) == 0]
        return fitting, lambda s, i: kernels.projected(given, getattr(blocks[i], name).weight, s)

    x = tokens(width)
    return [
        ([s for s in kernels.ROTARY if half % s.block_n == 0 and width % s.block_k == 0], rotary),
        (
            [s for s in kernels.SWIGLU if hidden % s.block_n == 0 and width % s.block_k == 0],
            lambda s, i: kernels.swiglu(x, blocks[i].gate_up, s),  # type: ignore[arg-type]
        ),
        projecting("attn_out"),
        projecting("ff_out"),
    ]
