"""The ways of writing that are timed: ours, eager inference and Fast-dLLM's loop."""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any
from unittest import mock

import torch

from benchmarks.text_8b.replaying import Replay, prompts_of, replayed, seconds
from tenuto.models import kernel_step
from tenuto.models.language import LanguageNetwork
from tenuto.models.llada import LLaDAConfig, units
from tenuto.runtime.executor import Executor
from tenuto.sampling import parallel, trust
from tenuto.sampling.masked import MaskedSampling, write_tokens
from tenuto.scheduling.rewrite import Every, rewrite
from tenuto.scheduling.schedule import Schedule
from tenuto.scheduling.units import Unscored
from tenuto_lab.rivals.text import fast_dllm

BLOCK = 32
# (batch, prompt, length), the headline first.
POINTS = (
    *((1, 512, 256), (32, 512, 256), (8, 512, 256), (1, 4096, 256), (8, 4096, 256), (32, 4096, 256)),
    *((batch, prompt, 512) for prompt in (512, 4096) for batch in (1, 8, 32)),
)
EAGER = 2  # evaluations that are timed of eager inference; all of them are alike
RIVALS = ((1, 512, 256), (8, 512, 256), (1, 4096, 256))  # where Fast-dLLM's loop is run
NEVER = 10**6  # a period that never comes back
EARLY = "tenuto, early"  # everything is computed at the first four evaluations, and then ever more rarely
CHECKED = {"tenuto, checked": True, "tenuto, checked, no text passes": False}  # the default; whether texts pass
MANY_TOKENS = 25_000  # above that, computing everything nine times takes too long to be timed here


def schedule_for(config: LLaDAConfig, length: int, every: Every) -> Schedule:
    subject = Unscored("llada-8b", "llada", units(config))
    return rewrite(subject, length, every=every if isinstance(every, str) else min(every, length), rows="block")


def ways(
    network: LanguageNetwork, config: LLaDAConfig, point: tuple[int, int, int], device: torch.device, further: bool
) -> dict[str, Callable[[], dict[str, Any]]]:
    """What is measured at a point: first ours beside eager inference, and when all points have that, the others."""
    batch, width, length = point
    prompts = prompts_of(batch, width, config)
    headline = point in (POINTS[0], (1, 4096, 256)) or device.type != "cuda"

    def run(
        every: Every,
        compiled: bool,
        kernels_too: bool = True,
        pad_to: int = 1,
        packed: bool = True,
        passes: bool = True,
    ) -> dict[str, Any]:
        with (
            mock.patch.object(kernel_step, "BY_KERNELS", kernel_step.BY_KERNELS and kernels_too),
            mock.patch.object(parallel, "MANY", parallel.MANY if packed else NEVER),
            mock.patch.object(trust, "CHANGE", math.inf if passes else -math.inf),  # of random weights it says nothing
        ):
            executor = Executor(network, schedule_for(config, length, every), compiled=compiled)
            started = time.perf_counter()
            ours(executor, prompts, length, device, pad_to)  # records the graphs
            preparing = time.perf_counter() - started
            found = {**ours(executor, prompts, length, device, pad_to), "preparing_seconds": preparing}
            if (headline or point == (32, 512, 256)) and compiled and device.type == "cuda":
                with suppress(Exception):
                    found["kernels"] = kernels(executor, prompts, length)
            executor.release()
        return found

    if not further:
        first: dict[str, Callable[[], dict[str, Any]]] = {"tenuto": lambda: run(NEVER, True)}
        if batch * (width + length) <= MANY_TOKENS:
            first[EARLY] = lambda: run("early", True)
        return {**first, "eager": lambda: eager(network, prompts, length, device)}
    found: dict[str, Callable[[], dict[str, Any]]] = {}
    if point in RIVALS or device.type != "cuda":
        found["Fast-dLLM, dual cache"] = lambda: rival(network, prompts, length, device, dual=True)
        found["Fast-dLLM, prefix cache"] = lambda: rival(network, prompts, length, device, dual=False)
    if batch > 1 and point[1:] == POINTS[0][1:]:
        found["tenuto, all positions of the blocks"] = lambda: run(NEVER, True, packed=False)
    if headline:
        found |= {name: partial(run, "checked", True, passes=passes) for name, passes in CHECKED.items()}
        found["tenuto, no cache"] = lambda: run(1, True)
        found["tenuto, everything computed every 32 evaluations"] = lambda: run(32, True)
        found["tenuto, with a mask for padding"] = lambda: run(NEVER, True, pad_to=64)
        found["tenuto, torch's kernels compiled"] = lambda: run(NEVER, True, False)
        found["tenuto, not compiled"] = lambda: run(NEVER, False)
    return found


def ours(
    executor: Executor, prompts: list[list[int]], length: int, device: torch.device, pad_to: int = 1
) -> dict[str, Any]:
    """A whole generation, and how long a step took in its middle. With `pad_to` there is a mask for padding."""
    sampling = MaskedSampling(length, length, min(BLOCK, length), stop_at_eos=False, parallel=0.9)
    begins: list[Any] = []

    def generate() -> None:
        begins.clear()
        with replayed(device):
            for _ in write_tokens(executor, prompts, sampling=sampling, batch=len(prompts), pad_to=pad_to):
                begins.append(_mark(device))

    taken = seconds(generate, device)
    return {
        "seconds": taken,
        "tokens_per_second": len(prompts) * length / taken,
        "evaluations": len(begins),
        "full_evaluations": sum(executor.full_steps[: len(begins)]),
        "step_ms": median(_elapsed(a, b) for a, b in pairwise(begins[2:])),
    }


def _mark(device: torch.device) -> Any:
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _elapsed(a: Any, b: Any) -> float:
    """Milliseconds."""
    if isinstance(a, float):
        return 1000 * (b - a)
    b.synchronize()
    return float(a.elapsed_time(b))


@torch.inference_mode()
def eager(network: LanguageNetwork, prompts: list[list[int]], length: int, device: torch.device) -> dict[str, Any]:
    """Full inference without a cache or graphs: one evaluation a token. A few evaluations stand for all."""
    config = network.config
    tokens = torch.tensor([[*prompt, *[config.mask_token_id] * length] for prompt in prompts], device=device)
    block = torch.arange(tokens.shape[1] - BLOCK, tokens.shape[1], device=device)

    def evaluate() -> None:
        network(tokens, positions=block).float().softmax(-1).max(-1)

    large = tokens.numel() > 50_000
    if not large:
        evaluate()
    times = [seconds(evaluate, device) for _ in range(1 if large else EAGER)]
    each = min(times)
    return {"evaluation_ms": 1000 * each, "tokens_per_second": len(prompts) / each, "evaluations_timed": len(times)}


def rival(
    network: LanguageNetwork, prompts: list[list[int]], length: int, device: torch.device, dual: bool
) -> dict[str, Any]:
    given = torch.tensor(prompts, device=device)
    everywhere = len(prompts) == 1  # as published; with more rows the logits of all positions would not fit

    def generate() -> fast_dllm.Outcome:
        return fast_dllm.write(network, given, length, min(BLOCK, length), Replay(device), dual, everywhere)

    found: list[fast_dllm.Outcome] = []
    with mock.patch.object(kernel_step, "BY_KERNELS", False):  # torch's kernels, as in its own code
        taken = seconds(lambda: found.append(generate()), device)
    return {
        "seconds": taken,
        "tokens_per_second": len(prompts) * length / taken,
        "evaluations": found[0].evaluations,
    }


def kernels(executor: Executor, prompts: list[list[int]], length: int, steps: int = 12) -> list[dict[str, Any]]:
    """The kernels of some steps in the middle of a generation, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    sampling = MaskedSampling(length, length, BLOCK, stop_at_eos=False, parallel=0.9)
    with replayed(torch.device("cuda")):
        stream = write_tokens(executor, prompts, sampling=sampling, batch=len(prompts))
        for _ in range(4):
            next(stream)
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            for _ in range(steps):
                next(stream)
            torch.cuda.synchronize()
        for _ in stream:
            pass
    found = sorted(profiled.key_averages(), key=lambda one: -one.device_time_total)
    return [
        {"kernel": one.key[:120], "calls_per_step": one.count / steps, "us_per_step": one.device_time_total / steps}
        for one in found[:30]
    ]
