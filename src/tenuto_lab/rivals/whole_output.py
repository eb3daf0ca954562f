"""Caches that predict the network's whole output, with exactly N evaluations of T steps.

    for setting, x in draws("ZEUS", denoise, model.noise, noise, steps=50, evaluations=10): …

A method is a predictor (`predictors`, `dmd`) and a rule for which steps are evaluated (`placement`). Most methods leave
choices open, such as an order. Every choice is a setting of the method, so that each can be judged at its best.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.models.architecture import NoiseLevels
from tenuto_lab.rivals.computed_steps import Placement, evenly, growing, named, periodic
from tenuto_lab.rivals.dmd import dmd
from tenuto_lab.rivals.noise_prediction import Denoise
from tenuto_lab.rivals.predictors import (
    Known,
    Predict,
    Target,
    ab_cache,
    foca,
    fsampler,
    hermite,
    spectrum,
    taylor,
    zeus,
)
from tenuto_lab.rivals.strong_solvers import Course, Setting, course, step_from


@dataclass(frozen=True)
class Cache:
    """One setting of a method."""

    predict: Predict
    placement: Placement

    def __str__(self) -> str:
        return ", ".join(filter(None, [self.named_predictor, named(self.placement)]))

    @property
    def named_predictor(self) -> str:
        options = self.predict.keywords if isinstance(self.predict, partial) else {}
        return ", ".join(f"{key} {value}" for key, value in options.items())


@dataclass
class Held:
    """The state of one generation: which steps are evaluated, and what is known of the steps before."""

    predict: Predict
    evaluated: frozenset[int]
    sigmas: Sequence[float]  # of each step
    history: list[Known] = field(default_factory=list)

    def take(self, step: int, x: Tensor, output: Tensor) -> Tensor:
        """Keep an evaluated output."""
        self.history.append(Known(step, self.sigmas[step], x, output))
        return output

    def predicted(self, step: int, x: Tensor) -> Tensor:
        """Predict an output, and keep the prediction."""
        output = self.predict(self.history, Target(step, self.sigmas[step], x, len(self.sigmas)))
        self.history.append(Known(step, self.sigmas[step], x, output, computed=False))
        return output


def methods() -> Mapping[str, tuple[Cache, ...]]:
    """All settings of each method."""
    own = [partial(periodic, warmup=warmup) for warmup in (1, 3)]
    even = [partial(evenly, first=first, last=last) for first, last in ((1, 0), (2, 1), (3, 1))]
    guarded = [partial(evenly, first=first, last=last) for first, last in ((2, 1), (2, 2), (3, 3))]
    fsamplers = [partial(fsampler, points=points, quantity=q) for points in (2, 3, 4) for q in ("noise", "clean")]
    ab_caches = [partial(ab_cache, order=order, of=of) for order in (2, 3) for of in ("all", "computed")]
    # Spectrum predicts tokens before the last normalisation, which forgives a common factor. Its ridge of 0.1
    # shrinks the output itself, so a weaker ridge and a lower degree are settings as well.
    spectra = [
        partial(spectrum, degree=degree, ridge=ridge, blend=blend)
        for degree, ridge in ((4, 0.1), (4, 1e-3), (2, 1e-3))
        for blend in (1.0, 0.5)
    ]
    focas = [partial(foca, scaled=scaled, horizon=horizon) for scaled, horizon in ((False, 3.0), (True, 3.0))]
    hermites = [partial(hermite, order=order, contraction=c) for order in (1, 2, 3) for c in (0.5, 0.7)]
    return {
        "ZEUS": _caches([zeus], guarded),
        "FSampler": _caches(fsamplers, guarded),
        "AB-Cache": _caches(ab_caches, [*own, *even]),
        "Spectrum": _caches(spectra, [growing, partial(growing, warmup=3), *even]),
        "HiCache": _caches(hermites, [*own, *even]),
        "FoCa": _caches([*focas, partial(foca, scaled=True)], [*own, *even]),
        "DMD": _caches([partial(dmd, order=order) for order in (1, 2)], own),
        "TaylorSeer (output)": _caches([partial(taylor, order=order) for order in (1, 2, 3)], [*own, *even]),
    }


def _caches(predictors: Sequence[Predict], placements: Sequence[Placement]) -> tuple[Cache, ...]:
    return tuple(Cache(predict, placement) for predict in predictors for placement in placements)


def full_run(noise: NoiseLevels) -> Setting:
    """The scheduler whose T steps are held: DDIM as the networks here are sampled by default."""
    return Setting("DDIM", 1, "leading", "trained", "zero" if noise.ends_clean else "sigma_min")


def draws(
    method: str,
    denoise: Denoise,
    noise_levels: NoiseLevels,
    noise: Tensor,
    steps: int,
    evaluations: int,
) -> Iterator[tuple[Cache, Tensor]]:
    """The samples of a method from noise [B, C, H, W], with each of its settings. It holds steps of `full_run`."""
    if method not in (known := methods()):
        raise UsageError(f"There is no whole-output cache {method!r}; there are {', '.join(known)}.")
    drawn = set()
    for cache in known[method]:
        same = (cache.named_predictor, cache.placement(steps, evaluations))
        if same in drawn:  # two rules for the same steps
            continue
        drawn.add(same)
        path = course(noise_levels, full_run(noise_levels), steps)
        yield cache, sample_held(denoise, path, noise, cache, evaluations)


@torch.inference_mode()
def sample_held(denoise: Denoise, path: Course, noise: Tensor, cache: Cache, evaluations: int) -> Tensor:
    """Samples from noise along a course, with so many evaluations."""
    steps, x = len(path.times), noise
    held = Held(cache.predict, frozenset(cache.placement(steps, evaluations)), path.sigmas[:-1])
    for step, time in enumerate(path.times):
        output = held.take(step, x, denoise(x, time)) if step in held.evaluated else held.predicted(step, x)
        x = step_from(path, step, x, output)
    return x
