"""The rows that the training of the small LLaDAs draws: made-up problems and pieces of text, some tokens masked."""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from math import lcm
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tenuto.errors import UsageError
from training.llada_text import BOS, EOS, MASK
from training.reasoning_tasks import TASKS, problems
from training.reasoning_text import CONTEXT, Library, needles, starts_of

# The lengths of a batch's three parts, of which each batch takes one. A network that has seen one length only takes the
# distance to the end for a clue. A part holds a whole number of rows of every length.
LENGTHS = ((48, 64), (96, 128), (192, 256, 512, 1024))
MOST_TEXT = 0.15  # of the rows of a part, where they are the longest
SOURCE_SHARES = {"books": 0.7, "code": 0.2, "stories": 0.1}  # of the text rows
NEEDLES = 0.25  # of the number of other problems: they are long
MOST_OFTEN = 100.0  # as often as others, at most
CHUNK = 2_000  # problems that one process makes at once
BLOCK = 16
LEAST, HEAVIEST = 1e-3, 10.0  # of t, and of 1/t; see training.train_llada
ANSWER_ONLY, IN_BLOCK, NOTHING_YET = 0.9, 0.45, 0.3  # see masked()
LOUDEST = 64  # tokens, beyond which a row counts no more than with so many
PADDING = 0.1  # what a token of padding counts, beside one of the answer


@dataclass(frozen=True)
class Lessons:
    """What is trained: the least and the most size of each task, how often, and how long each part's rows may be."""

    sizes: Mapping[str, tuple[int, int]] = field(
        default_factory=lambda: {name: (task.least, task.most) for name, task in TASKS.items()}
    )
    lengths: tuple[tuple[int, ...], ...] = LENGTHS
    shares: Mapping[str, float] = field(default_factory=dict)  # how often each task comes; 1 if not given

    @property
    def longest(self) -> int:
        return max(map(max, self.lengths))

    @property
    def smallest_part(self) -> int:
        """The fewest tokens that are whole rows of every length."""
        return lcm(*(length for part in self.lengths for length in part))

    def text_share(self, length: int) -> float:
        """Of rows this long: most problems are short, and long rows would be padding."""
        return MOST_TEXT * min(length / 192, 1.0) ** 2


def parse_sizes(given: list[str]) -> dict[str, tuple[int, int]]:
    """["sums=1-4", "story=1-2"] -> {"sums": (1, 4), "story": (1, 2)}"""
    sizes = {}
    for one in given:
        task, _, told = one.partition("=")
        least, _, most = told.partition("-")
        if task not in TASKS or not (least.isdigit() and most.isdigit() and 1 <= int(least) <= int(most)):
            raise UsageError(f"{one} does not say sizes of a task; sums=1-4 does. The tasks are {', '.join(TASKS)}.")
        sizes[task] = (int(least), int(most))
    return sizes


def parse_shares(given: list[str]) -> dict[str, float]:
    """["sums=2", "story=0.5"] -> {"sums": 2.0, "story": 0.5}"""
    shares = {}
    for one in given:
        task, _, told = one.partition("=")
        try:
            shares[task] = float(told)
        except ValueError:
            shares[task] = 0.0
        if task not in TASKS or not 0 < shares[task] <= MOST_OFTEN:
            raise UsageError(
                f"{one} does not say how often a task comes; sums=2 does. The tasks are {', '.join(TASKS)}."
            )
    return shares


def parse_lengths(told: str) -> tuple[tuple[int, ...], ...]:
    """ "24,32/64,96" -> ((24, 32), (64, 96))"""
    try:
        lengths = tuple(tuple(int(length) for length in part.split(",")) for part in told.split("/"))
    except ValueError:
        raise UsageError(f"{told} are not lengths of rows; 24,32/64,96 are.") from None
    if any(not 16 <= length <= CONTEXT for part in lengths for length in part):
        raise UsageError(f"A row has 16 to {CONTEXT} tokens; {told} asks for others.")
    return lengths


class Rows(NamedTuple):
    """Problems as one list of tokens, and where each begins, where its answer begins, and how long it is."""

    tokens: NDArray[np.int16]
    offset: NDArray[np.int64]  # [count]
    start: NDArray[np.int64]  # [count]
    length: NDArray[np.int64]  # [count], with one end-of-text; in rising order


class Batch(NamedTuple):
    noisy: Tensor  # [B, N], some tokens masked
    clean: Tensor  # [B, N]
    weight: Tensor  # [B, N]: the loss is the weighted sum of cross-entropies


# Problems, made by many processes


_library: Library  # of a process that makes problems


def encoded(
    library: Library, task: str, count: int, seed: object, sizes: tuple[int, int] | None
) -> list[tuple[list[int], list[int]]]:
    """Problems to train on as tokens: prompts and answers."""
    if task == "needles":
        return [(one.prompt, one.answer) for one in islice(needles(library, seed, held_out=False), count)]
    posed = list(islice(problems(task, seed, held_out=False, sizes=sizes), count))

    def tokens(texts: list[str]) -> list[list[int]]:
        return [found.ids for found in library.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    prompts, answers = tokens([one.prompt for one in posed]), tokens([one.answer for one in posed])
    return [([BOS, *prompt], answer) for prompt, answer in zip(prompts, answers, strict=True)]


def _made(
    task: str, count: int, seed: str, sizes: tuple[int, int] | None
) -> tuple[NDArray[np.int16], NDArray[np.int64], NDArray[np.int64]]:
    """Tokens, and for each problem where its answer starts and how long it is."""
    made = encoded(_library, task, count, seed, sizes)
    tokens = np.array([token for prompt, answer in made for token in (*prompt, *answer, EOS)], dtype=np.int16)
    starts = np.array([len(prompt) for prompt, _ in made])
    return tokens, starts, np.array([len(prompt) + len(answer) + 1 for prompt, answer in made])


class Posing:
    """Processes that make problems while the network is compiled."""

    def __init__(self, library: Library, count: int, seed: int, lessons: Lessons) -> None:
        global _library
        _library = library
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each process has a core of its own
        self._longest = lessons.longest
        counts = {task: max(int(count * lessons.shares.get(task, 1.0)), 1) for task in lessons.sizes}
        if "books" in library.train:
            counts["needles"] = max(int(count * NEEDLES), 1)
        jobs = [(task, at, min(CHUNK, many - at)) for task, many in counts.items() for at in range(0, many, CHUNK)]
        jobs.sort(key=lambda job: job[1])  # if one core is slow, it is not left with all the needles
        cores = len(os.sched_getaffinity(0))
        self._processes = ProcessPoolExecutor(max(cores - 2, 1), mp_context=get_context("fork"))  # the compiler's: 2
        self._pending: list[Future[Any]] = [
            self._processes.submit(_made, task, many, f"{seed} {at}", lessons.sizes.get(task))
            for task, at, many in jobs
        ]

    def collect(self) -> Rows:
        """All problems that fit into a row, the shortest first."""
        made = [pending.result() for pending in self._pending]
        self._processes.shutdown()
        tokens, start, length = (np.concatenate(parts) for parts in zip(*made, strict=True))
        offset = np.concatenate([[0], np.cumsum(length)[:-1]])
        order = np.argsort(length, kind="stable")
        order = order[length[order] <= self._longest]
        return Rows(tokens, offset[order], start[order], length[order])


# Batches


def batches(
    library: Library,
    made: Rows,
    part: int,
    seed: int | torch.Generator,
    device: torch.device,
    lessons: Lessons,
) -> Iterator[list[Batch]]:
    """Batches without end, each of one part for every entry of the lessons' lengths, drawn on the device."""
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator(device).manual_seed(seed)
    streams, longest = library.train, lessons.longest
    begins, starts = 0, {}
    for name, tokens in streams.items():
        places = starts_of(library, name, tokens)
        places = places[places + longest < len(tokens)]
        if not len(places):
            raise UsageError(f"The {name} are shorter than one row of {longest} tokens.")
        starts[name] = torch.from_numpy(places - 1 + begins).to(device)  # the start-of-text stands before them
        begins += len(tokens)
    everything = [*(tokens.astype(np.int16) for tokens in streams.values()), made.tokens]
    flat = torch.from_numpy(np.concatenate([*everything, np.full(longest, EOS, dtype=np.int16)])).to(device)
    offset, start, length = (torch.from_numpy(each).to(device) for each in (made.offset + begins, *made[2:]))

    def integers(low: int, high: int, count: int) -> Tensor:
        return torch.randint(low, high, (count,), generator=generator, device=device)

    def drawn(row_length: int) -> Batch:
        count, text_share = part // row_length, lessons.text_share(row_length)
        # Problems that fill at least half of a row, but for the shortest rows: less would be mostly padding.
        shortest = 0 if row_length == min(map(min, lessons.lengths)) else row_length // 2
        low, high = np.searchsorted(made.length, (shortest, row_length), side="right").tolist()
        texts = {name: int(count * text_share * share) for name, share in SOURCE_SHARES.items() if name in streams}
        if low == high:
            raise UsageError(f"No problem is {shortest} to {row_length} tokens long; make more of them.")
        chosen = integers(low, high, count - sum(texts.values()))
        begin = torch.cat(
            [offset[chosen], *(starts[name][integers(0, len(starts[name]), size)] for name, size in texts.items())]
        )
        text = len(begin) - len(chosen)
        answer = F.pad(start[chosen], (0, text))
        end = F.pad(length[chosen], (0, text), value=row_length)
        place = torch.arange(row_length, device=device)
        tokens = flat[begin[:, None] + place].long()
        tokens = torch.where(place < end[:, None], tokens, EOS)
        tokens[:, 0] = BOS
        return masked(tokens, answer, end, generator)

    step = 0
    while True:
        yield [drawn(lengths[step % len(lengths)]) for lengths in lessons.lengths]
        step += 1


def masked(tokens: Tensor, start: Tensor, end: Tensor, generator: torch.Generator) -> Batch:
    """LLaDA's noise: a share t of a row's tokens masked, each counted 1/t, so that all levels count alike.

    Rows of text (start 0) are masked all over. Of the problems, ANSWER_ONLY keep their prompt, as in LLaDA's
    fine-tuning. Among these, IN_BLOCK look as they do when text is written block after block: what is before a block is
    there, what is behind is masked, and only the block counts. Of the rest, NOTHING_YET lose all of their answer.

    A row counts as the square root of the tokens that might be masked, up to LOUDEST: a long answer has more to learn
    from than a short one, but beside a whole page of text the codes of a needle must still be heard.
    """
    (size, length), device = tokens.shape, tokens.device

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=device)

    # One t in each of `size` equal intervals: the batch sees every noise level, whatever its size.
    order = torch.randperm(size, generator=generator, device=device)
    t = LEAST + (1 - LEAST) * ((order + uniform(1)) / size)
    task, kind = start > 0, uniform(size)
    in_block = task & (kind < IN_BLOCK)
    first = torch.where(task & (kind < ANSWER_ONLY), start, 1)  # the start-of-text is never masked
    t = torch.where(~in_block & (first > 1) & (uniform(size) < NOTHING_YET), 1.0, t)
    blocks = (end - start + BLOCK - 1) // BLOCK
    low = torch.where(in_block, start + BLOCK * (uniform(size) * blocks).long(), first)
    high = torch.where(in_block, low + BLOCK, length)
    place = torch.arange(length, device=device)
    hidden = (uniform(size, length) < t[:, None]) & (place >= low[:, None]) & (place < high[:, None])
    behind = place >= high[:, None]
    counted = (torch.minimum(end, high) - low).float()
    rows = counted.clamp(max=LOUDEST).sqrt()
    rows = rows / rows.sum()
    weight = hidden * torch.where(place < end[:, None], 1.0, PADDING)
    weight = weight * (rows / counted * (1 / t).clamp(max=HEAVIEST))[:, None]
    return Batch(torch.where(hidden | behind, MASK, tokens), tokens, weight)
