"""Metrics of answers, from 0 (wrong) to 1 (right)."""

import ast
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, InvalidOperation

from tenuto.errors import TenutoError, UsageError
from tenuto.extras import install
from tenuto_lab.full_size.boxed_answers import boxed
from tenuto_lab.full_size.sandbox import passes_tests

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")
FENCED = re.compile(r"```(?:python3?|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
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
        raise TenutoError(f"rouge-l needs rouge_score, which is not installed: {install('eval')}") from error
    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    return max(float(scorer.score(answer, output)["rougeL"].fmeasure) for answer in answers)


METRICS: dict[str, Callable[[str, Sequence[str]], float]] = {
    "exact": exact,
    "contains": contains,
    "numeric": numeric,
    "rouge-l": rouge_l,
    "boxed": boxed,
}
RUNS_CODE = "pass@1"
UNSCORED = "mauve"  # which compares all texts of a run at once
GRADED = ("rouge-l",)  # the others are right or wrong


def cut(text: str, until: Sequence[str]) -> str:
    """The text up to the first occurrence of one of these strings."""
    return text[: min((text.index(stop) for stop in until if stop and stop in text), default=len(text))]


def program(output: str, before: str = "", until: Sequence[str] = ()) -> str:
    """The first reading of an answer that is Python.

    The answer is what stands in a fence, if the fence begins before the answer ends at a string of `until`; or else the
    text up to there. Models repeat the beginning of a function or leave it out, so `before` may go before the answer.
    """
    for code in _codes(output, until):
        for beginning in (before, ""):
            if _is_python(beginning + code):
                return beginning + code
    return before + cut(output, until)


def _codes(output: str, until: Sequence[str]) -> Iterator[str]:
    text = cut(output, until)
    yield from (found[1] for found in FENCED.finditer(output) if found.start() <= len(text) and found[1].strip())
    yield text


def _is_python(code: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes in what a model wrote
            ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


def passes(
    output: str, tests: Sequence[str], before: str = "", until: Sequence[str] = (), seconds: float = SECONDS
) -> float:
    """Whether the program of an answer (see `program`) and then its tests run to their end in time.

    If a sandbox is available, the program runs in it (see sandbox.py); otherwise the program has this user's rights. If
    you do not trust the model, run its answers in a container.
    """
    return float(passes_tests(program(output, before, until), tests, seconds))


def check_metric(name: str, where: str) -> None:
    known = [*METRICS, RUNS_CODE, UNSCORED]
    if name not in known:
        raise UsageError(f"{where}: the metric is one of {', '.join(known)}, not {name!r}.")
