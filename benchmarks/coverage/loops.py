"""What a pipeline's loop does with its scheduler, seen from outside while it runs untouched."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

STEPPERS = ("step", "step_pred", "step_correct", "step_prk", "step_plms", "batch_step_no_noise", "undo_step")


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [one for part in value for one in _tensors(part)]
    if isinstance(value, dict):
        return [one for part in value.values() for one in _tensors(part)]
    return _tensors(vars(value)) if hasattr(value, "__dict__") else []


@contextlib.contextmanager
def watch_loop(pipe: Any) -> Iterator[Callable[[], dict[str, Any]]]:
    """Within the block every scheduler class is watched. The yielded function tells what was seen."""
    from diffusers import SchedulerMixin

    events: list[tuple[Any, ...]] = []
    last: dict[int, torch.Tensor] = {}
    keep: list[Any] = []  # keeps schedulers alive, so that their ids stay theirs

    def stepped(original: Any, name: str, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        given = [one for one in _tensors([args, kwargs]) if one.ndim > 1]
        before = last.get(id(scheduler))
        how = "first"
        if before is not None:
            how = "same object" if any(one is before for one in given) else "changed"
            if how == "changed" and any(
                one.shape == before.shape and torch.equal(one, before.to(one.dtype)) for one in given
            ):
                how = "equal"
        result = original(scheduler, *args, **kwargs)
        returned = _tensors(result)
        if returned and name == "step":
            last[id(scheduler)] = returned[0]
        keep.append(scheduler)
        keys = ",".join(sorted(kwargs))
        events.append(("step", type(scheduler).__name__, id(scheduler), name, how, f"{len(args)} args, {keys}"))
        return result

    def reset(original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        events.append(("set", type(scheduler).__name__, id(scheduler)))
        last.pop(id(scheduler), None)
        keep.append(scheduler)
        return original(scheduler, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        for kind in _subclasses(SchedulerMixin):
            for name in STEPPERS:
                if name in vars(kind):
                    original = vars(kind)[name]
                    stack.callback(setattr, kind, name, original)
                    setattr(kind, name, _method(partial(stepped, original, name), original))
            if "set_timesteps" in vars(kind):
                original = vars(kind)["set_timesteps"]
                stack.callback(setattr, kind, "set_timesteps", original)
                setattr(kind, "set_timesteps", _method(partial(reset, original), original))  # noqa: B010
        for name, part in pipe.components.items():
            if isinstance(part, nn.Module):
                handle = part.register_forward_hook(lambda *_, name=name: events.append(("net", name)))
                stack.callback(handle.remove)
        yield lambda: _told(events)


def _method(wrapper: Callable[..., Any], original: Any) -> Any:
    from functools import wraps

    @wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(self, *args, **kwargs)

    return method


def _subclasses(kind: Any) -> list[Any]:
    return [kind, *(one for child in kind.__subclasses__() for one in _subclasses(child))]


def _looped(between: list[Counter[str]]) -> list[str]:
    """The networks that are called again and again: in more than two of the stretches between two steps."""
    counts = Counter(name for one in between for name in one)
    return [name for name, count in counts.items() if count > 2]


def _told(events: list[tuple[Any, ...]]) -> dict[str, Any]:
    """The facts: calls of `step` by name and scheduler, networks before, between and after them."""
    places = [place for place, event in enumerate(events) if event[0] == "step"]
    if not places:
        calls = Counter(event[1] for event in events if event[0] == "net")
        return {"steps": 0, "networks": dict(calls), "looped": [name for name, count in calls.items() if count > 2]}
    steps = [events[place] for place in places]
    between: list[Counter[str]] = []
    for start, end in zip([-1, *places], places, strict=False):
        between.append(Counter(event[1] for event in events[start + 1 : end] if event[0] == "net"))
    patterns = Counter(
        " + ".join(f"{count} {name}" for name, count in sorted(one.items())) or "nothing" for one in between[1:]
    )
    return {
        "steps": len(steps),
        "schedulers": {
            f"{kind}.{name}": count for (kind, name), count in Counter((one[1], one[3]) for one in steps).items()
        },
        "scheduler_objects": len({one[2] for one in steps}),
        "set_timesteps": sum(event[0] == "set" for event in events),
        "before_first_step": dict(between[0]),
        "looped": _looped(between),
        "between_steps": dict(patterns),
        "sample": dict(Counter(one[4] for one in steps)),
        "arguments": dict(Counter(one[5] for one in steps)),
    }
