"""Which of a kernel's settings is fastest on this GPU: all of them are tried out."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

RUNS = 3  # of which the fastest counts
BUSY = 5_000_000  # cycles of the GPU: two or three milliseconds


@dataclass(frozen=True)
class Settings:
    """Sizes of a kernel's blocks, into how many parts it divides a sum, its warps and the stages of its pipeline."""

    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    split: int = 1


def fastest(tried: Sequence[Settings], run: Callable[[Settings, int], Any], examples: int) -> Settings | None:
    """The fastest of some settings for `run(setting, example)`; None if none of them runs on this device.

    Matrices of several layers are examples: one alone might stay in the GPU's cache, and all would seem fast.
    """
    found: dict[Settings, float] = {}
    for setting in tried:
        try:
            found[setting] = milliseconds(run, setting, examples)
        except Exception:  # a kernel can need more memory than this GPU's processors have
            continue
    return min(found, key=lambda one: found[one]) if found else None


def milliseconds(run: Callable[[Settings, int], Any], setting: Settings, examples: int) -> float:
    """The time of running all examples once, after one run that compiles.

    Python needs as long to launch a small kernel as the GPU to run it. So the GPU is kept busy until all are launched.
    """
    run(setting, 0)
    times = []
    for _ in range(RUNS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with suppress(AttributeError, RuntimeError):  # a private function of torch; without it, times are less exact
            torch.cuda._sleep(BUSY)
        begin.record()
        for example in range(examples):
            run(setting, example)
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)))
    return min(times)
