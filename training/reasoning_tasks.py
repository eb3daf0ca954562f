"""Made-up problems with exact answers, each task with a dial that says how hard a problem is.

A task is a function of a random generator and a size. A problem has a prompt, an answer and a key. A tenth of all
keys, chosen by a checksum, is kept from training. Most answers are written out step by step, so that they are long:
schedules and parallel decoding differ only where much is written.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from training.llada_text import BRACKETS, NAMES, OBJECTS, WORDS, kept_from_training
from training.safe_code import CodeError, run_function

INPUTS = ((3, 5), (0, 0), (12, 7), (40, 1), (9, 33), (100, 64))  # what written functions are tried with
DISTINCT = 4  # results among those of INPUTS, at least


class Posed(NamedTuple):
    """A problem as text."""

    prompt: str
    answer: str  # begins with a space or a new line, and the text ends behind it
    key: str  # what training and held-out problems must not share


def sums(chance: random.Random, size: int) -> Posed:
    """add: 4821 + 977 = 5798; size: digits of the larger number"""
    a = chance.randrange(10 ** (size - 1), 10**size)
    b = chance.randrange(10 ** (max(size - chance.randint(0, 1), 1) - 1), 10**size)
    return Posed(f"add: {a} + {b} =", f" {a + b}", f"{a}+{b}")


def reverse(chance: random.Random, size: int) -> Posed:
    """reverse: lamp sofa key -> key sofa lamp; size: words, some of them twice"""
    words = chance.choices(WORDS, k=size)
    return Posed(f"reverse: {' '.join(words)} ->", " " + " ".join(reversed(words)), " ".join(words))


def sort_numbers(chance: random.Random, size: int) -> Posed:
    """sort: 82 17 93 -> 17 82 93; size: numbers"""
    numbers = [chance.randrange(100) for _ in range(size)]
    told = " ".join(map(str, numbers))
    return Posed(f"sort: {told} ->", " " + " ".join(map(str, sorted(numbers))), told)


def sort_words(chance: random.Random, size: int) -> Posed:
    """alphabet: sofa lamp key -> key lamp sofa; size: words"""
    words = chance.sample(WORDS, size)
    return Posed(f"alphabet: {' '.join(words)} ->", " " + " ".join(sorted(words)), " ".join(words))


def brackets(chance: random.Random, size: int) -> Posed:
    """close: ([]{ -> }); size: brackets shown, of which about half stay open"""
    shown, still_open = "", ""
    while len(shown) < size:
        # At least one bracket is open at the end, or there would be nothing to write.
        if chance.random() < 0.75 or len(still_open) < 2:
            bracket = chance.choice(list(BRACKETS))
            shown, still_open = shown + bracket, still_open + bracket
        else:
            shown, still_open = shown + BRACKETS[still_open[-1]], still_open[:-1]
    closing = "".join(BRACKETS[bracket] for bracket in reversed(still_open))
    return Posed(f"close: {shown} ->", f" {closing}", shown)


# What a step of a function is called, and what it is in Python; {} is a number or a parameter.
STEPS = (
    (("add {}", "plus {}", "increase it by {}"), "c = c + {}"),
    (("take away {}", "minus {}", "reduce it by {}"), "c = c - {}"),
    (("multiply by {}", "times {}"), "c = c * {}"),
    (("double it", "make it twice as large"), "c = c * 2"),
    (("keep the remainder by {}",), "c = c % {}"),
    (("divide by {} and round down",), "c = c // {}"),
)
CONDITIONS = ((("more than", "above"), ">"), (("less than", "below"), "<"))


def code(chance: random.Random, size: int) -> Posed:
    """A function written from what it should do, to be run; size: steps, some of them under a condition"""
    while True:
        posed = _function(chance, size)
        results = behaviour(posed.prompt + posed.answer)
        # A function that gives nearly always the same could be written wrong and still count as right.
        if results is not None and len(set(results)) >= DISTINCT:
            return posed


def _function(chance: random.Random, size: int) -> Posed:
    first = chance.choice("ab")
    told, lines = [f"start with {first}"], [f"c = {first}"]
    for _ in range(size):
        phrases, line = chance.choice(STEPS)
        whole = "%" in line or "//" in line  # by a number, which is not zero
        operand = str(chance.randint(2, 20)) if whole or chance.random() < 0.6 else chance.choice("ab")
        phrase, line = chance.choice(phrases).format(operand), line.format(operand)
        if chance.random() < 0.25:
            words, sign = chance.choice(CONDITIONS)
            limit = chance.randint(1, 99)
            told.append(f"if it is {chance.choice(words)} {limit}, {phrase}")
            lines.append(f"if c {sign} {limit}:\n        {line}")
        else:
            told.append(phrase)
            lines.append(line)
    body = "".join(f"\n    {line}" for line in [*lines, "return c"])
    description = "; ".join(told).capitalize()
    return Posed(f'def f(a, b):\n    """{description}."""', body, description)


def lookup(chance: random.Random, size: int) -> Posed:
    """look up: lamp 82, sofa 17; sofa lamp -> 17 82; size: entries, all of which are asked for in another order"""
    words = chance.sample(WORDS, size)
    table = {word: chance.randrange(100) for word in words}
    asked = chance.sample(words, size)
    told = ", ".join(f"{word} {number}" for word, number in table.items()) + "; " + " ".join(asked)
    return Posed(f"look up: {told} ->", "".join(f" {table[word]}" for word in asked), told)


GAINS = ("{name} buys {n} more.", "{name} finds {n} more.", "{other} gives {name} {n} {things}.")
LOSSES = ("{name} loses {n}.", "{name} gives {n} to {other}.", "{name} sells {n} {things}.")
PACKS = ("{name} buys {k} packs of {n} {things}.", "{other} brings {k} bags with {n} {things} each.")
IDLE = ("{other} has {n} hats.", "It is {n} days to the fair.", "{other} is {n} years old.")  # beside the point


def story(chance: random.Random, size: int) -> Posed:
    """A word problem whose answer is worked out step by step; size: things that happen"""
    name, other = chance.sample(NAMES, 2)
    things, amount = chance.choice(OBJECTS), chance.randint(5, 60)
    told, work = [f"{name} has {amount} {things}."], []
    for _ in range(size):
        n, k = chance.randint(2, 40), chance.randint(2, 9)
        named = {"name": name, "other": other, "things": things, "n": n, "k": k}
        kind = chance.random()
        if kind < 0.15:
            told.append(chance.choice(IDLE).format(**named))
        if kind < 0.3 and amount + n * k < 1000:
            told.append(chance.choice(PACKS).format(**named))
            work += [f"{k} * {n} = {k * n}", f"{amount} + {k * n} = {amount + k * n}"]
            amount += k * n
        elif kind < 0.4 and amount < 300:
            told.append(f"Then {name} doubles the number of {things}.")
            work.append(f"{amount} * 2 = {amount * 2}")
            amount *= 2
        elif kind < 0.5 and amount % 2 == 0 and amount > 4:
            told.append(f"{name} gives half of the {things} away.")
            work.append(f"{amount} / 2 = {amount // 2}")
            amount //= 2
        elif kind < 0.75 and amount > n:
            told.append(chance.choice(LOSSES).format(**named))
            work.append(f"{amount} - {n} = {amount - n}")
            amount -= n
        else:
            told.append(chance.choice(GAINS).format(**named))
            work.append(f"{amount} + {n} = {amount + n}")
            amount += n
    question = f"How many {things} does {name} have now?"
    answer = "".join(f" {line}." for line in work) + f" The answer is {amount}."
    return Posed(f"{' '.join(told)} {question} Answer:", answer, ", ".join(work))


LINES = (
    "{name} has {n} {things}.",
    "{name} is {n} years old.",
    "It is {n} days to the fair.",
    "{name} finds {n} more.",
)
CODED = 8  # lines for one that tells a code; two tell one in any case


def codes(chance: random.Random, size: int) -> Posed:
    """A needle: two codes that are asked for, hidden among lines about other things; size: lines"""
    words = chance.sample(WORDS, min(max(size // CODED, 2), len(WORDS)))
    table = {word: f"{chance.randrange(1000):03}" for word in words}
    lines = [f"The code of {word} is {code}." for word, code in table.items()]
    while len(lines) < size:
        filled = {"name": chance.choice(NAMES), "things": chance.choice(OBJECTS), "n": chance.randint(2, 99)}
        lines.append(chance.choice(LINES).format(**filled))
    chance.shuffle(lines)
    first, second = chance.sample(words, 2)
    question = f"What is the code of {first} and {second}? Answer:"
    answer = f" {table[first]} {table[second]}"
    return Posed(f"{' '.join(lines)} {question}", answer, f"{first} {second}{answer}")


def rows(chance: random.Random, size: int) -> Posed:
    """add: 482 + 31, 7 + 90 -> 482 + 31 = 513, 7 + 90 = 97; size: sums of numbers below 1,000"""
    pairs = [(chance.randrange(1000), chance.randrange(1000)) for _ in range(size)]
    told = ", ".join(f"{a} + {b}" for a, b in pairs)
    return Posed(f"add: {told} ->", " " + ", ".join(f"{a} + {b} = {a + b}" for a, b in pairs), told)


def follow(chance: random.Random, size: int) -> Posed:
    """follow: key sofa, lamp key; lamp -> key sofa; size: words on the way, each of which tells only the next one"""
    first, *way = words = chance.sample(WORDS, size + 1)
    told = ", ".join(f"{one} {other}" for one, other in chance.sample(list(pairwise(words)), size))
    return Posed(f"follow: {told}; {first} ->", "".join(f" {word}" for word in way), " ".join(words))


def totals(chance: random.Random, size: int) -> Posed:
    """total: lamp 7, sofa 5 -> lamp 7 sofa 2; size: digits that are added up, of which the last digit is written"""
    words, digits = chance.sample(WORDS, size), [chance.randrange(10) for _ in range(size)]
    told = ", ".join(f"{word} {digit}" for word, digit in zip(words, digits, strict=True))
    written = zip(words, accumulate(digits), strict=True)
    return Posed(f"total: {told} ->", "".join(f" {word} {total % 10}" for word, total in written), told)


@dataclass(frozen=True)
class Task:
    """A task, the sizes it is trained at, and those that it is measured at, from easy to hard."""

    pose: Callable[[random.Random, int], Posed]
    least: int
    levels: tuple[int, ...]
    unit: str

    @property
    def most(self) -> int:
        return self.levels[-1]


# A model that gets one token in five hundred wrong gets an answer of twenty tokens right 96 times of 100, and one of a
# hundred tokens 82 times. So the levels reach from short answers, which a trained model gets right, to long ones.
TASKS = {
    "sums": Task(sums, 1, (3, 5, 7, 9, 11, 13), "digits"),
    "reverse": Task(reverse, 2, (16, 28, 40, 52, 64, 80), "words"),
    "sort": Task(sort_numbers, 2, (8, 14, 20, 26, 32, 40), "numbers"),
    "alphabet": Task(sort_words, 2, (10, 16, 22, 28, 34, 40), "words"),
    "brackets": Task(brackets, 2, (24, 40, 56, 72, 88, 104), "brackets shown"),
    "code": Task(code, 1, (3, 5, 7, 9, 11, 13), "steps"),
    "lookup": Task(lookup, 2, (8, 13, 18, 23, 28, 33), "entries"),
    "story": Task(story, 1, (1, 2, 3, 4, 5, 6), "events"),
    "codes": Task(codes, 2, (8, 16, 32, 48, 72, 96), "lines"),
    "rows": Task(rows, 1, (4, 5, 6, 7, 8), "sums"),
    "follow": Task(follow, 2, (16, 24, 32, 48, 64), "words"),
    "totals": Task(totals, 2, (12, 16, 24, 32, 40), "digits"),
}
EASY = 1.5  # the larger, the more of the training's problems are small ones


def problems(
    task: str, seed: object, held_out: bool, size: int | None = None, sizes: tuple[int, int] | None = None
) -> Iterator[Posed]:
    """Problems without end, of one size, or of all sizes from the least to the most, small ones more often."""
    chance = random.Random(f"{task} {seed} {held_out} {size}")
    kind = TASKS[task]
    least, most = sizes or (kind.least, kind.most)
    while True:
        drawn = least + int((most - least + 1) * chance.random() ** EASY)
        posed = kind.pose(chance, drawn if size is None else size)
        if kept_from_training(posed.key) == held_out:
            yield posed


def right(task: str, posed: Posed, written: str) -> bool:
    """Whether an answer is right: word for word, or where code was asked for, by what the code computes."""
    if task != "code" or written == posed.answer:
        return written == posed.answer
    return behaviour(posed.prompt + written) == behaviour(posed.prompt + posed.answer)


def behaviour(source: str) -> list[int] | None:
    """What a function returns for each of INPUTS; None if the function cannot be run."""
    try:
        return [run_function(source, pair) for pair in INPUTS]
    except CodeError:
        return None
