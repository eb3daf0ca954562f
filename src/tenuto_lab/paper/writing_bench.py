"""A model that writes, with problems that have one right answer and a judge of its continuations.

The problems come from `problems.json` beside the model, or from a JSONL file:

    {"task": "gsm8k", "prompt": "Tom has 12 apples …", "answer": "19", "metric": "numeric"}
    {"task": "text", "prompt": "The opening words of something to continue"}
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tenuto.errors import TenutoError, UsageError
from tenuto.files import parse_json, read_text
from tenuto.models import Model, find
from tenuto.runtime.executor import Executor
from tenuto.sampling.masked import MaskedSampling, generate_tokens, sampling_for
from tenuto.sampling.pictures import Solver
from tenuto_lab.frontier.measurements import timed, work_of
from tenuto_lab.frontier.points import everything
from tenuto_lab.frontier.writing import distinct, share_of, solved
from tenuto_lab.full_size.answer_metrics import METRICS, RUNS_CODE, check_metric
from tenuto_lab.judging.judges import Problem, TextJudge, problems, text_judge
from tenuto_lab.paper.trials import ModelBench, Trial, Way

ANSWER = 16  # tokens of an answer to a problem
LENGTH, BLOCKS = 128, 4  # tokens of a continuation, and the blocks it is written in
TOGETHER = 300  # continuations that are written at a time
CONTINUED = "text"  # the task whose prompts are continued freely
Metric = Callable[[str, Sequence[str]], float]
ORDER = ("arithmetic", "gsm8k", "needle")  # the first of them stands for the paper's GSM8K


class TextBench(ModelBench):
    """quality: same tokens, the share of tokens equal to the full run's. Each seed uses different problems."""

    steps = 100
    quality = "same tokens"
    quality_title = "tokens as in the full run, share"
    writes = True

    def __init__(
        self,
        model: Model,
        samples: int,
        seeds: range,
        posed: dict[str, list[Problem]] | None = None,
        answer_length: int = ANSWER,
        batch: int | None = None,
    ) -> None:
        super().__init__(model, samples, seeds)
        # All seeds together, if the model is the small one; a large one is given one seed's problems at a time.
        self.batch = batch or (min(samples * len(seeds), TOGETHER) if posed is None else samples)
        self.problems = problems_beside(model) if posed is None else posed
        known = [task for task in self.problems if task != CONTINUED]
        self.tasks = tuple(sorted(known, key=lambda task: ORDER.index(task) if task in ORDER else len(ORDER)))
        if not self.tasks:
            raise UsageError("There is no problem with an answer, so nothing can be right or wrong.")
        self.answer_length = answer_length
        # The shipped judge reads tiny-llada's tokens, and no other model's.
        self.judge: TextJudge | None = text_judge(model.device) if posed is None else None
        least = min(self.problems, key=lambda task: len(self.problems[task]))
        if samples * len(seeds) > len(self.problems[least]):
            raise UsageError(
                f"{model.name} has {len(self.problems[least])} problems of the kind {least!r}; {len(seeds)} seeds of "
                f"{samples} would ask some of them twice and count them as new ones. Take --samples "
                f"{max(1, len(self.problems[least]) // len(seeds))} at most, or fewer seeds."
            )
        self._full: dict[int, tuple[Tensor, float | None, Tensor | None]] = {}

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
        answering = min(self.answer_length, max(1, round(self.answer_length * steps / self.steps)))
        found = Trial(seconds, full_seconds, work, flop_work, {})
        executor = way(answering, 1)
        for task in self.tasks:
            found.values[task] = self._answered(executor, task, answering)
        if "needle" in self.tasks:
            found.values["needle, longest"] = self._answered(executor, "needle", answering, longest=True)
        executor.release()
        found.values["same tokens"] = (tokens == full).double().mean(1).tolist()
        found.values["distinct"] = [distinct(row) for row in tokens.tolist()]
        if loss is not None and full_loss is not None:
            found.values["likelihood"] = (full_loss - loss).tolist()  # nats a token above the full run's
        for name, values in found.values.items():
            if name != "needle, longest":  # which are the same problems for every seed
                found.of_seeds[name] = self.of_each_seed(values)
        return found

    def sample(self, steps: int, count: int | None = None, first: int = 0) -> Callable[[Executor], Tensor]:
        """As in Bench. Texts have as many tokens as steps, so that each step writes one token."""
        asked = [problem["prompt"] for problem in self.some(self._continued, self.seeds[0])[first:][:count]]
        sampling = self.sampling(steps, steps)
        return lambda executor: generate_tokens(executor, asked, sampling=sampling, batch=len(asked))

    @property
    def _continued(self) -> str:
        return CONTINUED if CONTINUED in self.problems else self.tasks[0]

    def _written(self, executor: Executor, steps: int) -> tuple[Tensor, float | None, Tensor | None]:
        """Continuations, seconds per continuation if they are timed, and their negative log-likelihood."""
        sampling = self.sampling(steps, LENGTH, BLOCKS)
        prompts = [one["prompt"] for seed in self.seeds for one in self.some(self._continued, seed)]
        write = partial(generate_tokens, executor, sampling=sampling, batch=self.batch)
        if self.takes_time:
            write(prompts[: self.batch] if self.on_gpu else prompts[:1])  # warm-up
        written, took = timed(partial(write, prompts), self.model.device)
        tokens = written.cpu()
        executor.release()
        loss = None
        if self.judge is not None:
            asked = torch.tensor(prompts)
            loss = self.judge.nll(torch.cat([asked, tokens], dim=1), asked.shape[1]).double().cpu()
        return tokens, took / len(tokens) if self.takes_time else None, loss

    def seconds(self, way: Way | None, steps: int, solver: Solver = "ddim") -> float:
        eager = Executor(self.model.network, everything(self.scores, steps), mode="eager")
        executor = eager if way is None else way(steps, BLOCKS)
        prompts = [one["prompt"] for one in self.some(self._continued, self.seeds[0])]
        sampling = self.sampling(steps, LENGTH, BLOCKS)
        write = partial(generate_tokens, executor, prompts, sampling=sampling, batch=self.batch)
        write()  # warm-up
        took = timed(write, self.model.device)[1] / len(prompts)
        executor.release()
        return took

    def _answered(self, executor: Executor, task: str, steps: int, longest: bool = False) -> list[float]:
        """Whether each problem was solved: only the longest problems, or the share of each seed."""
        sampling, end = self.sampling(steps, self.answer_length), self.model.config.eos_token_id
        shares = [self._longest(task)] if longest else [self.some(task, seed) for seed in self.seeds]
        posed = [one for share in shares for one in share]
        parts = [posed[first : first + self.batch] for first in range(0, len(posed), self.batch)]
        return [float(one) for part in parts for one in solved(executor, part, sampling, end)]

    def sampling(self, steps: int, length: int, blocks: int = 1) -> MaskedSampling:
        """Generation does not stop at an end-of-text, so that all runs take the same number of steps."""
        return sampling_for(self.model, steps=steps, length=length, block_length=length // blocks, stop_at_eos=False)

    def _longest(self, task: str) -> list[Problem]:
        return sorted(self.problems[task], key=lambda one: -len(one["prompt"]))[: self.samples]

    def some(self, task: str, seed: int) -> list[Problem]:
        return share_of(self.problems[task], seed, self.samples)


def problems_beside(model: Model) -> dict[str, list[Problem]]:
    """The problems that are stored beside a model."""
    place = find(model.name)
    if not (place / "problems.json").is_file():
        raise UsageError(
            f"There is no problems.json beside {model.name} to ask it: name a file of problems, one JSON object a "
            f"line, "
            "with --problems. For tasks at full size: tenuto lab eval lm."
        )
    return problems(place)


def read_problems(path: Path, model: Model) -> dict[str, list[Problem]]:
    """The problems of a JSONL file, by task, in the model's own tokens.

    A problem may name a metric, as files of `tenuto lab eval build` do: it judges the text that was written. A file
    that names no task is a task itself.
    """
    found: dict[str, list[Problem]] = {}
    lines = filter(str.strip, read_text(path, "problems").splitlines())
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        try:
            given = parse_json(line)
        except ValueError as error:
            raise TenutoError(f"{where} is no JSON: {error}.") from error
        task = given.get("task", path.stem) if isinstance(given, dict) else None
        prompt, answer = (given.get(key) for key in ("prompt", "answer")) if isinstance(given, dict) else (None, None)
        answers = answer if isinstance(answer, list) else [] if answer is None else [answer]
        if not isinstance(task, str) or not isinstance(prompt, str) or not all(isinstance(one, str) for one in answers):
            raise TenutoError(f"{where} should have a prompt and an answer, both text, and may have a task.")
        if not answers and task != CONTINUED:
            raise TenutoError(f"{where} has no answer; only the task {CONTINUED!r} goes without.")
        asked = list(model.tokenizer.encode(prompt))
        told = list(model.tokenizer.encode(f"{prompt} {answers[0]}"))[len(asked) :] if answers else asked[:1]
        problem: Problem = {"prompt": asked, "answer": told}
        if (metric := given.get("metric")) is not None:
            problem["metric"] = partial(_judged, metric_named(metric, where), answers, model.tokenizer)
        found.setdefault(task, []).append(problem)
    if not found:
        raise TenutoError(f"{path} holds no problems.")
    return found


def metric_named(name: Any, where: str) -> Metric:
    """The metric that a problem names."""
    if name == RUNS_CODE:
        raise UsageError(f"{where}: the metric {RUNS_CODE} runs code, and only `tenuto lab eval lm` does that.")
    check_metric(str(name), where)
    return METRICS[name]


def _judged(metric: Metric, answers: Sequence[str], tokenizer: Any, written: list[int]) -> float:
    return metric(tokenizer.decode(written), answers)
