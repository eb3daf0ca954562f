"""The only arithmetic that a held unit needs: its kept values, weighted, gated, added to the stream.

On a GPU, one kernel adds a whole run of held units. The kernel reads each buffer once and sums in float32. On other
devices, or without Triton, plain PyTorch does the same.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

BLOCK = 1024


def add_held(
    h: Tensor,
    kept: Sequence[Sequence[Tensor]],
    weights: Sequence[Sequence[float]],
    gates: Sequence[Tensor] | None,
) -> Tensor:
    """h + Σ gate · Σ weight · kept, summed over the held units and over the kept values of each."""
    for i, (values, factors) in enumerate(zip(kept, weights, strict=True)):
        read = [(value, factor) for value, factor in zip(values, factors, strict=True) if factor != 0]
        if len(read) == 1 and read[0][1] == 1:
            value = read[0][0]
            h = h + (value if gates is None else gates[i] * value)
            continue
        result = read[0][1] * read[0][0]  # the only new buffer: on the CPU, new memory costs more than arithmetic
        for value, factor in read[1:]:
            result.add_(value, alpha=factor)
        if gates is not None:
            result.mul_(gates[i])
        h = result.add_(h) if (result.dtype, result.shape) == (h.dtype, h.shape) else h + result
    return h


def add_held_planes(
    h: Tensor, storage: Tensor, planes: Tensor, weights: Tensor, rows: Tensor, gates: Tensor | None
) -> Tensor:
    """The same on a GPU, all numbers on the device.

    storage  [planes, *h.shape]
    planes   int64 [units, slots]: where each unit's kept values are
    weights  float32 [cells, slots]
    rows     int64 [units]: each unit's row of `weights`
    gates    [units, B, 1, …, D], each to be broadcast over h [B, …, D]; or None
    """
    if not fits_kernel(h, storage, gates):
        factors = weights[rows].to(torch.float32)
        for i in range(len(rows)):
            value = torch.zeros_like(h, dtype=torch.float32)
            for slot in range(planes.shape[1]):
                kept = storage.index_select(0, planes[i, slot : slot + 1])[0]
                value = value + factors[i, slot] * kept
            h = h + (value if gates is None else gates[i] * value).to(h.dtype)
        return h
    out = torch.empty_like(h)
    batch, width = h.shape[0], h.shape[-1]
    _kernel()[(-(-h.numel() // BLOCK),)](
        out,
        h,
        storage,
        planes,
        weights,
        rows,
        h if gates is None else gates,
        h.numel(),
        h.numel() // batch,
        h.stride(-1),
        width,
        batch * width,
        len(rows),
        SLOTS=planes.shape[1],
        GATED=gates is not None,
        BLOCK=BLOCK,
    )
    return out


def fits_kernel(h: Tensor, storage: Tensor, gates: Tensor | None) -> bool:
    """Whether the kernel can run. It reads elements in memory order, so the planes need the strides of the stream."""
    if not h.is_cuda or not has_triton() or h.stride() != storage.stride()[1:]:
        return False
    if gates is None:
        return True
    outermost = h.stride(0) * h.shape[0] == h.numel()
    one_a_channel = gates.shape[1:] == (h.shape[0], *(1,) * (h.dim() - 2), h.shape[-1])
    return outermost and one_a_channel and gates.is_contiguous()


@cache
def has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


@cache
def _kernel() -> Any:
    import triton
    import triton.language as tl

    @triton.jit(do_not_specialize=["units"])  # type: ignore[untyped-decorator,unused-ignore]
    def kernel(  # type: ignore[no-untyped-def]
        out,
        h,
        storage,
        planes,
        weights,
        rows,
        gates,
        numel,
        per_sample,
        per_channel,
        width,
        gate_size,
        units,
        SLOTS: tl.constexpr,
        GATED: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < numel
        total = tl.load(h + at, mask=inside).to(tl.float32)
        if GATED:
            gate_at = (at // per_sample) * width + (at // per_channel) % width
        for unit in range(units):
            row = tl.load(rows + unit)
            value = tl.zeros([BLOCK], tl.float32)
            for slot in tl.static_range(SLOTS):
                plane = tl.load(planes + unit * SLOTS + slot)
                weight = tl.load(weights + row * SLOTS + slot)
                value += weight * tl.load(storage + plane * numel + at, mask=inside).to(tl.float32)
            if GATED:
                value *= tl.load(gates + unit * gate_size + gate_at, mask=inside).to(tl.float32)
            total += value
        tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)

    return kernel
