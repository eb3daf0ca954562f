"""One way of running a model, tried on all samples of all seeds, and compared with the full run from the same noise.

A way is a function from a number of steps (and, for text, of blocks) to an executor. A trial holds plain numbers for
each sample. So a trial can be stored, and two trials can be compared sample by sample.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from tenuto.deciding import score
from tenuto.errors import UsageError
from tenuto.models import Model, find
from tenuto.quality import psnr
from tenuto.runtime.executor import Executor
from tenuto.sampling.masked import MaskedSampling, generate_tokens, sampling_for
from tenuto.sampling.pictures import Solver
from tenuto.scheduling.schedule import Schedule
from tenuto.scoring.scores import Scores
from tenuto_lab.frontier.cases import asked_for
from tenuto_lab.frontier.drawing import DrawingCase
from tenuto_lab.frontier.measurements import HIGHEST, timed, work_of
from tenuto_lab.frontier.points import everything
from tenuto_lab.frontier.writing import distinct, share_of, solved
from tenuto_lab.judging.judges import Problem, picture_judge, problems, text_judge
from tenuto_lab.judging.statistics import Distance, Interval, mean_interval, paired_test
from tenuto_lab.rivals import Rival

Way = Callable[[int, int], Executor]  # (steps, blocks)
ANSWER = 16  # tokens of an answer to a problem
LENGTH, BLOCKS = 128, 4  # tokens of a continuation, and the blocks it is written in


@dataclass
class Trial:
    seconds: float  # per sample
    full_seconds: float
    work: float  # computed unit-steps, as a share of the full run's
    flop_work: float
    values: dict[str, list[float]]  # one value per sample; higher is better
    figures: dict[str, Interval] = field(default_factory=dict)  # over all samples together

    @property
    def speedup(self) -> float:
        return self.full_seconds / self.seconds

    def mean(self, name: str) -> Interval:
        return mean_interval(self.values[name], 500)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> "Trial":
        figures = {name: (value[0], value[1], value[2]) for name, value in found["figures"].items()}
        return cls(**{**found, "figures": figures})


def difference(a: Trial, b: Trial, name: str) -> tuple[Interval, float]:
    """a − b over the same samples, with its 95 % interval, and the p of a paired test."""
    one, other = np.array(a.values[name]), np.array(b.values[name])
    return mean_interval(one - other, 500), paired_test(one, other, 2000)


class Bench(Protocol):
    """A model with its requests and its judge."""

    model: Model
    steps: int  # default steps of the full run
    quality: str  # the value by which ways are compared
    quality_title: str  # the same, as an axis label
    writes: bool  # True: the model writes text; False: it draws

    @property
    def family(self) -> str: ...

    def sample(self, steps: int, count: int | None = None) -> Callable[[Executor], Tensor]:
        """A function that generates the first seed's samples in `steps` steps with the executor it receives."""
        ...

    @property
    def scores(self) -> Scores: ...

    def trial(self, way: Way, steps: int | None = None, base: int | None = None, solver: Solver = "ddim") -> Trial:
        """A way at `steps` steps, compared with the full run of `base` steps (by default, the same number)."""
        ...


class _ModelBench:
    def __init__(self, model: Model, samples: int, seeds: Sequence[int]) -> None:
        if samples < 1 or not seeds:
            raise UsageError("At least one sample of one seed must be made.")
        self.model = model
        self.samples = samples
        self.seeds = seeds

    @property
    def family(self) -> str:
        return self.model.architecture.name

    @cached_property
    def scores(self) -> Scores:
        return score(self.model)

    @property
    def on_gpu(self) -> bool:
        return self.model.device.type == "cuda"


class PictureBench(_ModelBench):
    """quality: psnr, dB to the full run's picture from the same noise. Fréchet distances are over all seeds."""

    steps = 50
    quality = "psnr"
    quality_title = "dB to the full run"
    writes = False

    def __init__(self, model: Model, samples: int, seeds: Sequence[int]) -> None:
        super().__init__(model, samples, seeds)
        self.judge = picture_judge(model, model.device)
        self.labels, wanted = asked_for(model, samples)
        self.case = DrawingCase(model, self.steps, wanted, seeds, samples if self.on_gpu else min(samples, 32))
        self._full: dict[int, tuple[list[Tensor], float]] = {}
        self._distances: dict[int, Distance | None] = {}  # of the full run's pictures from real pictures, by steps

    def trial(self, way: Way, steps: int | None = None, base: int | None = None, solver: Solver = "ddim") -> Trial:
        steps = steps or self.steps
        base = base or steps
        full, full_seconds = self.full(base)
        executor = way(steps, 1)
        images, seconds = self._draw(executor, steps, solver)
        work, flop_work = work_of(executor, self.model.units, steps / base)
        alike = torch.cat([psnr(a, b).clamp(max=HIGHEST) for a, b in zip(images, full, strict=True)])
        found = Trial(seconds, full_seconds, work, flop_work, {"psnr": alike.tolist()})
        executor.release()
        self._judge(found, torch.cat(images), base)
        return found

    def sample(self, steps: int, count: int | None = None) -> Callable[[Executor], Tensor]:
        return lambda executor: self.case.draw(executor, steps, "ddim", self.seeds[0], count)

    def full(self, steps: int) -> tuple[list[Tensor], float]:
        """The pictures of the full run for every seed, and its seconds per sample. It runs eagerly, as users run it."""
        if steps not in self._full:
            self._full[steps] = self._draw(Executor(self.model.network, mode="eager"), steps, "ddim")
        return self._full[steps]

    def _draw(self, executor: Executor, steps: int, solver: Solver) -> tuple[list[Tensor], float]:
        # Warm-up: a GPU records graphs for whole batches; on a CPU one sample is enough.
        self.case.draw(executor, steps, solver, self.seeds[0], self.case.batch if self.on_gpu else 1)
        if isinstance(executor, Rival):
            executor.forget()
        drawn = [
            timed(partial(self.case.draw, executor, steps, solver, seed), self.model.device) for seed in self.seeds
        ]
        return [images for images, _ in drawn], sum(took for _, took in drawn) / (len(drawn) * self.samples)

    def _judge(self, found: Trial, images: Tensor, base: int) -> None:
        judge = self.judge
        if judge is None:
            return
        labels = torch.tensor(self.labels * len(self.seeds))
        found.values["agreement"] = judge.agrees(images, labels).double().tolist()
        if base not in self._distances:
            self._distances[base] = judge.distance(torch.cat(self.full(base)[0]))
        distance, full = judge.distance(images), self._distances[base]
        if distance is not None and full is not None:
            found.figures["fid"], found.figures["full_fid"] = distance.interval, full.interval
            found.figures["fid_delta"] = distance.beyond(full)


class TextBench(_ModelBench):
    """quality: same tokens, the share of tokens equal to the full run's. Each seed uses different problems."""

    steps = 64
    quality = "same tokens"
    quality_title = "tokens as in the full run, share"
    writes = True

    def __init__(self, model: Model, samples: int, seeds: Sequence[int]) -> None:
        super().__init__(model, samples, seeds)
        self.judge = text_judge(model.device)
        place = find(model.name)
        if not (place / "problems.json").is_file():
            raise UsageError(
                f"There is no problems.json beside {model.name} to ask it. For tasks at full size: tenuto lab eval lm."
            )
        self.problems = problems(place)
        self._full: dict[int, tuple[Tensor, float, Tensor | None]] = {}

    def trial(self, way: Way, steps: int | None = None, base: int | None = None, solver: Solver = "ddim") -> Trial:
        steps = steps or self.steps
        base = base or steps
        if base not in self._full:
            eager = Executor(self.model.network, everything(self.scores, base), mode="eager")
            self._full[base] = self._written(eager, base)
        full, full_seconds, full_loss = self._full[base]
        executor = way(steps, BLOCKS)
        tokens, seconds, loss = self._written(executor, steps)
        work, flop_work = work_of(executor, self.model.units, steps / base)
        answering = min(ANSWER, max(1, round(ANSWER * steps / self.steps)))
        found = Trial(seconds, full_seconds, work, flop_work, {})
        for task in ("arithmetic", "needle"):
            found.values[task] = self._answered(way(answering, 1), task, answering)
        found.values["needle, longest"] = self._answered(way(answering, 1), "needle", answering, longest=True)
        found.values["same tokens"] = (tokens == full).double().mean(1).tolist()
        found.values["distinct"] = [distinct(row) for row in tokens.tolist()]
        if loss is not None and full_loss is not None:
            found.values["likelihood"] = (full_loss - loss).tolist()  # nats a token above the full run's
        return found

    def sample(self, steps: int, count: int | None = None) -> Callable[[Executor], Tensor]:
        """As in Bench. Texts have as many tokens as steps, so that each step writes one token."""
        asked = [problem["prompt"] for problem in self.some("text", self.seeds[0])[:count]]
        sampling = self.sampling(steps, steps)
        return lambda executor: generate_tokens(executor, asked, sampling=sampling, batch=len(asked))

    def _written(self, executor: Executor, steps: int) -> tuple[Tensor, float, Tensor | None]:
        """Continuations, seconds per continuation, and their negative log-likelihood by the judge."""
        sampling = self.sampling(steps, LENGTH, BLOCKS)
        prompts = [[one["prompt"] for one in self.some("text", seed)] for seed in self.seeds]

        def write(asked: list[list[int]]) -> Tensor:
            return generate_tokens(executor, asked, sampling=sampling, batch=len(asked))

        write(prompts[0] if self.on_gpu else prompts[0][:1])  # warm-up
        drawn = [timed(partial(write, asked), self.model.device) for asked in prompts]
        tokens = torch.cat([written.cpu() for written, _ in drawn])
        executor.release()
        loss = None
        if self.judge is not None:
            asked = torch.tensor([prompt for some in prompts for prompt in some])
            loss = self.judge.nll(torch.cat([asked, tokens], dim=1), asked.shape[1]).double().cpu()
        return tokens, sum(took for _, took in drawn) / len(tokens), loss

    def _answered(self, executor: Executor, task: str, steps: int, longest: bool = False) -> list[float]:
        """Whether each problem was solved: only the longest problems, or the share of each seed."""
        sampling, end = self.sampling(steps, ANSWER), self.model.config.eos_token_id
        shares = [self._longest(task)] if longest else [self.some(task, seed) for seed in self.seeds]
        right = [float(one) for posed in shares for one in solved(executor, posed, sampling, end)]
        executor.release()
        return right

    def sampling(self, steps: int, length: int, blocks: int = 1) -> MaskedSampling:
        """Generation does not stop at an end-of-text, so that all runs take the same number of steps."""
        return sampling_for(self.model, steps=steps, length=length, block_length=length // blocks, stop_at_eos=False)

    def _longest(self, task: str) -> list[Problem]:
        return sorted(self.problems[task], key=lambda one: -len(one["prompt"]))[: self.samples]

    def some(self, task: str, seed: int) -> list[Problem]:
        return share_of(self.problems[task], seed, self.samples)


def scheduled(model: Model, make: Callable[[int, int], Schedule]) -> Way:
    """The way that runs a model under a schedule."""
    return lambda steps, blocks: Executor(model.network, make(steps, blocks))
