"""What limits the speed: the memory's bandwidth, and the kernels of a step."""

import traceback
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.text_8b.replaying import prompts_of, seconds
from benchmarks.text_8b.ways import BLOCK
from tenuto.models import kernel_step
from tenuto.models.kernel_settings import milliseconds
from tenuto.models.language import LanguageNetwork
from tenuto.models.language_block import rotary_angles
from tenuto.runtime.keys import Keys


@torch.inference_mode()
def limits(network: LanguageNetwork, device: torch.device) -> dict[str, Any]:
    """How fast the memory is, and how long reading all weights of a step takes at that speed."""
    embedding = network.parts()[0].weight
    weights = sum(parameter.nbytes for parameter in network.parameters()) - embedding.nbytes
    copied = _copied(device)
    joined = [block.gate_up for block in network.parts()[1] if block.gate_up is not None]
    read = None
    if joined:  # the largest matrices as they lie, summed: reading alone
        total = sum(one.nbytes for one in joined)
        views = [one.view(torch.int32 if one.itemsize == 2 else one.dtype) for one in joined]
        for one in views[:1]:
            one.sum()
        read = total / min(seconds(lambda: [one.amax() for one in views], device) for _ in range(3))
    return {
        "weight_bytes": weights,
        "copy_bytes_per_second": copied,
        "read_bytes_per_second": read,
        "weights_ms": 1000 * weights / max(copied, read or 0.0),
    }


def _copied(device: torch.device) -> float:
    """Bytes read and written each second by a large copy."""
    source = torch.empty(2**30 if device.type == "cuda" else 2**20, dtype=torch.int32, device=device).fill_(7)
    target = torch.empty_like(source).copy_(source)
    return 2 * source.nbytes / min(seconds(lambda: target.copy_(source), device) for _ in range(5))


@torch.inference_mode()
def checked_kernels(network: LanguageNetwork, device: torch.device) -> dict[str, Any]:
    """How far a block step by our kernels is from one by plain functions, and how long each setting takes.

    If the kernels do not run, or are wrong, they are switched off.
    """
    config, blocks = network.config, list(network.parts()[1])
    tokens = torch.tensor(prompts_of(1, 700, config), device=device)
    rows = torch.arange(600, 600 + BLOCK, device=device)[None]
    found, keys = [], Keys()
    try:
        for on in (False, True):
            with mock.patch.object(kernel_step, "BY_KERNELS", on):
                whole = network(tokens, memory=(keys, None), positions=rows).float()
                found.append((whole, network(tokens, memory=(keys, rows)).float()))
        error = max(float((b - a).norm() / a.norm()) for a, b in zip(*found, strict=True))
        cosines, sines = (one[0, 0] for one in rotary_angles(rows, config.head_dim, config.rope_theta))
        h = network.parts()[0](tokens.gather(1, rows))
        step = kernel_step.step_at(rows, (cosines, sines), keys, None, keys.of(blocks[0].name)[0])
        record: dict[str, Any] = {"relative_error": error}
        names = ("rotary", "swiglu", "attn_out", "ff_out")
        for name, (settings, run) in zip(names, kernel_step.tried_products(h[0], blocks, step), strict=True):
            tried = {str(one): _tried(run, one, len(blocks)) for one in settings}
            record[name] = dict(sorted(tried.items(), key=lambda pair: pair[1] or 1e9))
        for name, (microseconds, bytes_read) in cublas(blocks, len(rows[0])).items():
            record[f"{name} by torch"] = microseconds
            record[f"{name} bytes"] = bytes_read
        if error < 0.08:
            return record
        why = f"relative error {error:.1e}"
    except Exception as error:
        why = f"{type(error).__name__}: {error}\n{traceback.format_exc()[-1500:]}"
    kernel_step.BY_KERNELS = False
    return {"switched off": why}


def _tried(run: Any, setting: Any, examples: int) -> float | None:
    """Microseconds of one call; None if it does not run."""
    try:
        return 1000 * milliseconds(run, setting, examples) / examples
    except Exception:
        return None


def cublas(blocks: list[Any], tokens: int) -> dict[str, tuple[float, int]]:
    """Microseconds of the same matrix products by torch, and the bytes of each matrix."""
    found = {}
    first = blocks[0]
    matrices = {
        "rotary": lambda one: one.qkv,
        "swiglu": lambda one: one.gate_up,
        "attn_out": lambda one: one.attn_out.weight,
        "ff_out": lambda one: one.ff_out.weight,
    }
    for name, of in matrices.items():
        weight = of(first)
        x = torch.zeros(tokens, weight.shape[1], dtype=weight.dtype, device=weight.device)

        def run(setting: Any, i: int, x: Tensor = x, of: Any = of) -> None:
            torch.nn.functional.linear(x, of(blocks[i]))

        found[name] = (1000 * milliseconds(run, None, len(blocks)) / len(blocks), weight.nbytes)  # type: ignore[arg-type]
    return found
