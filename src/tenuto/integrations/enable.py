"""One call makes a diffusers pipeline faster, and one makes it as it was.

    tenuto.enable(pipe, budget=0.25)
    images = pipe("a red car").images
    print(tenuto.summary(pipe))
    tenuto.disable(pipe)

A pipeline says how many steps it takes only when its loop begins. So that is where a generation begins here: the loop
asks the pipeline for its progress bar, the number of evaluations is known, and a schedule is made for it, or taken from
the last time. The scheduler's `step` ends a step. Calls of the denoiser within one step (with the prompt, without it)
are lanes: each has held outputs of its own. What evaluates the denoiser outside of such a loop gets it as it is.

Steps are counted on the host: nothing is read from the device.
"""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, get_ident
from typing import Any, Literal, get_args

from diffusers import DiffusionPipeline
from torch import Tensor, nn

from tenuto import api
from tenuto.errors import ScheduleError, UsageError
from tenuto.executor import Executor, Generation, Mode
from tenuto.integrations.blocks import sites_of
from tenuto.integrations.diffusers import (
    COMPILED,
    Attachment,
    Replacement,
    attach,
    course_for,
    is_compiled,
    names_in,
    through,
    uncompiled,
    units_in,
    wrapped,
)
from tenuto.integrations.live_weights import weights_seen
from tenuto.integrations.summary import Evaluation, Summary, moment, summarise
from tenuto.residual import Residual
from tenuto.samplers.course import Course
from tenuto.schedules import Schedule, load_schedule
from tenuto.scores import Scores, UnitScore
from tenuto.units import Unit

FEW_STEPS = 6  # up to which there is nothing to hold: each step differs too much from the next
UNRANKED = ("refresh", "noise")  # policies that ask no score of a unit, so that none need be computed
KEPT = 8  # executors, of numbers of steps and lanes; the one used longest ago gives way
STATE = "_tenuto"  # where an enabled pipeline keeps it
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

OnChange = Literal["rescore", "refuse"]


def enable(
    pipe: DiffusionPipeline,
    budget: float | None = None,
    *,
    speedup: float | None = None,
    schedule: Schedule | str | Path | None = None,
    policy: api.Policy | None = None,
    mode: Mode = "auto",
    compiled: bool = False,
    on_change: OnChange = "rescore",
    **options: Any,
) -> None:
    """From now on the pipeline evaluates its denoiser as a schedule says, until `disable`.

    budget     share of the work to do; by default 0.25
    speedup    how many times as fast as in full, instead of a budget
    schedule   a schedule, its file, or a hub id that holds one, instead of either; it is for one number of steps
    policy     and its options: as for `tenuto.schedule`
    mode       how it is run: auto, skip, padded or jagged (see tenuto.executor)
    compiled   compile the branches, each kind once
    on_change  what to do at the next generation when the weights were changed (an adapter was loaded, fused, rescaled):
               rescore (make schedules and graphs anew) or refuse
    """
    if not isinstance(pipe, DiffusionPipeline):
        raise UsageError(f"A diffusers pipeline can be enabled, and this is a {type(pipe).__name__}.")
    if vars(pipe).get(STATE) is not None:
        raise UsageError(f"This {type(pipe).__name__} is enabled already; tenuto.disable(pipe) first.")
    if on_change not in get_args(OnChange):
        raise UsageError(f"on_change is one of {', '.join(get_args(OnChange))}, not {on_change!r}.")
    if mode == "eager":
        raise UsageError("In the mode eager nothing is held: leave the pipeline as it is.")
    given = None
    if schedule is not None:
        if budget is not None or speedup is not None or policy is not None or options:
            raise UsageError(
                "A schedule says everything by itself: give no budget, speed-up, policy or option with it."
            )
        given = schedule if isinstance(schedule, Schedule) else read_schedule(str(schedule))
    request = Request(given, budget, speedup, policy, options, mode, compiled, on_change)
    vars(pipe)[STATE] = Enabled(pipe, request)


def disable(pipe: DiffusionPipeline) -> None:
    """Leave an enabled pipeline as it was found."""
    _state_of(pipe).close()
    del vars(pipe)[STATE]


@contextmanager
def accelerated(pipe: DiffusionPipeline, budget: float | None = None, **options: Any) -> Iterator[DiffusionPipeline]:
    """Within the block the pipeline is enabled; the options are those of `enable`."""
    enable(pipe, budget, **options)
    try:
        yield pipe
    finally:
        disable(pipe)


def summary(pipe: DiffusionPipeline) -> Summary:
    """What the last generation of an enabled pipeline computed and held, and what that took."""
    return _state_of(pipe).summary()


def _state_of(pipe: Any) -> "Enabled":
    state = vars(pipe).get(STATE)
    if not isinstance(state, Enabled):
        raise UsageError(f"This {type(pipe).__name__} is not enabled; tenuto.enable(pipe) first.")
    return state


def read_schedule(name: str) -> Schedule:
    """From a file, or from a hub repository that holds one."""
    if Path(name).exists() or not HUB_ID.fullmatch(name) or name.endswith(".json"):
        return load_schedule(name)
    try:
        from tenuto.integrations.hub import pull  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise UsageError(f"There is no schedule file {name!r}, and this installation reads none from a hub.") from error
    with TemporaryDirectory() as folder:
        pull(name, folder)
        if not (Path(folder) / "schedule.json").exists():
            raise ScheduleError(f"{name} holds no schedule.json.")
        return load_schedule(Path(folder) / "schedule.json")


@dataclass(frozen=True)
class Request:
    """What was asked for."""

    given: Schedule | None
    budget: float | None
    speedup: float | None
    policy: api.Policy | None
    options: dict[str, Any]
    mode: Mode
    compiled: bool
    on_change: OnChange

    def schedule(self, scores: Scores, steps: int) -> Schedule:
        return api.schedule(scores, steps, budget=self.budget, speedup=self.speedup, policy=self.policy, **self.options)

    @property
    def ranked(self) -> bool:
        """Whether it takes a score of each unit."""
        return self.given is None and (self.policy or "refresh") not in UNRANKED


def unscored(units: Iterable[Unit], model: str) -> Scores:
    """Scores that say nothing: for policies that treat all units alike, and so need no weight to be read."""
    each = tuple(UnitScore(unit.name, unit.kind, unit.flops, (), 0.0, 0.0) for unit in units)
    return Scores(model, model, "unscored", each)


def foreign_hand(module: nn.Module) -> str | None:
    """Who runs a denoiser's blocks in a way of their own, if somebody does."""
    if is_compiled(module):
        return "was compiled by torch.compile"
    if any(hasattr(site.block, "_diffusers_hook") for site in sites_of(uncompiled(module))):
        return "has hooks of diffusers on its blocks (group offloading, casting, a cache)"
    return None


class Denoiser:
    """One denoiser of an enabled pipeline: its units, its schedules, and what runs them."""

    def __init__(self, pipe: DiffusionPipeline, name: str, request: Request, warn: Callable[[str], None]) -> None:
        self.name = name
        self.outer: nn.Module = getattr(pipe, name)  # what the pipeline calls
        self.module = uncompiled(self.outer)
        self.units = units_in(self.module)
        self.request = request
        self.attachment: Attachment | None = None
        self._warn = warn
        self._schedules: dict[int, Schedule | None] = {}  # by number of evaluations
        self.executors: dict[tuple[int, int], Executor] = {}  # the same, and the lane
        self._starting = Lock()  # one thread at a time
        self._call: Callable[..., Any]  # of the denoiser as it was
        if isinstance(vars(self.outer).get(COMPILED), Replacement):
            raise UsageError(
                f"The {name} of this {type(pipe).__name__} is shared with another pipeline, which is enabled already; "
                "disable that one first."
            )
        self._compiled = is_compiled(self.outer)
        self._foreign = foreign_hand(self.outer)  # in its blocks, which then cannot be brought to the seam
        self._decide()

    def _decide(self) -> None:
        """Look at the weights, as far as the policy asks for it, and at the request."""
        self.seen = weights_seen(self.module)
        request, kind = self.request, type(self.module).__name__
        self.scores = api.score(self.module) if request.ranked else unscored(self.units, kind)
        if request.given is not None:
            names = [unit.name for unit in self.units]
            remedy = f"tenuto.schedule(pipe, steps={request.given.steps})"
            request.given.check_fits(names, {request.given.fingerprint}, f"this {kind}", remedy)
        example = request.given or request.schedule(self.scores, 50)  # which refuses what makes no sense
        self.holds_output = example.hold == "output"
        if self._foreign and not self.holds_output:
            raise UsageError(
                f"The {self.name} {self._foreign}, so only its output can be held, not each unit. Undo that, or leave "
                "hold and policy out."
            )
        if self._foreign and (request.compiled or request.mode not in ("auto", "skip")):
            raise UsageError(f"The {self.name} {self._foreign}: leave mode and compiled out.")
        self._executor(example)  # likewise

    def enter(self, stack: ExitStack, evaluate: Callable[..., Any]) -> None:
        """Take the place of the denoiser's calls, until the stack is closed."""
        if self._foreign is None:
            self.attachment = attach(self.module)
            stack.callback(self.attachment.detach)
        stack.callback(self.release)
        stack.enter_context(through(self.outer, partial(evaluate, self)))
        self._call = vars(self.outer)[COMPILED].original

    def check(self, pipe: DiffusionPipeline) -> None:
        """At the beginning of a generation: that this is still what was enabled, and with the same weights."""
        ours = isinstance(vars(self.outer).get(COMPILED), Replacement)
        if getattr(pipe, self.name) is not self.outer or not ours or is_compiled(self.outer) != self._compiled:
            raise UsageError(
                f"The {self.name} was exchanged or compiled after the pipeline was enabled. Disable the pipeline, and "
                "enable it again."
            )
        if weights_seen(self.module) == self.seen:
            return
        if self.request.on_change == "refuse":
            raise ScheduleError(
                f"The weights of the {self.name} were changed since the pipeline was enabled. Enable it again, or with "
                "on_change='rescore'."
            )
        self.release()
        self._schedules.clear()
        self.executors.clear()
        self._decide()

    def release(self, besides: int | None = None) -> None:
        """Let go of the graphs, but for those of this number of steps."""
        for (steps, _), executor in list(self.executors.items()):
            if steps != besides:
                executor.release()

    def schedule_for(self, steps: int) -> Schedule | None:
        """For this many evaluations; None means all of them in full."""
        given = self.request.given
        if given is not None:
            if given.steps == steps:
                return given
            self._warn(
                f"The schedule that was given is for {given.steps} evaluations of the {self.name}, and {steps} are "
                "left here: they are computed in full. A budget makes a schedule for any number."
            )
            return None
        if steps not in self._schedules:
            self._schedules[steps] = self._made(steps)
        return self._schedules[steps]

    def _made(self, steps: int) -> Schedule | None:
        made = self.request.schedule(self.scores, steps)
        if made.active.all() or steps > FEW_STEPS:
            if (advice := api.advice(made, text=False)) is not None:
                self._warn(advice)
            return made
        return None

    def key(self, schedule: Schedule, lane: int) -> tuple[int, int]:
        """Of an executor. Lanes share one where nothing is held but outputs, which are not the executor's."""
        return schedule.steps, 0 if self.holds_output else lane

    def start(self, schedule: Schedule, lane: int, course: Course | None) -> Generation:
        key = self.key(schedule, lane)
        with self._starting:
            executor = self.executors.pop(key, None)
            if executor is None:
                self.release(besides=schedule.steps)  # graphs are recorded again when they are needed
                while len(self.executors) >= KEPT:
                    del self.executors[next(iter(self.executors))]
                executor = self._executor(schedule)
            self.executors[key] = executor  # the newest last
        return executor.start(course)

    def _executor(self, schedule: Schedule) -> Executor:
        mode: Mode = "skip" if self._foreign and self.request.mode == "auto" else self.request.mode
        return Executor(self._network, schedule, mode=mode, compiled=self.request.compiled, module=self.module)

    def _network(self, *args: Any, residual: Residual, **kwargs: Any) -> Any:
        if self.attachment is None:
            return self._call(*args, **kwargs)
        return self.attachment.run(self._call, residual, *args, **kwargs)


@dataclass(frozen=True)
class Lane:
    """Those calls of a denoiser, one a step, that go on from one another."""

    start: int
    shape: tuple[int, ...] | None  # of the sample
    schedule: Schedule | None  # from the start on; None: in full
    generation: Generation | None

    def goes_on(self, step: int, shape: tuple[int, ...] | None) -> bool:
        return shape == self.shape and (self.generation is None or self.start + self.generation.step == step)


class Run:
    """One generation of an enabled pipeline, from the beginning of its loop to the end."""

    def __init__(self, scheduler: Any, steps: int, course: Course | None) -> None:
        self.scheduler = scheduler
        self.steps = steps
        self.course = course
        self.step = 0
        self.lanes: dict[tuple[str, int], Lane] = {}
        self.evaluations: list[Evaluation] = []
        self._calls: Counter[str] = Counter()  # of each denoiser in this step

    def advance(self) -> None:
        self.step += 1
        self._calls.clear()

    def evaluate(self, denoiser: Denoiser, full: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """One call of a denoiser; `full` is the call as it was."""
        key = denoiser.name, self._calls[denoiser.name]
        self._calls[denoiser.name] += 1
        sample = next((one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)), None)
        lane, device = self._lane(denoiser, key, sample), None if sample is None else sample.device
        began = moment(device)
        try:
            output = (full if lane.generation is None else lane.generation)(*args, **kwargs)
        except BaseException:
            del self.lanes[key]  # half a step was taken: the next call begins anew
            raise
        place = self.step - lane.start
        self.evaluations.append(Evaluation(self.step, denoiser.name, lane.schedule, place, began, moment(device)))
        return output

    def _lane(self, denoiser: Denoiser, key: tuple[str, int], sample: Tensor | None) -> Lane:
        """The lane of this call; a new one for the steps that are left, where it does not go on from the last."""
        lane, shape = self.lanes.get(key), None if sample is None else tuple(sample.shape)
        if lane is None or not lane.goes_on(self.step, shape):
            left = self.steps - self.step
            schedule = denoiser.schedule_for(left) if left > 0 else None
            course = self.course and self.course[self.step :]
            generation = None if schedule is None else denoiser.start(schedule, key[1], course)
            lane = self.lanes[key] = Lane(self.step, shape, schedule, generation)
        return lane

    def lose_course(self) -> None:
        """The sampler does not simply add outputs up: from now on none is corrected."""
        self.course = None
        for lane in self.lanes.values():
            if lane.generation is not None:
                lane.generation.lose_course()

    def forget(self) -> None:
        """Let go of what is held."""
        for key, lane in self.lanes.items():
            self.lanes[key] = replace(lane, generation=None)


class Loop:
    """A progress bar that is looped over; it says when the loop is over."""

    def __init__(self, bar: Any, finish: Callable[[], None]) -> None:
        self._bar, self._finish = bar, finish

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._bar
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
        self.last: Run | None = None
        self._runs: dict[int, Run] = {}  # by thread: each draws its own picture
        self._watched: list[Any] = []  # the schedulers, for a pipeline may be given another one meanwhile
        self._said: set[str] = set()
        self._stack = ExitStack()
        self.denoisers = [Denoiser(pipe, name, request, self._warn) for name in names_in(pipe)]
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
        self._runs.clear()
        self._stack.close()

    def summary(self) -> Summary:
        run, named = self.last, {one.name: one for one in self.denoisers}
        lanes = [] if run is None else run.lanes.items()
        return summarise(
            type(self.pipe).__name__,
            {one.name: one.units for one in self.denoisers},
            {one.name: type(one.module).__name__ for one in self.denoisers},
            0 if run is None else run.steps,
            [] if run is None else run.evaluations,
            [executor.report() for one in self.denoisers for executor in one.executors.values()],
            [
                executor.report()
                for (name, place), lane in lanes
                if lane.schedule is not None
                and (executor := named[name].executors.get(named[name].key(lane.schedule, place))) is not None
            ],
        )

    def _warn(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            warnings.warn(sentence, stacklevel=2)

    def _begin(self, original: Callable[..., Any], iterable: Any = None, total: int | None = None, **look: Any) -> Any:
        """The pipeline asks for its progress bar: its loop begins."""
        run = self._start(evaluations_of(self.pipe, iterable, total))
        bar = original(iterable, total, **look)
        finish = partial(self._finish, get_ident(), run)
        if iterable is not None:
            return Loop(bar, finish)
        vars(bar)["close"] = partial(_after, bar.close, finish)
        return bar

    def _start(self, steps: int) -> Run:
        self._runs.pop(get_ident(), None)
        for denoiser in self.denoisers:
            denoiser.check(self.pipe)
        given = self.request.given
        if given is not None and given.steps != steps:
            raise ScheduleError(
                f"The schedule has {given.steps} steps, but the pipeline evaluates its denoiser at {steps}. Generate "
                f"with {given.steps}, make a schedule for {steps}, or enable the pipeline with a budget."
            )
        if given is None and self.denoisers[0].schedule_for(steps) is None:
            self._warn(
                f"The pipeline takes only {steps} steps, of which none can be left out: up to {FEW_STEPS} it runs in "
                "full, and tenuto cannot help."
            )
        self._watch(self.pipe.scheduler)
        course = course_for((one.schedule_for(steps) for one in self.denoisers), self.pipe.scheduler, steps)
        run = self._runs[get_ident()] = self.last = Run(self.pipe.scheduler, steps, course)
        return run

    def _finish(self, thread: int, run: Run) -> None:
        if self._runs.get(thread) is run:
            del self._runs[thread]
        run.forget()

    def _watch(self, scheduler: Any) -> None:
        if not any(scheduler is known for known in self._watched):
            self._watched.append(scheduler)
            self._stack.enter_context(wrapped(scheduler, "step", partial(self._stepped, scheduler)))

    def _stepped(self, scheduler: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        run = self._runs.get(get_ident())
        if run is not None and run.scheduler is scheduler:
            if kwargs.get("eta"):  # of DDIM: noise is added at each step, which no course tells
                run.lose_course()
            run.advance()
        return result

    def _evaluate(self, denoiser: Denoiser, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        run = self._runs.get(get_ident())
        return original(*args, **kwargs) if run is None else run.evaluate(denoiser, original, *args, **kwargs)


def _after(first: Callable[[], Any], then: Callable[[], None]) -> None:
    first()
    then()


def evaluations_of(pipe: Any, iterable: Any, total: int | None) -> int:
    """How often the loop that now begins evaluates each lane of a denoiser: once for each of its timesteps."""
    if iterable is not None:
        return len(iterable)
    timesteps, order = len(pipe.scheduler.timesteps), pipe.scheduler.order
    if total is None:
        return timesteps
    known = vars(pipe).get("_num_timesteps")  # what most pipelines say just before; in a loop of one's own it is old
    if isinstance(known, int) and total <= known <= total * order + 1:
        return known
    return min(timesteps, total * order)
