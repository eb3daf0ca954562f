"""One call makes a diffusers pipeline faster, and another call restores it.

tenuto.enable(pipe, budget=0.25)
images = pipe("a red car").images
print(tenuto.summary(pipe))
tenuto.disable(pipe)
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from diffusers import DiffusionPipeline
from torch import nn

from tenuto import deciding
from tenuto.errors import ScheduleError, UsageError
from tenuto.pipelines.denoiser import OnChange, Request
from tenuto.pipelines.engine import Bare, Enabled
from tenuto.pipelines.summary import Summary
from tenuto.runtime.executor import Mode
from tenuto.scheduling.schedule import Schedule, load_schedule

STATE = "_tenuto"  # the attribute of an enabled pipeline
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def enable(
    pipe: DiffusionPipeline,
    budget: float | None = None,
    *,
    speedup: float | None = None,
    schedule: Schedule | str | Path | None = None,
    policy: deciding.Policy | None = None,
    mode: Mode = "auto",
    compiled: bool = False,
    on_change: OnChange = "rescore",
    check_weights: bool = False,
    **options: Any,
) -> None:
    """From now on until `disable`, the pipeline evaluates its denoiser as a schedule says.

    budget         share of the work to do; by default 0.25
    speedup        instead of a budget: how many times as fast as full inference
    schedule       instead of both: a schedule, its file, or the hub id of one; it is for one number of steps
    policy         the policy, and `options` its options, as in `tenuto.schedule`
    mode           how the denoiser is run: auto, skip or jagged (see tenuto.runtime.executor)
    compiled       compile the branches, each kind once
    on_change      what the next generation does if the weights were changed (an adapter was loaded, fused, rescaled):
                   rescore (make new schedules and graphs) or refuse
    check_weights  refuse a given schedule that was made from other weights. Off by default: the check reads all
                   weights, and weights rounded to a lower precision than they are stored in count as other weights
    """
    if not isinstance(pipe, DiffusionPipeline):
        raise UsageError(f"A diffusers pipeline can be enabled, and this is a {type(pipe).__name__}.")
    if vars(pipe).get(STATE) is not None:
        raise UsageError(f"This {type(pipe).__name__} is enabled already; tenuto.disable(pipe) first.")
    vars(pipe)[STATE] = Enabled(
        pipe, _request(budget, speedup, schedule, policy, options, mode, compiled, on_change, check_weights)
    )


def disable(pipe: DiffusionPipeline) -> None:
    """Restore an enabled pipeline to what it was before `enable`."""
    _state_of(pipe).close()
    del vars(pipe)[STATE]


@contextmanager
def accelerated(target: DiffusionPipeline | nn.Module, budget: float | None = None, **options: Any) -> Iterator[Any]:
    """Within the block a pipeline is enabled; the options are those of `enable`.

    A denoiser without a pipeline needs a `schedule`. Within the block, each of its calls is one step, and `start()` of
    the yielded object begins the next generation.
    """
    if isinstance(target, nn.Module):
        bare = Bare(target, _request_for_bare(budget, **options))
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


def summary(pipe: DiffusionPipeline) -> Summary:
    """What the last generation of an enabled pipeline computed and held, and the time and memory it took."""
    return _state_of(pipe).summary()


def _state_of(pipe: Any) -> Enabled:
    state = vars(pipe).get(STATE)
    if not isinstance(state, Enabled):
        raise UsageError(f"This {type(pipe).__name__} is not enabled; tenuto.enable(pipe) first.")
    return state


def _request(
    budget: float | None,
    speedup: float | None,
    schedule: Schedule | str | Path | None,
    policy: deciding.Policy | None,
    options: dict[str, Any],
    mode: Mode,
    compiled: bool,
    on_change: OnChange,
    check_weights: bool,
) -> Request:
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
    return Request(given, budget, speedup, policy, options, mode, compiled, on_change, check_weights)


def _request_for_bare(
    budget: float | None,
    schedule: Schedule | str | Path | None = None,
    mode: Mode = "auto",
    compiled: bool = False,
    check_weights: bool = False,
    **options: Any,
) -> Request:
    return _request(budget, None, schedule, None, options, mode, compiled, "rescore", check_weights)


def read_schedule(name: str) -> Schedule:
    """Read a schedule from a file or from a hub repository."""
    if Path(name).exists() or not HUB_ID.fullmatch(name) or name.endswith(".json"):
        return load_schedule(name)
    from tenuto.hub import pull

    with TemporaryDirectory() as folder:
        pull(name, folder)
        if not (Path(folder) / "schedule.json").exists():
            raise ScheduleError(f"{name} holds no schedule.json.")
        return load_schedule(Path(folder) / "schedule.json")
