"""Triton kernels of a step with a KV cache.

    added → rotary → attended → projected → added → swiglu → projected → added → rotary → …

A block of one text has few tokens, so most of the time goes into reading the weights. There, a matrix product also does
the work that follows it: it rotates its result, writes the KV cache, applies the gate, or leaves parts of a sum
(`projected`) that the next norm adds up (`added`). For many tokens torch's matrix products are faster; `rotated` and
`gated` do the work between them.

The kernels round where the plain functions of `language_block` round, so results differ only in the order of sums. M is
the number of tokens of all texts together. Tokens of one text stand next to each other; `starts` [B + 1] says where the
texts begin among them, and `spots` [M] where each token stands in the cache: text · N + position, or −1 if nowhere.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tenuto.models.kernel_settings import Settings

# What is tried out on a GPU, for each kernel: sizes of blocks, warps and stages of the pipeline.
ROTARY = [
    Settings(block_n=64, block_k=64, num_warps=4, num_stages=5),
    Settings(block_n=64, block_k=128, num_warps=4, num_stages=3),
    Settings(block_n=32, block_k=128, num_warps=4, num_stages=4),
    Settings(block_n=32, block_k=64, num_warps=4, num_stages=6),
    Settings(block_n=16, block_k=32, num_warps=4, num_stages=3),  # for networks as small as tests have
]
SWIGLU = [
    Settings(block_n=64, block_k=64, num_warps=4, num_stages=5),
    Settings(block_n=64, block_k=64, num_warps=4, num_stages=4),
    Settings(block_n=128, block_k=64, num_warps=8, num_stages=5),
    Settings(block_n=32, block_k=128, num_warps=4, num_stages=4),
    Settings(block_n=16, block_k=32, num_warps=4, num_stages=3),
]
PROJECTED = [
    Settings(block_n=64, block_k=64, split=4, num_warps=4, num_stages=6),
    Settings(block_n=64, block_k=64, split=8, num_warps=4, num_stages=5),
    Settings(block_n=64, block_k=128, split=4, num_warps=4, num_stages=4),
    Settings(block_n=64, block_k=128, split=2, num_warps=4, num_stages=4),
    Settings(block_n=128, block_k=64, split=4, num_warps=4, num_stages=5),
    Settings(block_n=32, block_k=128, split=4, num_warps=4, num_stages=4),
    Settings(block_n=16, block_k=32, num_warps=4, num_stages=3),
]


def padded(tokens: int) -> int:
    """A number of tokens as matrix products take them."""
    return max(16, triton.next_power_of_2(tokens))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _rotary(  # type: ignore[no-untyped-def]
    x, w, bias, cosines, sines, spots, queries, keys, values, M, K, N, heads, kv_heads,
    BIASED: tl.constexpr, HALF: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Channels i and i + HALF of one head, for BLOCK_N of the i."""
    parts: tl.constexpr = HALF // BLOCK_N
    head = tl.program_id(0) // parts
    i = tl.program_id(0) % parts * BLOCK_N + tl.arange(0, BLOCK_N)
    m, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    real = m < M
    row = head * 2 * HALF + i
    first = w + row.to(tl.int64)[:, None] * K + k[None, :]
    second = first + HALF * K
    given = x + m[:, None] * K + k[None, :]
    a = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    b = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for at in range(0, K, BLOCK_K):
        tokens = tl.trans(tl.load(given + at, mask=real[:, None], other=0.0))
        a = tl.dot(tl.load(first + at, eviction_policy="evict_first"), tokens, a)
        b = tl.dot(tl.load(second + at, eviction_policy="evict_first"), tokens, b)
    if BIASED:
        a += tl.load(bias + row).to(tl.float32)[:, None]
        b += tl.load(bias + row + HALF).to(tl.float32)[:, None]
    kind = queries.dtype.element_ty
    a, b = a.to(kind).to(tl.float32), b.to(kind).to(tl.float32)
    if head < heads + kv_heads:
        at_angle = m[None, :] * HALF + i[:, None]
        cos = tl.load(cosines + at_angle, mask=real[None, :], other=0.0)
        sin = tl.load(sines + at_angle, mask=real[None, :], other=0.0)
        a, b = a * cos - b * sin, b * cos + a * sin
    if head < heads:
        to = queries + ((m * heads + head) * 2 * HALF)[None, :] + i[:, None]
        tl.store(to, a.to(kind), mask=real[None, :])
        tl.store(to + HALF, b.to(kind), mask=real[None, :])
    else:
        spot = tl.load(spots + m, mask=real, other=-1)
        which, kept = (head - heads) % kv_heads, (spot >= 0)[None, :]
        offset = (((spot // N * kv_heads + which) * N + spot % N) * 2 * HALF)[None, :] + i[:, None]
        if head < heads + kv_heads:
            tl.store(keys + offset, a.to(kind), mask=kept)
            tl.store(keys + offset + HALF, b.to(kind), mask=kept)
        else:
            tl.store(values + offset, a.to(kind), mask=kept)
            tl.store(values + offset + HALF, b.to(kind), mask=kept)


def rotary(
    x: Tensor, w: Tensor, bias: Tensor | None, angles: tuple[Tensor, Tensor], spots: Tensor,
    keys: Tensor, values: Tensor, setting: Settings,
) -> Tensor:  # fmt: skip
    """The queries [M, heads, d] of tokens x [M, width]; keys and values are written into the cache [B, …, N, d].

    w       [(heads + 2 · kv_heads) · d, width]
    angles  cosines and sines, [M, d / 2] each
    """
    _, kv_heads, total, width = keys.shape
    heads, half = len(w) // width - 2 * kv_heads, width // 2
    queries = torch.empty(len(x), heads, width, dtype=x.dtype, device=x.device)
    _rotary[((heads + 2 * kv_heads) * (half // setting.block_n),)](
        x, w, x if bias is None else bias, *angles, spots, queries, keys, values,
        len(x), x.shape[1], total, heads, kv_heads,
        BIASED=bias is not None, HALF=half, BLOCK_M=padded(len(x)), BLOCK_N=setting.block_n, BLOCK_K=setting.block_k,
        num_warps=setting.num_warps, num_stages=setting.num_stages,
    )  # fmt: skip
    return queries


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _rotated(  # type: ignore[no-untyped-def]
    given, cosines, sines, spots, keys, values, N, heads, kv_heads,
    WRITE: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some heads of one token, in place; those of keys and values are copied into the cache."""
    m, head = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    i, every = tl.arange(0, HALF), heads + 2 * kv_heads
    real = (head < every)[:, None]
    at = given + ((m * every + head) * 2 * HALF)[:, None] + i[None, :]
    kind = given.dtype.element_ty
    a = tl.load(at, mask=real, other=0.0).to(tl.float32)
    b = tl.load(at + HALF, mask=real, other=0.0).to(tl.float32)
    cos = tl.load(cosines + m * HALF + i)[None, :]
    sin = tl.load(sines + m * HALF + i)[None, :]
    turned = (head < heads + kv_heads)[:, None]
    first = tl.where(turned, a * cos - b * sin, a).to(kind)
    second = tl.where(turned, b * cos + a * sin, b).to(kind)
    tl.store(at, first, mask=real & turned)
    tl.store(at + HALF, second, mask=real & turned)
    if WRITE:
        spot = tl.load(spots + m)
        which = (head - heads) % kv_heads
        offset = (((spot // N * kv_heads + which) * N + spot % N) * 2 * HALF)[:, None] + i[None, :]
        key = ((head >= heads) & (head < heads + kv_heads) & (spot >= 0))[:, None]
        tl.store(keys + offset, first, mask=key)
        tl.store(keys + offset + HALF, second, mask=key)
        value = ((head >= heads + kv_heads) & (head < every) & (spot >= 0))[:, None]
        tl.store(values + offset, first, mask=value)
        tl.store(values + offset + HALF, second, mask=value)


def rotated(
    given: Tensor, heads: int, angles: tuple[Tensor, Tensor], spots: Tensor | None = None,
    cache: tuple[Tensor, Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """Rotate queries and keys within [M, heads + 2 · kv_heads, d], in place; with a cache, write into it at spots."""
    tokens, every, width = given.shape
    keys, values = (given, given) if cache is None else cache
    block = min(16, triton.next_power_of_2(every))
    _rotated[(tokens, -(-every // block))](
        given, *angles, given if spots is None else spots, keys, values, keys.shape[2] if cache else 1, heads,
        (every - heads) // 2, WRITE=cache is not None, HALF=width // 2, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return given


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _gated(given, out, hidden, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    m, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = i < hidden
    gate = tl.load(given + m * 2 * hidden + i, mask=real, other=0.0).to(tl.float32)
    up = tl.load(given + m * 2 * hidden + hidden + i, mask=real, other=0.0).to(tl.float32)
    kind = out.dtype.element_ty
    opened = (gate / (1 + tl.exp(-gate))).to(kind).to(tl.float32)
    tl.store(out + m * hidden + i, (opened * up).to(kind), mask=real)


def gated(given: Tensor) -> Tensor:
    """silu(gate) · up of [M, 2 · hidden], the gates first: [M, hidden]."""
    tokens, hidden = len(given), given.shape[1] // 2
    out = torch.empty(tokens, hidden, dtype=given.dtype, device=given.device)
    _gated[(tokens, -(-hidden // 2048))](given, out, hidden, BLOCK=2048, num_warps=4)
    return out


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _swiglu(  # type: ignore[no-untyped-def]
    x, w, out, M, K, hidden, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    real = m < M
    gates = w + n.to(tl.int64)[:, None] * K + k[None, :]
    ups = gates + hidden.to(tl.int64) * K
    given = x + m[:, None] * K + k[None, :]
    gate = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    up = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for at in range(0, K, BLOCK_K):
        tokens = tl.trans(tl.load(given + at, mask=real[:, None], other=0.0))
        gate = tl.dot(tl.load(gates + at, eviction_policy="evict_first"), tokens, gate)
        up = tl.dot(tl.load(ups + at, eviction_policy="evict_first"), tokens, up)
    kind = out.dtype.element_ty
    gate = gate.to(kind).to(tl.float32)
    opened = (gate / (1 + tl.exp(-gate))).to(kind).to(tl.float32)
    value = opened * up.to(kind).to(tl.float32)
    tl.store(out + m.to(tl.int64)[None, :] * hidden + n[:, None], value.to(kind), mask=real[None, :])


def swiglu(x: Tensor, w: Tensor, setting: Settings) -> Tensor:
    """silu(x · gateᵀ) · (x · upᵀ), [M, width] -> [M, hidden]; w is gate and up, [2 · hidden, width]."""
    hidden = len(w) // 2
    out = torch.empty(len(x), hidden, dtype=x.dtype, device=x.device)
    _swiglu[(hidden // setting.block_n,)](
        x, w, out, len(x), x.shape[1], hidden,
        BLOCK_M=padded(len(x)), BLOCK_N=setting.block_n, BLOCK_K=setting.block_k,
        num_warps=setting.num_warps, num_stages=setting.num_stages,
    )  # fmt: skip
    return out


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _projected(  # type: ignore[no-untyped-def]
    x, w, out, M, N, K, each, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    part = tl.program_id(1)
    m, k = tl.arange(0, BLOCK_M), part * each + tl.arange(0, BLOCK_K)
    real = m < M
    weights = w + n.to(tl.int64)[:, None] * K + k[None, :]
    given = x + m[:, None] * K + k[None, :]
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for at in range(0, each, BLOCK_K):
        tokens = tl.trans(tl.load(given + at, mask=real[:, None], other=0.0))
        total = tl.dot(tl.load(weights + at, eviction_policy="evict_first"), tokens, total)
    tl.store(out + (part * M + m)[None, :] * N + n[:, None], total, mask=real[None, :])


def projected(x: Tensor, w: Tensor, setting: Settings) -> Tensor:
    """x · wᵀ as parts of a sum, in float32: [parts, M, len(w)]."""
    tokens, width = x.shape
    out = torch.empty(setting.split, tokens, len(w), dtype=torch.float32, device=x.device)
    _projected[(len(w) // setting.block_n, setting.split)](
        x, w, out, tokens, len(w), width, width // setting.split,
        BLOCK_M=padded(tokens), BLOCK_N=setting.block_n, BLOCK_K=setting.block_k,
        num_warps=setting.num_warps, num_stages=setting.num_stages,
    )  # fmt: skip
    return out


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _added(  # type: ignore[no-untyped-def]
    h, parts, weight, out, M, width, eps, PARTS: tl.constexpr, BLOCK: tl.constexpr
):
    m, i = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = i < width
    kind = h.dtype.element_ty
    stream = tl.load(h + m * width + i, mask=inside, other=0.0).to(tl.float32)
    if PARTS:
        total = tl.zeros((BLOCK,), tl.float32)
        for part in tl.static_range(PARTS):
            total += tl.load(parts + (part * M + m) * width + i, mask=inside, other=0.0).to(tl.float32)
        stream = (stream + total.to(kind).to(tl.float32)).to(kind)
        tl.store(h + m * width + i, stream, mask=inside)
        stream = stream.to(tl.float32)
    scale = tl.rsqrt(tl.sum(stream * stream) / width + eps)
    value = (stream * scale).to(kind).to(tl.float32) * tl.load(weight + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + m * width + i, value.to(kind), mask=inside)


def added(h: Tensor, parts: Tensor | None, norm: Any) -> Tensor:
    """Add the sum of parts to the stream h [M, width], in place, and return the stream after a norm."""
    out = torch.empty_like(h)
    width = h.shape[1]
    block = triton.next_power_of_2(width)
    _added[(len(h),)](
        h, h if parts is None else parts, norm.weight, out, len(h), width, norm.eps,
        PARTS=0 if parts is None else len(parts), BLOCK=block, num_warps=max(1, min(16, block // 512)),
    )  # fmt: skip
    return out
