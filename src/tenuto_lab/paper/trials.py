"""One way of running a model, tried on all samples of all seeds, and compared with the full run from the same noise.

A way is a function from a number of steps (and, for text, of blocks) to an executor. A trial holds plain numbers: one
for each sample, and the bootstrap resamples of figures over all samples. So a trial can be stored, and two trials can
be compared sample by sample, and their FIDs resample by resample.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.runtime.executor import Executor
from tenuto.sampling.pictures import Solver
from tenuto.scheduling.schedule import Schedule
from tenuto.scheduling.units import Granularity
from tenuto_lab.judging.statistics import SPREAD, Interval, mean_interval, paired_test
from tenuto_lab.scoring.scores import Scores, at_granularity
from tenuto_lab.scoring.scoring_models import score

Way = Callable[[int, int], Executor]  # (steps, blocks)
FLIPS = 20_000  # of a paired test: its least p must survive the correction for a hundred comparisons


@dataclass
class Trial:
    seconds: float | None  # per sample; None: not timed, because other work ran on the same device
    full_seconds: float | None
    work: float  # computed unit-steps, as a share of the full run's
    flop_work: float
    values: dict[str, list[float]]  # one value per sample; higher is better
    figures: dict[str, Interval] = field(default_factory=dict)  # over all samples together
    draws: dict[str, list[float]] = field(default_factory=dict)  # the same figures of the bootstrap's resamples
    of_seeds: dict[str, list[float]] = field(default_factory=dict)  # for each seed: means of values, and its FID

    @property
    def speedup(self) -> float | None:
        return self.full_seconds / self.seconds if self.seconds and self.full_seconds else None

    @property
    def share_of_time(self) -> float | None:
        """The time, as a share of full inference's."""
        return 1 / self.speedup if self.speedup else None

    def mean(self, name: str) -> Interval:
        return mean_interval(self.values[name], 500)

    def deviation(self, name: str) -> float | None:
        """The standard deviation between the seeds; None of one seed."""
        found = self.of_seeds.get(name, [])
        return float(np.std(found, ddof=1)) if len(found) > 1 else None

    def to_json(self) -> dict[str, Any]:
        """Numbers of six digits: more only makes journals long."""
        rounded: dict[str, Any] = _shorter(asdict(self))
        return rounded

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> "Trial":
        figures = {name: (value[0], value[1], value[2]) for name, value in found["figures"].items()}
        return cls(**{**found, "figures": figures})


def _shorter(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _shorter(one) for key, one in value.items()}
    return [_shorter(one) for one in value] if isinstance(value, list | tuple) else value


def difference(a: Trial, b: Trial, name: str) -> tuple[Interval, float]:
    """a − b over the same samples, with its 95 % interval, and the p of a paired test."""
    one, other = np.array(a.values[name]), np.array(b.values[name])
    return mean_interval(one - other, 500), paired_test(one, other, FLIPS)


def fid_gain(a: Trial, b: Trial) -> Interval | None:
    """How much lower the FID of `a` is than that of `b`, as a share of full inference's, with its 95 % interval.

    Both trials draw from the same noise, and their resamples are of the same samples, so their common error cancels.
    None if one of them has no FID.
    """
    if "fid" not in a.draws or "fid" not in b.draws:
        return None
    if len(a.draws["fid"]) != len(b.draws["fid"]):
        raise UsageError("These trials were resampled differently, so they are no pairs.")
    full = a.figures["full_fid"][0]
    gain = (b.figures["fid"][0] - a.figures["fid"][0]) / full
    error = SPREAD * float(np.std(np.array(b.draws["fid"]) - np.array(a.draws["fid"]), ddof=1)) / full
    return gain, gain - error, gain + error


class Bench(Protocol):
    """A model with its requests and its judge."""

    model: Model
    samples: int  # of each seed
    steps: int  # steps of the full run, as the paper's
    quality: str  # the value that says how near a way is to the full run
    quality_title: str  # the same, as an axis label
    writes: bool  # True: the model writes text; False: it draws
    granularity: Granularity  # of the paper's schedules
    tasks: tuple[str, ...]  # of a model that writes; the first stands for the paper's GSM8K
    takes_time: bool  # whether trials are timed
    tell: Callable[[str], object]  # receives how far a trial is
    chance: float | None  # how often a picture shows the class asked for by chance; None: the judge knows no classes
    lacks: str  # what the paper's metric lacks here, in a sentence; empty: nothing

    @property
    def family(self) -> str: ...

    def sample(self, steps: int, count: int | None = None, first: int = 0) -> Callable[[Executor], Tensor]:
        """A function that generates samples of the first seed in `steps` steps with the executor it receives."""
        ...

    @property
    def scores(self) -> Scores: ...

    @property
    def fingerprint(self) -> str:
        """Of the weights."""
        ...

    def trial(self, way: Way, steps: int | None = None, base: int | None = None, solver: Solver = "ddim") -> Trial:
        """A way at `steps` steps, compared with the full run of `base` steps (by default, the same number)."""
        ...

    def seconds(self, way: Way | None, steps: int, solver: Solver = "ddim") -> float:
        """Seconds per sample of one round after a warm-up; without a way, of eager full inference."""
        ...

    def at(self, granularity: Granularity) -> Self:
        """The same bench whose scores have this granularity; full runs are shared."""
        ...


class ModelBench:
    """What the benches of pictures and of text share."""

    granularity: Granularity = "branch"
    tasks: tuple[str, ...] = ()
    takes_time = True
    tell: Callable[[str], object] = staticmethod(lambda part: None)
    chance: float | None = None
    lacks = ""

    def __init__(self, model: Model, samples: int, seeds: range) -> None:
        if samples < 1 or not seeds:
            raise UsageError("At least one sample of one seed must be made.")
        self.model = model
        self.samples = samples
        self.seeds = seeds

    @property
    def family(self) -> str:
        return self.model.architecture.name

    @cached_property
    def branch_scores(self) -> Scores:
        return score(self.model)

    @property
    def scores(self) -> Scores:
        return at_granularity(self.branch_scores, self.granularity)

    @property
    def fingerprint(self) -> str:
        return self.branch_scores.fingerprint

    def at(self, granularity: Granularity) -> Self:
        self.branch_scores  # noqa: B018  computed once, before the copy
        same = copy(self)
        same.granularity = granularity
        return same

    @property
    def on_gpu(self) -> bool:
        return self.model.device.type == "cuda"

    def of_each_seed(self, values: list[float]) -> list[float]:
        """The mean of a value for each seed. Values are ordered by seed, equally many of each."""
        each = len(values) // len(self.seeds)
        return [float(np.mean(values[i * each : (i + 1) * each])) for i in range(len(self.seeds))] if each else []


def scheduled(model: Model, make: Callable[[int, int], Schedule]) -> Way:
    """The way that runs a model under a schedule."""
    return lambda steps, blocks: Executor(model.network, make(steps, blocks))


def as_dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found
