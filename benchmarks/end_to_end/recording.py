"""One generation, looked at from outside: how long its parts took, and at which steps the network was computed.

Times on a GPU are taken with events in its queue, so that measuring does not wait for anything between the start of a
generation and its end. Evaluations are counted by a hook on a module, and as replays of CUDA graphs, in which no hook
runs.
"""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from benchmarks.end_to_end.building import Built


@dataclass(frozen=True)
class Generation:
    seconds: float
    text: float  # until the loop begins
    loop: float
    rest: float  # after the loop
    steps: tuple[float, ...]  # seconds of each
    computed: tuple[int, ...]  # the steps at which the network was computed
    calls: int  # how often it was computed; with guidance in two calls, twice a step
    denoiser: float  # seconds in the network; 0.0 if that was not measured


@contextmanager
def tidy() -> Iterator[None]:
    """Python collects its garbage before a picture, not at a random moment in it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Recorder:
    """Records the generations of one pipeline. `step` is the current step."""

    def __init__(self, built: Built, steps: int) -> None:
        self._built, self._steps = built, steps
        self._on_gpu = built.device.type == "cuda"
        self.graphs = 0  # that were recorded
        self._clear()

    def _clear(self) -> None:
        self.step = 0
        self._calls = 0
        self._calls_before = 0
        self._computed: list[int] = []
        self._begun: Any = None
        self._ends: list[Any] = []
        self._inside: list[tuple[Any, Any]] = []

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) / 1000 if self._on_gpu else float(end - start)

    def _step_ended(self, pipe: Any, step: int, timestep: Any, given: dict[str, Any]) -> dict[str, Any]:
        self._ends.append(self._now())
        if self._calls > self._calls_before:
            self._computed.append(self.step)
        self._calls_before = self._calls
        self.step += 1
        return given

    def _called(self, *_: Any) -> None:
        self._calls += 1

    def generate(self, at_denoiser: bool, time_denoiser: bool, steps: int | None = None) -> Generation:
        """at_denoiser    count calls of the denoiser; otherwise of a module of its last block
        time_denoiser  measure the time in the denoiser; not if it may be recorded in a graph
        steps          if not as many as the case has
        """
        built = self._built
        self._clear()
        with tidy(), self._loop_announced(), self._counting(at_denoiser), self._timing(time_denoiser):
            if self._on_gpu:
                torch.cuda.synchronize()
            started, first = time.perf_counter(), self._now()
            built.draw(steps or self._steps, self._step_ended)
            last = self._now()
            if self._on_gpu:
                torch.cuda.synchronize()
            seconds = time.perf_counter() - started
        marks = [self._begun, *self._ends]
        return Generation(
            seconds,
            self._between(first, self._begun),
            self._between(self._begun, self._ends[-1]),
            self._between(self._ends[-1], last),
            tuple(self._between(a, b) for a, b in pairwise(marks)),
            tuple(self._computed),
            self._calls,
            sum(self._between(a, b) for a, b in self._inside),
        )

    @contextmanager
    def _loop_announced(self) -> Iterator[None]:
        """A pipeline asks for its progress bar when its loop begins."""
        pipe = self._built.pipe
        original, own = pipe.progress_bar, vars(pipe).get("progress_bar")

        def begin(*args: Any, **kwargs: Any) -> Any:
            if self._begun is None:
                self._begun = self._now()
            return original(*args, **kwargs)

        vars(pipe)["progress_bar"] = begin
        try:
            yield
        finally:
            if own is None:
                del vars(pipe)["progress_bar"]
            else:
                vars(pipe)["progress_bar"] = own

    @contextmanager
    def _counting(self, at_denoiser: bool) -> Iterator[None]:
        module = self._built.denoiser if at_denoiser else self._built.probe
        handle = module.register_forward_pre_hook(self._called)
        replay = torch.cuda.CUDAGraph.replay

        def counted(graph: Any) -> None:
            self._called()
            replay(graph)

        torch.cuda.CUDAGraph.replay = counted  # type: ignore[assignment,method-assign]
        try:
            yield
        finally:
            torch.cuda.CUDAGraph.replay = replay  # type: ignore[method-assign]
            handle.remove()

    @contextmanager
    def _timing(self, wanted: bool) -> Iterator[None]:
        if not wanted:
            yield
            return
        starts: list[Any] = []
        denoiser = self._built.denoiser
        handles = [
            denoiser.register_forward_pre_hook(lambda *_: starts.append(self._now())),
            denoiser.register_forward_hook(lambda *_: self._inside.append((starts.pop(), self._now()))),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
