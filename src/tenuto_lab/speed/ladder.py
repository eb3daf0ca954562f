"""Times a network under a schedule in every way of running it, and compares the times with the hardware's limits.

All figures of one network come from one process: medians over whole generations after a warm-up, with their spread.
"""

import gc
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from tenuto.errors import ScheduleError
from tenuto.models.architecture import Architecture
from tenuto.runtime.executor import UNITS, Executor
from tenuto.sampling.pictures import prepared
from tenuto.scheduling.schedule import Keep, Schedule
from tenuto.scheduling.units import Unit
from tenuto_lab.candidates.padded import PaddedExecutor
from tenuto_lab.scoring.scores import Scores
from tenuto_lab.seam.sites import TEXT_TOKENS
from tenuto_lab.speed.timed_schedules import everything, refreshed, scattered_lifetimes, spectral_lifetimes
from tenuto_lab.units.unit_executor import UnitExecutor

# How a rung runs: in a mode of the executor, or by one graph that computes everything (candidates.padded).
RunMode = Literal["eager", "skip", "padded", "jagged"]
Inputs = tuple[Sequence[Any], Mapping[str, Any]]
PERIODS = (2, 3, 5, 8)  # of the refresh schedules
BLOCK = 32  # tokens of text whose logits are computed
VARIANTS = 3  # different inputs, used in rotation
MEMORY = 0.05  # memory bound of one rung: caches may take this share of full inference's peak
FULL_STEPS = 8  # evaluations in a generation that computes everything; all take equally long


@dataclass(frozen=True)
class TimedNetwork:
    """A network at one batch size and shape."""

    model: str
    setting: str
    network: Any
    units: tuple[Unit, ...]  # with the FLOPs of one sample at this shape
    batch: int  # samples in one evaluation
    inputs: Callable[[Sequence[bool]], Iterable[Inputs]]  # takes, for each step, whether to prepare it ahead
    device: torch.device

    @property
    def flops(self) -> float:
        """FLOPs of all units in one evaluation."""
        return self.batch * sum(unit.flops for unit in self.units)

    @property
    def weight_bytes(self) -> int:
        return sum(parameter.numel() * parameter.element_size() for parameter in self.network.parameters())


@dataclass(frozen=True)
class Rung:
    """One way of running a network."""

    name: str  # the schedule's name
    mode: RunMode
    compiled: bool
    schedule: Schedule | None
    memory: float | None = None  # bound on the caches, as a share of full inference's peak
    offload: bool = False


@dataclass
class Timing:
    """The time and memory of one rung."""

    model: str
    setting: str
    mode: str
    schedule: str
    steps: int
    budget: float
    flop_budget: float
    ms_per_evaluation: float
    ms_per_generation: float
    spread: float  # (slowest − fastest) / median of the generations measured
    speedup_over_eager: float | None = None
    speedup_over_padded: float | None = None
    speedup_over_compiled: float | None = None
    share_of_ideal: float | None = None
    memory_over_full: float | None = None  # peak memory above full eager inference's, as a share of it
    tflops: float = 0.0
    gbps: float = 0.0
    peak_bytes: int | None = None
    cache_bytes: int = 0
    patterns: int = 0
    graphs: int = 0
    capture_s: float = 0.0
    first_s: float = 0.0  # the first generation, in which graphs are recorded
    compile_s: float | None = None
    given_up: str = ""  # what was given up to stay within the memory bound

    def to_json(self) -> dict[str, Any]:
        return {key: round(value, 6) if isinstance(value, float) else value for key, value in asdict(self).items()}


def ladder(
    subject: TimedNetwork, budget: float, steps: int, quick: bool = False, known: Scores | None = None
) -> list[Rung]:
    """Every way of running a network: the paper's kind of schedule at its budget, and refresh at several periods.

    quick: only the complete system and the rungs that it is compared with.
    known: scores of a model of the same layout, for the lifetimes; without them, lifetimes are scattered
    """
    units, gpu = subject.units, subject.device.type == "cuda"
    paper, named = scattered_lifetimes(units, steps, budget), f"lifetimes {budget:.0%}"
    if known is not None:
        paper = spectral_lifetimes(units, steps, budget, known)
    rungs = [Rung("full", "eager", False, None)]
    if gpu and not quick:
        rungs.append(Rung("full", "jagged", False, everything(units, FULL_STEPS)))
    if not (gpu and quick):
        rungs.append(Rung(named, "skip", False, paper))
    if gpu and not quick:
        rungs += [Rung(named, "padded", False, paper), Rung(named, "jagged", False, paper)]
    if gpu:
        rungs.append(Rung("full", "eager", True, None))
        rungs.append(Rung("full", "jagged", True, everything(units, FULL_STEPS)))
        rungs.append(
            Rung("nothing", "jagged", True, refreshed(units, 2 * FULL_STEPS, 2 * FULL_STEPS, "constant", "update"))
        )
        if not quick:
            rungs.append(Rung(named, "padded", True, paper))
        rungs.append(Rung(named, "jagged", True, paper))
        rungs.append(Rung(f"{named} in {MEMORY:.0%} of memory", "jagged", True, paper, memory=MEMORY))
        rungs.append(Rung(f"{named}, offloaded", "jagged", True, paper, offload=True))
    mode: RunMode = "jagged" if gpu else "skip"
    for n in PERIODS:
        length = n * -(-steps // (2 * n))
        rungs.append(Rung(f"refresh {n}", mode, gpu, refreshed(units, length, n)))
        held: tuple[Keep, ...] = ("update", "output") if n == PERIODS[-1] else () if quick else ("output",)
        rungs += [
            Rung(f"refresh {n}, {keep} held", mode, gpu, refreshed(units, length, n, "linear", keep)) for keep in held
        ]
    return rungs


# Subjects


def timed_network(
    model: str, network: Any, family: Architecture, config: Any, *, batch: int, tokens: int | None = None, seed: int = 1
) -> TimedNetwork:
    """A network with random inputs of its kind. If there is guidance, `batch` counts both halves."""
    parameter = next(network.parameters())
    device, dtype = parameter.device, parameter.dtype
    generator = torch.Generator(device).manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    def below(bound: int, *shape: int) -> Tensor:
        return torch.randint(bound, shape, generator=generator, device=device)

    length: int = getattr(config, "max_sequence_length", 0) if tokens is None else tokens

    def text() -> Inputs:
        last = torch.arange(max(0, length - BLOCK), length, device=device).expand(batch, -1)
        return (below(config.embedding_size, batch, length),), {"positions": last}

    def picture() -> Inputs:
        x, t = noise(batch, *config.sample_shape), below(1000, 1).expand(batch)
        if family.asks_for == "class":
            return (x, t, below(config.classes, batch)), {}
        if not network.denoiser.conv_in.weight.is_contiguous():
            x = x.contiguous(memory_format=torch.channels_last)
        words = noise(batch, TEXT_TOKENS, config.get("cross_attention_dim", 1280))
        if config.get("addition_embed_type") != "text_time":
            return (x, t, words), {}
        pooled = config.get("projection_class_embeddings_input_dim") - 6 * config.get("addition_time_embed_dim")
        added = {"text_embeds": noise(batch, pooled), "time_ids": torch.ones(batch, 6, device=device, dtype=dtype)}
        return (x, t, words), {"added_cond_kwargs": added}

    if family.asks_for == "prompt":
        config = replace(config, max_sequence_length=length)
    variants = [text() if family.asks_for == "prompt" else picture() for _ in range(VARIANTS)]
    times = below(1000, 1000)

    def inputs(ahead: Sequence[bool]) -> Iterator[Inputs]:
        """As the sampler gives them: timesteps on the device, and by name the values computed ahead from timesteps."""
        conditions = variants[0][0][2:]
        for step, named in enumerate(prepared(network, times[: len(ahead)], conditions, ahead)):
            given, more = variants[step % VARIANTS]
            yield (*given[:2], *conditions), {**more, **named}

    setting = f"{batch}x{length}" if family.asks_for == "prompt" else f"batch {batch}"
    return TimedNetwork(model, setting, network, family.units(config), batch, inputs, device)


# Timing


def measure(
    subject: TimedNetwork, rungs: Sequence[Rung], repeats: int = 3, say: Callable[[str], object] = lambda text: None
) -> Iterator[Timing]:
    """A timing for each rung. The first rung must be eager, because the others are compared with it."""
    known: dict[tuple[str, bool, str], Timing] = {}
    compile_seconds = None
    for rung in rungs:
        if rung.compiled and compile_seconds is None:
            compile_seconds = _compile(subject)
        eager = known.get(("eager", False, "full"))
        allowed = int(rung.memory * eager.peak_bytes) if rung.memory and eager and eager.peak_bytes else None
        try:
            row = _time(subject, rung, repeats, allowed)
        except ScheduleError as error:
            say(f"{subject.model} {subject.setting}  {rung.name}: {error}")
            continue
        row.compile_s = compile_seconds if rung.compiled else None
        known[rung.mode, rung.compiled, rung.name] = row
        _compare(row, rung, known)
        say(
            f"{row.model} {row.setting}  {row.mode:16} {row.schedule:22} {row.ms_per_evaluation:8.3f} ms"
            f"  x{row.speedup_over_eager or 1:.2f}"
        )
        yield row


def _compile(subject: TimedNetwork) -> float:
    start = time.perf_counter()
    _generate(Executor(subject.network, compiled=True), subject, 1)
    _wait(subject.device)
    return time.perf_counter() - start


def _time(subject: TimedNetwork, rung: Rung, repeats: int, memory: int | None = None) -> Timing:
    schedule = rung.schedule
    full = schedule is None
    steps = FULL_STEPS if schedule is None else schedule.steps
    on_gpu = subject.device.type == "cuda"
    if on_gpu:  # caches of earlier rungs must not share memory pages with this rung's
        gc.collect()
        torch.cuda.empty_cache()
    executor = _executor(subject.network, rung, memory)
    # The first generation records the graphs and warms up.
    first = seconds_of(lambda: _generate(executor, subject, steps), subject.device)
    if on_gpu:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    times = sorted(seconds_of(lambda: _generate(executor, subject, steps), subject.device) for _ in range(repeats))
    median = statistics.median(times)
    budget = 1.0 if schedule is None else schedule.budget
    flop_budget = 1.0 if schedule is None else schedule.flop_budget
    report = executor.report()
    each = median / steps
    return Timing(
        subject.model,
        subject.setting,
        rung.mode + (" + compiled" if rung.compiled else ""),
        rung.name,
        steps,
        budget,
        flop_budget,
        1e3 * each,
        1e3 * median,
        (times[-1] - times[0]) / median,
        tflops=subject.flops * (1.0 if rung.mode == "padded" else flop_budget) / each / 1e12,
        gbps=subject.weight_bytes * (1.0 if full or rung.mode == "padded" else budget) / each / 1e9,
        peak_bytes=torch.cuda.max_memory_reserved() if on_gpu else None,
        cache_bytes=report.cache_bytes,
        patterns=report.patterns,
        graphs=report.graphs,
        capture_s=report.capture_seconds,
        first_s=first,
        given_up=report.given_up,
    )


def _executor(network: Any, rung: Rung, memory: int | None) -> Executor:
    schedule, mode = rung.schedule, rung.mode
    if schedule is None or schedule.keep not in UNITS:
        return Executor(network, schedule, mode=mode, compiled=rung.compiled)  # type: ignore[arg-type]
    if mode == "padded":
        return PaddedExecutor(network, schedule, compiled=rung.compiled)
    return UnitExecutor(network, schedule, mode=mode, compiled=rung.compiled, memory=memory, offload=rung.offload)


def _compare(row: Timing, rung: Rung, known: Mapping[tuple[str, bool, str], Timing]) -> None:
    def ratio(mode: str, compiled: bool, name: str) -> float | None:
        other = known.get((mode, compiled, name))
        return None if other is None else other.ms_per_evaluation / row.ms_per_evaluation

    row.speedup_over_eager = ratio("eager", False, "full")
    eager = known.get(("eager", False, "full"))
    if eager is not None and eager.peak_bytes and row.peak_bytes:
        row.memory_over_full = row.peak_bytes / eager.peak_bytes - 1
    row.speedup_over_compiled = ratio("eager", True, "full")
    row.speedup_over_padded = ratio("padded", rung.compiled, rung.name)
    full, fixed = known.get(("jagged", rung.compiled, "full")), known.get(("jagged", rung.compiled, "nothing"))
    if full is not None and fixed is not None and rung.mode == "jagged":
        # `alone` is the time of a step that computes no unit. `nothing` computes all units at its first step only.
        alone = (fixed.ms_per_generation - full.ms_per_evaluation) / (fixed.steps - 1)
        ideal = alone + row.flop_budget * (full.ms_per_evaluation - alone)
        row.share_of_ideal = ideal / row.ms_per_evaluation


KERNELS = {
    "attention": r"flash|fmha|attention|sdpa",
    "matrix products": r"gemm|nvjet|cutlass|addmm|::mm|bmm|linear|matmul",
    "convolutions": r"conv|wgrad|dgrad|fprop|implicit",
    "copies": r"memcpy|memset|copy|catarray",
}


def where_time_goes(subject: TimedNetwork) -> dict[str, float]:
    """Milliseconds of one full evaluation with compiled branches, by kind of kernel."""
    from torch.profiler import ProfilerActivity, profile

    gpu = subject.device.type == "cuda"
    executor = Executor(subject.network, compiled=gpu)
    _generate(executor, subject, 1)
    with profile(activities=[ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU]) as profiled:
        _generate(executor, subject, 1)
        _wait(subject.device)
    spent = dict.fromkeys([*KERNELS, "norms, activations and sums"], 0.0)
    for event in profiled.key_averages():
        time = event.self_device_time_total if gpu else event.self_cpu_time_total
        found = (kind for kind, names in KERNELS.items() if re.search(names, event.key, re.IGNORECASE))
        spent[next(found, "norms, activations and sums")] += time / 1e3
    return {kind: round(time, 4) for kind, time in sorted(spent.items(), key=lambda one: -one[1]) if time}


@torch.inference_mode()
def _generate(executor: Executor, subject: TimedNetwork, steps: int) -> None:
    generation = executor.start()
    ahead = executor.captures(subject.device)
    for inputs, named in subject.inputs([ahead and executor.evaluates(step) for step in range(steps)]):
        generation(*inputs, **named)


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    run()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def ceilings(device: torch.device) -> dict[str, float]:
    """The chip's best: TFLOP/s of a large matrix product (bfloat16 on a GPU), GB/s read and written by a large copy."""
    n = 8192 if device.type == "cuda" else 1024
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    a, b = torch.randn(n, n, device=device, dtype=dtype), torch.randn(n, n, device=device, dtype=dtype)
    source = torch.randn(2**28 if device.type == "cuda" else 2**24, device=device)
    target = torch.empty_like(source)
    product = _best(lambda: torch.mm(a, b), device)
    copy = _best(lambda: target.copy_(source), device)
    return {"tflops": 2 * n**3 / product / 1e12, "gbps": 2 * source.nbytes / copy / 1e9}


def _best(run: Callable[[], object], device: torch.device, repeats: int = 20) -> float:
    for _ in range(3):
        run()
    return min(seconds_of(run, device) for _ in range(repeats))
