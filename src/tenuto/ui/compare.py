"""Runs one request twice, in full and under a schedule: the results of both, and how long each took."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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

GAIN = 8  # of the difference image
COLUMNS, SIDE = 3, 128  # of a sheet of pictures: how many in a row, and about how many pixels each
TELLINGS = 10  # how often a run reports its progress

Advance = Callable[[str, int, int], object]  # which run, how much of it is done, of how much
Marks = list[tuple[str, str | None]]


@dataclass(frozen=True)
class Compared:
    seconds_full: float
    seconds_scheduled: float
    verdict: str  # a sentence

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

    def draw(run: str, schedule: Schedule | None, steps: int) -> tuple[Tensor, float]:
        started = time.perf_counter()
        samples = generate(
            model,
            asked if by_class else None,
            captions=None if by_class else asked,
            seed=seed,
            sampling=Sampling(steps=steps),
            schedule=schedule,
            progress=_counting(advance, run, len(asked) * steps),
        )
        seconds = time.perf_counter() - started
        return (samples if vae is None else decode(samples, vae)), seconds

    draw("Warming up", None, 1)
    full, seconds_full = draw("Everything computed", None, schedule.steps)
    held, seconds_held = draw("Under the schedule", schedule, schedule.steps)
    scale = max(1, SIDE // full.shape[-1])
    decibels = psnr(held, full)
    said = of_pictures(decibels.tolist())
    return ComparedPictures(
        seconds_full,
        seconds_held,
        verdict=f"{said[0].upper()}{said[1:]}.",
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

    def write(run: str, schedule: Schedule | None, sampling: MaskedSampling) -> tuple[list[int], float]:
        started = time.perf_counter()
        executor = executor_for(model.network, schedule)
        tokens = generate_tokens(executor, prompts, sampling=sampling, progress=_counting(advance, run, sampling.steps))
        return tokens[0].tolist(), time.perf_counter() - started

    write("Warming up", None, sampling_for(model, steps=1, length=length, block_length=length))
    full, seconds_full = write("Everything computed", None, sampling)
    held, seconds_held = write("Under the schedule", schedule, sampling)
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
