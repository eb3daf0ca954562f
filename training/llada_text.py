"""What the small LLaDA reads: books as one file of tokens with their tokenizer, and tasks whose answers are known.

The books are English ones in the public domain, as Markdown, from the public repository
mlschmitt/classic-books-markdown; any folder of .txt or .md files will do. The tasks are made up as they are needed.
A tenth of all possible tasks, chosen by a checksum, is kept from training; so is the end of every book.
"""

import random
import re
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.files import replacing

SOURCE = "mlschmitt/classic-books-markdown"
DEFAULT_PATH = Path("data/llada-text.npz")
SPECIAL = ("<|mask|>", "<|endoftext|>", "<|startoftext|>")
MASK, EOS, BOS = range(3)  # their ids
VOCABULARY = 2048
HELD_OUT = 0.02  # of every book, its end
PART = 1_000_000  # tokens that are recoded at once
LONG, SHORT = 256, 48  # tokens in a row: of text or with a needle; of a task that fits into less

_WORDS = (
    "apple anchor barrel basket bell boat bottle bridge brush button candle carpet castle chair chest clock cloak "
    "coin corner crown curtain desk door dragon drum engine feather fence flag flute fountain garden gate glove "
    "hammer harbour horse island jacket kettle key kitchen ladder lamp lantern letter lion mirror mountain needle "
    "orchard oven owl painting palace pencil piano pillow pipe pocket river robin rope saddle sailor school shadow "
    "shell ship shovel silver sofa spoon stable stairs star station stone stove sword table temple tower trumpet "
    "tunnel umbrella valley violin wagon wall watch wheel whistle willow window wizard wolf"
)
_NAMES = "Tom Ann Ben Emma Jack Mary Sam Lucy Peter Rose Harry Alice George Jane Fred Kate"
_OBJECTS = "apples books coins eggs pens stones cards nuts cakes hats keys boxes stars shells cups flowers"
WORDS, NAMES, OBJECTS = _WORDS.split(), _NAMES.split(), _OBJECTS.split()
SUMS = (
    "{name} has {a} {things} and buys {b} more.",
    "{name} has {a} {things} and finds {b} more.",
    "There are {a} {things} in the box and {name} adds {b} more.",
)
DIFFERENCES = (
    "{name} has {a} {things} and gives away {b}.",
    "{name} has {a} {things} and loses {b}.",
    "There are {a} {things} in the box and {name} takes {b}.",
)
STATEMENT, QUESTION = " The code of {} is {}.", "\nQuestion: what is the code of {}? Answer:"
LARGEST = 99  # sum or minuend
BRACKETS = {"(": ")", "[": "]", "{": "}", "<": ">"}
DEEPEST = 10
MOST_CODES = 7  # in a drill; so many fit into a long row


class Corpus(NamedTuple):
    """The books as tokens, one after the other, and the tokenizer that made them."""

    train: NDArray[np.uint16]
    held_out: NDArray[np.uint16]
    tokenizer: Tokenizer

    def encode(self, text: str) -> list[int]:
        """The tokens of a piece of text, with nothing put before them."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True)


class Problem(NamedTuple):
    prompt: list[int]  # from the start-of-text on
    answer: list[int]  # without the end-of-text


class Rows(NamedTuple):
    """Problems as rows of one length: the prompt, the answer, and end-of-text to the end."""

    tokens: NDArray[np.int16]  # [count, length]
    answer_start: NDArray[np.int16]  # [count]
    answer_end: NDArray[np.int16]  # [count], behind the first end-of-text


# The books


def clean(text: str) -> str:
    """Plain ASCII, a paragraph a line, without headings and Markdown's marks."""
    for fancy, simple in {"“": '"', "”": '"', "‘": "'", "’": "'", "—": "--", "–": "-", "…": "...", "\xa0": " "}.items():
        text = text.replace(fancy, simple)
    text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    kept = (re.sub(r"[*_`\\]+", "", part) for part in paragraphs if not part.startswith(("#", "!", "|", ">", "---")))
    return "\n".join(part for part in kept if re.search("[a-z]", part))


def read_books(folder: Path) -> list[str]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix in (".txt", ".md"))
    if not paths:
        raise UsageError(f"There are no .txt or .md files in {folder}; the books are those of github.com/{SOURCE}.")
    return [book for path in paths if (book := clean(path.read_text(encoding="utf-8", errors="replace")))]


def train_tokenizer(books: Sequence[str], vocabulary: int, samples: Sequence[str] | None = None) -> Tokenizer:
    """Byte-level BPE in which every digit and every bracket is a token of its own, so that tasks can be learnt.

    samples  of the tasks, whose words should not fall to pieces because the books seldom use them
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split(Regex(r"[()\[\]{}<>]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    if samples is None:
        pattern = " code of is Question: what Answer: How many close: -> "
        tasks = pattern + " ".join([*WORDS, *NAMES, *OBJECTS, *SUMS, *DIFFERENCES])
        samples = [tasks] * (1 + sum(map(len, books)) // 20_000)
    tokenizer.train_from_iterator([*books, *samples], trainer)
    if tokenizer.get_vocab_size() != vocabulary:
        raise UsageError(
            f"The books give {tokenizer.get_vocab_size()} tokens, not {vocabulary}: add books, or ask less."
        )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{SPECIAL[BOS]} $A", special_tokens=[(SPECIAL[BOS], BOS)]
    )
    return tokenizer


def build(folder: Path, out: Path, vocabulary: int = VOCABULARY) -> Corpus:
    """Writes the npz file, and returns what it holds."""
    books = read_books(folder)
    ends = [int(len(book) * (1 - HELD_OUT)) for book in books]
    seen = [book[:end] for book, end in zip(books, ends, strict=True)]
    tokenizer = train_tokenizer(seen, vocabulary)

    def encode(texts: list[str]) -> NDArray[np.uint16]:
        parts = (tokenizer.encode(text + "\n", add_special_tokens=False).ids for text in texts)
        return np.concatenate([np.array(part, dtype=np.uint16) for part in parts])

    corpus = Corpus(encode(seen), encode([book[end:] for book, end in zip(books, ends, strict=True)]), tokenizer)
    spelled = np.frombuffer(tokenizer.to_str().encode(), dtype=np.uint8)
    with replacing(out) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, train=corpus.train, held_out=corpus.held_out, tokenizer=spelled)
    return corpus


def load(path: Path) -> Corpus:
    if not path.exists():
        raise UsageError(f"There is no {path}; make it with python -m training.llada_text --books FOLDER --out {path}")
    with np.load(path) as arrays:
        tokenizer = Tokenizer.from_str(arrays["tokenizer"].tobytes().decode())
        return Corpus(arrays["train"], arrays["held_out"], tokenizer)


def sentence_starts(tokens: NDArray[np.uint16], tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Where sentences begin in a stream of tokens."""
    texts = [tokenizer.decode([i], skip_special_tokens=False) for i in range(tokenizer.get_vocab_size())]
    closes = np.array([re.search(r"[.!?][\"']?$", text) is not None for text in texts])
    newline = np.array([text == "\n" for text in texts])
    opens = np.array([re.match(r" [\"'A-Z]", text) is not None for text in texts])
    title = np.array([text.strip() in ("Mr", "Mrs", "Dr", "St") for text in texts])
    before = np.concatenate([[False], title[tokens[:-2]]])  # is the token before the full stop a title?
    return np.flatnonzero((closes[tokens[:-1]] & ~before & opens[tokens[1:]]) | newline[tokens[:-1]]) + 1


def recoded(corpus: Corpus, tokenizer_path: Path) -> Corpus:
    """The same books in the tokens of another tokenizer, say a checkpoint's; itself if that is its own."""
    if not tokenizer_path.exists():
        raise UsageError(f"There is no tokenizer at {tokenizer_path}.")
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    if tokenizer.to_str() == corpus.tokenizer.to_str():
        return corpus
    if [tokenizer.token_to_id(token) for token in SPECIAL] != [MASK, EOS, BOS]:
        raise UsageError(f"{tokenizer_path} does not number {', '.join(SPECIAL)} from 0 on, as the text here needs.")

    def encode(tokens: NDArray[np.uint16]) -> NDArray[np.uint16]:
        # Part by part, to fit into memory, and cut behind line ends, over which no word of either tokenizer goes.
        ends = np.append(np.flatnonzero(tokens == corpus.encode("\n")[0]) + 1, len(tokens))
        cuts = np.unique(ends[np.searchsorted(ends, range(PART, len(tokens), PART))])
        parts = []
        for part in np.split(tokens, cuts):
            lines = re.findall(r"[^\n]*\n|[^\n]+", corpus.decode(part.tolist()))
            encoded = tokenizer.encode_batch_fast(lines, add_special_tokens=False)
            parts.append(np.fromiter(chain.from_iterable(line.ids for line in encoded), dtype=np.uint16))
        return np.concatenate(parts)

    return Corpus(encode(corpus.train), encode(corpus.held_out), tokenizer)


# The tasks


def kept_from_training(key: str) -> bool:
    return zlib.crc32(key.encode()) % 10 == 0


def arithmetic(corpus: Corpus, seed: int, held_out: bool) -> Iterator[Problem]:
    """Tom has 12 apples and buys 7 more. How many apples? Answer: 19"""
    chance = random.Random(f"arithmetic {seed} {held_out}")
    while True:
        # Drawn so that every pair with an answer in range is as likely as any other.
        a, b = sorted(chance.sample(range(LARGEST + 1), 2))
        plus = chance.random() < 0.5
        first, second, answer = (a, b - a, b) if plus else (b, a, b - a)
        if kept_from_training(f"{first}{'+' if plus else '-'}{second}") != held_out:
            continue
        story = chance.choice(SUMS if plus else DIFFERENCES)
        things = chance.choice(OBJECTS)
        told = story.format(name=chance.choice(NAMES), a=first, b=second, things=things)
        yield Problem([BOS, *corpus.encode(f"{told} How many {things}? Answer:")], corpus.encode(f" {answer}"))


def brackets(corpus: Corpus, seed: int, held_out: bool) -> Iterator[Problem]:
    """close: ([{ -> }])"""
    chance = random.Random(f"brackets {seed} {held_out}")
    while True:
        opening = "".join(chance.choices(list(BRACKETS), k=chance.randint(2, DEEPEST)))
        if kept_from_training(opening) == held_out:
            closing = "".join(BRACKETS[bracket] for bracket in reversed(opening))
            yield Problem([BOS, *corpus.encode(f"close: {opening} ->")], corpus.encode(f" {closing}"))


def needle(corpus: Corpus, seed: int, held_out: bool, length: int = LONG) -> Iterator[Problem]:
    """… The code of lamp is 4821. … Question: what is the code of lamp? Answer: 4821

    Half of the time another word has another code, so that the question must be read too. Filler of held-out tasks
    comes from held-out text.
    """
    chance = random.Random(f"needle {seed} {held_out}")
    text = corpus.held_out if held_out else corpus.train
    starts = sentence_starts(text, corpus.tokenizer)
    starts = starts[text[starts - 1] != corpus.encode("\n")[0]]  # within paragraphs, where a line can be slipped in
    longest = length - 64  # room for what is hidden, the question and the answer
    while True:
        words = chance.sample(WORDS, chance.randint(1, 2))
        codes = [f"{chance.randrange(10_000):04}" for _ in words]
        if kept_from_training(words[0] + codes[0]) != held_out:
            continue
        start = int(starts[chance.randrange(len(starts))])
        end = int(starts[np.searchsorted(starts, start + chance.randint(32, longest), side="right") - 1])
        if end - start < 16:  # one long sentence, or the end of the text
            continue
        hidden = [corpus.encode(STATEMENT.format(*pair)) for pair in zip(words, codes, strict=True)]
        chance.shuffle(hidden)
        inside = starts[np.searchsorted(starts, start) : np.searchsorted(starts, end, side="right")]
        cuts = sorted(int(inside[chance.randrange(len(inside))]) for _ in hidden)
        prompt, at = [BOS], start
        for cut, line in zip(cuts, hidden, strict=True):
            prompt += [*text[at:cut].tolist(), *line]
            at = cut
        question = corpus.encode(QUESTION.format(words[0]))
        yield Problem([*prompt, *text[at:end].tolist(), *question], corpus.encode(f" {codes[0]}"))


def drills(corpus: Corpus, seed: int, count: int, length: int = LONG) -> tuple[NDArray[np.int16], NDArray[np.bool_]]:
    """Many codes and as many questions in a row: the rows, and where their answers are.

    With one question a row, and two codes to choose from, that the question must be read is learnt very late.
    """
    chance = random.Random(f"drills {seed}")
    tokens, answers = np.full((count, length), EOS, dtype=np.int16), np.zeros((count, length), dtype=bool)
    made = 0
    while made < count:
        words = chance.sample(WORDS, chance.randint(2, MOST_CODES))
        pairs = [(word, f"{chance.randrange(10_000):04}") for word in words]
        if any(kept_from_training(word + code) for word, code in pairs):
            continue
        row = [BOS]
        for pair in pairs:
            row += corpus.encode(STATEMENT.format(*pair))
        spans = []
        for word, code in chance.sample(pairs, len(pairs)):
            row += corpus.encode(QUESTION.format(word))
            answer = corpus.encode(f" {code}")
            spans.append((len(row), len(row) + len(answer)))
            row += answer
        if len(row) > length:
            continue
        tokens[made, : len(row)] = row
        for start, end in spans:
            answers[made, start:end] = True
        made += 1
    return tokens, answers


def rows(problems: Iterator[Problem], count: int, length: int) -> Rows:
    """The next problems that fit, as rows."""

    def fit(problem: Problem) -> bool:
        return len(problem.prompt) + len(problem.answer) < length

    first = list(islice(problems, 100))
    if not any(map(fit, first)):  # or the search for one would never end
        raise UsageError(f"None of 100 problems fits into {length} tokens; a larger vocabulary makes them shorter.")
    fitting = filter(fit, chain(first, problems))
    tokens = np.full((count, length), EOS, dtype=np.int16)
    starts, ends = np.zeros(count, dtype=np.int16), np.zeros(count, dtype=np.int16)
    for row, (prompt, answer) in enumerate(islice(fitting, count)):
        starts[row], ends[row] = len(prompt), len(prompt) + len(answer) + 1
        tokens[row, : ends[row] - 1] = [*prompt, *answer]
    return Rows(tokens, starts, ends)


def main(
    books: Annotated[Path, typer.Option(help="A folder of .txt or .md files.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = DEFAULT_PATH,
    vocabulary: Annotated[int, typer.Option(min=512, max=32_000, help="Tokens to learn.")] = VOCABULARY,
) -> None:
    """Make the file of tokens that the training of the small LLaDA reads."""
    corpus = build(books, out, vocabulary)
    letters = len(corpus.decode(corpus.train[:100_000].tolist())) / min(len(corpus.train), 100_000)
    print(
        f"{out}: {len(corpus.train):,} tokens to train on, {len(corpus.held_out):,} held out, "
        f"{letters:.2f} characters a token, {out.stat().st_size / 1e6:.1f} MB"
    )


if __name__ == "__main__":
    run(main)
