"""`tenuto.schedule`: decides what is computed at which step."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from tenuto.errors import UsageError
from tenuto.laboratory import offered
from tenuto.models import Model, Stored, architecture, architectures, open_model
from tenuto.models.architecture import Architecture, ConfigError
from tenuto.scheduling.schedule import Schedule
from tenuto.scheduling.units import WHOLE, Subject, Unscored

FEW_STEPS = 12  # with so many steps or fewer, users are told what can be gained
Policy = Literal["refresh", "rewrite", "lifetimes"]


@dataclass(frozen=True)
class PolicyKind:
    """A scheduling policy: its options besides steps and budget, and whether it reads scores.

    The policy, its function and the function's module share one name. The module is imported when it is needed. A
    policy that reads scores is the laboratory's.
    """

    name: str
    options: tuple[str, ...]
    reads_scores: bool = False

    @property
    def make(self) -> Callable[..., Schedule]:
        home = None if self.reads_scores else import_module(f"tenuto.scheduling.{self.name}")
        made: Callable[..., Schedule] = offered(self.name) if home is None else getattr(home, self.name)
        return made


POLICIES: Mapping[str, PolicyKind] = {
    "refresh": PolicyKind("refresh", ("evaluations", "every", "predict", "keep", "correction", "log_snr", "ahead")),
    "rewrite": PolicyKind("rewrite", ("every", "blocks", "rows", "held")),
    "lifetimes": PolicyKind("lifetimes", ("tau", "min_lifetime", "predict", "keep", "granularity"), reads_scores=True),
}


def subject_of(source: Any) -> Subject:
    """What a schedule is made for: scores, or a model's units. This reads no weight."""
    if isinstance(source, Subject):
        return source
    if isinstance(source, str | Path):
        source = open_model(str(source))
    if isinstance(source, Model | Stored):
        return Unscored(source.name, source.architecture.name, source.units)
    from tenuto.models.diffusers.denoisers import denoiser_of

    name = type(denoiser_of(source)).__name__
    return Unscored(name, name, offered("denoiser_units")(source) or (WHOLE,))


def schedule(
    source: Subject | Model | Stored | str | Path | Any,
    steps: int,
    *,
    budget: float | None = None,
    speedup: float | None = None,
    policy: Policy | None = None,
    **options: Any,
) -> Schedule:
    """A schedule for `steps` network evaluations. Usually a budget or a speed-up is all it needs.

    source   a model, its name or path, a pipeline or its denoiser; or scores. Only lifetimes reads scores, and computes
             them if a model is given
    budget   share of unit-steps to compute; by default 0.25 (lifetimes: what tau = 1 gives)
    speedup  instead of a budget: how many times as fast as full inference
    policy   refresh: compute everything every few steps, and extrapolate in between; the default for pictures
             rewrite: the same for text, but compute held units at the positions that matter; the default for text
             lifetimes: the paper's policy; compute each unit until its lifetime ends, then hold it to the end
    options  of the policy, instead of its own choices. refresh: evaluations, every, predict, keep, correction, log_snr,
             ahead; rewrite: every, blocks, rows, held; lifetimes: tau, min_lifetime, predict, keep, granularity
    """
    if isinstance(source, str | Path):
        source = open_model(str(source))
    subject = subject_of(source)
    family = family_of(subject)
    text = family is not None and family.asks_for == "prompt"
    policy = policy or ("rewrite" if text else "refresh")
    if policy not in POLICIES:
        raise UsageError(f"The policy is one of {', '.join(POLICIES)}, not {policy!r}.")
    kind = POLICIES[policy]
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in kind.options:
            owners = [other for other, one in POLICIES.items() if name in one.options]
            belongs = f"belongs to the policy {' or '.join(owners)}" if owners else "is an option of no policy"
            raise UsageError(f"{name} {belongs}, not to {policy}." if owners else f"{name} {belongs}.")
    if policy == "rewrite" and not text:
        raise UsageError(f"rewrite is for language models, and {subject.model} draws; take refresh.")
    if speedup is not None:
        if budget is not None:
            raise UsageError("Give a budget or a speed-up, not both: one follows from the other.")
        free = policy == "refresh" and given.get("keep", "output") == "output"  # steps in between cost nothing
        budget = budget_for(speedup, 0.0 if free or family is None else family.held_time)
    if budget is not None:
        given["budget"] = budget
    if policy == "refresh" and "every" not in given and "log_snr" not in options:
        ours = isinstance(source, Subject | Model | Stored)  # pipelines cannot ask ahead
        given |= {"log_snr": _log_snr(source, family, steps), "ahead": ours, **given}
    if kind.reads_scores and isinstance(subject, Unscored):
        subject = offered("score")(source)
    return kind.make(subject, steps, **given)


def _log_snr(source: Any, family: Architecture | None, steps: int) -> Sequence[float] | None:
    """The noise levels of our own sampler's default solver; None if they are unknown."""
    from tenuto.models.solvers import nature_for

    noise = None if family is None else family.noise
    if isinstance(source, Model | Stored):
        with suppress(ConfigError):  # our own sampler refuses such a network, and another may draw it
            noise = source.levels
    if noise is None or not isinstance(steps, int) or not 2 <= steps <= noise.timesteps:
        return None
    try:
        levels = nature_for(noise, steps).levels
    except UsageError:
        return None
    return None if levels is None else levels.log_snr


def budget_for(speedup: float, held_time: float) -> float:
    """The budget for a speed-up. held_time: the share of the time that a network takes if everything is held"""
    if isinstance(speedup, bool) or not isinstance(speedup, int | float) or not 1 <= speedup < math.inf:
        raise UsageError(f"A speed-up is a number from 1 on, not {speedup!r}.")
    budget = (1 / speedup - held_time) / (1 - held_time)
    if budget <= 0:
        raise UsageError(
            f"It cannot become {speedup:g} times as fast: the parts that are never held take {held_time:.0%} of the "
            f"time, so it stays less than {1 / held_time:.1f} times as fast."
        )
    return budget


def family_of(subject: Subject) -> Architecture | None:
    """The architecture of a subject, by its own name or diffusers'; None if it is not known."""
    if subject.architecture in architectures():
        return architecture(subject.architecture)
    known = map(architecture, architectures()) if subject.architecture[:1].isupper() else ()  # as diffusers' classes
    return next((one for one in known if subject.architecture in one.class_names), None)


def advice(made: Schedule, text: bool) -> str | None:
    """A warning if a schedule gains little or loses much; None if there is nothing to warn about."""
    from tenuto.scheduling.refresh import LEAST

    idle = int((~made.active).all(axis=0).sum())
    if text and made.rows == "none" and idle:
        return (
            f"At {idle} of {made.steps} steps every unit is held. A language model has no timestep, so this is "
            f"the same as taking {made.steps - idle} steps. Take so many steps, or compute some rows."
        )
    refreshes = int(made.full_steps.sum())
    if not text and idle and refreshes < LEAST:
        compute = "computes" if refreshes == 1 else "compute"
        return (
            f"Only {refreshes} of {made.steps} steps {compute} everything, which is too few to extrapolate from: "
            f"a good solver with {max(refreshes, 5)} to {2 * LEAST} full steps (dpm++) may serve you better."
        )
    asked_for_less = (made.policy.get("budget") or 0) < 1
    if not text and made.keep == "output" and made.steps <= FEW_STEPS and asked_for_less:
        return _few(made.steps, refreshes, LEAST)
    return None


def _few(steps: int, evaluations: int, least: int) -> str | None:
    """What few steps gain, and what that costs (`python -m benchmarks.few_steps`); None if all is well."""
    if evaluations >= steps:
        all_of_them = "The only step is" if steps == 1 else f"All {steps} steps are"
        why = "so few steps leave nothing to predict from"
        return f"{all_of_them} evaluated, and nothing is gained: {why}." if steps <= least else None
    if steps > 8 and 3 * evaluations >= 2 * steps:
        return None
    gain = f"{evaluations} of {steps} steps are evaluated: at most {steps / evaluations:.2f} times as fast."
    if steps <= 8:
        return f"{gain} With so few steps, {evaluations} plain steps of the same scheduler may come as near."
    better = -(-2 * steps // 3)
    return f"{gain} With so few steps the picture changes less if two thirds are evaluated: evaluations={better}."
