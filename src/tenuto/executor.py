"""Runs a network under a schedule: computes the units of each step's pattern and reuses the others.

    generation = Executor(network, schedule).start()
    for …:  output = generation(x, t, y)        # one network evaluation; the step counts itself

Four modes, one interface:

eager    every unit computed at every step, as if there were no schedule
skip     held units are skipped by Python, one step after the other
padded   one CUDA graph: every unit computed, held ones selected away. It saves launches and nothing else
jagged   one CUDA graph for each program of the plan: only what is computed is in it

Skipping and graphs give the same up to the rounding of their kernels; `eager` gives what full inference gives.

A generation owns all it keeps. Graphs and their buffers belong to the executor and serve one generation at a time;
another one that runs meanwhile goes by skipping, and says so.
"""

import inspect
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock, get_ident
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from tenuto.chain import activation_bytes, output_bytes
from tenuto.compilation import compiling, plainly
from tenuto.errors import ScheduleError, UsageError, first_line
from tenuto.graphs import Graphs
from tenuto.holding import Holding, Outputs, Padded, Planes, References, Unplanned
from tenuto.plan import Plan
from tenuto.planning import Planner
from tenuto.residual import Residual, plain
from tenuto.rows import Keys
from tenuto.schedules import Schedule
from tenuto.signature import Signature, hashable, signature_of

Mode = Literal["auto", "eager", "skip", "padded", "jagged"]
STAGES = 4  # signatures of inputs whose graphs are kept; the one used longest ago gives way
SIGNATURES = 8  # of inputs within a generation, for which graphs are recorded
ROWS = "rows of held units"  # how they are called among the inputs of a graph


@dataclass(frozen=True)
class Forecast:
    """What an executor will take, if it records graphs."""

    graphs: int
    cache_bytes: int  # of what is held
    graph_bytes: int  # that the graphs share: the tensors of one full evaluation, as full inference has them too
    given_up: str  # for the bounds on memory and graphs; "" means nothing


@dataclass(frozen=True)
class Report:
    """What an executor took."""

    mode: str
    patterns: int
    graphs: int
    capture_seconds: float
    cache_bytes: int  # of what is held
    graph_bytes: int  # that the graphs share, activations included
    given_up: str  # for the bounds on memory and graphs; "" means nothing


class Slower(UserWarning):
    """Graphs could not be used; the output is right, by a slower path."""


class Executor:
    def __init__(
        self,
        network: Callable[..., Any],
        schedule: Schedule | None = None,
        *,
        mode: Mode = "auto",
        compiled: bool = False,
        memory: int | None = None,
        graphs: int | None = None,
        offload: bool = False,
        module: nn.Module | None = None,
    ) -> None:
        """network   called as network(…, residual=…)
        schedule  without one, every unit is computed at every step
        mode      auto: jagged on a GPU, skip elsewhere
        compiled  compile the network's branch functions, each once
        memory    how many bytes may be kept for inputs of one shape; the report says what was given up for it
        graphs    how many may be recorded, likewise; the nearest lifetimes are made one for that
        offload   keep what graphs hold in the host's memory, which is slow and costs the device nothing
        module    what the network runs, where it is no module itself
        """
        if mode not in get_args(Mode):
            raise UsageError(f"The mode is one of {', '.join(get_args(Mode))}, not {mode!r}.")
        if mode == "padded" and (memory is not None or graphs is not None or offload):
            raise UsageError("A padded graph keeps every unit by itself: memory, graphs and offload are not for it.")
        if offload and (mode in ("eager", "skip") or (schedule is not None and schedule.order)):
            raise UsageError("Only graphs keep what they hold in the host's memory, and only with reuse 'hold'.")
        if offload and schedule is not None and schedule.rows != "none":
            raise UsageError("Caches in the host's memory cannot be written row by row: offload goes without rows.")
        if schedule is not None and schedule.hold == "keys":
            if mode == "padded":
                raise UsageError("A padded graph computes every position: a schedule that holds keys is not for it.")
            if "memory" not in inspect.signature(getattr(network, "forward", network)).parameters:
                raise ScheduleError("Keys are held by language models only, whose forward takes a memory for them.")
        self.network = network
        self.module = network if module is None and isinstance(network, nn.Module) else module
        self.schedule = schedule
        self.mode = mode
        self.compiled = compiled
        self.offload = offload
        self.planner = None
        if schedule is not None:
            self.planner = Planner(network, self.module, schedule, None if offload else memory, graphs)
        self.output_bytes = 0  # kept of outputs, where those are held
        self._stages: dict[Signature, Stage] = {}
        self._failed: set[Signature] = set()  # could not be recorded
        self._warned: set[str] = set()
        self._lock = Lock()

    def start(self, course: Sequence[float] | None = None) -> "Generation":
        """A new generation, at its first step and with nothing held.

        course  how much each step's output counts in the sample that comes out, where the sampler can say; without it
                nothing is corrected
        """
        return Generation(self, course)

    @cached_property
    def full_steps(self) -> list[bool]:
        """Of each step, whether it computes every unit."""
        return [] if self.schedule is None else self.schedule.full_steps.tolist()

    @property
    def in_full(self) -> Residual:
        """The residual of full inference."""
        return plainly if self.compiled else plain

    @property
    def holds_output(self) -> bool:
        return self.schedule is not None and self.schedule.hold == "output" and self.mode != "eager"

    def evaluates(self, step: int) -> bool:
        """Whether the network is asked anything at a step."""
        return not self.holds_output or self.full_steps[step]

    @property
    def holds_keys(self) -> bool:
        return self.schedule is not None and self.schedule.hold == "keys" and self.mode != "eager"

    @property
    def holds_units(self) -> bool:
        """Whether single units are held: then the network is looked at, and planned for."""
        return self.schedule is not None and self.schedule.hold not in ("output", "keys")

    def keeping(self, step: int, keys: Keys, rows: Tensor | None) -> dict[str, Any]:
        """What the network is told where it keeps keys: to compute everything, or some positions only."""
        return {"memory": (keys, None if self.full_steps[step] else rows), "residual": self.in_full}

    def captures(self, device: torch.device) -> bool:
        """Whether evaluations on this device are recorded, so that inputs had better keep their shapes."""
        return self.schedule is not None and device.type == "cuda" and self.mode not in ("eager", "skip")

    def plan(self, *inputs: Any, **named: Any) -> Plan:
        """What the schedule means for inputs like these; nothing is computed."""
        return self._planned(inputs, named)[0]

    def forecast(self, *inputs: Any, **named: Any) -> "Forecast":
        """What running on inputs like these will take; nothing is computed, and nothing is kept."""
        plan, given_up = self._planned(inputs, named)
        static = sum(leaf.nbytes for leaf in tree_flatten((inputs, named))[0] if isinstance(leaf, Tensor))
        return Forecast(
            graphs=len(plan.programs),
            cache_bytes=self._cache_bytes(plan, inputs, named),
            graph_bytes=activation_bytes(self.network, inputs, named, self.module) + static,
            given_up=given_up,
        )

    def _planned(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> tuple[Plan, str]:
        if self.planner is None:
            raise UsageError("Without a schedule there is nothing to plan.")
        signature = signature_of(*tree_flatten((inputs, named)))
        return self.planner.plan(self.planner.chain(signature, inputs, named))

    def _cache_bytes(self, plan: Plan, inputs: Sequence[Any], named: Mapping[str, Any]) -> int:
        assert self.schedule is not None
        if self.schedule.hold == "output":
            each = output_bytes(self.network, inputs, named, self.module)
            return each * min(self.schedule.order + 1, sum(self.full_steps))
        if self.holds_keys:
            keys = Keys()
            output_bytes(self.network, inputs, {**named, "memory": (keys, None)}, self.module)
            return keys.bytes
        return 0 if self.offload else plan.cache_bytes

    def release(self) -> None:
        """Let go of all graphs and what they keep; they are recorded again when they are needed."""
        if self._stages:
            self._stages.clear()
            torch.cuda.empty_cache()  # the memory of graphs serves nobody else before it is given back

    def report(self) -> Report:
        """What was recorded and kept so far."""
        stages, planned = list(self._stages.values()), 0 if self.planner is None else self.planner.cache_bytes
        in_stages = sum(stage.bytes + stage.keys.bytes for stage in stages)
        return Report(
            mode=self.mode,
            patterns=0 if self.schedule is None else self.schedule.patterns,
            graphs=sum(len(stage.graphs) for stage in stages),
            capture_seconds=sum(stage.graphs.capture_seconds for stage in stages),
            cache_bytes=self.output_bytes + (in_stages if stages else planned),
            graph_bytes=sum(stage.graphs.bytes for stage in stages),
            given_up="" if self.planner is None else self.planner.given_up,
        )

    def _plan_or_none(self, signature: Signature, inputs: Sequence[Any], named: Mapping[str, Any]) -> Plan | None:
        """The plan, or None and a warning where the network cannot be looked at without running it."""
        assert self.planner is not None
        try:
            chain = self.planner.chain(signature, inputs, named)
        except ScheduleError:
            raise
        except Exception as error:  # a network may do anything with tensors that have no values
            self.warn(f"the network cannot be looked at beforehand ({first_line(error)})")
            return None
        return self.planner.plan(chain)[0]

    def _stage_for(
        self, generation: "Generation", signature: Signature, leaves: Sequence[Any], inputs: Any, named: Any
    ) -> "Stage | None":
        """The graphs for such inputs, or None and a warning where there can be none."""
        mode = self.mode
        if self.planner is None or mode in ("eager", "skip"):
            return None
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        on_gpu = [tensor for tensor in tensors if tensor.is_cuda]
        if not on_gpu:
            if mode != "auto":
                self.warn("graphs need a GPU, and the inputs are not on one")
            return None
        if len(on_gpu) < len(tensors):
            self.warn("an input lies on the CPU while others are on the GPU; move it there, and graphs can be used")
            return None
        if not hashable(signature):
            self.warn("an input is neither a tensor nor a plain value")
            return None
        if signature in self._failed:
            return None  # which was said when it failed
        plan = None
        if self.holds_units:
            plan = self._plan_or_none(signature, inputs, named)
            if plan is None:
                return None  # likewise
        with self._lock:
            stage, weights = self._stages.pop(signature, None), self._weights()
            if stage is None or stage.weights != weights:
                device = on_gpu[0].device
                try:
                    residuals = None if plan is None else self._residuals(plan, device)
                except torch.cuda.OutOfMemoryError:
                    kept = 0 if plan is None else plan.cache_bytes
                    self.warn(f"there is no memory left for the {kept:,} bytes that graphs would keep")
                    return None
                while len(self._stages) >= STAGES:
                    self._stages.pop(next(iter(self._stages)))
                stage = Stage(residuals, Graphs(device), weights, stateless=self.holds_output)
            self._stages[signature] = stage  # the newest last
            if not stage.acquire(generation):
                self.warn("another generation is using the graphs")
                return None
        return stage

    def _residuals(self, plan: Plan, device: torch.device) -> Planes | Padded:
        assert self.planner is not None
        if self.mode == "padded":
            return Padded(self.planner.schedule, plan.chain, device)
        return Planes(plan, device, self.offload)

    def _weights(self) -> tuple[int, ...]:
        """Where the weights lie: graphs read them there, and must be recorded again if they were moved or replaced."""
        if self.module is None:
            return ()
        return tuple(tensor.data_ptr() for tensor in (*self.module.parameters(), *self.module.buffers()))

    def failed(self, signature: Signature, why: str) -> None:
        """Inputs like these cannot be recorded."""
        self._failed.add(signature)
        self._stages.pop(signature, None)
        self.warn(why)

    def warn(self, why: str) -> None:
        if why not in self._warned:
            self._warned.add(why)
            warnings.warn(f"Running by a slower path: {why}.", Slower, stacklevel=4)


_executors: "weakref.WeakKeyDictionary[nn.Module, Executor]" = weakref.WeakKeyDictionary()


def executor_for(
    network: nn.Module, schedule: Schedule | None, mode: Mode = "auto", compiled: bool = False
) -> Executor:
    """An executor; the one used last with this network if it does the same, so that its graphs serve again."""
    last = _executors.get(network)
    if last is not None and (last.mode, last.compiled) == (mode, compiled) and last.schedule == schedule:
        return last
    # A proxy, or the network would be kept alive by being remembered.
    _executors[network] = executor = Executor(weakref.proxy(network), schedule, mode=mode, compiled=compiled)
    return executor


class Stage:
    """Graphs and the buffers they work on, for one signature of inputs."""

    def __init__(
        self, residuals: Planes | Padded | None, graphs: Graphs, weights: tuple[int, ...], stateless: bool
    ) -> None:
        """stateless: nothing is kept here from one evaluation to the next."""
        self.stateless = stateless
        self.keys = Keys()  # where a schedule holds them
        self.residuals = residuals  # where it holds units
        self.graphs = graphs
        self.weights = weights
        self._owner: weakref.ref[Generation] | None = None
        self._done: torch.cuda.Event | None = None  # of the last evaluation

    @property
    def bytes(self) -> int:
        """Kept of units, on the device."""
        return 0 if self.residuals is None else self.residuals.bytes

    def acquire(self, generation: "Generation") -> bool:
        """Two generations may alternate on one stage only if the stage keeps no state between evaluations."""
        owner = None if self._owner is None else self._owner()
        in_turns = self.stateless and owner is not None and owner.thread == generation.thread
        if owner is not None and owner is not generation and not owner.finished and not in_turns:
            return False
        self._owner = weakref.ref(generation)
        if self._done is not None:
            self._done.wait()  # the last generation may have run on another stream
        if self.residuals is not None:
            with torch.no_grad():
                self.residuals.reset()
        return True

    @torch.no_grad()
    def run(self, executor: Executor, step: int, leaves: Sequence[Any], spec: TreeSpec, first: Signature) -> Any:
        """One evaluation; `first` is the signature that the generation began with."""
        signature = signature_of(leaves, spec)
        program: Any = executor.full_steps[step] if executor.holds_keys else 0
        if isinstance(self.residuals, Planes):
            program = self.residuals.plan.steps[step].program
        if self.residuals is not None:
            self.residuals.at(step)
        if self.graphs.has(program, signature):
            output = self.graphs.replay(program, signature, leaves)
        else:
            output = self._record(executor, program, step, signature, leaves, spec, first)
        self._done = torch.cuda.current_stream(self.graphs.device).record_event()
        return output

    def _record(
        self,
        executor: Executor,
        program: Any,
        step: int,
        signature: Signature,
        leaves: Sequence[Any],
        spec: TreeSpec,
        first: Signature,
    ) -> Any:
        def evaluate(*inputs: Any, **named: Any) -> Any:
            rows = named.pop(ROWS, None)
            if executor.holds_keys:
                return executor.network(*inputs, **named, **executor.keeping(step, self.keys, rows))
            residual = self._residual(executor, step, rows)
            output = executor.network(*inputs, **named, residual=residual)
            if isinstance(residual, Holding):
                residual.finish()
            return output

        if self.graphs.signatures >= SIGNATURES and not self.graphs.knows(signature):
            executor.failed(first, "the inputs change from step to step in more than their values (a Python number?)")
        if first in executor._failed:
            inputs, named = tree_unflatten(list(leaves), spec)
            return evaluate(*inputs, **named)
        # The step itself, and the warm-up that recording needs: on the very tensors that will be recorded, for a
        # compiled function would be compiled again for others.
        inputs, named = self.graphs.filled(signature, leaves, spec).arguments()
        output = evaluate(*inputs, **named)
        try:
            self.graphs.capture(program, signature, evaluate, output)
        except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
            executor.failed(first, f"recording one failed ({first_line(error)})")
        return output

    def _residual(self, executor: Executor, step: int, rows: Tensor | None) -> Residual:
        if self.residuals is None:
            return executor.in_full
        if isinstance(self.residuals, Padded):
            self.residuals.rows = rows
            return self.residuals
        return Holding(self.residuals.plan, self.residuals, self.residuals.plan.steps[step], rows)


class Generation:
    """One run through the steps of a schedule."""

    def __init__(self, executor: Executor, course: Sequence[float] | None = None) -> None:
        self._executor = executor
        self._stage: Stage | None = None
        self._plan: Plan | None = None
        self._kept = References()
        self._unplanned: Unplanned | None = None
        self._keys = Keys()
        self._outputs: Outputs | None = None
        if executor.schedule is not None and executor.holds_output:
            self._outputs = Outputs(executor.schedule, course)
        self.step = 0  # how many were taken
        self.broken = False
        self.thread = get_ident()

    @property
    def finished(self) -> bool:
        """Whether nothing more will be read of what is kept."""
        schedule = self._executor.schedule
        return self.broken or (schedule is not None and self.step >= schedule.steps)

    def lose_course(self) -> None:
        """From now on nothing is corrected."""
        if self._outputs is not None:
            self._outputs.lose_course()

    def __call__(self, *inputs: Any, rows: Tensor | None = None, **named: Any) -> Any:
        """One evaluation. rows [B, P]: the positions that a schedule with rows computes of held units."""
        executor, schedule = self._executor, self._executor.schedule
        with compiling(executor.compiled):
            if schedule is None:
                return executor.network(*inputs, **named, residual=executor.in_full)
            if self.broken:
                raise ScheduleError("This generation ended in an exception; begin a new one.")
            if self.step >= schedule.steps:
                raise ScheduleError(
                    f"The schedule has {schedule.steps} steps, but the sampler evaluates the network once more. "
                    "Make the schedule for as many steps as the sampler takes."
                )
            if (rows is not None) != (schedule.rows != "none"):
                says = "says" if rows is not None else "does not say"
                raise ScheduleError(
                    f"The schedule's rows are {schedule.rows!r}, and the sampler {says} which those are."
                )
            try:
                if self._outputs is None:
                    output = self._run(inputs, named, rows)
                elif executor.evaluates(self.step):
                    output = self._outputs.take(self.step, self._run(inputs, named, rows))
                    executor.output_bytes = self._outputs.bytes
                else:
                    output = self._outputs.at(self.step)
            except BaseException:
                self.broken = True  # half a step was taken: what is kept belongs to no step
                self._kept = References()
                raise
        self.step += 1
        return output

    def _run(self, inputs: tuple[Any, ...], named: dict[str, Any], rows: Tensor | None) -> Any:
        executor = self._executor
        if executor.mode == "eager":
            return executor.network(*inputs, **named, residual=executor.in_full)
        leaves, spec = tree_flatten((inputs, named if rows is None else {**named, ROWS: rows}))
        if self.step == 0:
            self._signature = signature_of(leaves, spec)
            self._stage = executor._stage_for(self, self._signature, leaves, inputs, named)
            if self._stage is None and self._outputs is None:
                self._plan = executor._plan_or_none(self._signature, inputs, named)
                if self._plan is None and executor.planner is not None:
                    self._unplanned = Unplanned(executor.planner.schedule)
        if self._stage is not None:
            return self._stage.run(executor, self.step, leaves, spec, self._signature)
        if self._outputs is not None:  # of the units nothing is held: there is nothing to plan
            return executor.network(*inputs, **named, residual=executor.in_full)
        if executor.holds_keys:
            output = executor.network(*inputs, **named, **executor.keeping(self.step, self._keys, rows))
            executor.output_bytes = self._keys.bytes
            return output
        if self._unplanned is not None:
            self._unplanned.step, self._unplanned.rows = self.step, rows
            return executor.network(*inputs, **named, residual=self._unplanned)
        assert self._plan is not None
        moment = self._plan.steps[self.step]
        self._kept.at(moment)
        holding = Holding(self._plan, self._kept, moment, rows)
        output = executor.network(*inputs, **named, residual=holding)
        holding.finish()
        self._kept.forget(moment)
        return output
