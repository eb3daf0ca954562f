"""Metrics of answers, from 0 (wrong) to 1 (right)."""

import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation

from tenuto.errors import TenutoError, UsageError
from tenuto_lab.full_size.sandbox import passes_tests

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")
FENCED = re.compile(r"```(?:python|py)?\n(.*?)```", re.DOTALL)
SECONDS = 10.0  # time limit of a program


def exact(output: str, answers: Sequence[str]) -> float:
    return float(output.strip() in [answer.strip() for answer in answers])


def contains(output: str, answers: Sequence[str]) -> float:
    return float(any(answer.strip() in output for answer in answers))


def numeric(output: str, answers: Sequence[str]) -> float:
    """Whether the last number of the output is the last number of an answer."""
    found = last_number(output)
    return float(found is not None and found in [last_number(answer) for answer in answers])


def last_number(text: str) -> Decimal | None:
    numbers = NUMBER.findall(text)
    try:
        return Decimal(numbers[-1].replace(",", "")) if numbers else None
    except InvalidOperation:
        return None


def rouge_l(output: str, answers: Sequence[str]) -> float:
    """The F-measure of the longest common subsequence of words, with the best-fitting answer."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise TenutoError("rouge-l needs rouge_score, which is not installed: pip install 'tenuto[eval]'") from error
    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    return max(float(scorer.score(answer, output)["rougeL"].fmeasure) for answer in answers)


METRICS: dict[str, Callable[[str, Sequence[str]], float]] = {
    "exact": exact,
    "contains": contains,
    "numeric": numeric,
    "rouge-l": rouge_l,
}
RUNS_CODE = "pass@1"
GRADED = ("rouge-l",)  # the others are right or wrong


def passes(output: str, tests: Sequence[str], before: str = "", seconds: float = SECONDS) -> float:
    """Whether the program (`before` and the output) and then its tests run to their end in time.

    If a sandbox is available, the program runs in it (see sandbox.py); otherwise the program has this user's rights. If
    you do not trust the model, run its answers in a container.
    """
    fenced = FENCED.search(output)
    return float(passes_tests(before + (fenced.group(1) if fenced else output), tests, seconds))


def check_metric(name: str, where: str) -> None:
    if name != RUNS_CODE and name not in METRICS:
        raise UsageError(f"{where}: the metric is one of {', '.join([*METRICS, RUNS_CODE])}, not {name!r}.")
