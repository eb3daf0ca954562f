"""The conditions of an experiment: the models, the number of samples, and the trials measured so far."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

import tenuto
from tenuto.errors import TenutoError, UsageError
from tenuto.models import Model, find, is_pipeline, open_model
from tenuto.sampling.pictures import vae_of
from tenuto.scheduling.units import Granularity
from tenuto_lab.frontier.cases import CAPTIONS, asked_for
from tenuto_lab.full_size.inception_judge import inception_judge
from tenuto_lab.full_size.samples import Precision, read_captions
from tenuto_lab.journal import Journal
from tenuto_lab.judging.judges import Judge, picture_judge
from tenuto_lab.paper.drawing_bench import PictureBench
from tenuto_lab.paper.trials import Bench, as_dtype
from tenuto_lab.paper.writing_bench import ANSWER, TextBench, read_problems

OFTEN = 20.0  # seconds between two lines about a trial
REFERENCE = ("small-llada", "tiny-dit", "tiny-uvit", "tiny-sdxl")
Say = Callable[[str], object]
T = TypeVar("T")


def float32_products(device: torch.device) -> str:
    """Sets how float32 matrices are multiplied, and says how: by TF32 on a GPU, as the frontier does."""
    precision = "high" if device.type == "cuda" else "highest"
    torch.set_float32_matmul_precision(precision)
    return precision


class OutOfTime(TenutoError):
    """The time that a run was given is over."""


@dataclass(frozen=True)
class Protocol:
    """How samples are made and judged, where it is not the reference models' own way."""

    dtype: Precision = "float32"
    guidance: float | None = None  # None: the paper's for the family
    vae: Path | None = None  # None: the one beside the model, if it makes latents
    captions: Path | None = None  # one a line, for a model that draws captions
    problems: Path | None = None  # JSONL, for a model that writes
    answer_length: int = ANSWER  # tokens of an answer
    tasks: tuple[str, ...] = ()  # of a model that writes; by default all of its problems
    inception: Path | None = None  # weights; with `reference`, pictures are judged by Inception features
    reference: Path | None = None  # real pictures, or their statistics
    batch: int | None = None  # samples at a time

    def __post_init__(self) -> None:
        if self.inception is not None and self.reference is None:
            raise UsageError(
                "Inception judges against real pictures: name them, or their statistics, with --reference."
            )
        if self.guidance is not None and not 0 <= self.guidance < math.inf:
            raise UsageError(f"Guidance must be neither negative nor infinite, and {self.guidance} is.")

    def check_used(self, models: Sequence[str]) -> None:
        """Refuse an option that none of these models can use. Reads configs, and no weights."""
        asked = {open_model(name).architecture.asks_for for name in models}
        writes, draws = "prompt" in asked, bool(asked - {"prompt"})
        for option, given, used, kind in (
            ("--problems", self.problems, writes, "write"),
            ("--task", self.tasks, writes, "write"),
            ("--answer-length", self.answer_length != ANSWER, writes, "write"),
            ("--captions", self.captions, "caption" in asked, "draw captions"),
            ("--vae", self.vae, draws, "draw"),
            ("--guidance", self.guidance is not None, draws, "draw"),
            ("--inception", self.inception, draws, "draw"),
            ("--reference", self.reference, draws, "draw"),
        ):
            if given and not used:
                raise UsageError(f"{option} is for models that {kind}, and {', '.join(models)} does nothing with it.")

    def described(self) -> dict[str, Any]:
        """What the results depend on, for their provenance."""
        given = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: str(value) for name, value in given.items() if value not in (None, ())}


@dataclass
class Lab:
    models: Sequence[str] = REFERENCE
    samples: int = 100  # for each seed
    seeds: int = 3
    steps: int | None = None  # steps of the full run; None: the experiment's own number
    device: str | torch.device = "cpu"
    journal: Journal | None = None
    say: Say = lambda text: None
    granularities: Sequence[Granularity] = ("branch",)
    protocol: Protocol = field(default_factory=Protocol)
    text_samples: int | None = None  # for each seed, of a model that writes; None: `samples`
    orders: int = 10  # random orders
    ends: float | None = None  # the monotonic time after which no new trial begins
    made: dict[str, Any] = field(default_factory=dict)  # commit and hardware of trials that were made elsewhere
    only: frozenset[tuple[str, str]] | None = None  # pairs of model and granularity; None: all
    left_out: list[str] = field(default_factory=list)  # what was not measured completely
    only_times: bool = False  # True: nothing else is measured
    takes_time: bool = True  # False: other work runs on the same device, so nothing is timed
    seen: set[str] = field(default_factory=set)  # the names of the trials so far
    warned: set[str] = field(default_factory=set)  # what was said to be missing
    took: list[float] = field(default_factory=list)  # seconds of each of them that was measured now
    said_at: float = 0.0  # when the progress within a trial was said last
    _benches: dict[str, Bench] = field(default_factory=dict)

    def once(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The journal's entry of this name for these conditions. If there is none, measures and records it.

        Experiments with a common journal share their trials.
        """
        self.seen.add(name)
        if known := self.known(name):
            return known
        if self.only_times:
            raise OutOfTime(f"{name} was not measured")
        return self._measured(name, measure)

    def _measured(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if self.is_over:
            raise OutOfTime("the time is over. The same command with --resume goes on here.")
        begun = self.said_at = time.monotonic()
        found = measure()
        self.took.append(time.monotonic() - begun)
        if self.journal is not None:
            self.journal.note(self._entry(name), found)
        return found

    def optional(self, what: str, measure: Callable[[], T]) -> T | None:
        """What `measure` gives. If nothing is measured, and some of it was never measured: None, and that is noted."""
        try:
            return measure()
        except OutOfTime:
            if not self.made:
                raise
        if what not in self.left_out:
            self.left_out.append(what)
        return None

    def known(self, name: str) -> dict[str, Any]:
        """The journal's entry of this name for these conditions; empty if there is none."""
        return self.journal.get(self._entry(name)) if self.journal is not None else {}

    def time(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """As `once`, for times. Empty if this run may take none: other work runs beside it, or nothing is measured."""
        if (known := self.known(name)) or not self.takes_time or self.made:
            return known
        return self._measured(name, measure)

    def within(self, part: str) -> None:
        """Say how far a trial is, but not often."""
        if time.monotonic() - self.said_at >= OFTEN:
            self.said_at = time.monotonic()
            self.say(f"… {part}")

    @property
    def resumed(self) -> bool:
        """Whether some trials were measured by an earlier part of this run."""
        return len(self.took) < len(self.seen)

    def left(self, total: int) -> float:
        """About how many seconds are left. Entries that are much quicker than the longest one are no trials."""
        slow = [one for one in self.took if one >= max(self.took) / 10]
        return max(0, total - len(self.seen)) * sum(slow) / len(slow) if slow else 0.0

    @property
    def is_over(self) -> bool:
        """Whether the time of this run is over."""
        return self.ends is not None and time.monotonic() >= self.ends

    def _entry(self, name: str) -> str:
        return f"{name} ({self.samples}/{self.text_samples} samples of {self.seeds} seeds, {self.protocol.described()})"

    def bench(self, name: str) -> Bench:
        """A model with its requests and its judge. Each model is loaded once."""
        if name not in self._benches:
            model = tenuto.load(name, device=torch.device(self.device), dtype=as_dtype(self.protocol.dtype))
            made = self._writer(model) if model.architecture.asks_for == "prompt" else self._drawer(model)
            made.takes_time = self.takes_time
            self._benches[name] = made
        self._benches[name].tell = self.within
        return self._benches[name]

    def fingerprints(self) -> dict[str, str]:
        """Of the weights of every model that was loaded, by its last name."""
        return {Path(name).name: bench.fingerprint for name, bench in self._benches.items() if name in self.models}

    def benches(self) -> list[Bench]:
        """A bench for each model and each granularity."""
        pairs = [(name, granularity) for name in self.models for granularity in self.granularities]
        return [
            self.bench(name).at(granularity)
            for name, granularity in pairs
            if self.only is None or (name, granularity) in self.only
        ]

    def writers(self) -> list[Bench]:
        """The benches of language models."""
        if found := [bench for bench in self.benches() if bench.writes]:
            return found
        raise UsageError(f"This experiment is for language models, and {', '.join(self.models)} draws.")

    def _writer(self, model: Model) -> TextBench:
        given = self.protocol
        posed = None if given.problems is None else read_problems(given.problems, model)
        count = self.text_samples or self.samples
        return TextBench(model, count, range(self.seeds), posed, given.answer_length, given.batch, only=given.tasks)

    def _drawer(self, model: Model) -> PictureBench:
        given, by_class = self.protocol, model.architecture.asks_for == "class"
        whole = is_pipeline(find(model.name))
        labels, wanted = asked_for(model, self.samples)
        if given.captions is not None and not by_class:
            lines = read_captions(given.captions)
            wanted = [lines[i % len(lines)] for i in range(self.samples)]
        elif whole and not by_class:
            raise UsageError(f"{model.name} is a pipeline: name a file of captions, one a line, with --captions.")
        judge, seen = self._judge(model, wanted)
        return PictureBench(
            model,
            self.samples,
            range(self.seeds),
            wanted,
            judge,
            labels if seen else None,
            guidance=given.guidance,
            vae=vae_of(model, given.vae),
            batch=given.batch or (8 if whole else None),
        )

    def _judge(self, model: Model, wanted: Sequence[Any]) -> tuple[Judge | None, bool]:
        """The judge, and whether it knows the classes that are asked for."""
        given = self.protocol
        if given.reference is not None:
            return inception_judge(given.inception, given.reference, self.device), False
        judge = picture_judge(model, model.device)
        return judge, judge is not None and (given.captions is None or not set(wanted) - set(CAPTIONS))
