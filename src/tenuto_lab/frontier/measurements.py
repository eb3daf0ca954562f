"""The parts of a frontier: measurements, and comparisons of two ways of spending the same work."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal

import numpy as np
import torch

from tenuto.runtime.executor import Executor
from tenuto.scheduling.units import Unit
from tenuto_lab.judging.statistics import Values, mean_interval, paired_test
from tenuto_lab.rivals import Rival

Kind = Literal["full", "ours", "option", "paper", "rival"]
HIGHEST = 200.0  # dB, the cap: equal pictures have this PSNR


@dataclass
class Measurement:
    """One point, measured with one seed."""

    model: str
    policy: str
    kind: str
    base_steps: int  # steps of the full run that the point is compared with
    steps: int
    setting: str  # the solver, or the blocks in which text is written
    budget: float
    work: float  # computed unit-steps, as a share of the full run's
    flop_work: float
    seed: int
    samples: int
    seconds: float
    full_seconds: float
    cache_bytes: int | None = None  # for one sample
    psnr: float | None = None
    psnr_low: float | None = None
    psnr_high: float | None = None
    lpips: float | None = None
    converged_psnr: float | None = None
    fid: float | None = None
    fid_low: float | None = None
    fid_high: float | None = None
    fid_delta: float | None = None
    fid_delta_low: float | None = None
    fid_delta_high: float | None = None
    agreement: float | None = None
    nll: float | None = None
    nll_delta: float | None = None
    nll_delta_low: float | None = None
    nll_delta_high: float | None = None
    same_tokens: float | None = None
    distinct: float | None = None  # share of distinct token pairs; repetitive text also has a high likelihood
    needle: float | None = None
    arithmetic: float | None = None  # right answers to `task`
    task: str | None = None  # the kind of problem; older files: arithmetic

    def to_json(self) -> dict[str, Any]:
        return {
            key: round(value, 5) if isinstance(value, float) else value
            for key, value in asdict(self).items()
            if value is not None
        }


@dataclass(frozen=True)
class Comparison:
    """Two points at equal work, sample by sample."""

    model: str
    base_steps: int
    a: str
    b: str
    measure: str
    difference: float  # a − b
    low: float
    high: float
    p: float

    def to_json(self) -> dict[str, Any]:
        return {key: round(value, 6) if isinstance(value, float) else value for key, value in asdict(self).items()}


@dataclass
class Frontier:
    """All measurements of one model at one number of steps."""

    rows: list[Measurement] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    converged: dict[str, float] = field(default_factory=dict)  # PSNR in dB between the outputs of two numbers of steps
    unable: dict[str, str] = field(default_factory=dict)  # rivals that cannot run on this model, and why


Save = Callable[[Frontier], object]  # called after each point with the frontier so far


def compared(model: str, base_steps: int, measure: str, a: tuple[str, Values], b: tuple[str, Values]) -> Comparison:
    """Compares the values of two points on the same samples."""
    one, other = np.minimum(np.asarray(a[1]), HIGHEST), np.minimum(np.asarray(b[1]), HIGHEST)
    difference, low, high = mean_interval(one - other)
    return Comparison(model, base_steps, a[0], b[0], measure, difference, low, high, paired_test(one, other))


def mean_of(rows: Sequence[Measurement], name: str) -> float:
    """The mean over the seeds. A metric that is missing for a seed is skipped; NaN if every seed lacks it."""
    values = [value for row in rows if (value := getattr(row, name)) is not None]
    return float(np.mean(values)) if values else math.nan


def times_as_fast(full: Iterable[float], seconds: Iterable[float]) -> float:
    """The ratio of the medians over the seeds, because one disturbed run does not move a median."""
    return median(full) / median(seconds)


def timed(run: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    """What `run` returns, and the seconds until the device had finished."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    wait()
    start = time.perf_counter()
    result = run()
    wait()
    return result, time.perf_counter() - start


def work_of(executor: Executor, units: Sequence[Unit], share: float) -> tuple[float, float]:
    """Unit-steps and FLOPs as shares of the full run's. share: the number of steps as a share of the full run's."""
    if isinstance(executor, Rival):
        return executor.work, executor.flop_work(units)
    schedule = executor.schedule
    return (share, share) if schedule is None else (share * schedule.budget, share * schedule.flop_budget)


def cache_bytes(executor: Executor, samples: int) -> int | None:
    """Bytes of cache for one sample, including both halves of guidance; None without a schedule."""
    return None if executor.schedule is None else executor.report().cache_bytes // samples
