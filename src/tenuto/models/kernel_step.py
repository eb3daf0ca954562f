"""Steps with a KV cache by Triton kernels of our own: at all tokens, at some, or at some packed into one list.

Triton is imported only where a kernel runs: a machine without a GPU need not have it.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tenuto.models.kernel_settings import Settings, fastest
from tenuto.models.language_block import LanguageBlock
from tenuto.runtime.keys import Keys
from tenuto.runtime.residual import Deferred

FEW = 64  # tokens, of all texts together; for more, torch's matrix products are as fast
LEAST_HEAD = 32  # channels
MOST_PARTS = 16  # into which attention divides the keys
BY_KERNELS = True  # for measurements


@dataclass(frozen=True)
class Products:
    """How the matrix products of a step are computed: by kernels with these settings, or None: by torch."""

    rotary: Settings | None = None
    swiglu: Settings | None = None
    out: Settings | None = None
    down: Settings | None = None


def suits(h: Tensor, blocks: Sequence[LanguageBlock]) -> bool:
    """Whether kernels of our own are made for such a step."""
    width = blocks[0].head_dim
    return (
        BY_KERNELS
        and h.is_cuda
        and h.dtype in (torch.bfloat16, torch.float16)
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
    rows: Tensor | None,
    products: Products | None = None,
) -> Tensor:
    """rows: None, if h holds all tokens; products: None, if the fastest are to be found"""
    cosines, sines = (one[:, 0].expand(len(h), -1, -1).flatten(0, 1).contiguous() for one in (rope[0], rope[1]))
    step = None if rows is None else step_at(rows, (cosines, sines), keys, mask, keys.of(blocks[0].name)[0])
    stream = h.flatten(0, 1).clone()  # it is changed in place
    return through(stream, blocks, norm, (cosines, sines), mask, keys, step, h.shape, products).view(h.shape)


def through(
    h: Tensor,
    blocks: Sequence[LanguageBlock],
    norm: Any,
    angles: tuple[Tensor, Tensor],
    mask: Tensor | None,
    keys: Keys,
    step: "Step | None",
    shape: Sequence[int],
    products: Products | None = None,
) -> Tensor:
    """The stream h [M, width] through all blocks and the last norm; step: None, if it holds all tokens of `shape`"""
    from tenuto.models import block_kernels as kernels

    if products is None:
        products = Products() if step is None or len(h) > FEW else products_for(h, blocks, step)
    x = kernels.added(h, None, blocks[0].attn_norm)
    for block, after in zip(blocks, [one.attn_norm for one in blocks[1:]] + [norm], strict=True):
        if step is None:
            seen = _seen_by_all(block, x.view(*shape), angles, mask, keys)
        else:
            seen = step.seen(block, x, products.rotary)
        x = kernels.added(h, _projected(seen, block.attn_out, products.out), block.ff_norm)
        fed = (
            kernels.gated(F.linear(x, block.gate_up))  # type: ignore[arg-type]
            if products.swiglu is None
            else kernels.swiglu(x, block.gate_up, products.swiglu)  # type: ignore[arg-type]
        )
        x = kernels.added(h, _projected(fed, block.ff_out, products.down), after)
    return x


def _projected(x: Tensor, layer: Any, setting: Settings | None) -> Tensor:
    """x · wᵀ as the parts of a sum, [parts, M, width]."""
    from tenuto.models import block_kernels as kernels

    return F.linear(x, layer.weight)[None] if setting is None else kernels.projected(x, layer.weight, setting)


def _seen_by_all(
    block: LanguageBlock, x: Tensor, angles: tuple[Tensor, Tensor], mask: Tensor | None, keys: Keys
) -> Tensor:
    """Attention of all tokens [B, N, width] to all, [M, heads · d]; keys and values are kept."""
    from tenuto.models import block_kernels as kernels

    heads = block.attn_out.weight.shape[1] // block.head_dim
    every = F.linear(x.flatten(0, 1), block.qkv, block.qkv_bias).unflatten(1, (-1, block.head_dim))  # type: ignore[arg-type]
    every = kernels.rotated(every, heads, angles).view(*x.shape[:2], -1, block.head_dim).transpose(1, 2)
    q, k, v = every.split([heads, *[(every.shape[1] - heads) // 2] * 2], dim=1)
    keys.write(block.name, k, v)
    return block.seen(q, *keys.of(block.name), mask).transpose(1, 2).flatten(2).flatten(0, 1)


@dataclass(frozen=True)
class Step:
    """What the kernels of a step at some tokens need to know beside the weights."""

    angles: tuple[Tensor, Tensor]  # [M, d / 2] each
    keys: Keys
    real: Tensor | None  # bool [B, N]
    spots: Tensor  # [M]: text · N + position; −1: not in the cache
    starts: Tensor  # [B + 1]
    longest: int  # tokens of one text, at most

    def seen(self, block: LanguageBlock, x: Tensor, setting: Settings | None) -> Tensor:
        """Attention of the tokens x [M, width] to the cache, their own keys included: [M, heads · d]."""
        from tenuto.models.attention_kernels import attended

        q = self.asked(block, x, setting)
        kept = self.keys.of(block.name)
        return attended(q, *kept, self.real, self.starts, self.longest, parts_for(q, kept[0], self.longest))

    def asked(self, block: LanguageBlock, x: Tensor, setting: Settings | None) -> Tensor:
        """The queries [M, heads, d]; keys and values are written into the cache."""
        from tenuto.models import block_kernels as kernels

        kept = self.keys.of(block.name)
        if setting is not None:
            return kernels.rotary(x, block.qkv, block.qkv_bias, self.angles, self.spots, *kept, setting)  # type: ignore[arg-type]
        heads = block.attn_out.weight.shape[1] // block.head_dim
        every = F.linear(x, block.qkv, block.qkv_bias).unflatten(1, (-1, block.head_dim))  # type: ignore[arg-type]
        return kernels.rotated(every, heads, self.angles, self.spots, kept)[:, :heads]


def step_at(rows: Tensor, angles: tuple[Tensor, Tensor], keys: Keys, mask: Tensor | None, kept: Tensor) -> Step:
    """A step at rows [B, P]. kept: the keys of any block"""
    count, texts = rows.shape[1], torch.arange(len(rows) + 1, device=rows.device)
    real = None if mask is None else mask[:, 0, 0].contiguous()
    return Step(angles, keys, real, (rows + texts[:-1, None] * kept.shape[2]).flatten(), texts * count, count)


@dataclass(frozen=True)
class Packed:
    """The tokens of a step that matter, of all texts as one list."""

    slots: Tensor  # [M]: which of the rows, counted over all texts
    starts: Tensor  # [B + 1]: where the texts begin in the list; behind the last one's end, nothing matters
    rows: Tensor  # [B, P]
    attention_mask: Tensor | None

    def of(self, values: Tensor) -> Tensor:
        """[B, P] -> [M]"""
        return values.expand(self.rows.shape).flatten()[self.slots]

    def step(
        self, h: Tensor, blocks: Sequence[LanguageBlock], norm: Any, angles: tuple[Tensor, Tensor], keys: Keys
    ) -> Tensor:
        """h [M, width] -> the stream behind the last block and the last norm. angles: [1, 1, M, d / 2] each"""
        total = keys.of(blocks[0].name)[0].shape[2]
        texts = torch.arange(len(self.rows), device=h.device)[:, None]
        spots = self.of(self.rows + texts * total)
        spots = torch.where(torch.arange(len(spots), device=h.device) < self.starts[-1], spots, -1)
        real = None if self.attention_mask is None else self.attention_mask.contiguous()
        flat = (angles[0][0, 0].contiguous(), angles[1][0, 0].contiguous())
        step = Step(flat, keys, real, spots, self.starts, self.rows.shape[1])
        return through(h, blocks, norm, flat, None, keys, step, h.shape)

    def spread(self, found: Tensor, made: Tensor) -> Tensor:
        """The results of the list [M], put back among the rows and read at `made` [B, K]; undefined elsewhere."""
        empty = torch.zeros(self.rows.numel(), dtype=found.dtype, device=found.device)
        inside = torch.arange(len(found), device=found.device) < self.starts[-1]
        # Entries behind the end repeat the first slot and its value.
        slots, values = torch.where(inside, self.slots, self.slots[0]), torch.where(inside, found, found[0])
        return empty.scatter(0, slots, values).view(self.rows.shape).gather(1, made)


def parts_for(q: Tensor, k: Tensor, longest: int) -> int:
    """Into how many parts the keys are divided: as many as keep all processors of a GPU busy."""
    tiles = -(-q.shape[1] // k.shape[1] * longest // 64)
    processors = torch.cuda.get_device_properties(q.device).multi_processor_count if q.is_cuda else 1
    return max(1, min(MOST_PARTS, 2 * processors // (len(k) * k.shape[1] * tiles)))


_found: dict[Any, Products] = {}


def products_for(h: Tensor, blocks: Sequence[LanguageBlock], step: Step) -> Products:
    """The fastest products for these shapes, tried out when they are first needed."""
    first = blocks[0]
    shapes = tuple(tuple(one.shape) for one in (first.qkv, first.gate_up, first.attn_out.weight) if one is not None)
    what = (h.shape, shapes, first.head_dim, h.dtype, h.device)
    if what not in _found:
        tried = tried_products(h, blocks, step)
        found = [fastest(settings, run, min(len(blocks), 8)) for settings, run in tried]
        if None in found:
            warnings.warn("Some kernels for text do not run on this GPU; slower ones are used.", stacklevel=2)
        _found[what] = Products(*found)
    return _found[what]


def tried_products(h: Tensor, blocks: Sequence[LanguageBlock], step: Step) -> list[Any]:
    """For each matrix product: the settings that fit, and how to run it with one of them on a block."""
    from tenuto.models import block_kernels as kernels

    first = blocks[0]
    width, half, hidden = h.shape[1], first.head_dim // 2, first.ff_out.weight.shape[1]

    def projecting(name: str) -> tuple[Any, Any]:
        n, k = getattr(first, name).weight.shape
        given = torch.zeros(len(h), k, dtype=h.dtype, device=h.device)
        fitting = [s for s in kernels.PROJECTED if n % s.block_n == 0 and k % (s.split * s.block_k) == 0]
        return fitting, lambda s, i: kernels.projected(given, getattr(blocks[i], name).weight, s)

    x = torch.zeros_like(h)
    return [
        (
            [s for s in kernels.ROTARY if half % s.block_n == 0 and width % s.block_k == 0],
            # This writes into the cache where the step itself will write before it reads.
            lambda s, i: step.asked(blocks[i], x, s),
        ),
        (
            [s for s in kernels.SWIGLU if hidden % s.block_n == 0 and width % s.block_k == 0],
            lambda s, i: kernels.swiglu(x, blocks[i].gate_up, s),  # type: ignore[arg-type]
        ),
        projecting("attn_out"),
        projecting("ff_out"),
    ]
