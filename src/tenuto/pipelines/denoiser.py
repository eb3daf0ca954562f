"""One denoiser of an enabled pipeline: its schedules, and what runs them."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from typing import Any

import numpy as np
from torch import nn

from tenuto import deciding
from tenuto.errors import ScheduleError, UsageError
from tenuto.laboratory import offered
from tenuto.models.diffusers.live_weights import weights_seen
from tenuto.models.diffusers.private_diffusers import has_hooks
from tenuto.pipelines.request import Request
from tenuto.pipelines.wrapping import Replacement, is_compiled, is_recordable, through
from tenuto.runtime.executor import Executor, Executors, Generation, Mode
from tenuto.runtime.private_torch import COMPILED, inner_module
from tenuto.runtime.residual import Residual
from tenuto.scheduling.making import make
from tenuto.scheduling.schedule import Schedule
from tenuto.scheduling.units import WHOLE, Subject, Unit, Unscored

REMEMBERED = 32  # schedules
KEPT = 8  # how many executors are kept, one for each number of steps and lane


def foreign_hand(module: nn.Module) -> str | None:
    """Which other code runs a denoiser's blocks in its own way; None if there is none."""
    if is_compiled(module):
        return "was compiled by torch.compile"
    return "has hooks of diffusers on its blocks (group offloading, casting, a cache)" if hooked(module) else None


def hooked(module: nn.Module) -> bool:
    """Whether diffusers has hooks on a denoiser's blocks."""
    inner = inner_module(module)
    return any(has_hooks(part) for part in inner.modules() if part is not inner)


def kind_of_denoiser(request: Request) -> "type[Denoiser]":
    """The class that serves a request. The laboratory serves requests about the inside of a network."""
    found: type[Denoiser] = offered("denoiser") if request.looks_inside else Denoiser
    return found


class Denoiser:
    """A network whose output is held. Its subject is one unit, the whole network."""

    units: tuple[Unit, ...] = ()  # the single units, if these are held

    def __init__(
        self, outer: nn.Module, name: str, request: Request, warn: Callable[[str], None], shared: bool = False
    ) -> None:
        """outer   the module that the pipeline calls
        shared  whether another pipeline, enabled by the same call, may have this denoiser as well
        """
        self.name = name
        self.outer = outer
        self.module = inner_module(outer)
        self.request = request
        self.executors = Executors(self._executor, KEPT)
        self._warn = warn
        self._schedules: dict[Any, Schedule] = {}  # by number of steps and noise levels
        self._call: Callable[..., Any]  # the denoiser's original call
        if isinstance(vars(outer).get(COMPILED), Replacement) and not shared:
            raise UsageError(f"The {name} is enabled already, here or in another pipeline; disable that one first.")
        self._compiled = is_compiled(outer)
        self._foreign = foreign_hand(outer)  # other code in its blocks
        self._recorded = self._foreign is None or (self._compiled and not hooked(outer) and is_recordable(outer))
        self._decide()

    @classmethod
    def serves(cls, network: nn.Module, request: Request) -> bool:
        """Whether a request can be met for a network of this class."""
        return True

    @property
    def kind(self) -> str:
        return type(self.module).__name__

    def configure(self, request: Request) -> None:
        """Take new settings. If they are invalid, raise an error and keep the old ones."""
        before, self.request = self.request, request
        try:
            self._decide()
        except BaseException:
            self.request = before
            raise
        self._schedules.clear()

    def _decide(self) -> None:
        """Find what schedules are made for, and check the request."""
        request = self.request
        self.seen = self._weights_seen()
        self.subject = self._subject()
        example = request.given or request.schedule(self.subject, 50)  # refuses what makes no sense
        if self._foreign and (request.compiled or not (self._recorded or request.mode in ("auto", "skip"))):
            raise UsageError(f"The {self.name} {self._foreign}: leave mode and compiled out.")
        self._executor(example, request.mode, request.compiled)  # refuses what cannot be run

    def _subject(self) -> Subject:
        return Unscored(self.kind, self.kind, (WHOLE,))

    def _weights_seen(self) -> tuple[object, ...]:
        """What is compared to notice changed weights. If outputs are held, only changes that concern a graph matter."""
        return weights_seen(self.module, values=self.request.ranked or self.request.on_change == "refuse")

    def enter(self, stack: ExitStack, evaluate: Callable[..., Any]) -> None:
        """Replace the denoiser's call until the stack is closed."""
        stack.callback(self.executors.clear)
        stack.enter_context(through(self.outer, partial(evaluate, self)))
        self._call = vars(self.outer)[COMPILED].original

    def check(self, current: nn.Module) -> None:
        """When a generation begins, check that this is still the denoiser that was enabled, with the same weights."""
        ours = isinstance(vars(self.outer).get(COMPILED), Replacement)
        if current is not self.outer or not ours or is_compiled(self.outer) != self._compiled:
            raise UsageError(
                f"The {self.name} was exchanged or compiled after the pipeline was enabled. Disable the pipeline, and "
                "enable it again."
            )
        if self._weights_seen() == self.seen:
            return
        if self.request.on_change == "refuse":
            raise ScheduleError(
                f"The weights of the {self.name} were changed since the pipeline was enabled. Enable it again, or with "
                "on_change='rescore'."
            )
        self.executors.clear()
        self._schedules.clear()
        self._decide()

    def schedule_for(
        self, steps: int, first: int = 0, log_snr: Sequence[float] | None = None, spent: int = 0
    ) -> Schedule | None:
        """The schedule for `steps` evaluations, from number `first` of a longer loop on; None: compute all in full.

        spent: how many evaluations the loop took before these steps
        """
        given = self.request.given
        if given is not None:
            if given.steps == steps:
                return given
            if first + steps <= given.steps:
                return given.part(first, steps)
            self._warn(
                f"The schedule that was given is for {given.steps} evaluations of the {self.name}, and {steps} are "
                "left here: they are computed in full. A budget makes a schedule for any number."
            )
            return None
        key = steps, log_snr, spent if self.request.evaluations is not None else 0
        if key not in self._schedules:
            if len(self._schedules) >= REMEMBERED:
                self._schedules.clear()
            self._schedules[key] = self.request.schedule(self.subject, steps, log_snr, key[-1])
        return self._schedules[key]

    def advise(self, schedule: Schedule) -> None:
        """Warn if a schedule of a whole run gains little or loses much, unless just that was asked for."""
        chosen = self.request.quality is not None or (self.request.evaluations or 0) >= schedule.steps
        advice = None if chosen or self.request.given is not None else deciding.advice(schedule, text=False)
        if advice is not None:
            self._warn(advice)

    @cached_property
    def _once(self) -> Schedule:
        """A schedule of one step. If outputs are held elsewhere, its executor serves every generation."""
        return make(Denoiser._subject(self), np.ones((1, 1), dtype=bool), "constant", "output", {"name": "once"})

    def evaluator(self) -> Generation:
        """What evaluates the denoiser while its outputs are held elsewhere."""
        return self.executors.get(self._once, self.request.mode, self.request.compiled).start()

    def executor(self, schedule: Schedule, lane: int) -> Executor:
        """The executor of a lane. If only outputs are kept, lanes share one, because generations own the outputs."""
        shared = 0 if schedule.keep == "output" else lane
        return self.executors.get(schedule, self.request.mode, self.request.compiled, shared)

    def start(self, schedule: Schedule, lane: int) -> Generation:
        return self.executor(schedule, lane).start()

    def _executor(self, schedule: Schedule, mode: Mode, compiled: bool) -> Executor:
        if not self._recorded and mode == "auto":
            mode = "skip"
        return Executor(self._network, schedule, mode=mode, compiled=compiled, module=self.module)

    def _network(self, *args: Any, residual: Residual, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)
