"""Tokens a second of LLaDA-8B's shapes, beside eager inference, Fast-dLLM's loop and the time of reading the weights.

    python -m benchmarks.text_8b --device cuda                 # under five minutes on an H200; goes on where it stopped
    python -m benchmarks.text_8b --device cpu --small          # a dry run on a network of a few thousand weights

The weights are random, so the text means nothing, and the confidence of such a network says nothing. Therefore the
number of tokens that each evaluation writes is replayed: 2.7 on average, what Fast-dLLM reports on GSM8K and HumanEval
at a threshold of 0.9. The last evaluation of a block writes what is left of the block. Everything else is computed.
"""

import gc
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, Any
from unittest import mock

import torch
import typer
from torch import Tensor

from benchmarks.places import results_of
from tenuto.files import write_json, write_text
from tenuto.models import kernel_step
from tenuto.models.kernel_settings import milliseconds
from tenuto.models.language import LanguageNetwork
from tenuto.models.language_block import rotary_angles
from tenuto.models.llada import LLaDA, LLaDAConfig, units
from tenuto.provenance import origin, provenance
from tenuto.runtime.compilation import function_of_many_shapes
from tenuto.runtime.executor import Executor
from tenuto.runtime.keys import Keys
from tenuto.sampling import parallel
from tenuto.sampling.masked import MaskedSampling, write_tokens
from tenuto.scheduling.rewrite import EARLY, Every, rewrite
from tenuto.scheduling.schedule import Schedule
from tenuto.scheduling.units import Unscored
from tenuto_lab.result_files import ORIGIN, both, fields, makes, number, read_result, shaped
from tenuto_lab.rivals.text import fast_dllm

RESULTS = results_of("text_8b")
RATE = 2.7  # tokens that an evaluation writes
BLOCK = 32
FULL = replace(LLaDAConfig(), max_sequence_length=8192)
SMALL = LLaDAConfig(32, 2, 4, 4, 48, 200, 200, 512, mask_token_id=0, eos_token_id=1)
# (batch, prompt, length), the headline first.
POINTS = (
    *((1, 512, 256), (32, 512, 256), (8, 512, 256), (1, 4096, 256), (8, 4096, 256), (32, 4096, 256)),
    *((batch, prompt, 512) for prompt in (512, 4096) for batch in (1, 8, 32)),
)
EAGER = 2  # evaluations that are timed of eager inference; all of them are alike
RIVALS = ((1, 512, 256), (8, 512, 256), (1, 4096, 256))  # where Fast-dLLM's loop is run
NEVER = 10**6  # a period that never comes back
BY_DEFAULT = "tenuto, by default"  # everything is computed early and then ever more rarely
MANY_TOKENS = 25_000  # above that, computing everything nine times takes too long to be timed here


class Replay:
    """Writes the surest tokens, RATE of them on average, instead of those that a network is sure of."""

    def __init__(self, device: torch.device, rate: float = RATE) -> None:
        steps = range(1, 10_000)
        self.counts = torch.tensor([round(rate * i) - round(rate * (i - 1)) for i in steps], device=device)
        self.step = -1

    def accepted(self, confidence: Tensor, likely: Tensor, masked: Tensor, sampling: MaskedSampling) -> Tensor:
        """In place of `tenuto.sampling.guesses.accepted`."""
        return self(confidence, masked)

    def __call__(self, confidence: Tensor, masked: Tensor) -> Tensor:
        self.step += 1
        return surest(confidence, masked, self.counts[self.step])


@function_of_many_shapes
def surest(confidence: Tensor, masked: Tensor, count: Tensor) -> Tensor:
    """As many kernels as the rule that it replaces."""
    sure = confidence.masked_fill(~masked, -torch.inf)
    place = torch.arange(sure.shape[1], device=sure.device)
    ahead = (sure[:, None, :] > sure[:, :, None]) | ((sure[:, None, :] == sure[:, :, None]) & (place < place[:, None]))
    return (ahead.sum(2) < count) & masked


@contextmanager
def replayed(device: torch.device) -> Iterator[None]:
    with mock.patch.object(parallel, "accepted", Replay(device).accepted):
        yield


def made(config: LLaDAConfig, device: torch.device) -> LLaDA:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device, torch.no_grad():
            network = LLaDA(config).eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(before)
    return network


def schedule_for(config: LLaDAConfig, length: int, every: Every) -> Schedule:
    subject = Unscored("llada-8b", "llada", units(config))
    return rewrite(subject, length, every=every if every == EARLY else min(every, length), rows="block")


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    finish(device)
    start = time.perf_counter()
    work()
    finish(device)
    return time.perf_counter() - start


def prompts_of(batch: int, width: int, config: Any) -> list[list[int]]:
    drawn = torch.randint(2, config.vocab_size - 2, (batch, width), generator=torch.Generator().manual_seed(1))
    allowed = drawn.masked_fill_((drawn == config.mask_token_id) | (drawn == config.eos_token_id), 2)
    return [[int(token) for token in row] for row in allowed]


# The ways


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


# The limits


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


# The table


def measure(
    device: torch.device,
    config: LLaDAConfig,
    points: tuple[tuple[int, int, int], ...],
    out: Path,
    most: float,
    only: str | None = None,
) -> dict[str, Any]:
    """Every point that `out` does not hold yet, until `most` seconds are over. only: the one way to measure"""
    began = time.perf_counter()
    record: dict[str, Any] = read_result(out, "table of tokens a second", RECORD) if out.exists() else {"points": {}}
    record |= {"provenance": provenance(device, seed=0), "rate": RATE, "block_length": BLOCK}
    network = made(config, device)
    print(f"made after {time.perf_counter() - began:.0f} s", flush=True)
    unjoined = eager(network, prompts_of(1, points[0][1], config), points[0][2], device)
    record["eager_before_joining"] = unjoined
    network.fuse()
    record["limits"] = limits(network, device)
    print(record["limits"], flush=True)
    if device.type == "cuda":
        record["kernels"] = checked_kernels(network, device)
        print(record["kernels"], flush=True)
    for point, further in [(point, further) for further in (False, True) for point in points]:
        name = "x".join(map(str, point))
        done: dict[str, Any] = record["points"].setdefault(name, {})
        for way, work in ways(network, config, point, device, further).items():
            late = time.perf_counter() - began > most
            if way in done or late or only not in (None, way):
                continue
            try:
                done[way] = work()
            except torch.cuda.OutOfMemoryError:
                done[way] = {"failed": "there is not enough memory"}
            except Exception as error:  # one way that fails should not cost the others
                done[way] = {"failed": f"{type(error).__name__}: {error}"[:300]}
            shown = {key: round(value, 2) if isinstance(value, float) else value for key, value in done[way].items()}
            shown.pop("kernels", None)
            print(f"{time.perf_counter() - began:.0f} s  {name} {way}: {shown}", flush=True)
            write_json(out, record)
            gc.collect()  # what refers to itself would be freed later, and count as taken until then
            if device.type == "cuda":
                torch.cuda.empty_cache()
    record["seconds"] = time.perf_counter() - began
    write_json(out, record)
    return record


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


def ways(
    network: LanguageNetwork, config: LLaDAConfig, point: tuple[int, int, int], device: torch.device, further: bool
) -> dict[str, Callable[[], dict[str, Any]]]:
    """What is measured at a point: first ours beside eager inference, and when all points have that, the others."""
    batch, width, length = point
    prompts = prompts_of(batch, width, config)
    headline = point in (POINTS[0], (1, 4096, 256)) or device.type != "cuda"

    def run(
        every: Every, compiled: bool, kernels_too: bool = True, pad_to: int = 1, packed: bool = True
    ) -> dict[str, Any]:
        with (
            mock.patch.object(kernel_step, "BY_KERNELS", kernel_step.BY_KERNELS and kernels_too),
            mock.patch.object(parallel, "MANY", parallel.MANY if packed else NEVER),
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
            first[BY_DEFAULT] = lambda: run(EARLY, True)
        return {**first, "eager": lambda: eager(network, prompts, length, device)}
    found: dict[str, Callable[[], dict[str, Any]]] = {}
    if point in RIVALS or device.type != "cuda":
        found["Fast-dLLM, dual cache"] = lambda: rival(network, prompts, length, device, dual=True)
        found["Fast-dLLM, prefix cache"] = lambda: rival(network, prompts, length, device, dual=False)
    if batch > 1 and point[1:] == POINTS[0][1:]:
        found["tenuto, all positions of the blocks"] = lambda: run(NEVER, True, packed=False)
    if headline:
        found["tenuto, everything computed every 32 evaluations"] = lambda: run(32, True)
        found["tenuto, with a mask for padding"] = lambda: run(NEVER, True, pad_to=64)
        found["tenuto, torch's kernels compiled"] = lambda: run(NEVER, True, False)
        found["tenuto, not compiled"] = lambda: run(NEVER, False)
    return found


def table(record: dict[str, Any]) -> str:
    limit, before = record["limits"], record["eager_before_joining"]
    lines = [
        "# LLaDA-8B's shapes: tokens a second",
        "",
        origin(record["provenance"]),
        "",
        f"Random weights; the tokens that an evaluation writes are replayed: {record['rate']} on average, blocks of "
        f"{record['block_length']}. Reading the {limit['weight_bytes'] / 1e9:.1f} GB of weights once takes "
        f"**{limit['weights_ms']:.2f} ms** at the bandwidth measured in the same run "
        f"({max(limit['copy_bytes_per_second'], limit['read_bytes_per_second'] or 0) / 1e12:.2f} TB/s). "
        "*tenuto* computes everything once, at the beginning, and then a block at every evaluation. *By default* "
        "everything is computed at the evaluations 0 to 4, 8, 16, 32 and so on as well. "
        "Eager inference computes everything at every evaluation and writes one token with each; before matrices were "
        f"joined, it wrote {before['tokens_per_second']:.0f} tokens/s at the first point.",
        "",
        "| batch | prompt | tokens | way | tokens/s | × eager | a step, ms | evaluations |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, done in record["points"].items():
        full = done.get("eager", {}).get("tokens_per_second")
        if full and name == next(iter(record["points"])):  # it was read twice, and the faster one counts
            full = max(full, before["tokens_per_second"])
        for way, one in done.items():
            if "failed" in one:
                lines.append(f"| {name.replace('x', ' | ')} | {way} | {one['failed']} | | | |")
                continue
            times = "" if not full else f"{one['tokens_per_second'] / full:.1f}"
            step = one.get("step_ms", one.get("evaluation_ms"))
            shown = "" if step is None else f"{step:.2f}"
            lines.append(
                f"| {name.replace('x', ' | ')} | {way} | {one['tokens_per_second']:,.0f} | {times} | {shown} | "
                f"{one.get('evaluations', '')} |"
            )
    return "\n".join(lines) + "\n"


def measured_way(value: Any, where: str) -> None:
    """What was measured of a way, or why it failed."""
    if isinstance(value, dict) and "failed" in value:
        return shaped({"failed": str})(value, where)
    fields(
        {"tokens_per_second": number()},
        {"step_ms": number(), "evaluation_ms": number(), "evaluations": number()},
        others=True,
    )(value, where)


RECORD = both(
    shaped(
        {
            **{
                "provenance": ORIGIN,
                "rate": float,
                "block_length": int,
                "eager_before_joining": {"tokens_per_second": float},
            },
            "limits": {
                "copy_bytes_per_second": float,
                "read_bytes_per_second": float | None,
                **dict.fromkeys(("weight_bytes", "weights_ms"), float),
            },
            "points": {str: {str: measured_way}},
        }
    ),
    makes(table),
)


def main(
    device: Annotated[str, typer.Option(help="Where to compute.")] = "cuda",
    small: Annotated[bool, typer.Option(help="A network of a few thousand weights, to try the command out.")] = False,
    out: Annotated[Path, typer.Option(help="The JSON file; the table lies beside it.")] = RESULTS,
    most: Annotated[float, typer.Option(help="Begin nothing new after so many seconds.")] = 280.0,
    only: Annotated[str | None, typer.Option(help="The one way to measure.")] = None,
    prompt: Annotated[int | None, typer.Option(help="The one length of prompts to measure.")] = None,
) -> None:
    """Measure, and write the JSON file and the table beside it."""
    config, points = (SMALL, ((1, 64, 64), (2, 64, 64))) if small else (FULL, POINTS)
    points = tuple(point for point in points if prompt in (None, point[1]))
    record = measure(torch.device(device), config, points, out, most, only)
    write_text(out.with_suffix(".md"), table(record))
    print(table(record))


if __name__ == "__main__":
    typer.run(main)
