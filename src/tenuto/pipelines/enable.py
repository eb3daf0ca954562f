"""One call makes a diffusers pipeline faster, and another call restores it.

tenuto.enable(pipe, budget=0.25)
images = pipe("a red car").images
print(tenuto.summary(pipe))
tenuto.disable(pipe)
"""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ParamSpec, TypeVar

from diffusers import DiffusionPipeline
from torch import nn

from tenuto import deciding
from tenuto.errors import ScheduleError, UsageError
from tenuto.laboratory import offered
from tenuto.pipelines.bare import Bare, Running
from tenuto.pipelines.engine import Enabled, Engine
from tenuto.pipelines.request import OnChange, Request
from tenuto.pipelines.summary import Summary
from tenuto.runtime.executor import Mode
from tenuto.scheduling.schedule import Schedule, load_schedule

P = ParamSpec("P")
T = TypeVar("T")
STATE = "_tenuto"  # the attribute of an enabled pipeline
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def named_options(function: Callable[P, T]) -> Callable[P, T]:
    """Says that an option must be named, if one is given without its name."""
    places = [one for one in inspect.signature(function).parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    names = [one.name for one in places]

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        if len(args) > len(names):
            raise UsageError(
                f"Only {', '.join(names[:-1])} and {names[-1]} may be given without a name: write "
                f"{function.__name__}(…, evaluations=12) instead of {args[len(names)]!r}."
            )
        return function(*args, **kwargs)

    return checked


@named_options
def enable(
    pipe: Any,
    budget: float | None = None,
    *,
    evaluations: int | None = None,
    speedup: float | None = None,
    quality: float | None = None,
    group: Any = None,
    schedule: Schedule | str | Path | None = None,
    policy: deciding.Policy | None = None,
    mode: Mode = "auto",
    compiled: bool = False,
    on_change: OnChange = "rescore",
    check_weights: bool = False,
    **options: Any,
) -> None:
    """From now on until `disable`, the pipeline evaluates its denoiser at some steps only.

    A pipeline that is enabled already gets the new settings.

    pipe           any diffusers pipeline whose loop evaluates a network and calls scheduler.step; also modular ones
    budget         share of the steps that evaluate the denoiser, but at least six steps; by default 0.25
    evaluations    instead: how many steps evaluate the denoiser, exactly
    speedup        instead: how many times as fast the denoiser becomes
    quality        instead: the target for the distance to the full run, in dB. The evaluated steps are then chosen
                   during the run, from the evaluations so far; `evaluations` limits their number
    group          with a quality: the processes of torch.distributed that must evaluate the same steps
    schedule       instead: a schedule, its file, or the hub id of one; it is for one number of steps
    policy         the policy, and `options` its options, as in `tenuto.schedule`
    mode           how the denoiser is run: auto, skip or jagged (see tenuto.runtime.executor)
    compiled       compile the branches, each kind once
    on_change      what the next generation does if the weights were changed (an adapter was loaded, fused, rescaled):
                   rescore (make new schedules and graphs) or refuse
    check_weights  refuse a given schedule that was made from other weights. Off by default: the check reads all
                   weights, and weights rounded to a lower precision than they are stored in count as other weights
    """
    parts = _parts(pipe)
    request = _request(
        schedule,
        budget=budget,
        evaluations=evaluations,
        speedup=speedup,
        quality=quality,
        group=group,
        policy=policy,
        options=options,
        mode=mode,
        compiled=compiled,
        on_change=on_change,
        check_weights=check_weights,
    )
    before = [vars(part).get(STATE) for part in parts]
    if all(isinstance(state, Enabled) and state.request.runs_like(request) for state in before):
        for state in before:
            state.configure(request)
        return
    disable(pipe)
    try:
        for part in parts:
            vars(part)[STATE] = Enabled(part, request, shared=len(parts) > 1)
    except BaseException:
        disable(pipe)
        for part, old in zip(parts, before, strict=True):
            if isinstance(old, Enabled):  # a wrong setting leaves the pipeline as it was
                vars(part)[STATE] = Enabled(part, old.request, shared=len(parts) > 1)
        raise


@named_options
def configure(pipe: Any, budget: float | None = None, **options: Any) -> None:
    """Give an enabled pipeline other settings for its next generations; the options are those of `enable`.

    How the denoiser is run (mode, compiled, on_change, check_weights, a quality's group) stays unless it is given.
    Recorded graphs stay, if outputs are held with the old and the new settings.
    """
    before = _enabled(pipe)[0].request
    stays = {name: getattr(before, name) for name in ("mode", "compiled", "on_change", "check_weights")}
    if options.get("quality") is not None:
        stays["group"] = before.group
    enable(pipe, budget, **{**stays, **options})


def disable(pipe: Any) -> None:
    """Restore an enabled pipeline to what it was before `enable`. A pipeline that is not enabled stays as it is."""
    for part in reversed(_parts(pipe)):  # the last one is wrapped around the others
        state = vars(part).pop(STATE, None)
        if isinstance(state, Engine):
            state.close()


@named_options
@contextmanager
def accelerated(target: Any, budget: float | None = None, **options: Any) -> Iterator[Any]:
    """Within the block a pipeline is enabled; the options are those of `enable`.

    A denoiser without a pipeline needs a `schedule`. Within the block, each of its calls is one step, and `start()` of
    the yielded object begins the next generation. If its loop calls scheduler.step, use `running` instead.
    """
    if isinstance(target, nn.Module):
        bare = Bare(target, _request(**{"budget": budget, **options}))
        try:
            yield bare
        finally:
            bare.close()
        return
    enable(target, budget, **options)
    try:
        yield target
    finally:
        disable(target)


@named_options
@contextmanager
def running(
    denoisers: nn.Module | dict[str, nn.Module],
    scheduler: Any,
    steps: int | None = None,
    budget: float | None = None,
    **options: Any,
) -> Iterator[Running]:
    """Within the block, a loop of your own evaluates its denoiser at some steps only.

    The loop calls the denoiser, as often as it likes in one step, and then `scheduler.step`. A new generation begins
    when all steps were taken, or when the scheduler was given new timesteps.

    denoisers  the network that the loop evaluates, or several of them by name
    steps      how many steps the loop takes, if these are not all timesteps of the scheduler
    options    those of `enable`
    """
    if isinstance(denoisers, nn.Module):
        denoisers = {"denoiser": denoisers}
    engine = Running(denoisers, scheduler, steps, _request(**{"budget": budget, **options}))
    try:
        yield engine
    finally:
        engine.close()


def summary(pipe: Any) -> Summary:
    """What the last generation of an enabled pipeline computed and held, and the time and memory it took."""
    if isinstance(pipe, Running):
        return pipe.summary()
    enabled = _enabled(pipe)
    ran = [state for state in enabled if state.last is not None]
    return (ran or enabled)[-1].summary()


def state_of(pipe: Any) -> Enabled | None:
    """The engine of an enabled pipeline; None if it is not enabled."""
    state = vars(_parts(pipe)[0]).get(STATE)
    return state if isinstance(state, Enabled) else None


def _parts(pipe: Any) -> list[Any]:
    """The pipelines with a loop of their own: those that a pipeline is made of, or the pipeline itself."""
    if not is_pipeline(pipe):
        network = " For a network in a loop of your own: tenuto.running(network, scheduler)."
        raise UsageError(
            f"Only a diffusers pipeline can be enabled, not something of the type {type(pipe).__name__}."
            + (network if isinstance(pipe, nn.Module) else "")
        )
    return inner_pipelines(pipe) or [pipe]


def _enabled(pipe: Any) -> list[Enabled]:
    states = [vars(part).get(STATE) for part in _parts(pipe)]
    enabled = [state for state in states if isinstance(state, Enabled)]
    if not enabled:
        raise UsageError(f"This {type(pipe).__name__} is not enabled; tenuto.enable(pipe) first.")
    return enabled


def is_pipeline(target: Any) -> bool:
    """Whether this is a diffusers pipeline, or a modular one."""
    return isinstance(target, DiffusionPipeline) or (
        isinstance(getattr(target, "components", None), dict) and not isinstance(target, nn.Module)
    )


def inner_pipelines(pipe: Any) -> list[Any]:
    """The pipelines that a pipeline is made of; empty if it has a loop of its own."""
    return [part for part in vars(pipe).values() if isinstance(part, DiffusionPipeline)]


def _request(schedule: Schedule | str | Path | None = None, options: Any = None, **given: Any) -> Request:
    known = {name: given.pop(name) for name in Request.__dataclass_fields__ if name in given}
    options = {name: value for name, value in {**(options or {}), **given}.items() if value is not None}
    request = Request(options=tuple(sorted(options.items())), **known)
    if schedule is None:
        return request
    if request.asks_for_work:
        raise UsageError("A schedule says everything by itself: give no budget, speed-up, policy or option with it.")
    return replace(request, given=schedule if isinstance(schedule, Schedule) else read_schedule(str(schedule)))


def read_schedule(name: str) -> Schedule:
    """Read a schedule from a file or from a hub repository."""
    if Path(name).exists() or not HUB_ID.fullmatch(name) or name.endswith(".json"):
        return load_schedule(name)
    with TemporaryDirectory() as folder:
        offered("pull")(name, folder)
        if not (Path(folder) / "schedule.json").exists():
            raise ScheduleError(f"{name} holds no schedule.json.")
        return load_schedule(Path(folder) / "schedule.json")
