"""What an enabled pipeline does while it draws.

A pipeline says how many steps it takes only when its loop begins, so a generation begins there, too. When the loop asks
the pipeline for its progress bar, the number of evaluations is known, and a schedule for this number is made or reused.
The scheduler's `step` ends a step. A step may call the denoiser several times (with the prompt, without it); each of
these calls belongs to its own lane, and each lane holds its own outputs. Calls outside of such a loop run the original
denoiser. So do the calls of a callback, which runs after the scheduler's step and before the loop goes on.

A bare denoiser has no such loop: each of its calls is one step, and its user says when the next generation begins.

Steps are counted on the host: nothing is read from the device.
"""

import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from threading import get_ident
from typing import Any

from diffusers import DiffusionPipeline
from torch import Tensor, nn

from tenuto.errors import ScheduleError, UsageError
from tenuto.models.diffusers.denoisers import names_in
from tenuto.models.diffusers.private_diffusers import timesteps_told
from tenuto.pipelines.denoiser import FEW_STEPS, Denoiser, Request
from tenuto.pipelines.summary import Evaluation, Summary, moment, summarise
from tenuto.pipelines.wrapping import wrapped
from tenuto.runtime.course import Course, adds_noise, course_for
from tenuto.runtime.executor import Executor, Generation
from tenuto.scheduling.schedule import Schedule

# Pipelines whose loop does not simply alternate between evaluating a network and stepping a scheduler.
REFUSED = {
    "StableDiffusionPanoramaPipeline": "it steps its scheduler several times at each timestep, once for each view",
    "StableDiffusionSAGPipeline": "it reads the attention maps of every evaluation, so none can be left out",
}


@dataclass(frozen=True)
class Lane:
    """Successive calls of a denoiser, one in each step."""

    start: int
    shape: tuple[int, ...] | None  # of the sample
    schedule: Schedule | None  # of the steps from `start` on; None: computed in full
    generation: Generation | None

    def goes_on(self, step: int, shape: tuple[int, ...] | None) -> bool:
        if shape != self.shape:
            return False
        if self.generation is None or self.schedule is None:
            return True
        return self.start + self.generation.step == step < self.start + self.schedule.steps


class Loop:
    """One generation, from the beginning of the loop to the end."""

    def __init__(self, scheduler: Any, steps: int, first: int = 0, course: Course | None = None) -> None:
        """first: how many timesteps of the scheduler the loop leaves out before it begins"""
        self.scheduler = scheduler
        self.steps = steps
        self.first = first
        self.course = course
        self.in_full = ""  # why everything is computed, if it is
        self.told_to_go_on = False  # whether the loop says when a step is over, callbacks included
        self.untold = 0  # the number of steps at the beginning after which it says nothing
        self.outside = False  # whether the scheduler's step is over and the loop has not gone on yet: callbacks run
        self.step = 0
        self.lanes: dict[tuple[str, int], Lane] = {}
        self.evaluations: list[Evaluation] = []
        self._calls: Counter[str] = Counter()  # of each denoiser in this step

    def advance(self) -> None:
        self.step += 1
        self._calls.clear()
        self.outside = self.told_to_go_on and self.step > self.untold

    def go_on(self) -> None:
        """The loop goes on with its next step: callbacks are over."""
        self.outside = False

    def evaluate(self, denoiser: Denoiser, full: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """One call of a denoiser; `full` is the original call."""
        key = denoiser.name, self._calls[denoiser.name]
        self._calls[denoiser.name] += 1
        sample = next((one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)), None)
        lane, device = self._lane(denoiser, key, sample), None if sample is None else sample.device
        began = moment(device)
        try:
            output = (full if lane.generation is None else lane.generation)(*args, **kwargs)
        except BaseException:
            del self.lanes[key]  # the step is half done: the next call begins a new lane
            raise
        place = self.step - lane.start
        self.evaluations.append(Evaluation(self.step, denoiser.name, lane.schedule, place, began, moment(device)))
        return output

    def _lane(self, denoiser: Denoiser, key: tuple[str, int], sample: Tensor | None) -> Lane:
        """The lane of this call. If the call does not continue its lane, a new lane begins for the remaining steps."""
        lane, shape = self.lanes.get(key), None if sample is None else tuple(sample.shape)
        if lane is None or not lane.goes_on(self.step, shape):
            left = self.steps - self.step
            held = left > 0 and not self.in_full
            schedule = denoiser.schedule_for(left, self.first + self.step) if held else None
            course = self.course and self.course.after(self.step)
            generation = None if schedule is None else denoiser.start(schedule, key[1], course)
            lane = self.lanes[key] = Lane(self.step, shape, schedule, generation)
        return lane

    @property
    def holds(self) -> bool:
        """Whether any step holds something."""
        return any(lane.schedule is not None and not lane.schedule.active.all() for lane in self.lanes.values())

    def compute_in_full(self, why: str) -> None:
        """From now on nothing is held."""
        self.in_full = why
        self.lanes.clear()

    def forget(self) -> None:
        """Free what is held."""
        for key, lane in self.lanes.items():
            self.lanes[key] = replace(lane, generation=None)


class Watched:
    """A progress bar that the pipeline iterates over. It reports when the loop goes on and when the loop is over."""

    def __init__(self, bar: Any, go_on: Callable[[], None], finish: Callable[[], None]) -> None:
        self._bar, self._go_on, self._finish = bar, go_on, finish

    def __iter__(self) -> Iterator[Any]:
        try:
            for one in self._bar:
                self._go_on()
                yield one
        finally:
            self._finish()

    def __len__(self) -> int:
        return len(self._bar)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bar, name)


class Enabled:
    """A pipeline from `enable` to `disable`."""

    def __init__(self, pipe: DiffusionPipeline, request: Request) -> None:
        self.pipe = pipe
        self.request = request
        self.last: Loop | None = None
        self._loops: dict[int, list[Loop]] = {}  # by thread, the innermost last: a callback may generate, too
        self._watched: list[Any] = []  # all schedulers so far, because a pipeline's scheduler may be replaced
        self._said: set[str] = set()
        self._stack = ExitStack()
        if reason := REFUSED.get(type(pipe).__name__):
            raise UsageError(f"A {type(pipe).__name__} cannot be served: {reason}.")
        self._says_update = "progress_bar.update()" in source_of(type(pipe))
        self.denoisers = [Denoiser(getattr(pipe, name), name, request, self._warn) for name in names_in(pipe)]
        try:
            for denoiser in self.denoisers:
                denoiser.enter(self._stack, self._evaluate)
            self._stack.enter_context(wrapped(pipe, "progress_bar", self._begin))
        except BaseException:
            self._stack.close()
            raise

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copy of an enabled pipeline is not enabled."""

    def close(self) -> None:
        self._loops.clear()
        self._stack.close()

    def summary(self) -> Summary:
        return summarise(type(self.pipe).__name__, self.denoisers, self.last)

    def _warn(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            warnings.warn(sentence, stacklevel=2)

    def _begin(self, original: Callable[..., Any], iterable: Any = None, total: int | None = None, **look: Any) -> Any:
        """The pipeline asks for its progress bar: its loop begins."""
        steps = evaluations_of(self.pipe, iterable, total)
        bar = original(iterable, total, **look)
        if steps < 1:
            return bar  # an image-to-image loop that rounds to no step: there is nothing to run
        loop = self._start(steps)
        finish = partial(self._finish, get_ident(), loop)
        if iterable is not None:
            loop.told_to_go_on = True
            return Watched(bar, loop.go_on, finish)
        if self._says_update and self.pipe.scheduler.order == 1:
            loop.told_to_go_on, loop.untold = True, steps - (total or steps)  # PNDM evaluates once more than asked
            vars(bar)["update"] = partial(_before, loop.go_on, bar.update)
        vars(bar)["close"] = partial(_after, bar.close, finish)
        return bar

    def _start(self, steps: int) -> Loop:
        for denoiser in self.denoisers:
            denoiser.check(getattr(self.pipe, denoiser.name))
        scheduler, given = self.pipe.scheduler, self.request.given
        first = left_out(scheduler, steps)
        if given is not None and given.steps not in (steps, timesteps_of(scheduler)):
            raise ScheduleError(
                f"The schedule has {given.steps} steps, but the pipeline evaluates its denoiser at {steps}. Generate "
                f"with {given.steps}, make a schedule for {steps}, or enable the pipeline with a budget."
            )
        schedules = [denoiser.schedule_for(steps, first) for denoiser in self.denoisers]
        if given is None and schedules[0] is None:
            self._warn(
                f"The pipeline takes only {steps} steps. With {FEW_STEPS} or fewer each differs too much from the "
                "next, so all of them are computed, and tenuto cannot help."
            )
        self._watch(scheduler)
        course = course_for(schedules, scheduler, steps, first)
        loop = self.last = Loop(scheduler, steps, first, course)
        open_loops = self._loops.setdefault(get_ident(), [])
        if open_loops and not open_loops[-1].outside:  # an earlier loop that ended without notice
            open_loops.pop().forget()
        open_loops.append(loop)
        if any(one is not None and not one.active.all() for one in schedules) and adds_noise(scheduler):
            self._compute_in_full(loop)
        return loop

    def _compute_in_full(self, loop: Loop) -> None:
        """Hold nothing, because outputs jump with the scheduler's noise, and predicting them would ruin the picture."""
        name = type(loop.scheduler).__name__
        loop.compute_in_full(f"{name} adds random noise at every step")
        self._warn(
            f"{name} adds random noise at every step, which makes the network's output unpredictable. Everything is "
            "computed, and nothing is gained. Choose a scheduler without randomness (DDIM, Euler, DPM-Solver++, UniPC)."
        )

    def _finish(self, thread: int, loop: Loop) -> None:
        mine = self._loops.get(thread, [])
        if loop in mine:
            mine.remove(loop)
        if not mine:
            self._loops.pop(thread, None)
        loop.forget()

    def _current(self) -> Loop | None:
        """The loop that this thread is running; None in a callback, and outside of any loop."""
        mine = self._loops.get(get_ident())
        return mine[-1] if mine and not mine[-1].outside else None

    def _watch(self, scheduler: Any) -> None:
        if not any(scheduler is known for known in self._watched):
            self._watched.append(scheduler)
            self._stack.enter_context(wrapped(scheduler, "step", partial(self._stepped, scheduler)))

    def _stepped(self, scheduler: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        mine = self._loops.get(get_ident())
        loop = mine[-1] if mine else None
        if loop is not None and loop.scheduler is scheduler:
            if loop.outside:  # the loop went on without a word: from now on its calls are told apart by nothing
                loop.told_to_go_on = False
            if kwargs.get("eta") and loop.holds:  # DDIM with eta > 0 adds noise at each step
                self._compute_in_full(loop)
            loop.advance()
        return result

    def _evaluate(self, denoiser: Denoiser, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loop = self._current()
        return original(*args, **kwargs) if loop is None else loop.evaluate(denoiser, original, *args, **kwargs)


class Bare:
    """A denoiser without a pipeline, under a schedule: each of its calls is one step."""

    def __init__(self, module: nn.Module, request: Request) -> None:
        if request.given is None:
            raise UsageError("A denoiser without a pipeline does not say how many steps there are: give a schedule.")
        self._stack = ExitStack()
        self._denoiser = Denoiser(module, "denoiser", request, lambda sentence: warnings.warn(sentence, stacklevel=2))
        self._denoiser.enter(self._stack, self._evaluate)
        self._schedule = request.given
        self.start()

    @property
    def step(self) -> int:
        """How many steps of the current generation were taken."""
        return self._generation.step

    @property
    def executor(self) -> Executor:
        """What runs the denoiser."""
        return self._denoiser.executor(self._schedule, 0)

    def start(self, course: Course | None = None) -> None:
        """Begin a new generation, with nothing held.

        course  the sampler's course (tenuto.runtime.course), if it has one
        """
        self._generation = self._denoiser.start(self._schedule, 0, course)
        self._shape: tuple[int, ...] | None = None

    def close(self) -> None:
        self._stack.close()

    def _evaluate(self, denoiser: Denoiser, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._check_shape(next((one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)), None))
        try:
            return self._generation(*args, **kwargs)
        except BaseException:
            if self._generation.broken:
                self.start()  # the step is half done: nothing of this generation may reach the next
            raise

    def _check_shape(self, sample: Tensor | None) -> None:
        if sample is None:
            return
        if self._shape is not None and self.step > 0 and tuple(sample.shape) != self._shape:
            raise ScheduleError(
                f"The denoiser's input changed from {list(self._shape)} to {list(sample.shape)} in the middle of a "
                "generation, and what is held no longer fits it. Begin a new generation when shapes change."
            )
        self._shape = tuple(sample.shape)


def _before(first: Callable[[], None], then: Callable[..., Any], *args: Any) -> Any:
    first()
    return then(*args)


def _after(first: Callable[[], Any], then: Callable[[], None]) -> None:
    first()
    then()


def source_of(pipeline: type) -> str:
    """The source code of a pipeline's call; empty if it cannot be read."""
    try:
        return inspect.getsource(pipeline.__call__)
    except (OSError, TypeError):
        return ""


def timesteps_of(scheduler: Any) -> int:
    timesteps = getattr(scheduler, "timesteps", None)
    return 0 if timesteps is None else len(timesteps)


def left_out(scheduler: Any, steps: int) -> int:
    """How many timesteps of the scheduler a loop of `steps` steps leaves out at the beginning, not at the end.

    An image-to-image loop sets the begin index of its scheduler. If a scheduler has no begin index, all timesteps that
    are left out are assumed to be at the beginning.
    """
    spare = max(0, timesteps_of(scheduler) - steps)
    begin = getattr(scheduler, "begin_index", None)
    if begin is None and not hasattr(scheduler, "set_begin_index"):
        return spare
    return min(int(begin or 0), spare)


def evaluations_of(pipe: Any, iterable: Any, total: int | None) -> int:
    """How often the loop that now begins evaluates each lane of a denoiser: once for each of its timesteps."""
    if iterable is not None:
        return len(iterable)
    timesteps, order = len(pipe.scheduler.timesteps), pipe.scheduler.order
    if total is None:
        return timesteps
    known = timesteps_told(pipe)  # outdated if the user runs a loop of their own
    if known is not None and total <= known <= total * order + 1:
        return known
    return min(timesteps, total * order)
