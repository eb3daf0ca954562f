"""What the larger small LLaDA reads: books, Python functions and word problems as tokens, and needles hidden in books.

The books are English ones in the public domain (github.com/mlschmitt/classic-books-markdown), the functions come from
the standard library of the Python that runs this command (PSF licence), and the word problems are GSM8K's training
problems (github.com/openai/grade-school-math, MIT licence). The end of every source is kept from training.
"""

import ast
import json
import random
import re
import sysconfig
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray
from tokenizers import Tokenizer

from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.files import replacing
from training.llada_text import (
    BOS,
    HELD_OUT,
    STATEMENT,
    WORDS,
    Problem,
    clean,
    kept_from_training,
    sentence_starts,
    train_tokenizer,
)
from training.reasoning_tasks import TASKS, problems

DEFAULT_PATH = Path("data/reasoning.npz")
VOCABULARY = 2048
CONTEXT = 1024
BOOK_LETTERS = 24_000_000
LINES = (3, 60)  # of a Python function that is taken
SOURCES = ("books", "code", "stories")
SAMPLES = 1500  # problems of each task that the tokenizer learns from
HIDDEN, ASKED = 6, 2  # codes in a needle problem, and how many of them are asked for
NEEDLE_LEVELS = (256, 512, 768, 1016)  # tokens of the whole problem, at most
ROOM = 128  # tokens of a needle problem that are no filler, at most
CODES = "\nQuestion: what is the code of {}? Answer:"


class Library(NamedTuple):
    """Each source as a stream of tokens to train on and a held-out one, and the tokenizer that made them."""

    train: dict[str, NDArray[np.uint16]]
    held_out: dict[str, NDArray[np.uint16]]
    tokenizer: Tokenizer

    def encode(self, text: str) -> list[int]:
        """The tokens of a piece of text, with nothing put before them."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True)


# The sources


def read_books(folder: Path, letters: int) -> list[str]:
    """Books in the order of a checksum of their names, until there are so many letters."""
    paths = sorted((path for path in folder.rglob("*.md")), key=lambda path: zlib.crc32(path.name.encode()))
    if not paths:
        raise UsageError(f"There are no .md files in {folder}.")
    books: list[str] = []
    for path in paths:
        if sum(map(len, books)) >= letters:
            break
        books.append(clean(path.read_text(encoding="utf-8", errors="replace")))
    return books


def read_functions(folder: Path) -> list[str]:
    """The small functions and methods of a folder of Python files, unindented, tests left out."""
    functions: dict[str, None] = {}
    for path in sorted(folder.rglob("*.py")):
        if {"test", "tests", "idlelib", "site-packages", "lib2to3", "encodings"}.intersection(path.parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                source = ast.unparse(node)  # without comments, and spelled in one way
                if LINES[0] <= source.count("\n") + 1 <= LINES[1] and source.isascii():
                    functions[source] = None
    return list(functions)


def read_stories(path: Path) -> list[str]:
    """GSM8K's questions and worked answers; the calculator's marks are left out."""
    if not path.exists():
        raise UsageError(f"There is no {path}; it is grade_school_math/data/train.jsonl of openai/grade-school-math.")
    told = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    texts = (f"{one['question']}\nAnswer: {re.sub('<<.*?>>', '', one['answer'])}" for one in told)
    return [text.replace("####", "The answer is") for text in texts if text.isascii()]


def build(books: Path, python: Path, gsm8k: Path, out: Path, vocabulary: int, letters: int) -> Library:
    """Writes the npz file, and returns what it holds."""
    shelves = {"books": read_books(books, letters), "code": read_functions(python), "stories": read_stories(gsm8k)}
    chance = random.Random(0)
    for name in ("code", "stories"):
        chance.shuffle(shelves[name])
    seen, kept = {}, {}
    for name, texts in shelves.items():
        if name == "books":  # the end of each book
            ends = [int(len(text) * (1 - HELD_OUT)) for text in texts]
            seen[name] = [text[:end] + "\n" for text, end in zip(texts, ends, strict=True)]
            kept[name] = [text[end:] + "\n" for text, end in zip(texts, ends, strict=True)]
        else:  # whole functions and problems
            end = int(len(texts) * (1 - HELD_OUT))
            seen[name] = [text + "\n\n" for text in texts[:end]]
            kept[name] = [text + "\n\n" for text in texts[end:]]
    tokenizer = train_tokenizer([text for texts in seen.values() for text in texts], vocabulary, task_samples())

    def encode(texts: list[str]) -> NDArray[np.uint16]:
        parts = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        return np.concatenate([np.array(part, dtype=np.uint16) for part in parts])

    library = Library(
        {name: encode(texts) for name, texts in seen.items()},
        {name: encode(texts) for name, texts in kept.items()},
        tokenizer,
    )
    spelled = np.frombuffer(tokenizer.to_str().encode(), dtype=np.uint8)
    arrays: dict[str, Any] = {f"train_{name}": tokens for name, tokens in library.train.items()}
    arrays |= {f"held_out_{name}": tokens for name, tokens in library.held_out.items()}
    with replacing(out) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, tokenizer=spelled, **arrays)
    return library


def task_samples() -> list[str]:
    """Problems of every task, and what needles are asked with, so that the tokenizer knows their words."""
    posed = [one for task in TASKS for one in islice(problems(task, "tokenizer", held_out=False), SAMPLES)]
    needles = [STATEMENT.format(word, "") + CODES.format(f"{word} and {word}") for word in WORDS] * 10
    return [*(one.prompt + one.answer for one in posed), *needles]


def load(path: Path) -> Library:
    """The file that `build` wrote; or a tokenizer.json, for made-up problems in its tokens and no text."""
    if not path.exists():
        raise UsageError(f"There is no {path}; make it with python -m training.reasoning_text (--help says how).")
    if path.suffix == ".json":
        return Library({}, {}, Tokenizer.from_file(str(path)))
    with np.load(path) as arrays:
        tokenizer = Tokenizer.from_str(arrays["tokenizer"].tobytes().decode())
        train, held_out = ({name: arrays[f"{part}_{name}"] for name in SOURCES} for part in ("train", "held_out"))
        return Library(train, held_out, tokenizer)


def starts_of(library: Library, source: str, tokens: NDArray[np.uint16]) -> NDArray[np.int64]:
    """Where rows of text may begin: at sentences of books, and at functions and problems."""
    if source == "books":
        return sentence_starts(tokens, library.tokenizer)
    first = np.array([text.endswith("\n\n") for text in _spelled(library.tokenizer)])
    return np.flatnonzero(first[tokens[:-1]]) + 1


def _spelled(tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.decode([i], skip_special_tokens=False) for i in range(tokenizer.get_vocab_size())]


# Needles


def needles(library: Library, seed: object, held_out: bool, most: int | None = None) -> Iterator[Problem]:
    """Codes hidden all over a piece of a book, of which one is asked for. Held-out filler comes from held-out text.

    most  tokens of prompt and answer; without it, problems of all lengths up to the context
    """
    chance = random.Random(f"needles {seed} {held_out} {most}")
    text = (library.held_out if held_out else library.train)["books"]
    starts = sentence_starts(text, library.tokenizer)
    starts = starts[text[starts - 1] != library.encode("\n")[0]]  # within paragraphs, where a line can be slipped in
    while True:
        longest = most or chance.randint(ROOM + 24, CONTEXT - 8)
        words = chance.sample(WORDS, HIDDEN)
        codes = {word: f"{chance.randrange(10_000):04}" for word in words}
        asked = words[:ASKED]
        if kept_from_training(" ".join(f"{word} {codes[word]}" for word in asked)) != held_out:
            continue
        start = int(starts[chance.randrange(len(starts))])
        end = int(starts[np.searchsorted(starts, start + longest - ROOM, side="right") - 1])
        if end - start < (longest - ROOM) // 2:  # a long sentence, or the end of the text
            continue
        hidden = [library.encode(STATEMENT.format(word, codes[word])) for word in chance.sample(words, HIDDEN)]
        inside = starts[np.searchsorted(starts, start) : np.searchsorted(starts, end, side="right")]
        cuts = sorted(int(inside[chance.randrange(len(inside))]) for _ in hidden)
        prompt, at = [BOS], start
        for cut, line in zip(cuts, hidden, strict=True):
            prompt += [*text[at:cut].tolist(), *line]
            at = cut
        prompt += [*text[at:end].tolist(), *library.encode(CODES.format(" and ".join(asked)))]
        yield Problem(prompt, library.encode("".join(f" {codes[word]}" for word in asked)))


def main(
    books: Annotated[Path, typer.Option(help="A folder of .md files.")],
    gsm8k: Annotated[Path, typer.Option(help="GSM8K's train.jsonl.")],
    python: Annotated[Path, typer.Option(help="A folder of Python files.")] = Path(sysconfig.get_path("stdlib")),
    out: Annotated[Path, typer.Option(help="The file to write.")] = DEFAULT_PATH,
    vocabulary: Annotated[int, typer.Option(min=512, max=32_000, help="Tokens to learn.")] = VOCABULARY,
    letters: Annotated[int, typer.Option(min=1000, help="Of books, about.")] = BOOK_LETTERS,
) -> None:
    """Make the file of tokens that training.train_small_llada reads."""
    library = build(books, python, gsm8k, out, vocabulary, letters)
    for name, tokens in library.train.items():
        print(f"{name}: {len(tokens):,} tokens to train on, {len(library.held_out[name]):,} held out")
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    run(main)
