"""All rivals for pictures by name: what each draws from the same noise with N evaluations.

    for name, setting, evaluations, x in rival_points(model, classes, noise, T=50, N=10): …

Most rivals have several settings. Each is drawn, so that a judge can choose the best with hindsight (`best_points`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto_lab.rivals import dynamic, whole_output
from tenuto_lab.rivals.noise_prediction import Denoiser, timed_each
from tenuto_lab.rivals.strong_solvers import ORDERS, Setting, sample, settings

SOLVERS = tuple(Setting(method, order).solver for method, orders in ORDERS.items() for order in orders)
WHOLE_OUTPUT = tuple(whole_output.methods())
DYNAMIC = dynamic.NAMES
NAMES = (*SOLVERS, *WHOLE_OUTPUT, *DYNAMIC)


class RivalPoint(NamedTuple):
    """What a rival drew at one setting, or why it cannot.

    evaluations  of the network, both halves of guidance together; a share of one if only some blocks were computed
    x            the samples [B, C, H, W], or the reason why there are none
    seconds      that this draw took, without a search for its threshold. Rivals run eagerly, without CUDA graphs
    """

    name: str
    setting: str
    evaluations: float
    x: Tensor | str
    seconds: float = 0.0


def rival_points(
    model: Model,
    conditions: Sequence[Any],
    noise: Tensor,
    T: int,
    N: int,
    names: Iterable[str] | None = None,
    *,
    guidance: float | None = None,
    among: Collection[str] | None = None,
) -> Iterator[RivalPoint]:
    """Every setting of the named rivals, all by default.

    conditions  the classes or captions, one for each sample of the noise [B, C, H, W]
    T           steps of the run that caches hold; solvers take N steps instead
    N           evaluations: exact for solvers and whole-output caches, about N for caches that decide while they run
    among       settings of solvers that are tried, by their names; all by default
    """
    chosen = NAMES if names is None else tuple(names)
    if unknown := [name for name in chosen if name not in NAMES]:
        raise UsageError(f"There is no rival {unknown[0]!r}; there are {', '.join(NAMES)}.")
    if len(conditions) != len(noise):
        raise UsageError(f"There are {len(conditions)} requests for {len(noise)} samples of noise.")
    if not 1 <= N <= T:
        raise UsageError(f"Between 1 and {T} evaluations fit in {T} steps, not {N}.")
    noise = noise.to(model.device, torch.float32)
    for name in chosen:
        if name in SOLVERS:
            yield from _solver_points(name, model, conditions, noise, N, guidance, among)
        else:
            family = _whole_output_points if name in WHOLE_OUTPUT else _dynamic_points
            yield from family(name, model, conditions, noise, T, N, guidance)


def best_points(points: Iterable[RivalPoint], judge: Callable[[Tensor], float]) -> dict[str, tuple[float, RivalPoint]]:
    """The best setting of each rival, and its judgement. A rival that drew nothing keeps its reason and judges −∞."""
    found: dict[str, tuple[float, RivalPoint]] = {}
    for point in points:
        score = judge(point.x) if isinstance(point.x, Tensor) else float("-inf")
        score = score if score == score else float("-inf")  # not a number: the run diverged
        if point.name not in found or score > found[point.name][0]:
            found[point.name] = score, point
    return found


def settings_of(name: str, among: Collection[str] | None = None) -> list[Setting]:
    """The settings of a solver, all or those among some."""
    own = [setting for setting in settings() if setting.solver == name]
    return own if among is None else [setting for setting in own if str(setting) in among]


def _solver_points(
    name: str,
    model: Model,
    conditions: Sequence[Any],
    noise: Tensor,
    N: int,
    guidance: float | None,
    among: Collection[str] | None,
) -> Iterator[RivalPoint]:
    denoiser = Denoiser(model, conditions, guidance)
    chosen = settings_of(name, among)
    drawn = (_tried(denoiser, noise, setting, N) for setting in chosen)
    for setting, (x, seconds) in zip(chosen, timed_each(drawn, noise.device), strict=True):
        yield RivalPoint(name, str(setting), denoiser.evaluations, x, seconds)
        denoiser.evaluations = 0


def _tried(denoiser: Denoiser, noise: Tensor, setting: Setting, N: int) -> Tensor | str:
    try:
        return sample(denoiser, denoiser.noise, noise, setting, N)
    except UsageError as reason:  # the levels have no N different steps
        return str(reason)


def _whole_output_points(
    name: str, model: Model, conditions: Sequence[Any], noise: Tensor, T: int, N: int, guidance: float | None
) -> Iterator[RivalPoint]:
    denoiser = Denoiser(model, conditions, guidance)
    drawn = whole_output.draws(name, denoiser, denoiser.noise, noise, T, N)
    for (cache, x), seconds in timed_each(drawn, noise.device):
        yield RivalPoint(name, str(cache), denoiser.evaluations, x, seconds)
        denoiser.evaluations = 0


def _dynamic_points(
    name: str, model: Model, conditions: Sequence[Any], noise: Tensor, T: int, N: int, guidance: float | None
) -> Iterator[RivalPoint]:
    for drawn in dynamic.draws(name, dynamic.Case(model, conditions, noise, T, guidance), N):
        if isinstance(drawn, str):
            yield RivalPoint(name, "", 0, drawn)
        else:
            setting, run = drawn
            yield RivalPoint(name, setting, run.evaluations, run.x, run.seconds)
