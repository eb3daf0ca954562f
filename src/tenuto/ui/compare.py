"""Runs one request twice, in full and under a schedule: the results of both, and how long each took.

Pictures are drawn a few at a time, in both ways by turns, so that other work on the machine slows both alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.quality import of_pictures, of_two_texts, psnr
from tenuto.runtime.executor import executor_for
from tenuto.sampling.masked import MaskedSampling, encoded, generate_tokens, sampling_for
from tenuto.sampling.pictures import Sampling, decode, generate, vae_of
from tenuto.scheduling.schedule import Schedule
from tenuto.showing.images import difference, grid
from tenuto.showing.texts import marked
from tenuto.timing import doubt, equal_parts, in_turns

GAIN = 8  # of the difference image
COLUMNS, SIDE = 3, 128  # of a sheet of pictures: how many in a row, and about how many pixels each
TELLINGS = 10  # how often a run reports its progress

Advance = Callable[[str, int, int], object]  # which run, how much of it is done, of how much
Marks = list[tuple[str, str | None]]


@dataclass(frozen=True)
class Compared:
    seconds_full: float
    seconds_scheduled: float
    verdict: str  # sentences

    @property
    def speedup(self) -> float:
        return self.seconds_full / self.seconds_scheduled


@dataclass(frozen=True)
class ComparedPictures(Compared):
    full: Image.Image
    scheduled: Image.Image
    difference: Image.Image
    decibels: Tensor  # the PSNR of each picture against the full run's picture


@dataclass(frozen=True)
class ComparedTexts(Compared):
    full: Marks
    scheduled: Marks


def compare_pictures(
    model: Model, schedule: Schedule, asked: Sequence[Any], seed: int = 0, advance: Advance = lambda *_: None
) -> ComparedPictures:
    by_class = model.architecture.asks_for == "class"
    vae = vae_of(model)

    parts = equal_parts(len(asked)) or [slice(0, 0)]  # `generate` says that nothing was asked for

    def drawing(run: str, schedule: Schedule | None, steps: int) -> Callable[[int], Tensor]:
        count = _counting(advance, run, len(asked) * steps)
        executor = executor_for(model.network, schedule)

        def draw(turn: int) -> Tensor:
            some = asked[parts[turn]]
            samples = generate(
                model,
                some if by_class else None,
                captions=None if by_class else some,
                seed=seed + parts[turn].start,
                sampling=Sampling(steps=steps),
                executor=executor,
                progress=count,
            )
            return samples if vae is None else decode(samples, vae)

        return draw

    drawing("Warming up", None, 1)(0)
    ways = [
        drawing("Everything computed", None, schedule.steps),
        drawing("Under the schedule", schedule, schedule.steps),
    ]
    timed = in_turns(ways, len(parts))
    full, held = (torch.cat(one.made) for one in timed)
    scale = max(1, SIDE // full.shape[-1])
    decibels = psnr(held, full)
    said = of_pictures(decibels.tolist())
    seconds_full, seconds_held = (one.total for one in timed)
    doubted = doubt(seconds_full / seconds_held, schedule.flop_budget)
    return ComparedPictures(
        seconds_full,
        seconds_held,
        verdict=" ".join(filter(None, (f"{said[0].upper()}{said[1:]}.", doubted))),
        full=grid(full, COLUMNS, scale),
        scheduled=grid(held, COLUMNS, scale),
        difference=grid(difference(held, full, GAIN), COLUMNS, scale),
        decibels=decibels,
    )


def compare_texts(
    model: Model, schedule: Schedule, prompt: str, length: int, advance: Advance = lambda *_: None
) -> ComparedTexts:
    """Compare two texts, each written in as many blocks as the schedule is made for."""
    if length % schedule.blocks:
        raise UsageError(f"{length} tokens cannot be written in {schedule.blocks} blocks of equal length.")
    model.check_fits(schedule)
    sampling = sampling_for(model, steps=schedule.steps, length=length, block_length=length // schedule.blocks)
    prompts = encoded(model, [prompt])

    def writing(run: str, schedule: Schedule | None, sampling: MaskedSampling) -> Callable[[int], list[int]]:
        executor, count = executor_for(model.network, schedule), _counting(advance, run, sampling.steps)
        return lambda turn: generate_tokens(executor, prompts, sampling=sampling, progress=count)[0].tolist()

    writing("Warming up", None, sampling_for(model, steps=1, length=length, block_length=length))(0)
    timed = in_turns(
        [writing("Everything computed", None, sampling), writing("Under the schedule", schedule, sampling)], 1
    )
    full, held = (one.made[0] for one in timed)
    seconds_full, seconds_held = (one.total for one in timed)
    show = model.tokenizer.decode
    return ComparedTexts(
        seconds_full,
        seconds_held,
        verdict=of_two_texts(held, full),
        full=marked(full, held, show),
        scheduled=marked(held, full, show),
    )


def _counting(advance: Advance, run: str, total: int) -> Callable[[int], None]:
    """Report progress only a few times, because the reports count in the measured time."""
    done = 0

    def count(more: int) -> None:
        nonlocal done
        before, done = done, done + more
        if before * TELLINGS // total != done * TELLINGS // total:
            advance(run, done, total)

    return count
