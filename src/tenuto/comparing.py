"""Draws the same request in full, with held steps and with fewer steps, and says which comes nearer to the full run.

    result = tenuto.compare(pipe, prompt="a red car", seeds=4, budget=0.25)
    print(result)
    result.save("compared.png")

The full run is the pipeline as it is. The held run is the pipeline under `tenuto.enable`. The plain run takes as many
steps of the same scheduler as the held run evaluated. All begin from the same noise.

Pictures and videos have a range, from black to white. Latents and sound have none: their range is taken to be four
standard deviations of the full run.
"""

import inspect
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tenuto.errors import UsageError, check_whole
from tenuto.pipelines.enable import accelerated, disable, enable, state_of, summary
from tenuto.pipelines.request import option_names
from tenuto.pipelines.summary import Summary
from tenuto.quality import of_pictures, psnr, psnr_without_range
from tenuto.showing.images import labelled_grid, save_image

NEARER = 1.0  # dB; if the lead is smaller, fewer plain steps are about as good
MOST_SEEDS = 64
ALIKE = 0.8  # by difflib's measure; a name this near to an option of ours is a slip
WIDEST = 256  # pixels of a picture on the sheet
PICTURES, VIDEOS, SOUNDS, LATENTS, RESULTS = "pictures", "videos", "sounds", "latents", "results"
KINDS = {  # by the name under which a pipeline returns its results, the surest first
    **{"images": PICTURES, "frames": VIDEOS, "videos": VIDEOS, "audios": SOUNDS, "audio": SOUNDS},
    **{"latents": LATENTS, "image": PICTURES},
}


@dataclass(frozen=True)
class Comparison:
    full: Tensor  # [seed, …]; pictures and videos in [-1, 1]
    held: Tensor
    plain: Tensor | None  # None: nothing was held, or the pipeline cannot take so few steps
    seconds: dict[str, float]  # of one seed: full, held, plain
    summary: Summary
    what: str = PICTURES  # what was drawn

    @property
    def decibels(self) -> dict[str, list[float]]:
        """PSNR to the full run, for each seed."""
        runs = {"held": self.held, **({} if self.plain is None else {"plain": self.plain})}
        distance = psnr if self.seen else psnr_without_range
        return {name: distance(run, self.full).tolist() for name, run in runs.items()}

    @property
    def seen(self) -> bool:
        """Whether the results are looked at."""
        return self.what in (PICTURES, VIDEOS)

    @property
    def speedup(self) -> float:
        return self.seconds["full"] / self.seconds["held"]

    @property
    def verdict(self) -> str:
        found = self.decibels
        near = of_pictures(found["held"], self.what, self.seen)
        said = f"With {self.summary.computed_steps} of {self.summary.steps} steps computed, {near}."
        if self.summary.in_full_because:
            said = f"{said} Nothing is gained: {self.summary.in_full_because}."
        if self.plain is None:
            some = self.summary.computed_steps < self.summary.steps
            return f"{said} Fewer plain steps could not be drawn, so there is no rival." if some else said
        held, plain = np.mean(found["held"]), np.mean(found["plain"])
        if not np.isfinite(held):
            return said
        if held - plain < NEARER:
            return f"{said} As many plain steps are about as good ({plain:.1f} dB): use plain steps."
        return f"{said} As many plain steps reach {plain:.1f} dB, {held - plain:.1f} dB less."

    def __str__(self) -> str:
        found = self.decibels
        lines = [self.verdict, f"{'':8}{'seconds':>9}{'dB to full':>12}"]
        for name, seconds in self.seconds.items():
            mean = np.mean(found[name]) if name in found else None
            near = "" if mean is None else "identical" if mean == np.inf else f"{mean:.1f}"
            lines.append(f"{name:8}{seconds:9.2f}{near:>12}")
        return "\n".join([*lines, f"{self.speedup:.2f} times as fast, the whole pipeline."])

    def save(self, path: str | Path) -> None:
        """A sheet of pictures, a row for each run."""
        if not self.seen:
            raise UsageError(f"{self.what.capitalize()} cannot be shown. Compare with output_type='pt'.")
        runs = {"full": self.full, "held": self.held, **({} if self.plain is None else {"plain": self.plain})}
        pictures = torch.stack([_shown(run) for run in runs.values()])
        save_image(labelled_grid(pictures, list(runs), scale=1), Path(path))


def compare(
    pipe: Any, *, seeds: int | Sequence[int] = 4, budget: float | None = None, options: Any = None, **call: Any
) -> Comparison:
    """Draw a request in full, with held steps and with fewer steps, from the same noise.

    seeds    the number of seeds, or the seeds themselves
    budget   or another option of `tenuto.enable` (evaluations, speedup, quality, …); by default those that the
             pipeline has
    options  the same as a dictionary, for options that are also arguments of the pipeline
    call     what the pipeline is called with: prompt, num_inference_steps, …
    """
    numbers = _numbers(seeds)
    before = state_of(pipe)
    if "generator" in call:
        raise UsageError("Give seeds instead of a generator: every run begins from the same noise.")
    named = _options_among(call, pipe)
    call = {name: value for name, value in call.items() if name not in (*named, "return_dict")}
    settings = {"budget": budget, **named, **(options or {})}
    if before is not None and budget is None and not named and not options:
        settings = before.request.settings()
    disable(pipe)
    try:
        full, what, full_seconds = _drawn(pipe, numbers, call)
        with accelerated(pipe, **settings):
            held, _, held_seconds = _drawn(pipe, numbers, call)
            told = summary(pipe)
        plain, plain_seconds = None, {}
        if told.computed_steps < told.steps:
            try:
                fewer, _, seconds = _drawn(pipe, numbers, {**call, **_fewer(pipe, call, told)})
                plain, plain_seconds = fewer, {"plain": seconds}
            except (TypeError, ValueError, UsageError):  # sigmas or timesteps were given, or it needs more steps
                pass
    finally:
        if before is not None:
            enable(pipe, **before.request.settings())
    if str(call.get("output_type")).startswith("latent"):
        what = LATENTS
    elif full.abs().max() > 1 and what in (PICTURES, VIDEOS):
        what = RESULTS  # no picture has such values
    if what in (PICTURES, VIDEOS):
        full, held, plain = _scaled(full, held, plain)
    return Comparison(full, held, plain, {"full": full_seconds, "held": held_seconds, **plain_seconds}, told, what)


def _options_among(call: dict[str, Any], pipe: Any) -> dict[str, Any]:
    """The options of `enable` among the arguments. Many pipelines silently ignore arguments that they do not know."""
    own, known = inspect.signature(type(pipe).__call__).parameters, option_names()
    others = {name: value for name, value in call.items() if name not in own}
    for name in others:
        if name == "steps":
            raise UsageError("The number of steps is called num_inference_steps, as in a call of the pipeline.")
        if name not in known and (near := get_close_matches(name, known, 1, ALIKE)):
            raise UsageError(f"There is no option {name!r}. Did you mean {near[0]}?")
    return {name: value for name, value in others.items() if name in known}


def _numbers(seeds: Any) -> list[int]:
    """A list of seeds, from the number of seeds or from the seeds themselves."""
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        check_whole("The number of seeds", seeds, most=MOST_SEEDS)
        return list(range(int(seeds)))
    numbers = list(islice(seeds, MOST_SEEDS + 1))
    if not 1 <= len(numbers) <= MOST_SEEDS:
        raise UsageError(f"Between 1 and {MOST_SEEDS} seeds can be compared, not {len(numbers)} or more.")
    for one in numbers:
        check_whole("A seed", one, -(2**63), 2**63)
    return numbers


def _scaled(full: Tensor, held: Tensor, plain: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """All runs in [-1, 1]. Only the full run shows whether values are in [0, 1]: others may lie a little outside."""
    if full.min() < 0 or full.max() > 1:
        return full, held, plain
    return full * 2 - 1, held * 2 - 1, None if plain is None else plain * 2 - 1


def _fewer(pipe: Any, call: dict[str, Any], told: Summary) -> dict[str, int]:
    """The argument that makes a pipeline take as many steps as were computed."""
    name = "num_inference_steps"
    if name not in inspect.signature(type(pipe).__call__).parameters:
        raise UsageError(f"A {type(pipe).__name__} does not say how many steps it takes.")
    if any(call.get(given) is not None for given in ("sigmas", "timesteps")):
        raise UsageError("The sigmas or timesteps that were given decide the number of steps.")
    asked = call.get(name, told.steps)
    return {name: max(1, round(asked * told.computed_steps / told.steps))}


def _drawn(pipe: Any, seeds: Sequence[int], call: dict[str, Any]) -> tuple[Tensor, str, float]:
    """The results of every seed, what they are, and the median of the seconds that one took."""
    results, seconds, what = [], [], ""
    for seed in seeds:
        began = time.perf_counter()
        what, found = _found(pipe(**call, generator=torch.Generator().manual_seed(seed)))
        results.append(_tensor(found))
        seconds.append(time.perf_counter() - began)
    return torch.stack(results), what, float(np.median(seconds))


def _found(result: Any) -> tuple[str, Any]:
    """(what a pipeline drew, the results). A modular pipeline returns its whole state, with the results among it."""
    if isinstance(result, tuple | list | Tensor):
        return PICTURES, result
    values = getattr(result, "values", None)
    named = values if isinstance(values, dict) else vars(result)
    name = next((one for one in KINDS if named.get(one) is not None), next(iter(named), ""))
    return KINDS.get(name, RESULTS), named.get(name)


def _tensor(found: Any) -> Tensor:
    """Results as one tensor; pictures of 8 bits as values in [0, 1]."""
    while isinstance(found, tuple | list):
        found = torch.stack([_tensor([one]) for one in found]) if len(found) > 1 else found[0]
    if isinstance(found, Image.Image):
        found = np.asarray(found.convert("RGB"), dtype=np.float32) / 255
    return torch.as_tensor(found).float().cpu()


def _shown(run: Tensor) -> Tensor:
    """[seed, C, H, W]: one picture of each result: the picture itself, or the first frame of a video."""
    first = run
    while first.dim() > 4:
        first = first[:, 0]
    if first.dim() == 4 and first.shape[-1] in (1, 3):
        first = first.movedim(-1, 1)
    if first.dim() != 4 or first.shape[1] not in (1, 3):
        raise UsageError(f"Results of shape {list(run.shape[1:])} are no pictures, so there is nothing to show.")
    return torch.nn.functional.interpolate(first, scale_factor=min(1.0, WIDEST / first.shape[-1]), mode="area")
