"""What a process's memory consists of, so that growth can be traced to its cause.

If Python's blocks and objects grow, something of ours or of a library's Python code is kept. If only `malloc_mib`
grows, native code keeps memory: torch, or the CUDA driver. If only `resident_mib` grows, the allocator is fragmented.
"""

import ctypes
import gc
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tenuto.runtime.graphs import Graphs

MIB = 2**20
Sample = dict[str, float]


class _Mallinfo2(ctypes.Structure):
    NAMES = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = [(name, ctypes.c_size_t) for name in NAMES]


class Recorded:
    """Counts the CUDA graphs that are recorded from now on."""

    def __init__(self) -> None:
        self.count = 0
        original = Graphs.capture

        def capture(graphs: Graphs, *args: Any) -> None:
            self.count += 1
            original(graphs, *args)

        self.undo: Callable[[], None] = lambda: setattr(Graphs, "capture", original)
        Graphs.capture = capture  # type: ignore[method-assign]


def sample(device: str = "cpu") -> Sample:
    """One look at this process's memory, after garbage was collected and what torch caches was given back."""
    gc.collect()
    objects = gc.get_objects()
    found: Sample = {
        "resident_mib": int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / MIB,
        **_malloc(),
        "python_blocks": sys.getallocatedblocks(),
        "python_objects": len(objects),
        "tensors": sum(type(one) is Tensor for one in objects),
    }
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        found["device_mib"] = torch.cuda.memory_reserved() / MIB
        found["pinned_mib"] = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0) / MIB
    return {name: round(value, 2) for name, value in found.items()}


def _malloc() -> Sample:
    """What glibc's allocator handed out, and what it has free; nothing where there is no glibc of 2.33 or newer."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return {}
    mallinfo2.restype = _Mallinfo2
    now = mallinfo2()
    return {"malloc_mib": (now.uordblks + now.hblkhd) / MIB, "malloc_free_mib": now.fordblks / MIB}


def growth(samples: Sequence[Sample]) -> Sample:
    """By how much each kind grew after the first quarter, in which everything is used for the first time."""
    settled = samples[len(samples) // 4 :] or samples
    if not settled:
        return {}
    return {name: round(settled[-1][name] - settled[0][name], 2) for name in settled[0]}
