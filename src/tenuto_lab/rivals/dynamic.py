"""Caches that decide while they run, at the threshold that costs about N evaluations.

Their published thresholds belong to other networks. Here the threshold is searched for each network and each N:
quality at equal cost is compared, not the choice of a threshold. The cost counts FLOPs of the units, in full
evaluations.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from torch import Tensor

from tenuto.models import Model
from tenuto.models.architecture import NoiseLevels
from tenuto_lab.rivals.common import Rival
from tenuto_lab.rivals.dual_block import DualBlock
from tenuto_lab.rivals.easy_cache import EasyCache, Hold
from tenuto_lab.rivals.first_block import FirstBlock, first_block
from tenuto_lab.rivals.noise_prediction import Denoiser, timed_each
from tenuto_lab.rivals.strong_solvers import course, integrate
from tenuto_lab.rivals.token_caches import Calibration, MovedInput, MovedSize, TokenCache, filtered
from tenuto_lab.rivals.trunk import why_not
from tenuto_lab.rivals.whole_output import full_run

LOWEST, HIGHEST = 1e-6, 1e3  # thresholds to search between
TRIES = 12  # halvings of the interval between them, in logarithms
NEAR = 0.25  # evaluations: no search goes on from here
FAR = 2.0  # evaluations, or a fifth of N: a setting that cannot come nearer is left out
BLOCK_CACHES = ("FirstBlockCache", "DBCache")
TOKEN_CACHES = ("TeaCache", "SeaCache", "MagCache")
NAMES = (*TOKEN_CACHES, "EasyCache", *BLOCK_CACHES)

Make = Callable[[float], Rival]  # threshold -> cache


class Run(NamedTuple):
    """The samples of a cache, and what they cost."""

    evaluations: float
    x: Tensor
    seconds: float = 0.0


@dataclass(frozen=True)
class Case:
    """What every cache draws: the requests, from the same noise, in T steps of the default scheduler."""

    model: Model
    wanted: Any
    noise: Tensor
    steps: int
    guidance: float | None = None

    @property
    def levels(self) -> NoiseLevels:
        assert self.model.noise is not None
        return self.model.noise

    def draw(self, rival: Rival) -> Run:
        rival.forget()
        denoiser = Denoiser(self.model, self.wanted, self.guidance, rival)
        path = course(self.levels, full_run(self.levels), self.steps)
        runs = (integrate(denoiser, path, noise) for noise in [self.noise])
        x, seconds = next(timed_each(runs, self.noise.device))
        cost = rival.flop_work(self.model.units) * self.steps if rival.met else float(self.steps)
        return Run(cost, x, seconds)


def unable(name: str, model: Model) -> str | None:
    """Why a cache cannot run on a model; None if it can."""
    if name in TOKEN_CACHES:
        return why_not(model.network)
    if name == "EasyCache" and getattr(model.config, "learn_sigma", False):
        return "the network also predicts a variance, so its output has another shape than its input"
    if name == "DBCache" and (reason := why_not(model.network)) is not None:
        return f"{reason}; cache-dit supports transformers only"
    return None


def draws(name: str, case: Case, evaluations: float) -> Iterator[tuple[str, Run] | str]:
    """Each setting of a cache that costs about N evaluations, with its samples; a reason if the cache cannot run."""
    if (reason := unable(name, case.model)) is not None:
        yield reason
        return
    found = False
    for setting, make in _settings(name, case, evaluations):
        threshold, run = at_cost(lambda one, make=make: case.draw(make(one)), evaluations)  # type: ignore[misc]
        if abs(run.evaluations - evaluations) <= max(FAR, evaluations / 5):
            found = True
            yield ", ".join(filter(None, [setting, f"threshold {threshold:.3g}"])), run
    if not found:
        yield f"no threshold costs about {evaluations:g} of {case.steps} evaluations"


def at_cost(run: Callable[[float], Run], wanted: float) -> tuple[float, Run]:
    """The threshold whose run costs nearest to what is wanted, and its run.

    A higher threshold costs less, so a bisection finds it.
    """
    low, high = math.log(LOWEST), math.log(HIGHEST)
    nearest: tuple[float, Run] | None = None
    for _ in range(TRIES):
        threshold = math.exp((low + high) / 2)
        one = run(threshold)
        if nearest is None or abs(one.evaluations - wanted) < abs(nearest[1].evaluations - wanted):
            nearest = threshold, one
        if abs(one.evaluations - wanted) < NEAR:
            break
        low, high = ((low + high) / 2, high) if one.evaluations > wanted else (low, (low + high) / 2)
    assert nearest is not None
    return nearest


def _settings(name: str, case: Case, evaluations: float) -> Iterator[tuple[str, Make]]:
    network, steps = case.model.network, case.steps
    units = [unit.name for unit in case.model.units]
    if name == "TeaCache":
        changed = _calibrated(case).polynomial()
        yield "fitted", lambda one: TokenCache(network, lambda: MovedInput(steps, one, changed))
        yield "not fitted", lambda one: TokenCache(network, lambda: MovedInput(steps, one))
    elif name == "SeaCache":
        sigmas = course(case.levels, full_run(case.levels), steps).sigmas
        yield (
            "",
            lambda one: TokenCache(
                network, lambda: MovedInput(steps, one, seen=lambda stem, step: filtered(stem, sigmas[step]))
            ),
        )
    elif name == "MagCache":
        ratios = _calibrated(case).ratios
        for retained, longest in product((0.1, 0.0), (round(1.5 * steps / evaluations), steps)):
            yield f"retained {retained:g}, longest {longest}", _mag_cache(network, ratios, longest, retained)
    elif name == "EasyCache":
        holds: tuple[Hold, ...] = ("difference", "output")
        for retained, hold in product((10, 3, 2), holds):
            if retained < evaluations - 1:
                yield f"retained {retained}, {hold} held", _easy_cache(network, steps, retained, hold)
    elif name == "FirstBlockCache":
        yield "", lambda one: FirstBlock(network, first_block(units), one)
    else:
        for first, last in ((1, 0), (2, 0), (1, 1)):
            for order in (0, 1):
                yield f"F{first}B{last}, order {order}", _dual_block(network, units, first, last, order)


def _calibrated(case: Case) -> Calibration:
    """A full run of the same samples, so the calibration is as good as it can be."""
    calibration = Calibration(case.model.network)
    case.draw(calibration)
    return calibration


def _mag_cache(network: Any, ratios: list[float], longest: int, retained: float) -> Make:
    return lambda one: TokenCache(network, lambda: MovedSize(ratios, one, longest, retained))


def _easy_cache(network: Any, steps: int, retained: int, hold: Hold) -> Make:
    return lambda one: EasyCache(network, steps, one, retained, hold)


def _dual_block(network: Any, units: list[str], first: int, last: int, order: int) -> Make:
    return lambda one: DualBlock(network, units, one, first, last, order=order, warmup=2)
