"""One pipeline, tried: untouched, enabled at budget 1, enabled at a quarter, disabled again."""

import contextlib
import gc
import inspect
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from typing import Any

import diffusers
import numpy as np
import torch
from torch import nn

import tenuto
from benchmarks.coverage.cases import Case
from benchmarks.coverage.loops import watch_loop
from benchmarks.coverage.neighbours import called

STEPS = 16
WISHES: dict[str, dict[str, Any]] = {
    "budget 1": {"budget": 1.0},
    "a quarter": {"budget": 0.25},
    "ten evaluations": {"evaluations": 10},  # enough for predictions to be corrected
}
SLOW = {"AnimateDiffSDXLPipeline": 8}  # steps of pipelines that take a second for an evaluation
WITHOUT_NOISE = {  # schedulers that add noise, and one without noise that the same pipelines accept
    "CosineDPMSolverMultistepScheduler": "EDMDPMSolverMultistepScheduler",
    "DDPMScheduler": "DPMSolverMultistepScheduler",
    "LCMScheduler": "DDIMScheduler",
}
Outcome = dict[str, Any]
Inputs = Callable[..., dict[str, Any]]


class NotBuilt(Exception):
    """diffusers' own test cannot build or run this pipeline here."""


def build(case: Case) -> tuple[Any, Inputs]:
    """(the pipeline, a function that makes its inputs anew, for 16 steps or as many as it is told)."""
    import importlib

    tester_class = getattr(importlib.import_module(case.module), case.tester)
    tester = tester_class()
    try:
        _seed()
        if hasattr(tester, "get_dummy_components"):
            pipe = tester.pipeline_class(**called(tester.get_dummy_components))
        else:
            from benchmarks.coverage.modular import modular_pipeline

            pipe = modular_pipeline(tester)
    except Exception as error:
        raise NotBuilt(f"{type(error).__name__}: {error}") from error
    with contextlib.suppress(Exception):
        pipe.set_progress_bar_config(disable=True)
    if hasattr(pipe, "disable_safety_checker"):
        pipe.disable_safety_checker()
    for part in parts_of(pipe).values():
        part.eval()

    def inputs(steps: int | None = None) -> dict[str, Any]:
        _seed()
        given = dict(called(tester.get_dummy_inputs))
        accepted = _parameters(pipe)
        for name in accepted | set(given):
            if name.endswith("num_inference_steps") and (name in accepted or name in given):
                given[name] = steps or SLOW.get(case.pipeline, STEPS)
        if "intermediate_timesteps" in accepted:  # SANA-Sprint's, for two steps only
            given["intermediate_timesteps"] = None
        return given

    return pipe, inputs


def _parameters(pipe: Any) -> set[str]:
    blocks = getattr(pipe, "blocks", None)
    if blocks is not None and hasattr(blocks, "input_names"):
        return set(blocks.input_names)
    return set(inspect.signature(type(pipe).__call__).parameters)


def _seed() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (pipelines draw from the global generators)
    torch.manual_seed(0)


def parts_of(pipe: Any) -> dict[str, nn.Module]:
    """The networks among a pipeline's components."""
    components = pipe.components
    found = {name: part for name, part in components.items() if isinstance(part, nn.Module)}
    return {name: part for place, (name, part) in enumerate(found.items())
            if part not in list(found.values())[:place]}  # fmt: skip


@contextlib.contextmanager
def counting(pipe: Any) -> Iterator[Counter[str]]:
    """Counts how often each network is really evaluated, by hooks of torch on its forward."""
    counts: Counter[str] = Counter()

    def hook(name: str) -> Callable[..., None]:
        def count(*_: Any) -> None:
            counts[name] += 1

        return count

    handles = [part.register_forward_hook(hook(name)) for name, part in parts_of(pipe).items()]
    try:
        yield counts
    finally:
        for handle in handles:
            handle.remove()


def arrays(value: Any) -> list[np.ndarray[Any, Any]]:
    """Every number in what a pipeline returned, whatever its structure."""
    if value is None or isinstance(value, str | bool):
        return []
    if isinstance(value, torch.Tensor):
        return [value.detach().float().cpu().numpy()]
    if isinstance(value, np.ndarray):
        return [value.astype(np.float64)] if value.dtype != object else [a for one in value for a in arrays(one)]
    if isinstance(value, int | float):
        return [np.array(float(value))]
    if isinstance(value, dict):
        return [a for one in value.values() for a in arrays(one)]
    if isinstance(value, list | tuple):
        return [a for one in value for a in arrays(one)]
    if hasattr(value, "tobytes") and hasattr(value, "size"):  # a picture
        return [np.asarray(value).astype(np.float64)]
    if is_dataclass(value):
        return [a for one in vars(value).values() for a in arrays(one)]
    return []


def same(one: list[np.ndarray[Any, Any]], other: list[np.ndarray[Any, Any]]) -> bool:
    return len(one) == len(other) > 0 and all(
        a.shape == b.shape and np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True)
    )


def drawn(pipe: Any, inputs: Inputs, steps: int | None = None) -> tuple[list[np.ndarray[Any, Any]], Counter[str]]:
    given = inputs(steps)
    _seed()
    with counting(pipe) as counts, torch.no_grad():
        result = pipe(**given)
    values = arrays(result if not hasattr(result, "values") or isinstance(result, dict) else result.values)
    return values, counts


def attempt(case: Case) -> Outcome:
    """The outcome: verdict `works`, `refused`, `fails` or `not built`, with the reason and the counts."""
    began = time.perf_counter()
    outcome: Outcome = {"pipeline": case.pipeline, "key": case.key, "module": case.module, "tester": case.tester}
    try:
        outcome |= _attempt(case)
    except NotBuilt as error:
        outcome |= {"verdict": "not built", "why": str(error)}
    outcome["seconds"] = round(time.perf_counter() - began, 1)
    gc.collect()
    return outcome


def _attempt(case: Case) -> Outcome:
    pipe, inputs = build(case)
    try:
        with watch_loop(pipe) as facts:
            full, full_counts = drawn(pipe, inputs)
    except Exception as error:
        raise NotBuilt(f"untouched: {type(error).__name__}: {error}") from error
    if not full:
        raise NotBuilt("untouched: it returned no numbers")
    found: Outcome = {"full": dict(full_counts), "loop": facts()}
    found["denoisers"] = [name for name in full_counts if name in found["loop"]["looped"]]
    runs: dict[str, tuple[list[np.ndarray[Any, Any]], Counter[str]]] = {}
    for name, wish in WISHES.items():
        try:
            tenuto.enable(pipe, **wish)
        except Exception as error:
            return found | {"verdict": "refused", "why": _reason(error), "at": f"enable, {name}"}
        try:
            values, counts = runs[name] = drawn(pipe, inputs)
            told = _facts(tenuto.summary(pipe))
        except Exception as error:
            return found | {"verdict": "fails", "why": _reason(error), "at": f"run, {name}"}
        finally:
            with contextlib.suppress(Exception):
                tenuto.disable(pipe)
        found[name] = {"evaluations": dict(counts), "summary": told, "distance": _distance(values, full)}
        if len(values) != len(full) or _finite(values) != _finite(full):
            return found | {"verdict": "fails", "why": f"at {name} the result is not finite"}
        if name == "budget 1" and not same(values, full):
            if not same(drawn(pipe, inputs)[0], full):
                raise NotBuilt("untouched: two runs from one seed differ")
            return found | {"verdict": "fails", "why": "at budget 1 the result differs from the untouched one"}
    for name, (_, counts) in {**runs, "disabled": drawn(pipe, inputs)}.items():
        if name == "disabled" and not same(_, full):
            return found | {"verdict": "fails", "why": "after disable the result differs from the untouched one"}
        difference = {one: counts[one] - full_counts[one] for one in found["denoisers"]}
        if any(number > 0 for number in difference.values()):
            return found | {"verdict": "fails", "why": f"at {name} more evaluations than untouched: {difference}"}
        if name in ("budget 1", "disabled") and any(difference.values()):
            return found | {"verdict": "fails", "why": f"at {name} fewer evaluations than untouched: {difference}"}
        if name == "a quarter" and not any(difference.values()):
            why = found[name]["summary"].get("in_full_because") or "nothing was held"
            return found | {"verdict": "in full", "why": why, "instead": instead(pipe, inputs, found)}
    return found | {"verdict": "works", "why": ""}


def instead(pipe: Any, inputs: Inputs, found: Outcome) -> Outcome | None:
    """What a quarter saves with a scheduler that adds no noise, or with more steps where few were left; or None."""
    schedulers = {name: part for name, part in pipe.components.items() if type(part).__name__ in WITHOUT_NOISE}
    steps = None
    if "nothing to leave out" in found["a quarter"]["summary"].get("in_full_because", ""):
        left = max(1, found["a quarter"]["summary"]["steps"])
        steps = -(-STEPS * STEPS // left)
        how = f"{steps} steps, of which its strength leaves about {STEPS}"
    elif schedulers:
        how = ", ".join(sorted({WITHOUT_NOISE[type(part).__name__] for part in schedulers.values()}))
        for name, part in schedulers.items():
            setattr(pipe, name, getattr(diffusers, WITHOUT_NOISE[type(part).__name__]).from_config(part.config))
    else:
        return None
    told: Outcome = {"how": how}
    try:
        full, before = drawn(pipe, inputs, steps)
    except Exception:
        return None  # the pipeline takes no other scheduler
    try:
        with tenuto.accelerated(pipe, budget=0.25):
            held, counts = drawn(pipe, inputs, steps)
        again, _ = drawn(pipe, inputs, steps)
    except Exception as error:
        return told | {"why": _reason(error)}
    if not same(again, full):
        return told | {"why": "after disable the result differs"}
    named = found["denoisers"]
    told |= {"full": {name: before[name] for name in named}, "evaluations": {name: counts[name] for name in named}}
    return told | {"distance": _distance(held, full)}


def _finite(values: list[np.ndarray[Any, Any]]) -> list[bool]:
    return [bool(np.isfinite(one).all()) for one in values]


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def _distance(values: list[np.ndarray[Any, Any]], full: list[np.ndarray[Any, Any]]) -> float | None:
    """Relative distance of the held result to the full one; None if it is not a number."""
    above = sum(float(np.square(a - b).sum()) for a, b in zip(values, full, strict=False) if a.shape == b.shape)
    below = sum(float(np.square(b).sum()) for b in full)
    ratio = (above / below) ** 0.5 if below > 0 else float("nan")
    return round(ratio, 5) if np.isfinite(ratio) else None


def _facts(told: Any) -> Outcome:
    known = told.to_dict()
    wanted = ("scheduler", "steps", "evaluations", "computed", "corrected", "uncorrected_because", "in_full_because")
    return {name: known[name] for name in wanted if name in known}
