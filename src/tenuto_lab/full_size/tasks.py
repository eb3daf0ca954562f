"""Language tasks: our own from JSONL files, without any network, or the harness's by name; a result for each question.

A line of a task file is an object with `prompt` and `answer` (one or a list). Optional fields are `metric` (exact,
contains, numeric, boxed, rouge-l, pass@1 or mauve; default exact), `id`, and `until` (strings that end an answer). For
pass@1, the optional field `code` goes before the output, and `answer` is the code that tests the output. The first line
may be an object with the `protocol` alone: how the task is asked and judged, which is printed beside the number.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tenuto import __version__
from tenuto.errors import TenutoError, UsageError
from tenuto.files import parse_json, read_text, write_json
from tenuto.provenance import provenance
from tenuto.scheduling.schedule import identity
from tenuto_lab.full_size.answer_metrics import GRADED, METRICS, RUNS_CODE, UNSCORED, check_metric, passes
from tenuto_lab.full_size.answers import Answer, Writer
from tenuto_lab.full_size.jobs import SETTINGS, Job, StoredPart, Worker
from tenuto_lab.full_size.paired_runs import QUESTIONS
from tenuto_lab.full_size.sandbox import isolation
from tenuto_lab.judging.statistics import mean_interval, share_interval
from tenuto_lab.result_files import by_name, fields, in_order, number, optional, read_result, whole

PROTOCOL = "protocol"
FIELDS = {"id", "prompt", "answer", "metric", "until", "code"}


@dataclass(frozen=True)
class Question:
    id: str
    task: str
    prompt: str
    answers: tuple[str, ...]
    metric: str = "exact"
    until: tuple[str, ...] = ()
    code: str = ""


@dataclass(frozen=True)
class TaskResult:
    """The result of a question, with the fields needed to pair it with another run's result."""

    id: str
    task: str
    metric: str
    prompt_sha256: str
    output: str
    score: float | None  # None if the metric compares all texts of a run at once
    correct: bool | None  # None if the metric is graded
    tokens: int | None  # of the answer, without the prompt
    prompt_cut: bool = False  # whether the prompt was too long, so that its beginning was left out


def read_tasks(path: Path, limit: int | None = None) -> list[Question]:
    """The questions of a JSONL file. The file's name is the name of the task."""
    numbered = lines_of(path)[1][:limit]
    questions = [_question(line, f"{path}, line {number}", path.stem, number) for number, line in numbered]
    if not questions:
        raise TenutoError(f"{path} holds no questions: one object a line is expected.")
    if twice := [name for name, count in Counter(question.id for question in questions).items() if count > 1]:
        raise TenutoError(f"{path} has the id {twice[0]!r} twice.")
    return questions


def protocol_of(path: Path) -> str | None:
    """How the task of a file is asked and judged, if the file says so."""
    return lines_of(path)[0]


def lines_of(path: Path) -> tuple[str | None, list[tuple[int, str]]]:
    """The protocol, and the lines of the questions with their numbers."""
    lines = read_text(path, "tasks").split("\n")  # not splitlines: JSON allows other line breaks within a string
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    try:
        first = parse_json(numbered[0][1]) if numbered else None
    except ValueError:  # which is told with its place when the question is read
        first = None
    if isinstance(first, dict) and first.keys() == {PROTOCOL}:
        return str(first[PROTOCOL]), numbered[1:]
    return None, numbered


def _question(line: str, where: str, task: str, number: int) -> Question:
    try:
        record = parse_json(line)
    except ValueError as error:
        raise TenutoError(f"{where}: this is not valid JSON ({error}).") from error
    if not isinstance(record, dict) or not isinstance(record.get("prompt"), str):
        raise TenutoError(f"{where}: an object with a prompt is expected.")
    if unknown := sorted(set(record) - FIELDS):
        raise TenutoError(f"{where}: {unknown[0]!r} is none of the fields {', '.join(sorted(FIELDS))}.")
    answers, until = _strings(record, "answer", where), _strings(record, "until", where)
    if not answers:
        raise TenutoError(f"{where}: there is no answer.")
    metric = record.get("metric", "exact")
    check_metric(metric, where)
    name = str(record.get("id", number))
    return Question(f"{task}/{name}", task, record["prompt"], answers, metric, until, str(record.get("code", "")))


def _strings(record: Mapping[str, Any], field: str, where: str) -> tuple[str, ...]:
    given = record.get(field, [])
    listed = given if isinstance(given, list) else [given]
    if not all(isinstance(one, str | int | float) for one in listed):
        raise TenutoError(f"{where}: {field!r} should be text, or a list of texts.")
    return tuple(str(one) for one in listed)


def judged(question: Question, written: Answer) -> TaskResult:
    score: float | None = None
    if question.metric == RUNS_CODE:
        score = passes(written.text, question.answers, question.code, question.until)
    elif question.metric != UNSCORED:
        score = METRICS[question.metric](written.text, question.answers)
    return TaskResult(
        question.id,
        question.task,
        question.metric,
        hashlib.sha256(question.prompt.encode()).hexdigest(),
        written.text,
        score,
        None if score is None or question.metric in GRADED else score == 1.0,
        written.tokens,
        written.prompt_cut,
    )


def run_files(
    writer: Writer,
    files: Sequence[Path],
    output: Path,
    *,
    limit: int | None = None,
    allow_code: bool = False,
    worker: Worker | None = None,
    told: Callable[[int], object] = lambda questions: None,
) -> dict[str, Any] | None:
    """Answer this process's share of the questions. Returns all results if they are complete, else None."""
    worker = worker or Worker.from_environment()
    questions = [question for path in files for question in read_tasks(path, limit)]
    if not allow_code and any(question.metric == RUNS_CODE for question in questions):
        raise UsageError("pass@1 runs what the model writes; allow that with --allow-code-execution.")
    contents = hashlib.sha256(repr(questions).encode()).hexdigest()
    protocols = {path.stem: one for path in files if (one := protocol_of(path)) is not None}
    settings = settings_of(writer, tasks=[path.stem for path in files], limit=limit, questions=f"sha256:{contents}")
    settings["protocols"] = protocols
    job = Job(output, output.with_name(f"{output.name}.parts"), settings, len(questions), writer.batch)

    def answer(part: range) -> bytes:
        asked = [questions[i] for i in part]
        # An answer of code may stand in a fence, behind a string that otherwise ends it: `program` cuts it.
        until = [() if one.metric == RUNS_CODE else one.until for one in asked]
        written = writer.answers([one.prompt for one in asked], until)
        results = [asdict(judged(one, its)) for one, its in zip(asked, written, strict=True)]
        return json.dumps(results).encode()

    def collect(parts: Sequence[StoredPart]) -> None:
        results = [TaskResult(**one) for part in parts for one in json.loads(part.read())]
        ran = {"code_run_in": isolation().name} if any(one.metric == RUNS_CODE for one in results) else {}
        origin = provenance(writer.model.device, processes=worker.world, **ran)
        write_json(job.directory / "results.json", record(settings, results, origin))
        (job.directory / "results.json").replace(output)

    done = job.complete(answer, collect, worker, lambda part: told(len(part)))
    return read_results(output) if done else None


def read_results(path: Path) -> dict[str, Any]:
    """The file that `tenuto lab eval lm` wrote, checked field by field."""
    return read_result(path, "result file", RESULTS_FILE)


FIGURES = {
    "questions": whole(),
    "score": optional(in_order(number(), number(), number())),
    "answer_tokens": optional(number()),
}
RESULTS_FILE = fields({"tasks": by_name(fields(FIGURES)), "questions": QUESTIONS}, others=True)


def run_named(
    lm: Any,
    tasks: Sequence[str | dict[str, Any]],
    output: Path,
    *,
    limit: int | None = None,
    fewshot: int | None = None,
    allow_code: bool = False,
    task_manager: Any = None,
) -> dict[str, Any] | None:
    """Run tasks of the harness, by name or by the harness's description. Returns the results in rank 0, else None.

    Answers are recorded beside the output, so that an interrupted run can continue. With a `task_manager`, the harness
    finds tasks that are not its own.
    """
    import lm_eval

    writer = lm.writer
    estimates = {"draws": lm.draws, "greedy": lm.greedy, "seed": lm.seed}
    settings = settings_of(writer, tasks=list(tasks), limit=limit, fewshot=fewshot, **estimates)
    if output.exists():
        raise UsageError(f"{output} is there already; take another name, or remove it.")
    notes = output.with_name(f"{output.name}.{hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12]}")
    options: dict[str, Any] = {"limit": limit, "num_fewshot": fewshot, "confirm_run_unsafe_code": allow_code}
    found = lm_eval.simple_evaluate(lm, tasks=list(tasks), use_cache=str(notes), task_manager=task_manager, **options)
    counts = lm.gather_object(lm.answer_tokens)
    if found is not None:
        tokens = {prompt: count for part in counts for prompt, count in part.items()}
        results = [one for name, samples in found["samples"].items() for one in _results(name, samples, tokens)]
        told = json.loads(json.dumps(found["results"], default=str), parse_constant=str)
        shots = {name: f"lm-eval's, {count} examples before each question" for name, count in found["n-shot"].items()}
        settings["protocols"] = {name: shots[name] for name in found["samples"] if name in shots}
        origin = provenance(writer.model.device, processes=lm.world_size)
        write_json(output, {**record(settings, results, origin), "harness": told})
    lm.barrier()
    notes.with_name(f"{notes.name}_rank{lm.rank}.db").unlink(missing_ok=True)
    return None if found is None else read_results(output)


def _results(task: str, samples: Sequence[Mapping[str, Any]], tokens: Mapping[str, int]) -> list[TaskResult]:
    """Results from the harness's samples: one for each question, filter and numeric metric."""
    results = []
    for sample in sorted(samples, key=lambda one: int(one["doc_id"])):
        prompt = str(sample["arguments"][0][0])
        for metric in sample["metrics"]:
            value = sample[metric]
            if isinstance(value, bool | int | float):
                name = f"{task}/{sample['doc_id']}/{sample['filter']}/{metric}"
                correct = None if value not in (0, 1) else bool(value)
                output = str(sample["filtered_resps"][0])
                digest = hashlib.sha256(prompt.encode()).hexdigest()
                label = f"{task}/{sample['filter']}"
                results.append(
                    TaskResult(name, label, metric, digest, output, float(value), correct, tokens.get(prompt))
                )
    return results


def settings_of(writer: Writer, **asked: Any) -> dict[str, Any]:
    model = writer.model
    return {
        "tenuto": __version__,
        "model": model.name,
        "weights": sorted(model.fingerprints),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": model.device.type,
        "schedule": identity(writer.schedule),
        **writer.settings,
        **asked,
    }


def record(settings: Mapping[str, Any], results: Sequence[TaskResult], origin: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a result file: a mean with its interval for each task and metric, and every question."""
    groups: dict[str, list[TaskResult]] = {}
    for one in results:
        groups.setdefault(f"{one.task}, {one.metric}", []).append(one)
    figures = {name: _figures(group) for name, group in groups.items()}
    return {SETTINGS: settings, "tasks": figures, "questions": [asdict(one) for one in results], "provenance": origin}


def _figures(group: Sequence[TaskResult]) -> dict[str, Any]:
    counted = [one.tokens for one in group if one.tokens is not None]
    mean = sum(counted) / len(counted) if counted else None
    scores = [one.score for one in group if one.score is not None]
    score = None if not scores else share_interval(scores) if set(scores) <= {0.0, 1.0} else mean_interval(scores)
    return {"questions": len(group), "score": score, "answer_tokens": mean}
