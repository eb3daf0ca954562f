"""Triton kernels of attention to a KV cache: few queries of each text, perhaps of one text only, meet many keys.

A GPU computes attention text by text and head by head in parallel. A block of a single text has few heads and few
queries, so most of the GPU would wait. Therefore the keys are divided into parts, all parts are attended to at the same
time, and their results are joined. M, `starts` and N are those of `block_kernels`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tenuto.models.block_kernels import padded

KEYS = 64  # that are read at once


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _attended(  # type: ignore[no-untyped-def]
    queries, keys, values, mask, starts, found, sums, M, N, each, kv_heads, stride, scale,
    MASKED: tl.constexpr, SHARED: tl.constexpr, WIDTH: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The queries of one text that share one head of keys meet one part of the keys."""
    text, head, part = tl.program_id(0) // kv_heads, tl.program_id(0) % kv_heads, tl.program_id(1)
    start, stop = tl.load(starts + text), tl.load(starts + text + 1)
    row = tl.program_id(2) * BLOCK_R + tl.arange(0, BLOCK_R)
    token = start + row // SHARED
    real = token < stop
    d = tl.arange(0, WIDTH)
    asks = head * SHARED + row % SHARED
    at_query = (token * stride + asks * WIDTH)[:, None] + d[None, :]
    q = tl.load(queries + at_query, mask=real[:, None], other=0.0)
    most = tl.full((BLOCK_R,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_R,), tl.float32)
    seen = tl.zeros((BLOCK_R, WIDTH), tl.float32)
    base = tl.program_id(0).to(tl.int64) * N
    asking = start + tl.program_id(2) * BLOCK_R // SHARED < stop  # otherwise there is nothing to read
    end = tl.where(asking, tl.minimum(part * each + each, N), part * each)
    for at in range(part * each, end, BLOCK_K):
        n = at + tl.arange(0, BLOCK_K)
        there = n < end
        offset = (base + n)[:, None] * WIDTH + d[None, :]
        k = tl.load(keys + offset, mask=there[:, None], other=0.0)
        if MASKED:
            there = there & (tl.load(mask + text * N + n, mask=there, other=0) != 0)
        score = tl.where(there[None, :], tl.dot(q, tl.trans(k)) * scale, -float("inf"))
        higher = tl.maximum(most, tl.max(score, 1))
        safe = tl.where(higher == -float("inf"), 0.0, higher)  # no real key so far
        weight = tl.exp2(score - safe[:, None])
        fade = tl.exp2(most - safe)
        v = tl.load(values + offset, mask=(n < end)[:, None], other=0.0)
        seen = tl.dot(weight.to(v.dtype), v, seen * fade[:, None])
        total = total * fade + tl.sum(weight, 1)
        most = higher
    seen = seen / tl.where(total == 0, 1.0, total)[:, None]
    to = (part * M + token) * (kv_heads * SHARED) + asks
    tl.store(found + to[:, None] * WIDTH + d[None, :], seen.to(found.dtype.element_ty), mask=real[:, None])
    tl.store(sums + to, tl.where(total == 0, -float("inf"), most + tl.log2(total)), mask=real)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _joined(  # type: ignore[no-untyped-def]
    found, sums, out, size, PARTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Some heads of some tokens: the parts' results, weighted by their sums of exponentials."""
    row, d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    real = row < size
    most = tl.full((BLOCK,), -float("inf"), tl.float32)
    for part in tl.static_range(PARTS):
        most = tl.maximum(most, tl.load(sums + part * size + row, mask=real, other=0.0))
    total = tl.zeros((BLOCK,), tl.float32)
    value = tl.zeros((BLOCK, WIDTH), tl.float32)
    for part in tl.static_range(PARTS):
        weight = tl.exp2(tl.load(sums + part * size + row, mask=real, other=0.0) - most)
        at = (part * size + row)[:, None] * WIDTH + d[None, :]
        value += weight[:, None] * tl.load(found + at, mask=real[:, None], other=0.0)
        total += weight
    value = value / total[:, None]
    tl.store(out + row[:, None] * WIDTH + d[None, :], value.to(out.dtype.element_ty), mask=real[:, None])


def attended(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, starts: Tensor, longest: int, parts: int
) -> Tensor:
    """Attention of q [M, heads, d] to the cache [B, kv_heads, N, d]: [M, heads · d].

    mask     bool [B, N], True at real keys; None: all are
    longest  tokens of one text in q, at most
    parts    into which the keys are divided; all parts are attended to at the same time
    """
    (tokens, heads, width), (batch, kv_heads, total, _) = q.shape, keys.shape
    shared = heads // kv_heads
    each = -(-total // (parts * KEYS)) * KEYS
    parts = -(-total // each)
    divided = torch.float32 if parts > 1 else q.dtype
    found = torch.empty(parts, tokens, heads, width, dtype=divided, device=q.device)
    sums = torch.empty(parts, tokens, heads, dtype=torch.float32, device=q.device)
    block = min(padded(shared * longest), 64)
    _attended[(batch * kv_heads, parts, -(-shared * longest // block))](
        q, keys, values, q if mask is None else mask, starts, found, sums, tokens, total, each, kv_heads, q.stride(0),
        width**-0.5 * 1.4426950408889634,  # exponentials are powers of two here
        MASKED=mask is not None, SHARED=shared, WIDTH=width, BLOCK_R=block, BLOCK_K=KEYS, num_warps=4, num_stages=2,
    )  # fmt: skip
    if parts == 1:
        return found.view(tokens, heads * width)
    out = torch.empty(tokens, heads * width, dtype=q.dtype, device=q.device)
    _joined[(-(-tokens * heads // 8),)](
        found, sums, out, tokens * heads, PARTS=parts, WIDTH=width, BLOCK=8, num_warps=4
    )
    return out
