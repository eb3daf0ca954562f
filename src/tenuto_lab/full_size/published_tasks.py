"""Published language tasks as task files: from the files their authors published, without a network connection.

Each task has a protocol: how it is asked, how long an answer may be, and how it is judged. The protocol is printed
beside the number, because numbers of different protocols cannot be compared.
"""

import gzip
import random
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenuto.errors import TenutoError, UsageError
from tenuto.files import check_regular, parse_json, read_text

Record = dict[str, Any]
BOXED = "Put the final answer in \\boxed{}."
NEEDLE = "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day."
ASKED = "What is the best thing to do in San Francisco? Answer with what the text says."
KEY = "eat a sandwich and sit in Dolores Park"
LETTERS = 4.2  # of English, a token
PROMPT_WORDS, LEAST_WORDS, MOST_WORDS = 32, 64, 128  # of a paragraph: shown, at least, and at most
MBPP_TEST = range(11, 511)  # task_ids of the test split
DEPTHS = 10  # places at which the needle is hidden


@dataclass(frozen=True)
class PublishedTask:
    """A task: where its file comes from, how it is asked and judged, and how a record becomes a question."""

    name: str
    source: str
    protocol: str
    length: int  # tokens of an answer
    questions: Callable[[Path], Iterator[Record]]

    @property
    def told(self) -> str:
        """The protocol in full, which goes into the task file."""
        return f"{self.name} ({self.source}): {self.protocol}; meant for answers of {self.length} tokens"


def records(path: Path) -> Iterator[Record]:
    """The objects of a JSONL file, perhaps gzipped, or of a JSON list."""
    check_regular(path, "questions")
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8")
        listed = parse_json(text) if text.lstrip().startswith("[") else map(parse_json, filter(str.strip, _lines(text)))
        yield from listed
    except (OSError, EOFError, zlib.error, ValueError) as error:  # a .gz that is cut short or damaged
        raise TenutoError(f"Cannot read {path} as JSON or JSONL: {error}.") from error


def _lines(text: str) -> list[str]:
    return text.split("\n")  # not splitlines, which also splits at characters that JSON allows within a string


def field(record: Any, *names: str) -> str:
    """The first of these fields that a record has, as text."""
    for name in names:
        if isinstance(record, dict) and isinstance(record.get(name), str | int):
            return str(record[name])
    raise TenutoError(f"A record has no {' or '.join(names)}; is this the published file?")


def gsm8k(path: Path) -> Iterator[Record]:
    for i, one in enumerate(records(path)):
        answer = field(one, "answer").rsplit("####", 1)[-1].strip()
        if not any(letter.isdigit() for letter in answer):
            raise TenutoError(f"The answer of record {i} ends in no number; is this the published file?")
        yield {"id": i, "prompt": f"{field(one, 'question')}\n{BOXED}", "answer": answer, "metric": "numeric"}


def math_500(path: Path) -> Iterator[Record]:
    for i, one in enumerate(records(path)):
        prompt = f"{field(one, 'problem')}\n{BOXED}"
        yield {"id": one.get("unique_id", i), "prompt": prompt, "answer": field(one, "answer"), "metric": "boxed"}


def human_eval(path: Path) -> Iterator[Record]:
    for one in records(path):
        test = f"{field(one, 'test')}\ncheck({field(one, 'entry_point')})"
        yield {
            "id": field(one, "task_id"),
            "prompt": field(one, "prompt"),
            "code": field(one, "prompt"),
            "answer": test,
            "metric": "pass@1",
            "until": ["\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(", "```"],
        }


def mbpp(path: Path) -> Iterator[Record]:
    for one in records(path):
        tests = one.get("test_list") if isinstance(one, dict) else None
        if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
            raise TenutoError("A record has no test_list; is this the published file?")
        if not isinstance(one.get("task_id"), int):
            raise TenutoError("A record has no task_id, which says whether it belongs to the test split.")
        if one["task_id"] not in MBPP_TEST:
            continue
        said = "\n".join(tests)
        prompt = f"{field(one, 'text', 'prompt')}\nYour code should pass these tests:\n{said}\n```python\n"
        answer = "\n".join([str(one.get("test_setup_code", "")), said]).strip()
        yield {"id": one["task_id"], "prompt": prompt, "answer": answer, "metric": "pass@1", "until": ["```"]}


def cnn_dailymail(path: Path) -> Iterator[Record]:
    for i, one in enumerate(records(path)):
        prompt = f"{field(one, 'article')}\n\nSummarise the article in three sentences.\nSummary:"
        yield {"id": one.get("id", i), "prompt": prompt, "answer": field(one, "highlights"), "metric": "rouge-l"}


def needle(tokens: int) -> Callable[[Path], Iterator[Record]]:
    """The needle at DEPTHS places of texts of about `tokens` tokens, cut from a book or a file of essays."""

    def questions(path: Path) -> Iterator[Record]:
        text = read_text(path, "essays")
        sentences = re.split(r"(?<=[.!?])\s+", " ".join(text.split()))
        letters = int(LETTERS * tokens)
        if sum(map(len, sentences)) < letters:
            raise UsageError(f"{path} is shorter than the {letters:,} letters of a text of {tokens} tokens.")
        chance = random.Random(0)
        for i in range(10 * DEPTHS):
            start = chance.randrange(len(sentences))
            chosen: list[str] = []
            while sum(len(one) + 1 for one in chosen) < letters - len(NEEDLE) - len(ASKED):
                chosen.append(sentences[(start + len(chosen)) % len(sentences)])
            depth = i % DEPTHS
            chosen.insert(round(depth / (DEPTHS - 1) * len(chosen)), NEEDLE)
            prompt = f"{' '.join(chosen)}\n\n{ASKED}\nAnswer:"
            yield {"id": f"{i}-depth-{depth}", "prompt": prompt, "answer": KEY, "metric": "contains"}

    return questions


def wikitext(path: Path) -> Iterator[Record]:
    """Paragraphs of articles: their first PROMPT words are shown, and the others are what people wrote."""
    text = read_text(path, "articles")
    for i, line in enumerate(text.split("\n")):
        words = line.split()
        if len(words) < LEAST_WORDS or words[0] == "=":  # a heading, or a short paragraph
            continue
        shown, rest = " ".join(words[:PROMPT_WORDS]), " ".join(words[PROMPT_WORDS:MOST_WORDS])
        yield {"id": i, "prompt": shown, "answer": f" {rest}", "metric": "mauve"}


TASKS = {
    task.name: task
    for task in (
        PublishedTask(
            "gsm8k",
            "openai/grade-school-math: grade_school_math/data/test.jsonl",
            "zero-shot; right if the last number of the answer is the expected one",
            256,
            gsm8k,
        ),
        PublishedTask(
            "math-500",
            "HuggingFaceH4/MATH-500: test.jsonl",
            "zero-shot; right if the last \\boxed{} holds the expected answer, by MATH's rules of equivalence",
            512,
            math_500,
        ),
        PublishedTask(
            "humaneval",
            "openai/human-eval: data/HumanEval.jsonl.gz",
            "zero-shot, the function is continued, in a fence or not; pass@1 of one greedy answer",
            512,
            human_eval,
        ),
        PublishedTask(
            "mbpp",
            "google-research/mbpp: mbpp.jsonl",
            "the test split (task_id 11 to 510), zero-shot, the tests are shown; pass@1 of one greedy answer",
            512,
            mbpp,
        ),
        PublishedTask(
            "cnn-dailymail",
            "abisee/cnn_dailymail 3.0.0: test, as JSON lines with article and highlights",
            "zero-shot; ROUGE-L F-measure, stemmed, against the highlights",
            128,
            cnn_dailymail,
        ),
        PublishedTask(
            "needle",
            "any text file, such as a book, as the haystack",
            "100 texts of about 1,000 tokens, the needle at ten depths; right if the needle's words occur",
            32,
            needle(1000),
        ),
        PublishedTask(
            "needle-4k",
            "any text file, such as a book, as the haystack",
            "100 texts of about 3,900 tokens, the needle at ten depths; right if the needle's words occur",
            32,
            needle(3900),
        ),
        PublishedTask(
            "wikitext",
            "Salesforce/wikitext: wiki.test.raw, as plain text",
            f"paragraphs of at least {LEAST_WORDS} words are continued after {PROMPT_WORDS}; judged by "
            "`tenuto lab eval mauve`",
            128,
            wikitext,
        ),
    )
}


def built(name: str, path: Path, limit: int | None = None) -> list[Record]:
    """The questions of a published task, ready to be written as lines of a task file."""
    if name not in TASKS:
        raise UsageError(f"The published tasks are {', '.join(TASKS)}, not {name!r}.")
    found = list(_first(TASKS[name].questions(path), limit))
    if not found:
        raise TenutoError(f"{path} holds no questions.")
    return [{**one, "id": str(one["id"])} for one in found]


def _first(questions: Iterable[Record], limit: int | None) -> Iterator[Record]:
    for i, one in enumerate(questions):
        if limit is not None and i >= limit:
            return
        yield one
