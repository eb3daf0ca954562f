"""The same request with everything computed and under a schedule: what both gave, and how long each took."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.executor import executor_for
from tenuto.measure.quality import psnr
from tenuto.models import Model
from tenuto.report.images import difference, grid
from tenuto.report.texts import marked, share_alike
from tenuto.samplers.diffusion import Sampling, decode, generate, load_vae
from tenuto.samplers.masked import MaskedSampling, generate_tokens
from tenuto.schedules import Schedule

GAIN = 8  # of the difference image
COLUMNS, SIDE = 3, 128  # of a sheet of pictures: how many in a row, and about how many pixels each
TELLINGS = 10  # of the progress of a run

Advance = Callable[[str, int, int], object]  # which run, how much of it is done, of how much
Marks = list[tuple[str, str | None]]


@dataclass(frozen=True)
class Compared:
    seconds_full: float
    seconds_scheduled: float

    @property
    def speedup(self) -> float:
        return self.seconds_full / self.seconds_scheduled


@dataclass(frozen=True)
class Pictures(Compared):
    full: Image.Image
    scheduled: Image.Image
    difference: Image.Image
    decibels: Tensor  # of each picture to the full run's


@dataclass(frozen=True)
class Texts(Compared):
    full: Marks
    scheduled: Marks
    alike: float  # share of positions with the same token


def compare_pictures(
    model: Model, schedule: Schedule, asked: Sequence[Any], seed: int = 0, advance: Advance = lambda *_: None
) -> Pictures:
    by_class = model.architecture.asks_for == "class"
    vae = _vae(model)

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
    return Pictures(
        seconds_full,
        seconds_held,
        full=grid(full, COLUMNS, scale),
        scheduled=grid(held, COLUMNS, scale),
        difference=grid(difference(held, full, GAIN), COLUMNS, scale),
        decibels=psnr(held, full),
    )


def _vae(model: Model) -> Any:
    """Of a model that draws latents, the VAE that lies beside it."""
    if model.config.sample_shape[0] in (1, 3):
        return None
    beside = None if model.path is None else model.path / "vae"
    if beside is None or not beside.is_dir():
        raise UsageError(f"{model.name} makes latents, and there is no VAE beside it to make pictures of them.")
    return load_vae(beside, model.device)


def compare_texts(
    model: Model,
    schedule: Schedule,
    prompt: str,
    length: int,
    blocks: int,
    advance: Advance = lambda *_: None,
) -> Texts:
    if length % blocks:
        raise UsageError(f"{length} tokens cannot be written in {blocks} blocks of equal length.")
    sampling = MaskedSampling(steps=schedule.steps, length=length, block_length=length // blocks)
    schedule.check_fits([unit.name for unit in model.units], model.fingerprints, model.name)
    prompts = [model.tokenizer.encode(prompt)]

    def write(run: str, schedule: Schedule | None, sampling: MaskedSampling) -> tuple[list[int], float]:
        started = time.perf_counter()
        executor = executor_for(model.network, schedule)
        tokens = generate_tokens(executor, prompts, sampling=sampling, progress=_counting(advance, run, sampling.steps))
        return tokens[0].tolist(), time.perf_counter() - started

    write("Warming up", None, MaskedSampling(steps=1, length=length, block_length=length))
    full, seconds_full = write("Everything computed", None, sampling)
    held, seconds_held = write("Under the schedule", schedule, sampling)
    show = model.tokenizer.decode
    return Texts(
        seconds_full, seconds_held, marked(full, held, show), marked(held, full, show), share_alike(held, full)
    )


def _counting(advance: Advance, run: str, total: int) -> Callable[[int], None]:
    """Tell of progress now and then; oftener, the telling would be timed, too."""
    done = 0

    def count(more: int) -> None:
        nonlocal done
        before, done = done, done + more
        if before * TELLINGS // total != done * TELLINGS // total:
            advance(run, done, total)

    return count
