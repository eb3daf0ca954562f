"""Writes the held-out problems that a LLaDA is measured with: codes to find, sums to do, and books to go on with.

They are in the checkpoint's own tokens, so that measuring needs no books.
"""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.files import write_text
from tenuto.provenance import provenance
from training.evaluate_llada import ANSWER_LENGTH, PROMPT_LENGTH, TEXT_LENGTH, chunks
from training.llada_text import DEFAULT_PATH, LONG, Corpus, Problem, arithmetic, load, needle, recoded

COUNT = 300  # of each task


def fitting(problems: Iterator[Problem]) -> Iterator[Problem]:
    """Those that leave room for an answer in a row of the longest."""
    return (problem for problem in problems if len(problem.prompt) + ANSWER_LENGTH <= LONG)


def continuations(corpus: Corpus, count: int) -> list[Problem]:
    """The beginnings of sentences in held-out books, all over them, and what the books really say next."""
    length = PROMPT_LENGTH + TEXT_LENGTH
    rows = chunks(corpus, count, length).tolist()
    return [Problem(row[:PROMPT_LENGTH], row[PROMPT_LENGTH:]) for row in rows]


def posed(corpus: Corpus, count: int, seed: int) -> dict[str, list[Problem]]:
    return {
        "needle": list(islice(fitting(needle(corpus, seed, held_out=True)), count)),
        "arithmetic": list(islice(fitting(arithmetic(corpus, seed, held_out=True)), count)),
        "text": continuations(corpus, count),
    }


def write_problems(path: Path, problems: dict[str, list[Problem]], made: dict[str, object]) -> None:
    """JSON with one problem a line."""
    tasks = [
        f"{json.dumps(task)}: [\n"
        + ",\n".join(json.dumps(each._asdict(), separators=(",", ":")) for each in some)
        + "\n]"
        for task, some in problems.items()
    ]
    provenance_text = json.dumps(made, ensure_ascii=False)
    write_text(path, f'{{"provenance": {provenance_text},\n"problems": {{\n' + ",\n".join(tasks) + "\n}}\n")


def main(
    checkpoint: Annotated[Path, typer.Option(help="A LLaDA's directory, with its tokenizer.json.")],
    data: Annotated[Path, typer.Option(help="The file made by training.llada_text.")] = DEFAULT_PATH,
    count: Annotated[int, typer.Option(min=1, help="Problems of each task.")] = COUNT,
    seed: Annotated[int, typer.Option(help="Of the problems.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Where to write; the checkpoint's directory if not given.")] = None,
) -> None:
    """Write problems.json: prompts and answers, as tokens, that no LLaDA here was trained on."""
    if not checkpoint.is_dir():
        raise UsageError(f"There is no checkpoint in {checkpoint}.")
    books = load(data)
    held_out = recoded(books._replace(train=books.train[:0]), checkpoint / "tokenizer.json")
    problems = posed(held_out, count, seed)
    path = (out or checkpoint) / "problems.json"
    write_problems(path, problems, provenance("cpu", seed=seed, data=data.name))
    longest = {task: max(len(each.prompt) for each in some) for task, some in problems.items()}
    sizes = ", ".join(f"{len(problems[task])} {task} (prompts up to {length})" for task, length in longest.items())
    print(f"{path}: {sizes}, {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    run(main)
