"""Runs a network under a schedule.

    generation = Executor(network, schedule).start()
    for …:  output = generation(x, t, y)        # one step; the steps are counted

What is kept decides the path:

output          the network is evaluated at some steps, and its output is predicted at the others (outputs)
keys            for text: some positions are computed; the others' keys and values come from the KV cache (keys)
branch, update  every step evaluates the network; for a held unit, its kept value is added to the stream. This is the
                laboratory's: for such a schedule, Executor(…) is a tenuto_lab.units.unit_executor.UnitExecutor

Three modes, one interface:

eager   everything computed at every step, as if there were no schedule
skip    Python runs the network and skips what is held
jagged  one CUDA graph for each program; the graph contains only what is computed (stages)

skip and jagged give the same result, up to the rounding of their kernels; eager gives the result of full inference.

Without graphs, a generation owns the values that it keeps. Graphs and their buffers belong to the executor and serve
one generation at a time. If a second generation runs meanwhile, it runs without graphs, and a warning says so.
"""

import inspect
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from threading import Lock, get_ident
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from tenuto.errors import ScheduleError, UsageError
from tenuto.laboratory import offered
from tenuto.runtime.compilation import compiling, plainly
from tenuto.runtime.keys import Keys
from tenuto.runtime.outputs import Outputs
from tenuto.runtime.private_torch import tree_flatten
from tenuto.runtime.residual import Residual, plain
from tenuto.runtime.signature import Signature, signature_of
from tenuto.runtime.stages import ROWS, Cells, Inputs, Stage, Stages
from tenuto.scheduling.schedule import Schedule

Mode = Literal["auto", "eager", "skip", "jagged"]
UNITS = ("branch", "update")  # what is kept of single units


@dataclass(frozen=True)
class Report:
    """What an executor recorded, kept and gave up."""

    mode: str
    patterns: int
    graphs: int
    capture_seconds: float
    cache_bytes: int  # of what is kept
    graph_bytes: int  # of the graphs' memory, activations included
    given_up: str  # to stay within the bounds on memory and graphs; "" means nothing


class Slower(UserWarning):
    """The fastest path could not be used. The output is right, but takes longer."""


class Executor:
    def __new__(cls, network: Any, schedule: Any = None, *given: Any, **options: Any) -> "Executor":
        holds_units = cls is Executor and isinstance(schedule, Schedule) and schedule.keep in UNITS
        return super().__new__(offered("executor") if holds_units else cls)

    def __init__(
        self,
        network: Callable[..., Any],
        schedule: Schedule | None = None,
        *,
        mode: Mode = "auto",
        compiled: bool = False,
        module: nn.Module | None = None,
    ) -> None:
        """network   called as network(…, residual=…)
        schedule  without one, everything is computed at every step
        mode      auto: jagged on a GPU, skip elsewhere. If outputs are kept and the GPU does not wait for Python: skip
        compiled  compile the network's branch functions, each once
        module    the module that the network runs, if the network is not a module itself
        """
        if mode not in get_args(Mode):
            raise UsageError(f"The mode is one of {', '.join(get_args(Mode))}, not {mode!r}.")
        if schedule is not None and schedule.keep == "keys" and not _takes_memory(network):
            raise ScheduleError("Keys are kept by language models only, whose forward takes a memory for them.")
        self.network = network
        self.module = network if module is None and isinstance(network, nn.Module) else module
        self.schedule = schedule
        self.mode = mode
        self.compiled = compiled
        self.kept_bytes = 0  # of outputs, and of keys that are kept without graphs
        self.stages = Stages(self)
        self._warned: set[str] = set()

    def start(self) -> "Generation":
        """A new generation, at its first step and with nothing kept."""
        return Generation(self)

    @property
    def keep(self) -> str | None:
        """What is kept from one step to the next; None: nothing."""
        return None if self.schedule is None or self.mode == "eager" else self.schedule.keep

    @cached_property
    def full_steps(self) -> list[bool]:
        """[step]: whether the step computes everything."""
        return [] if self.schedule is None else self.schedule.full_steps.tolist()

    @property
    def in_full(self) -> Residual:
        """The residual of full inference."""
        return plainly if self.compiled else plain

    def evaluates(self, step: int) -> bool:
        """Whether a step evaluates the network."""
        return self.keep != "output" or self.full_steps[step]

    def captures(self, device: torch.device) -> bool:
        """Whether evaluations on this device are recorded. If they are, inputs should keep their shapes."""
        return self.schedule is not None and device.type == "cuda" and self.mode not in ("eager", "skip")

    def cells_for(self, kind: Inputs, device: torch.device) -> Cells | None:
        """The buffers in which graphs keep single units; None if no units are held."""
        return None

    def keeper_for(self, kind: Inputs) -> Any:
        """What keeps single units without graphs; None if no units are held."""
        return None

    def evaluate(self, step: int, inputs: Any, named: Any, rows: Tensor | None, keys: Keys | None = None) -> Any:
        """One evaluation in which no unit is held. With `keys`, only full steps compute all positions."""
        if keys is None:
            return self.network(*inputs, **named, residual=self.in_full)
        memory = (keys, None if self.full_steps[step] else rows)
        return self.network(*inputs, **named, memory=memory, residual=self.in_full)

    def release(self) -> None:
        """Free all graphs and what they keep. Graphs are recorded again when they are needed."""
        self.stages.clear()

    def report(self) -> Report:
        """What was recorded and kept so far."""
        return Report(
            mode=self.mode,
            patterns=0 if self.schedule is None else self.schedule.patterns,
            graphs=self.stages.graphs,
            capture_seconds=self.stages.capture_seconds,
            cache_bytes=self.kept_bytes + (self.stages.kept_bytes if self.stages.graphs else 0),
            graph_bytes=self.stages.graph_bytes,
            given_up="",
        )

    def warn(self, why: str) -> None:
        if why not in self._warned:
            self._warned.add(why)
            warnings.warn(f"Running by a slower path: {why}.", Slower, stacklevel=4)


def _takes_memory(network: Callable[..., Any]) -> bool:
    return "memory" in inspect.signature(getattr(network, "forward", network)).parameters


class Generation:
    """One run through the steps of a schedule."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._stage: Stage | None = None
        self._signature: Signature = ()
        self._units: Any = None  # what keeps single units, if some are held without graphs
        self._keys = Keys() if executor.keep == "keys" else None
        self._outputs: Outputs | None = None
        if executor.schedule is not None and executor.keep == "output":
            self._outputs = Outputs(executor.schedule.order)
        self.step = 0  # how many steps were taken
        self._begun = False  # whether the network was evaluated
        self.broken = False
        self.thread = get_ident()

    @property
    def finished(self) -> bool:
        """Whether no later step reads a kept value."""
        schedule = self._executor.schedule
        return self.broken or (schedule is not None and self.step >= schedule.steps)

    def __call__(self, *inputs: Any, rows: Tensor | None = None, **named: Any) -> Any:
        """One step. rows [B, P]: the positions that are computed while the others are held (schedules with rows)."""
        executor, schedule = self._executor, self._executor.schedule
        with compiling(executor.compiled):
            if schedule is None:
                return executor.evaluate(self.step, inputs, named, None)
            self._check(schedule, rows)
            try:
                output = self._run(inputs, named, rows)
            except BaseException:
                self.broken = True  # the step is half done, so what is kept belongs to no step
                self._units = None
                raise
        self.step += 1
        return output

    def evaluate_at(self, step: int, *inputs: Any, **named: Any) -> Any:
        """Evaluate the network at a step, for a caller that keeps its outputs (tenuto.runtime.stepping)."""
        self._outputs = None
        self.step = step
        return self(*inputs, **named)

    def _check(self, schedule: Schedule, rows: Tensor | None) -> None:
        if self.broken:
            raise ScheduleError("This generation ended in an exception; begin a new one.")
        if self.step >= schedule.steps:
            raise ScheduleError(
                f"The schedule has {schedule.steps} steps, but the sampler evaluates the network once more. "
                "Make the schedule for as many steps as the sampler takes."
            )
        if (rows is not None) != (schedule.rows != "none"):
            says = "says" if rows is not None else "does not say"
            raise ScheduleError(f"The schedule's rows are {schedule.rows!r}, and the sampler {says} which those are.")

    def _run(self, inputs: tuple[Any, ...], named: dict[str, Any], rows: Tensor | None) -> Any:
        if self._outputs is None:
            return self._evaluated(inputs, named, rows)
        if not self._executor.evaluates(self.step):
            return self._outputs.at(self.step)
        output = self._outputs.take(self.step, self._evaluated(inputs, named, rows))
        self._executor.kept_bytes = self._outputs.bytes
        return output

    def _evaluated(self, inputs: tuple[Any, ...], named: dict[str, Any], rows: Tensor | None) -> Any:
        executor = self._executor
        if executor.keep is None:
            return executor.evaluate(self.step, inputs, named, None)
        leaves, spec = tree_flatten((inputs, named if rows is None else {**named, ROWS: rows}))
        if not self._begun:
            self._begun = True
            self._signature = signature_of(leaves, spec)
            kind = Inputs(self._signature, inputs, named)
            self._stage = executor.stages.acquire(self, kind, leaves)
            if self._stage is None:
                self._units = executor.keeper_for(kind)
        if self._stage is not None:
            return self._stage.run(executor, self.step, leaves, spec, self._signature)
        if self._units is not None:
            return self._units.run(self.step, executor.network, inputs, named, rows)
        output = executor.evaluate(self.step, inputs, named, rows, self._keys)
        if self._keys is not None:
            executor.kept_bytes = self._keys.bytes
        return output


class Executors:
    """The executors of one network, kept so that graphs recorded for one generation serve the next.

    The least recently used executor is dropped.
    """

    def __init__(self, make: Callable[..., Executor], most: int = 4) -> None:
        self._make, self._most = make, most
        self._kept: list[tuple[Any, Executor]] = []  # the most recently used one stands last
        self._lock = Lock()

    def get(self, schedule: Schedule | None, mode: Mode = "auto", compiled: bool = False, lane: int = 0) -> Executor:
        """lane: generations that run at the same time use different lanes; each lane has its own executor."""
        with self._lock:
            how = (mode, compiled, lane)
            found = next((one for key, one in self._kept if key == how and one.schedule == schedule), None)
            others = [(key, one) for key, one in self._kept if one is not found]
            if found is None:
                found = self._make(schedule, mode=mode, compiled=compiled)
                steps = None if schedule is None else schedule.steps
                for _, other in others:  # their graphs take memory, and can be recorded again
                    if other.schedule is not None and other.schedule.steps != steps:
                        other.release()
            while len(others) >= self._most:
                others.pop(0)[1].release()
            self._kept = [*others, (how, found)]
            return found

    def __iter__(self) -> Any:
        return iter([one for _, one in self._kept])

    def clear(self) -> None:
        for one in self:
            one.release()
        self._kept = []


_of_networks: "weakref.WeakKeyDictionary[nn.Module, Executors]" = weakref.WeakKeyDictionary()


def executor_for(
    network: nn.Module, schedule: Schedule | None, mode: Mode = "auto", compiled: bool = False
) -> Executor:
    """An executor of a network. If an earlier one has the same schedule and options, that one is returned."""
    if network not in _of_networks:
        proxy = weakref.proxy(network)  # a strong reference would keep the network alive
        _of_networks[network] = Executors(lambda schedule, **how: Executor(proxy, schedule, **how))
    return _of_networks[network].get(schedule, mode, compiled)
