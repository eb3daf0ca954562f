"""Runs a network under a schedule: computes the units of each step's pattern and reuses the others.

    generation = Executor(network, schedule).start()
    for …:  output = generation(x, t, y)        # one network evaluation; the step counts itself

Four modes, one interface, the same results up to rounding:

eager    every unit computed at every step, as if there were no schedule
skip     held units are skipped by Python, one step after the other
padded   one CUDA graph: every unit computed, held ones selected away. It saves launches and nothing else
jagged   one CUDA graph for each program of the plan: only what is computed is in it

A generation owns all it keeps. Graphs and their buffers belong to the executor and serve one generation at a time;
another one that runs meanwhile goes by skipping, and says so.
"""

import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from tenuto.chain import Chain, activation_bytes, chain_of
from tenuto.compilation import compiling
from tenuto.errors import ScheduleError, UsageError
from tenuto.graphs import Graphs, Signature, hashable, signature_of
from tenuto.holding import Holding, Padded, Planes, References, Unplanned
from tenuto.plan import Plan, fitting_plan, make_plan
from tenuto.policies import with_fewer_lifetimes
from tenuto.residual import plain
from tenuto.schedules import Schedule

Mode = Literal["auto", "eager", "skip", "padded", "jagged"]
STAGES = 4  # signatures of inputs whose graphs are kept; the one used longest ago gives way


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
    ) -> None:
        """network   called as network(…, residual=…)
        schedule  without one, every unit is computed at every step
        mode      auto: jagged on a GPU, skip elsewhere
        compiled  compile the network's branch functions, each once
        memory    how many bytes may be kept; what must be given up for that is in the report
        graphs    how many may be recorded; the nearest lifetimes are made one for that, as the report says
        offload   keep what is held in the host's memory, which is slow and costs the device nothing
        """
        if mode not in get_args(Mode):
            raise UsageError(f"The mode is one of {', '.join(get_args(Mode))}, not {mode!r}.")
        self.network = network
        self.schedule = schedule
        self.mode = mode
        self.compiled = compiled
        self.memory = memory
        self.graphs = graphs
        self.offload = offload
        self.given_up = ""  # for the bounds on memory and graphs
        self._chains: dict[Signature, Chain] = {}
        self._plans: dict[Chain, Plan] = {}
        self._stages: dict[Signature, Stage] = {}
        self._warned: set[str] = set()

    def start(self) -> "Generation":
        """A new generation, at its first step and with nothing held."""
        return Generation(self)

    def captures(self, device: torch.device) -> bool:
        """Whether evaluations on this device are recorded, so that inputs had better keep their shapes."""
        return self.schedule is not None and device.type == "cuda" and self.mode not in ("eager", "skip")

    def plan(self, *inputs: Any, **named: Any) -> Plan:
        """What the schedule means for inputs like these; nothing is computed."""
        if self.schedule is None:
            raise UsageError("Without a schedule there is nothing to plan.")
        leaves, spec = tree_flatten((inputs, named))
        return self._plan_for(self._chain_for(signature_of(leaves, spec), inputs, named))

    def forecast(self, *inputs: Any, **named: Any) -> "Forecast":
        """What running on inputs like these will take; nothing is computed, and nothing is kept."""
        plan = self.plan(*inputs, **named)
        static = sum(leaf.nbytes for leaf in tree_flatten((inputs, named))[0] if isinstance(leaf, Tensor))
        return Forecast(
            graphs=len(plan.programs),
            cache_bytes=0 if self.offload else plan.cache_bytes,
            graph_bytes=activation_bytes(self.network, inputs, named) + static,
            given_up=self.given_up,
        )

    def report(self) -> Report:
        """What was recorded and kept so far."""
        stages = list(self._stages.values())
        return Report(
            mode=self.mode,
            patterns=0 if self.schedule is None else self.schedule.patterns,
            graphs=sum(len(stage.graphs) for stage in stages),
            capture_seconds=sum(stage.graphs.capture_seconds for stage in stages),
            cache_bytes=sum(stage.residuals.bytes for stage in stages)
            or max((plan.cache_bytes for plan in self._plans.values()), default=0) * (not self.offload),
            graph_bytes=sum(stage.graphs.bytes for stage in stages),
            given_up=self.given_up,
        )

    def _plan_or_none(self, signature: Signature, inputs: Sequence[Any], named: Mapping[str, Any]) -> Plan | None:
        """The plan, or None and a warning where the network cannot be looked at without running it."""
        try:
            chain = self._chain_for(signature, inputs, named)
        except ScheduleError:
            raise
        except Exception as error:  # a network may do anything with tensors that have no values
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            self.warn(f"the network cannot be looked at beforehand ({reason})")
            return None
        return self._plan_for(chain)

    def _plan_for(self, chain: Chain) -> Plan:
        if chain not in self._plans:
            self._plans[chain], self.given_up = self._bounded(chain)
        return self._plans[chain]

    def _bounded(self, chain: Chain) -> tuple[Plan, str]:
        """A plan within the bounds, and what was given up for them."""
        assert self.schedule is not None
        schedule, lost = self.schedule, []
        plan = make_plan(schedule, chain)
        if self.graphs is not None and len(plan.programs) > self.graphs:
            before = len(set(schedule.lifetimes))
            for most in reversed(range(1, before)):
                schedule = with_fewer_lifetimes(self.schedule, most)
                plan = make_plan(schedule, chain)
                if len(plan.programs) <= self.graphs:
                    break
            else:
                raise ScheduleError(
                    f"This schedule cannot be run with {self.graphs} graphs: it needs {len(plan.programs)} at least."
                )
            lost.append(
                f"{before} lifetimes became {most}: {schedule.budget:.1%} of the unit-steps are computed, "
                f"not {self.schedule.budget:.1%}"
            )
        if self.memory is not None and plan.cache_bytes > self.memory and not self.offload:
            plan, less = fitting_plan(schedule, chain, self.memory)
            lost.append(less)
        return plan, "; ".join(lost)

    def _chain_for(self, signature: Signature, inputs: Sequence[Any], named: Mapping[str, Any]) -> Chain:
        known = self._chains.get(signature) if hashable(signature) else None
        if known is None:
            known = chain_of(self.network, inputs, named)
            if hashable(signature):
                self._chains[signature] = known
        return known

    def _stage_for(
        self, generation: "Generation", signature: Signature, leaves: Sequence[Any], inputs: Any, named: Any
    ) -> "Stage | None":
        """The graphs for such inputs, or None and a warning where there can be none."""
        mode = self.mode
        if self.schedule is None or mode in ("eager", "skip"):
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
        plan = self._plan_or_none(signature, inputs, named)
        stage = self._stages.pop(signature, None)
        if plan is None or (stage is not None and stage.failed):
            return None  # which was said when it failed
        if stage is None:
            device = on_gpu[0].device
            residuals = (
                Padded(self.schedule, plan.chain, device) if mode == "padded" else Planes(plan, device, self.offload)
            )
            while len(self._stages) >= STAGES:
                self._stages.pop(next(iter(self._stages)))
            stage = Stage(self, residuals, Graphs(device))
        self._stages[signature] = stage  # the newest last
        if not stage.acquire(generation):
            self.warn("another generation is using the graphs")
            return None
        return stage

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
    _executors[network] = executor = Executor(network, schedule, mode=mode, compiled=compiled)
    return executor


class Stage:
    """Graphs and the buffers they work on, for one signature of inputs."""

    def __init__(self, executor: Executor, residuals: Planes | Padded, graphs: Graphs) -> None:
        self.residuals = residuals
        self.graphs = graphs
        self.failed = False
        self._network = executor.network
        self._warn = executor.warn
        self._owner: weakref.ref[Generation] | None = None
        self._lock = Lock()

    def acquire(self, generation: "Generation") -> bool:
        with self._lock:
            owner = None if self._owner is None else self._owner()
            if owner is not None and owner is not generation and not owner.finished:
                return False
            self._owner = weakref.ref(generation)
        self.residuals.reset()
        return True

    def run(self, step: int, leaves: Sequence[Any], spec: TreeSpec) -> Any:
        signature = signature_of(leaves, spec)
        padded = isinstance(self.residuals, Padded)
        program = 0 if padded else self.residuals.plan.steps[step].program  # type: ignore[union-attr]
        self.residuals.at(step)
        if self.graphs.has(program, signature):
            return self.graphs.replay(program, signature, leaves)
        inputs, named = tree_unflatten(list(leaves), spec)

        def evaluate(*inputs: Any, **named: Any) -> Any:
            return self._network(*inputs, **named, residual=self._residual(step))

        output = evaluate(*inputs, **named)  # the step itself, and the warm-up that recording needs
        if not self.failed:
            try:
                self.graphs.capture(program, signature, leaves, spec, evaluate, output)
            except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
                self.failed = True
                self._warn(f"recording one failed ({str(error).strip().splitlines()[0]})")
        return output

    def _residual(self, step: int) -> Any:
        if isinstance(self.residuals, Padded):
            return self.residuals
        return Holding(self.residuals.plan, self.residuals, self.residuals.plan.steps[step])


class Generation:
    """One run through the steps of a schedule."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._stage: Stage | None = None
        self._plan: Plan | None = None
        self._kept = References()
        if executor.schedule is not None:
            self._unplanned = Unplanned(executor.schedule)
        self.step = 0  # how many were taken
        self.broken = False

    @property
    def finished(self) -> bool:
        """Whether nothing more will be read of what is kept."""
        schedule = self._executor.schedule
        return self.broken or (schedule is not None and self.step >= schedule.steps)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        executor, schedule = self._executor, self._executor.schedule
        with compiling(executor.compiled):
            if schedule is None:
                return executor.network(*inputs, **named, residual=plain)
            if self.broken:
                raise ScheduleError("This generation ended in an exception; begin a new one.")
            if self.step >= schedule.steps:
                raise ScheduleError(
                    f"The schedule has {schedule.steps} steps, but the sampler evaluates the network once more. "
                    "Make the schedule for as many steps as the sampler takes."
                )
            try:
                output = self._run(inputs, named)
            except BaseException:
                self.broken = True  # half a step was taken: what is kept belongs to no step
                self._kept = References()
                raise
        self.step += 1
        return output

    def _run(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        executor = self._executor
        if executor.mode == "eager":
            return executor.network(*inputs, **named, residual=plain)
        leaves, spec = tree_flatten((inputs, named))
        if self.step == 0:
            signature = signature_of(leaves, spec)
            self._stage = executor._stage_for(self, signature, leaves, inputs, named)
            if self._stage is None:
                self._plan = executor._plan_or_none(signature, inputs, named)
        if self._stage is not None:
            return self._stage.run(self.step, leaves, spec)
        if self._plan is None:
            self._unplanned.step = self.step
            return executor.network(*inputs, **named, residual=self._unplanned)
        moment = self._plan.steps[self.step]
        self._kept.at(moment)
        output = executor.network(*inputs, **named, residual=Holding(self._plan, self._kept, moment))
        self._kept.forget(moment)
        return output
