"""Two runs on the same questions: the difference of their scores, and a test of its significance."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenuto.errors import TenutoError, UsageError
from tenuto.files import read_json
from tenuto_lab.judging.statistics import Interval, mean_interval, paired_test
from tenuto_lab.result_files import check_result, fields, listed, number, optional, text

QUESTIONS = listed(
    fields({"id": text, "task": text, "metric": text, "prompt_sha256": text, "score": optional(number())}, others=True),
    least=1,
)


@dataclass(frozen=True)
class Difference:
    """The second run's score minus the first's, on one task and metric."""

    task: str
    questions: int
    first: float
    second: float
    difference: Interval
    p: float  # two-sided
    test: str
    only_first: int  # questions on which the first run scored higher
    only_second: int


def compare(first: Path, second: Path) -> list[Difference]:
    """Compare two runs question by question. Both must have answered the same questions."""
    one, other = questions_of(first), questions_of(second)
    if one.keys() != other.keys():
        alone = sorted(one.keys() ^ other.keys())
        raise UsageError(f"{first} and {second} are not of the same questions: only one has {', '.join(alone[:3])}.")
    for name in one:
        if one[name]["prompt_sha256"] != other[name]["prompt_sha256"]:
            raise UsageError(f"{first} and {second} were asked {name} in different words.")
    groups: dict[str, list[str]] = {}
    for name, asked in one.items():
        if None not in (asked["score"], other[name]["score"]):
            groups.setdefault(f"{asked['task']}, {asked['metric']}", []).append(name)
    if not groups:
        raise UsageError(f"{first} and {second} hold texts without scores: compare their `tenuto lab eval mauve`.")
    return [
        difference(task, [one[name]["score"] for name in names], [other[name]["score"] for name in names])
        for task, names in groups.items()
    ]


def difference(task: str, first: Sequence[float], second: Sequence[float]) -> Difference:
    gained = [after - before for before, after in zip(first, second, strict=True)]
    won, lost = sum(one > 0 for one in gained), sum(one < 0 for one in gained)
    counted = set(first) | set(second) <= {0.0, 1.0}
    return Difference(
        task,
        len(gained),
        sum(first) / len(first),
        sum(second) / len(second),
        mean_interval(gained),
        mcnemar(won, lost) if counted else paired_test(second, first),
        "exact McNemar" if counted else "sign flips",
        lost,
        won,
    )


def mcnemar(won: int, lost: int) -> float:
    """The p of an exact McNemar test on the questions that only one run answered correctly."""
    total = won + lost
    tail = sum(math.comb(total, k) for k in range(min(won, lost) + 1))
    return min(1.0, 2 * tail / 2**total)


def questions_of(path: Path) -> dict[str, Mapping[str, Any]]:
    """The results of a run, by the questions' names."""
    found = read_json(path, "result file").get("questions")
    if not isinstance(found, list) or not found:
        raise TenutoError(f"{path} holds no results of questions; `tenuto lab eval lm -o` writes such a file.")
    check_result(found, path, "result file", QUESTIONS, "questions")
    return {one["id"]: one for one in found}
