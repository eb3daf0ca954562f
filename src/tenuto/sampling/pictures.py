"""Images from noise: the sampling loop of image models, by class or by caption, through diffusers' schedulers."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tenuto.errors import LARGEST, CheckpointError, UsageError, check_whole, is_number
from tenuto.models import Model
from tenuto.models.architecture import NoiseLevels
from tenuto.models.solvers import Solver, nature_for, solver_for
from tenuto.runtime.executor import Executor, Mode, executor_for
from tenuto.runtime.pacing import Pace, check_quality
from tenuto.runtime.residual import plain
from tenuto.runtime.stepping import Stepping
from tenuto.scheduling.placement import asked_ahead
from tenuto.scheduling.refresh import refresh
from tenuto.scheduling.schedule import Schedule, opened
from tenuto.scheduling.units import Unscored

Watch = Callable[[int, Tensor, Tensor], object]
Told = Callable[[int, float | None], object]
ASKED_BY = {  # how a model is told what to make
    "class": "What to draw is given as classes=[…].",
    "caption": "What to draw is given as captions=[…].",
    "prompt": "Text is written by tenuto.generate_text.",
}
NAMED = 3  # classes that an error names
PREPARED_BYTES = 32 * 2**20  # of conditioning computed ahead at once; more takes memory and saves little


@dataclass(frozen=True)
class Sampling:
    """How to get from noise to a picture."""

    steps: int = 50  # network evaluations: both solvers evaluate once a step
    solver: Solver = "ddim"
    guidance: float | None = None  # w in ε_null + w (ε_class − ε_null); 1 means none, and costs half; None: the model's
    guided_channels: int | None = None  # all noise channels by default; the DiT reference's own script guides 3 of 4
    quality: float | None = None  # dB to the full run; the steps that are evaluated are then chosen on the way

    def __post_init__(self) -> None:
        check_whole("The number of steps", self.steps, most=1000)
        if self.solver not in ("ddim", "dpm++"):
            raise UsageError(f"The solver is ddim or dpm++, not {self.solver!r}.")
        if self.guidance is not None and (not is_number(self.guidance) or not 0 <= self.guidance < math.inf):
            raise UsageError(f"Guidance must be neither negative nor infinite, and {self.guidance} is.")
        if self.quality is not None:
            check_quality(self.quality)
        if self.guided_channels is not None:
            check_whole("The number of guided channels", self.guided_channels)


def generate(model: Model, classes: Sequence[int | str] | None = None, **options: Any) -> Tensor:
    """All samples at once, [len(wanted), C, H, W]; the options are those of `generate_batches`."""
    return torch.cat(list(generate_batches(model, classes, **options)))


def generate_batches(
    model: Model,
    classes: Sequence[int | str] | None = None,
    *,
    captions: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    seed: int = 0,
    sampling: Sampling | None = None,
    schedule: Schedule | str | Path | None = None,
    mode: Mode = "auto",
    compiled: bool = False,
    executor: Executor | None = None,
    batch: int = 16,
    progress: Callable[[int], object] = lambda images: None,
    watch: Watch | None = None,
    told: Told | None = None,
    **options: Any,
) -> Iterator[Tensor]:
    """Images or latents, one for each class or caption, in batches: each [B, C, H, W], nominally in [-1, 1].

    classes   numbers or names, if the model draws classes; if it draws captions, give `captions`
    seeds     one for each sample; by default seed, seed + 1, …. Noise depends only on a sample's own seed, so
              results do not depend on how samples are batched
    schedule  a schedule, or its file
    mode      how the schedule is run: auto, eager, skip or jagged (see tenuto.runtime.executor)
    compiled  compile the network's branches first, each kind once
    executor  your own executor, instead of `schedule`, `mode` and `compiled`
    progress  called after every step with the number of images in the batch
    watch     called at every step that holds the output, with the step, the predicted output and the exact output,
              which is computed for this purpose only
    told      called after each batch whose outputs are held, with the number of evaluations and the estimated distance
              to the full run (dB, of the worst sample; None if it cannot be told)
    options   fields of `Sampling` (steps, solver, guidance, guided_channels, quality), instead of `sampling`; by
              default steps are the schedule's
    """
    if not isinstance(model, Model):
        raise UsageError(f"A loaded model is needed: tenuto.load(…) gives one, not a {type(model).__name__}.")
    if sampling is not None and options:
        raise UsageError("Give `sampling` or its fields, not both.")
    if unknown := [name for name in options if name not in Sampling.__dataclass_fields__]:
        known = ", ".join(Sampling.__dataclass_fields__)
        hint = f" {ASKED_BY[model.architecture.asks_for]}" if unknown[0].startswith("prompt") else ""
        raise UsageError(f"There is no option {unknown[0]!r}; the options of sampling are {known}.{hint}")
    schedule = opened(schedule)
    if executor is not None:
        if schedule is not None or mode != "auto" or compiled:
            raise UsageError("Give an executor, or what to make one of (schedule, mode, compiled), not both.")
        schedule = executor.schedule
    if schedule is not None and sampling is None:
        options = {"steps": schedule.steps, **options}
    sampling = sampling or Sampling(**options)
    if sampling.quality is not None:
        if schedule is not None and (not schedule.active.all() or schedule.keep != "output"):
            raise UsageError("A schedule says which steps are evaluated: give it or a quality, not both.")
        schedule = schedule or every_step(model, sampling.steps)
    wanted = _wanted(model, classes, captions)
    if seeds is None:
        check_whole("seed", seed, -(2**63), 2**63)
        seeds = [seed + i for i in range(len(wanted))]
    _check_request(model, wanted, seeds, sampling, schedule, batch)
    executor = executor or executor_for(model.network, schedule, mode, compiled)
    for chunk, noise in _batches(model, wanted, seeds, batch):
        yield _sample_batch(model, executor, chunk, noise, sampling, progress, watch, told)


def every_step(model: Model, steps: int) -> Schedule:
    """A schedule that evaluates every step; with a quality, some of them are left out on the way."""
    return refresh(Unscored(model.name, model.architecture.name, model.units), steps, evaluations=steps)


@torch.inference_mode()
def _sample_batch(
    model: Model,
    executor: Executor,
    wanted: Sequence[Any],
    x: Tensor,
    sampling: Sampling,
    progress: Callable[[int], object],
    watch: Watch | None,
    told: Told | None,
) -> Tensor:
    by_class = model.architecture.asks_for == "class"
    guided = guidance_of(model, sampling) != 1
    conditions = (_class_conditions if by_class else _caption_conditions)(model, wanted, guided)
    return denoised(model, executor, conditions, x, sampling, progress, watch, told)


def guidance_of(model: Model, sampling: Sampling) -> float:
    """The scale that was asked for, or the model's own."""
    return model.guidance if sampling.guidance is None else sampling.guidance


def denoised(
    model: Model,
    executor: Executor,
    conditions: Sequence[Any],
    x: Tensor,
    sampling: Sampling,
    progress: Callable[[int], object] = lambda images: None,
    watch: Watch | None = None,
    told: Told | None = None,
) -> Tensor:
    """From noise to samples. With guidance, the conditions are those with the request, then those without."""
    assert model.levels is not None
    solver = make_solver(model.levels, sampling)
    guidance = guidance_of(model, sampling)
    guided = guidance != 1
    first = getattr(model.config, "first_timestep", 0)
    times = (solver.timesteps + first).to(model.device)  # all at once: nothing in the loop waits for a copy
    evaluate, schedule = executor.start(), executor.schedule
    stepping, computed = None, list(executor.full_steps)
    if schedule is not None and executor.keep == "output":
        nature = nature_for(model.levels, sampling.steps, sampling.solver)
        assert nature.levels is not None, "our own solvers' levels are known"
        pace = None if sampling.quality is None else Pace(sampling.quality, nature.levels)
        ahead = asked_ahead(computed, nature.levels.log_snr) if schedule.ahead else 0
        stepping = Stepping(solver, nature, computed, schedule.order, schedule.corrected, pace, True, ahead)
        times[0] = times[ahead]
    needed = [watch is not None or executor.evaluates(step) for step in range(len(times))]
    ready = prepared(model.network, times, conditions, needed)

    def noise(run: Callable[..., Any], time: Tensor, named: dict[str, Any], x: Tensor) -> Tensor:
        inputs = torch.cat([x, x]) if guided else x
        output = run(inputs.to(model.dtype), time.expand(len(inputs)), *conditions, **named)
        found = output[:, : x.shape[1]].float()  # without a learned variance, which these solvers do not use
        return guide(found, guidance, sampling.guided_channels) if guided else found

    for step, (t, time, named) in enumerate(zip(solver.timesteps, times, ready, strict=True)):

        def take(output: Tensor, sample: Tensor, t: Any = t) -> Any:
            return solver.step(output, t, sample, return_dict=False)

        if stepping is None:
            x = take(noise(evaluate, time, named, x), x)[0]
        elif computed[step]:
            asked = stepping.asked_with(step, x)
            x = stepping.refresh(step, take, noise(partial(evaluate.evaluate_at, step), time, named, asked), x)[0]
        else:
            if watch is not None:
                exact = noise(partial(executor.network, residual=plain), time, named, x)
                watch(step, stepping.predicted(step, x), exact)
            x = stepping.hold(step, take, x)[0]
        progress(len(x))
    if told is not None and stepping is not None:
        told(sum(computed), stepping.estimated)
    return x


def prepared(
    network: Any, times: Tensor, conditions: Sequence[Any], needed: Sequence[bool]
) -> Iterator[dict[str, Any]]:
    """For each needed timestep, the arguments that the network can compute ahead; for the others, no arguments."""
    ready: Iterator[dict[str, Any]] = iter(())
    if hasattr(network, "prepare") and any(needed):
        wanted = torch.stack([time for time, is_needed in zip(times, needed, strict=True) if is_needed])
        count = max(1, PREPARED_BYTES // network.prepared_bytes(len(conditions[0])))  # timesteps at once
        ready = (each for chunk in wanted.split(count) for each in network.prepare(chunk, *conditions))
    yield from (next(ready, {}) if is_needed else {} for is_needed in needed)


def _class_conditions(model: Model, classes: Sequence[int], guided: bool) -> tuple[Tensor]:
    labels = torch.tensor(classes, device=model.device)
    if guided:
        labels = torch.cat([labels, torch.full_like(labels, model.config.null_class)])
    return (labels,)


def _caption_conditions(model: Model, captions: Sequence[str], guided: bool) -> tuple[Any, ...]:
    texts = [*captions, *([""] * len(captions) if guided else [])]  # guidance leads away from the empty caption
    conditions: tuple[Any, ...] = model.text_encoder.conditions(texts, model.config.sample_shape, model.dtype)
    return conditions


def guide(noise: Tensor, guidance: float, channels: int | None = None) -> Tensor:
    """ε_null + w (ε_class − ε_null) from a batch of both halves; unguided channels keep ε_class."""
    conditional, unconditional = noise.chunk(2)
    guided = unconditional + guidance * (conditional - unconditional)
    n = noise.shape[1] if channels is None else channels
    return torch.cat([guided[:, :n], conditional[:, n:]], dim=1)


def make_solver(noise: NoiseLevels, sampling: Sampling) -> Any:
    """diffusers' scheduler for the noise levels a model is trained with."""
    return solver_for(noise, sampling.steps, sampling.solver)


def vae_of(model: Model, path: Path | None = None) -> Any:
    """The VAE that decodes a model's latents, at a path or beside the model; None if the model needs no VAE."""
    beside = None if model.path is None else model.path / "vae"
    path = path or (beside if beside is not None and beside.is_dir() else None)
    channels = model.config.sample_shape[0]
    if path is None and channels not in (1, 3):
        raise UsageError(
            f"{model.name} makes latents of {channels} channels, not pictures, and there is no VAE beside it: name its "
            "VAE (--vae)."
        )
    return None if path is None else load_vae(path, model.device)


def load_vae(path: Path, device: torch.device) -> Any:
    """The VAE in a diffusers directory."""
    from diffusers import AutoencoderKL

    if not path.is_dir():  # otherwise diffusers would look on the hub
        raise CheckpointError(f"{path} holds no VAE: there is no such directory.")
    try:
        return AutoencoderKL.from_pretrained(str(path), low_cpu_mem_usage=False).to(device)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} holds no VAE that diffusers can load: {error}") from error


@torch.inference_mode()
def decode(latents: Tensor, vae: Any) -> Tensor:
    """Pictures from latents."""
    if vae.config.latent_channels != latents.shape[1]:
        raise UsageError(
            f"The VAE decodes {vae.config.latent_channels} channels, but the model makes {latents.shape[1]}."
        )
    return torch.cat([vae.decode(z[None] / vae.config.scaling_factor).sample for z in latents])


def _wanted(model: Model, classes: Sequence[int | str] | None, captions: Sequence[str] | None) -> Sequence[Any]:
    asks_for = model.architecture.asks_for
    given = {"class": classes, "caption": captions}
    if asks_for not in given:
        raise UsageError(f"{model.name} writes text; use generate_text.")
    other = "caption" if asks_for == "class" else "class"
    if given[other] is not None:
        raise UsageError(f"{model.name} is asked for by {asks_for}, not by {other}.")
    wanted: Any = given[asks_for]
    if wanted is None:
        raise UsageError(f"No {asks_for} was asked for.")
    if isinstance(wanted, str) or not hasattr(wanted, "__len__"):
        raise UsageError(f"Classes and captions are a list: give [{wanted!r}].")
    if len(wanted) == 0:
        raise UsageError(f"No {asks_for} was asked for.")
    return [class_index(model, one) for one in wanted] if asks_for == "class" else list(wanted)


def class_index(model: Model, wanted: int | str) -> int:
    """A class by its number or its name."""
    if not isinstance(wanted, str) or wanted.removeprefix("-").isdecimal():
        number = int(wanted) if isinstance(wanted, str) else wanted
        check_whole("A class", number, least=-LARGEST)
        return number
    found = [i for i, label in enumerate(model.labels) if label.lower() == wanted.lower()]
    if not found:
        raise UsageError(f"{model.name} knows no class {wanted!r}.{_near(model, wanted)}")
    return found[0]


def _near(model: Model, wanted: str) -> str:
    """Classes whose names are like this one, or else which classes there are."""
    names = {label.lower(): label for label in model.labels}
    like = [names[one] for one in get_close_matches(wanted.lower(), names, NAMED)]
    return f" Did you mean {' or '.join(like)}?" if like else f" It knows the classes {_range(model)}."


def _range(model: Model) -> str:
    """The numbers of the first and the last class, with their names."""
    names = [f" ({model.labels[i]})" for i in (0, -1)] if model.labels else ["", ""]
    return f"0{names[0]} to {model.config.classes - 1}{names[1]}"


def _batches(
    model: Model, wanted: Sequence[Any], seeds: Sequence[int], batch: int
) -> Iterator[tuple[Sequence[Any], Tensor]]:
    for start in range(0, len(wanted), batch):
        generators = [torch.Generator().manual_seed(s) for s in seeds[start : start + batch]]
        noise = torch.stack([torch.randn(model.config.sample_shape, generator=generator) for generator in generators])
        yield wanted[start : start + batch], noise.to(model.device)


def _check_request(
    model: Model,
    wanted: Sequence[Any],
    seeds: Sequence[int],
    sampling: Sampling,
    schedule: Schedule | None,
    batch: int,
) -> None:
    by_class = model.architecture.asks_for == "class"
    if by_class and model.config.classes < 1:
        raise UsageError(f"{model.name} was trained without classes, and there is no sampler for such a model yet.")
    if by_class and (wrong := [c for c in wanted if not 0 <= c < model.config.classes]):
        raise UsageError(f"{model.name} knows the classes {_range(model)}, not {wrong[0]}.")
    if len(seeds) != len(wanted):
        raise UsageError(f"There must be a seed for each sample: {len(seeds)} seeds, {len(wanted)} samples.")
    check_whole("The size of a batch", batch)
    if schedule is not None:
        model.check_fits(schedule)
        if schedule.steps != sampling.steps:
            raise UsageError(
                f"The schedule is for {schedule.steps} steps and the sampler takes {sampling.steps}. Sample with "
                f"{schedule.steps} steps, or make one with: tenuto schedule {model.name} --steps {sampling.steps}"
            )
