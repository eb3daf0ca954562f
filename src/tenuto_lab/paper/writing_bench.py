"""A model that writes, with problems that have one right answer and a judge of its continuations.

The problems come from `problems.json` beside the model, or from a JSONL file:

    {"task": "gsm8k", "prompt": "Tom has 12 apples …", "answer": "19", "metric": "numeric"}
    {"task": "text", "prompt": "The opening words of something to continue"}
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from tenuto.errors import TenutoError, UsageError
from tenuto.files import parse_json
from tenuto.models import Model, find
from tenuto.runtime.executor import Executor
from tenuto.sampling.masked import MaskedSampling, generate_tokens, sampling_for
from tenuto.sampling.pictures import Solver
from tenuto_lab.frontier.measurements import timed, work_of
from tenuto_lab.frontier.points import everything
from tenuto_lab.frontier.writing import as_expected, distinct, share_of
from tenuto_lab.full_size.answer_metrics import METRICS, RUNS_CODE, check_metric
from tenuto_lab.full_size.tasks import lines_of
from tenuto_lab.judging.judges import Problem, TextJudge, answer_lengths, problems, text_judge
from tenuto_lab.paper.trials import ModelBench, Trial, Way

ANSWER = 16  # tokens of an answer to a problem
LENGTH, BLOCKS = 128, 4  # tokens of a continuation, and the blocks it is written in
TOGETHER = 300  # continuations that are written at a time
CONTINUED = "text"  # the task whose prompts are continued freely
Metric = Callable[[str, Sequence[str]], float]
ORDER = ("arithmetic", "gsm8k", "needle")  # the first of them stands for the paper's GSM8K
ALL = "all tasks"  # the problems of all kinds together
T = TypeVar("T")


@dataclass
class Written:
    """What one way writes: an answer to every problem, and a continuation where there is something to continue."""

    answers: dict[str, list[list[int]]]  # of each task, ordered by seed
    seconds: float | None  # a continuation, or an answer if nothing is continued; None: not timed
    work: tuple[float, float]  # computed unit-steps and FLOPs, as shares of full inference's at as many steps
    text: Tensor | None = None
    loss: Tensor | None = None  # of each continuation, in nats a token


class TextBench(ModelBench):
    """quality: same tokens, the share of tokens equal to the full run's. Each seed uses different problems.

    tasks  the first stands for the paper's GSM8K. It is ALL, the problems of all kinds together, if there are several
           kinds and none of them is arithmetic
    """

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
        only: Sequence[str] = (),
    ) -> None:
        super().__init__(model, samples, seeds)
        # All seeds together, if the model is the small one; a large one is given one seed's problems at a time.
        self.batch = batch or (min(samples * len(seeds), TOGETHER) if posed is None else samples)
        self.problems = _different(_chosen(problems_beside(model) if posed is None else posed, only))
        known = [task for task in self.problems if task != CONTINUED]
        self.asked = tuple(sorted(known, key=lambda task: ORDER.index(task) if task in ORDER else len(ORDER)))
        if not self.asked:
            raise UsageError("There is no problem with an answer, so nothing can be right or wrong.")
        alone = len(self.asked) == 1 or self.asked[0] in ORDER
        self.tasks = self.asked if alone else (ALL, *self.asked)
        lengths = answer_lengths(find(model.name)) if posed is None else {}
        self.lengths = {task: lengths.get(task, answer_length) for task in self.asked}
        self.block = ANSWER if lengths else answer_length  # tokens that are written together
        # The judge of prose reads the tokens of the model that it was trained for (training.train_causal).
        continued = posed is None and CONTINUED in self.problems
        self.judge: TextJudge | None = text_judge(model.device) if continued else None
        least = min(self.problems, key=lambda task: len(self.problems[task]))
        if samples * len(seeds) > len(self.problems[least]):
            raise UsageError(
                f"{model.name} has {len(self.problems[least])} different problems of the kind {least!r}; {len(seeds)} "
                f"seeds of {samples} would ask some of them twice and count them as new ones. Take --samples "
                f"{max(1, len(self.problems[least]) // len(seeds))} at most, or fewer seeds."
            )
        self._full: dict[int, Written] = {}

    def trial(self, way: Way, steps: int | None = None, base: int | None = None, solver: Solver = "ddim") -> Trial:
        steps = steps or self.steps
        base = base or steps
        if base not in self._full:
            self._full[base] = self._written(self._eager, base)
        full, made = self._full[base], self._written(way, steps)
        work, flop_work = (share * steps / base for share in made.work)
        found = Trial(made.seconds, full.seconds, work, flop_work, {})
        right = {task: as_expected(made.answers[task], self._posed(task), self.end) for task in self.asked}
        found.values = {ALL: self._by_seed(right)} if ALL in self.tasks else {}
        found.values |= right
        if "needle" in self.asked:
            found.values["needle, longest"] = self._longest_needles(way, steps)
        found.values["same tokens"] = self._alike(made, full)
        found.values["distinct"] = [distinct(row) for row in self._rows(made)]
        if made.loss is not None and full.loss is not None:
            found.values["likelihood"] = (full.loss - made.loss).tolist()  # nats a token above the full run's
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
    def end(self) -> int:
        """The token that ends a text."""
        found: int = self.model.config.eos_token_id
        return found

    @property
    def _continued(self) -> str:
        return CONTINUED if CONTINUED in self.problems else self.asked[0]

    def _eager(self, steps: int, blocks: int) -> Executor:
        return Executor(self.model.network, everything(self.scores, steps), mode="eager")

    def _written(self, way: Way, steps: int) -> Written:
        """Everything that a way writes."""
        answers, spent, work = {}, 0.0, (1.0, 1.0)
        for task in self.asked:
            evaluations, blocks = self._shape(task, steps)
            executor = way(evaluations, blocks)
            write = partial(self._answered, executor, task, evaluations, self._posed(task))
            answers[task], took = timed(write, self.model.device)
            work = work_of(executor, self.model.units, 1.0)
            executor.release()
            spent += took
        if CONTINUED not in self.problems:
            many = sum(map(len, answers.values()))
            return Written(answers, spent / many if self.takes_time else None, work)
        executor, sampling = way(steps, BLOCKS), self.sampling(steps, LENGTH, BLOCKS)
        prompts = [one["prompt"] for one in self._posed(CONTINUED)]
        continue_all = partial(generate_tokens, executor, sampling=sampling, batch=self.batch)
        if self.takes_time:
            continue_all(prompts[: self.batch] if self.on_gpu else prompts[:1])  # warm-up
        written, took = timed(partial(continue_all, prompts), self.model.device)
        tokens, loss = written.cpu(), None
        work = work_of(executor, self.model.units, 1.0)
        executor.release()
        if self.judge is not None:
            asked = torch.tensor(prompts)
            loss = self.judge.nll(torch.cat([asked, tokens], dim=1), asked.shape[1]).double().cpu()
        return Written(answers, took / len(tokens) if self.takes_time else None, work, tokens, loss)

    def seconds(self, way: Way | None, steps: int, solver: Solver = "ddim") -> float:
        executor = (way or self._eager)(steps, BLOCKS)
        prompts = [one["prompt"] for one in self.some(self._continued, self.seeds[0])]
        sampling = self.sampling(steps, LENGTH, BLOCKS)
        write = partial(generate_tokens, executor, prompts, sampling=sampling, batch=self.batch)
        write()  # warm-up
        took = timed(write, self.model.device)[1] / len(prompts)
        executor.release()
        return took

    def answers(self, way: Way, task: str, steps: int, posed: Sequence[Problem] | None = None) -> list[list[int]]:
        """The answers to a task's problems, by default those of all seeds."""
        evaluations, blocks = self._shape(task, steps)
        executor = way(evaluations, blocks)
        found = self._answered(executor, task, evaluations, self._posed(task) if posed is None else posed)
        executor.release()
        return found

    def _shape(self, task: str, steps: int) -> tuple[int, int]:
        """Evaluations of an answer, and its blocks. A run of fewer steps takes fewer for each block, too."""
        blocks = max(1, self.lengths[task] // self.block)
        tokens = self.lengths[task] // blocks
        return blocks * min(tokens, max(1, round(tokens * steps / self.steps))), blocks

    def _answered(self, executor: Executor, task: str, evaluations: int, posed: Sequence[Problem]) -> list[list[int]]:
        sampling = self.sampling(evaluations, self.lengths[task], max(1, self.lengths[task] // self.block))
        prompts = [one["prompt"] for one in posed]
        found: list[list[int]] = []
        for first in range(0, len(prompts), self.batch):
            part = prompts[first : first + self.batch]
            found += generate_tokens(executor, part, sampling=sampling, batch=len(part)).tolist()
            self.tell(f"{task}: {len(found)} of {len(prompts)} answers")
        return found

    def _longest_needles(self, way: Way, steps: int) -> list[float]:
        posed = sorted(self.problems["needle"], key=lambda one: -len(one["prompt"]))[: self.samples]
        return as_expected(self.answers(way, "needle", steps, posed), posed, self.end)

    def _rows(self, made: Written) -> list[list[int]]:
        """The texts that are compared with the full run's: continuations, or else all answers."""
        return self._by_seed(made.answers) if made.text is None else made.text.tolist()

    def _alike(self, made: Written, full: Written) -> list[float]:
        """The share of equal tokens, text by text."""
        pairs = zip(self._rows(made), self._rows(full), strict=True)
        return [sum(a == b for a, b in zip(one, other, strict=True)) / len(one) for one, other in pairs]

    def _by_seed(self, found: Mapping[str, Sequence[T]]) -> list[T]:
        """What every task has, of the first seed's problems first."""
        shares = [slice(i * self.samples, (i + 1) * self.samples) for i in range(len(self.seeds))]
        return [one for share in shares for task in self.asked for one in found[task][share]]

    def sampling(self, steps: int, length: int, blocks: int = 1) -> MaskedSampling:
        """Generation does not stop at an end-of-text, so that all runs take the same number of steps."""
        return sampling_for(self.model, steps=steps, length=length, block_length=length // blocks, stop_at_eos=False)

    def _posed(self, task: str) -> list[Problem]:
        """The problems of all seeds."""
        return [one for seed in self.seeds for one in self.some(task, seed)]

    def some(self, task: str, seed: int) -> list[Problem]:
        return share_of(self.problems[task], seed, self.samples)


def _chosen(posed: dict[str, list[Problem]], only: Sequence[str]) -> dict[str, list[Problem]]:
    if unknown := [task for task in only if task not in posed]:
        raise UsageError(f"There is no task {unknown[0]!r} among these problems; there are {', '.join(posed)}.")
    return {task: posed[task] for task in only} if only else posed


def _different(posed: dict[str, list[Problem]]) -> dict[str, list[Problem]]:
    """Each problem once: a second time, it would count as a new one."""
    return {
        task: list({tuple(one["prompt"]): one for one in reversed(some)}.values())[::-1] for task, some in posed.items()
    }


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
    for number, line in lines_of(path)[1]:
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
