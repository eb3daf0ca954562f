"""Runs an enabled pipeline, or denoisers in the user's own loop.

An engine intercepts the calls of the denoisers and of the schedulers' `step`, and passes them to the running loop. The
number of steps is known only when a pipeline's loop begins. So a generation begins when the loop asks the pipeline for
its progress bar. In a pipeline without a progress bar, and in the user's own loop, a generation begins with the first
evaluation. Calls outside of such a loop run the original denoiser. So do the calls of a callback, which runs after the
scheduler's step and before the next step begins.

Steps are counted on the host: nothing is read from the device.
"""

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from threading import get_ident
from typing import Any

from torch import nn

from tenuto.errors import ScheduleError, UsageError
from tenuto.laboratory import offered
from tenuto.models.diffusers.denoisers import names_in
from tenuto.models.diffusers.private_diffusers import timesteps_told
from tenuto.pipelines.denoiser import Denoiser, kind_of_denoiser
from tenuto.pipelines.loop import Loop
from tenuto.pipelines.request import Request
from tenuto.pipelines.summary import Summary, summarise
from tenuto.pipelines.timesteps import timesteps_of
from tenuto.pipelines.wrapping import wrapped

# Cosmos 1 takes a step to learn the clean pictures, undoes it, and steps again with the guided clean picture.
UNDONE = "self.scheduler._step_index -= 1"
# Pipelines whose loop does not simply alternate between evaluating a network and stepping a scheduler.
REFUSED = {
    "StableDiffusionPanoramaPipeline": "it steps its scheduler several times at each timestep, once for each view",
    "StableDiffusionSAGPipeline": "it reads the attention maps of every evaluation, so none can be left out",
    "StableDiffusionParadigmsPipeline": "it steps its scheduler for many timesteps at once",
    "RePaintPipeline": "its loop goes back to noisier steps again and again",
    "KarrasVePipeline": "it evaluates its network twice a step, for a scheduler that corrects itself",
    "ScoreSdeVePipeline": "its scheduler takes two kinds of steps, and adds noise at each",
}


class Engine:
    """Runs denoisers and schedulers under a request, from `enable` to `disable`."""

    def __init__(self, name: str, networks: Mapping[str, nn.Module], request: Request, shared: bool = False) -> None:
        self.name = name
        self.request = request
        self.last: Loop | None = None
        self._loops: dict[int, list[Loop]] = {}  # by thread, the innermost last: a callback may also generate
        self._watched: dict[int, tuple[Any, ExitStack]] = {}  # schedulers, and what restores them
        self._said: set[str] = set()
        self._undoes_steps = False  # whether the loop undoes each step that is not given the clean picture
        self._stack = ExitStack()
        kind = kind_of_denoiser(request)
        self.denoisers = [kind(one, name, request, self._warn, shared) for name, one in networks.items()]
        try:
            for denoiser in self.denoisers:
                denoiser.enter(self._stack, self._evaluate)
        except BaseException:
            self._stack.close()
            raise

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copy of an enabled pipeline is not enabled."""

    def __reduce__(self) -> Any:
        """Nor is a pipeline that was pickled."""
        return type(None), ()

    def configure(self, request: Request) -> None:
        """Take other settings for the next generations."""
        for denoiser in self.denoisers:
            denoiser.configure(request)
        self.request = request

    def close(self) -> None:
        self._loops.clear()
        self._stack.close()
        for _, stack in self._watched.values():
            stack.close()
        self._watched.clear()

    def summary(self) -> Summary:
        return summarise(self.name, self.request.asked, self.denoisers, self.last)

    def scheduler(self) -> Any:
        """The scheduler whose timesteps the next loop takes."""
        raise NotImplementedError

    def schedulers(self) -> list[Any]:
        """All schedulers that a loop may step: one evaluation may give outputs for several."""
        return [self.scheduler()]

    def network_of(self, denoiser: Denoiser) -> nn.Module:
        """The network that the next loop evaluates under a denoiser's name."""
        return denoiser.outer

    def _warn(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            warnings.warn(sentence, stacklevel=2)

    def _start(self, scheduler: Any, steps: int, first: int) -> Loop:
        for denoiser in self.denoisers:
            denoiser.check(self.network_of(denoiser))
        self._watch(self.schedulers())
        given = self.request.given
        if given is not None and given.steps not in (steps, timesteps_of(scheduler)):
            raise ScheduleError(
                f"The schedule has {given.steps} steps, but the pipeline evaluates its denoiser at {steps}. Generate "
                f"with {given.steps}, make a schedule for {steps}, or enable the pipeline with a budget."
            )
        if too_many := self.request.more_than(steps):
            self._warn(too_many)
        kind: type[Loop] = offered("loop") if self.request.holds_units else Loop
        loop = self.last = kind(scheduler, steps, first, self._warn)
        mine = self._loops.setdefault(get_ident(), [])
        if mine and not mine[-1].outside:  # an earlier loop that ended without notice
            mine.pop().forget()
        mine.append(loop)
        return loop

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

    def _watch(self, schedulers: list[Any]) -> None:
        """Replace the `step` of these schedulers, and restore those that are no longer used."""
        for scheduler, stack in [self._watched[key] for key in self._watched]:
            if not any(scheduler is one for one in schedulers):
                stack.close()
                del self._watched[id(scheduler)]
        for scheduler in schedulers:
            if id(scheduler) not in self._watched:
                stack = ExitStack()
                stack.enter_context(wrapped(scheduler, "step", self._stepped, copied=True))
                self._watched[id(scheduler)] = scheduler, stack

    def _stepped(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        mine = self._loops.get(get_ident())
        loop = mine[-1] if mine else None
        if loop is None or (self._undoes_steps and kwargs.get("pred_original_sample") is None):
            return original(*args, **kwargs)
        if loop.stepped_by(original.__self__):  # nothing of ours was evaluated since, or in a callback
            if loop.outside:
                loop.went_on()
            self._check_exchange(loop)
        return loop.take_step(original.__self__, original, *args, **kwargs)

    def _check_exchange(self, loop: Loop) -> None:
        """If a callback exchanged a network, the loop evaluates one that is not enabled."""
        exchanged = [one.name for one in self.denoisers if self.network_of(one) is not one.outer]
        if exchanged:
            loop.pass_over(f"the {exchanged[0]} was exchanged in the middle of the loop")

    def _evaluate(self, denoiser: Denoiser, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loop = self._current()
        return original(*args, **kwargs) if loop is None else loop.evaluate(denoiser, original, *args, **kwargs)


class Unannounced(Engine):
    """An engine for loops that do not say when they begin: a loop begins with its first evaluation.

    The next loop begins when the scheduler was given new timesteps, or when all of them were taken.
    """

    def _evaluate(self, denoiser: Denoiser, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        scheduler, loop = self.scheduler(), self._current()
        if (
            loop is None
            or loop.finished
            or loop.scheduler is not scheduler
            or loop.timesteps is not scheduler.timesteps
        ):
            if loop is not None:
                self._finish(get_ident(), loop)
            steps, before = self._steps(scheduler), loop
            if steps < 1:
                return original(*args, **kwargs)
            loop = self._start(scheduler, steps, timesteps_of(scheduler) - steps)
            if before is not None and before.timesteps is loop.timesteps:
                loop.end_of_last = before.first + before.steps
        return loop.evaluate(denoiser, original, *args, **kwargs)

    def _steps(self, scheduler: Any) -> int:
        return timesteps_of(scheduler) - (getattr(scheduler, "begin_index", None) or 0)


class Enabled(Unannounced):
    """A pipeline from `enable` to `disable`."""

    def __init__(self, pipe: Any, request: Request, shared: bool = False) -> None:
        """shared: whether the pipeline is one of several that may have denoisers in common"""
        self.pipe = pipe
        if reason := REFUSED.get(type(pipe).__name__):
            raise UsageError(f"A {type(pipe).__name__} cannot be served: {reason}.")
        kind, names = kind_of_denoiser(request), names_in(pipe)
        names = [name for name in names if kind.serves(getattr(pipe, name), request)] or names[:1]
        super().__init__(type(pipe).__name__, {name: getattr(pipe, name) for name in names}, request, shared)
        source = source_of(type(pipe))
        self._says_update = "progress_bar.update()" in source
        self._undoes_steps = UNDONE in source
        self._announces = hasattr(pipe, "progress_bar") and ("progress_bar(" in source or not source)
        try:
            if hasattr(pipe, "progress_bar"):
                self._stack.enter_context(wrapped(pipe, "progress_bar", self._begin))
            self._watch(self.schedulers())
        except BaseException:
            self.close()
            raise

    def network_of(self, denoiser: Denoiser) -> nn.Module:
        found: nn.Module = getattr(self.pipe, denoiser.name)
        return found

    def schedulers(self) -> list[Any]:
        parts = [*self.pipe.components.values(), getattr(self.pipe, "scheduler", None)]
        found = [one for one in parts if hasattr(one, "set_timesteps") and hasattr(one, "step")]
        if not found:
            raise UsageError(f"A {self.name} has no scheduler whose steps could be held.")
        return found

    def scheduler(self) -> Any:
        own = getattr(self.pipe, "scheduler", None)
        return own if own is not None else self.schedulers()[0]

    def _evaluate(self, denoiser: Denoiser, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._announces:
            return Engine._evaluate(self, denoiser, original, *args, **kwargs)
        return super()._evaluate(denoiser, original, *args, **kwargs)

    def _begin(self, original: Callable[..., Any], iterable: Any = None, total: int | None = None, **look: Any) -> Any:
        """The pipeline asks for its progress bar: its loop begins."""
        scheduler = self._scheduler_of(iterable)
        steps = evaluations_of(self.pipe, scheduler, iterable, total)
        bar = original(iterable, total, **look)
        if steps < 1:
            return bar  # an image-to-image loop that rounds to no step: there is nothing to run
        loop = self._start(scheduler, steps, left_out(scheduler, steps))
        finish = partial(self._finish, get_ident(), loop)
        if iterable is not None:
            loop.told_to_go_on = True
            return Watched(bar, loop.go_on, finish)
        if self._says_update and scheduler.order == 1:
            loop.told_to_go_on, loop.untold = True, max(steps - (total or steps), warmup_of(scheduler))
            vars(bar)["update"] = partial(_before, loop.go_on, bar.update)
        vars(bar)["close"] = partial(_after, bar.close, finish)
        return bar

    def _scheduler_of(self, iterable: Any) -> Any:
        """The scheduler whose timesteps a loop iterates over; of a pipeline with several, the one they belong to."""
        owners = [one for one in self.schedulers() if iterable is not None and one.timesteps is iterable]
        return owners[0] if owners else self.scheduler()


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


def warmup_of(scheduler: Any) -> int:
    """How many timesteps a scheduler has beyond those that were asked for (PNDM's). Progress bars do not count them."""
    asked = getattr(scheduler, "num_inference_steps", None)
    return max(0, timesteps_of(scheduler) - asked) if isinstance(asked, int) and asked else 0


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


def evaluations_of(pipe: Any, scheduler: Any, iterable: Any, total: int | None) -> int:
    """How often the loop that now begins evaluates each lane of a denoiser: once for each of its timesteps."""
    if iterable is not None:
        return len(iterable)
    timesteps, order = timesteps_of(scheduler), getattr(scheduler, "order", 1)
    if total is None:
        return timesteps
    known = timesteps_told(pipe)  # outdated if the user runs a loop of their own
    if known is not None and total <= known and (known == timesteps or known <= total * order + 1):
        return known
    return min(timesteps, total * order + (warmup_of(scheduler) if order == 1 else 0))
