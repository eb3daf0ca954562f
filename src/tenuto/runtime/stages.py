"""Stages: the CUDA graphs of an executor and the buffers they work on, one stage for each kind of inputs."""

import time
import weakref
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from tenuto.errors import first_line
from tenuto.runtime.graphs import Graphs
from tenuto.runtime.keys import Keys
from tenuto.runtime.private_torch import TreeSpec, own_tensors, parts_of, tree_unflatten
from tenuto.runtime.residual import Residual
from tenuto.runtime.signature import Signature, hashable, signature_of

if TYPE_CHECKING:
    from tenuto.runtime.executor import Executor, Generation

STAGES = 4  # how many signatures of inputs keep their graphs; the least recently used one is dropped
SIGNATURES = 8  # for how many signatures of inputs one stage records graphs
MANY = 512  # tokens; above that, full steps with a KV cache are not recorded
BUSY = 2.5  # if the GPU needs this many times longer than Python needs to launch the kernels, a graph gains nothing
ROWS = "rows of held units"  # the name of these positions among the inputs of a graph


class Inputs(NamedTuple):
    """The inputs of a generation's first evaluation. Later inputs with the same signature use the same graphs."""

    signature: Signature
    inputs: tuple[Any, ...]
    named: dict[str, Any]


class Unrecorded(Exception):
    """There can be no graphs for such inputs; the message says why."""


class Cells(Protocol):
    """The kept values of single units, in buffers that never move, and the numbers of the current step."""

    @property
    def bytes(self) -> int:
        """Bytes on the device."""

    def reset(self) -> None: ...

    def at(self, step: int) -> None: ...

    def program(self, step: int) -> int:
        """The number of the step's program. Steps with the same program share one graph."""

    def residual(self, step: int, rows: Tensor | None) -> Residual: ...

    def finish(self, residual: Residual) -> None:
        """End a step."""


class Stages:
    def __init__(self, executor: "Executor") -> None:
        self._executor = executor
        self._stages: dict[Signature, Stage] = {}
        self._failed: set[Signature] = set()  # signatures that could not be recorded
        self._lock = Lock()

    @property
    def graphs(self) -> int:
        return sum(len(stage.graphs) for stage in self._stages.values())

    @property
    def capture_seconds(self) -> float:
        return sum(stage.graphs.capture_seconds for stage in self._stages.values())

    @property
    def graph_bytes(self) -> int:
        return sum(stage.graphs.bytes for stage in self._stages.values())

    @property
    def kept_bytes(self) -> int:
        return sum(stage.kept_bytes for stage in self._stages.values())

    def clear(self) -> None:
        if self._stages:
            self._stages.clear()
            torch.cuda.empty_cache()  # until this call, nothing else can use the memory of the graphs

    def acquire(self, generation: "Generation", kind: Inputs, leaves: Sequence[Any]) -> "Stage | None":
        """The stage for such inputs. If graphs cannot be used: None, with a warning unless the mode implies it."""
        executor, signature = self._executor, kind.signature
        device = self._device(signature, leaves)
        if device is None or signature in self._failed:
            return None  # a warning, if one is due, was given already
        with self._lock:
            stage, weights = self._stages.pop(signature, None), self._weights()
            if stage is None or stage.weights != weights:
                try:
                    cells = executor.cells_for(kind, device)
                except Unrecorded as error:
                    executor.warn(str(error))
                    return None
                while len(self._stages) >= STAGES:
                    self._stages.pop(next(iter(self._stages)))
                stage = Stage(Graphs(device), cells, Keys() if executor.keep == "keys" else None, weights)
            self._stages[signature] = stage  # the most recently used one stands last
            if not stage.acquire(generation):
                executor.warn("another generation is using the graphs")
                return None
        return stage

    def _device(self, signature: Signature, leaves: Sequence[Any]) -> torch.device | None:
        """The GPU of the inputs. If nothing can be recorded: None, with a warning unless the mode implies it."""
        executor = self._executor
        if executor.mode in ("eager", "skip"):
            return None
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        on_gpu = [tensor for tensor in tensors if tensor.is_cuda]
        if not on_gpu:
            if executor.mode != "auto":
                executor.warn("graphs need a GPU, and the inputs are not on one")
            return None
        if len(on_gpu) < len(tensors):
            executor.warn("an input lies on the CPU while others are on the GPU; move it there to use graphs")
            return None
        if not hashable(signature):
            executor.warn("an input is neither a tensor nor a plain value")
            return None
        return on_gpu[0].device

    def _weights(self) -> tuple[int, ...]:
        """The addresses of the weights. Graphs read these addresses, so moved or replaced weights need new graphs."""
        module = self._executor.module
        if module is None:
            return ()
        own = (tensors.values() for part in parts_of(module) for tensors in own_tensors(part))
        return tuple(tensor.data_ptr() for tensors in own for tensor in tensors if tensor is not None)

    def failed(self, signature: Signature, why: str) -> None:
        """Remember that inputs of this signature cannot be recorded."""
        self._failed.add(signature)
        self._stages.pop(signature, None)
        self._executor.warn(why)

    def has_failed(self, signature: Signature) -> bool:
        return signature in self._failed


class Stage:
    """Graphs and the buffers they work on, for one signature of inputs."""

    def __init__(self, graphs: Graphs, cells: Cells | None, keys: Keys | None, weights: tuple[int, ...]) -> None:
        self.graphs = graphs
        self.cells = cells  # None unless the schedule keeps units
        self.keys = keys  # None unless the schedule keeps keys
        self.weights = weights
        self._pace: float | None = None  # see `_timed`
        self._owner: weakref.ref[Generation] | None = None
        self._done: torch.cuda.Event | None = None  # marks the end of the last evaluation

    @property
    def kept_bytes(self) -> int:
        return (0 if self.cells is None else self.cells.bytes) + (0 if self.keys is None else self.keys.bytes)

    def acquire(self, generation: "Generation") -> bool:
        """Two generations may alternate on one stage only if the stage keeps no state between evaluations."""
        owner = None if self._owner is None else self._owner()
        stateless = self.cells is None and self.keys is None
        in_turns = stateless and owner is not None and owner.thread == generation.thread
        if owner is not None and owner is not generation and not owner.finished and not in_turns:
            return False
        self._owner = weakref.ref(generation)
        if self._done is not None:
            self._done.wait()  # the last generation may have run on another stream
        if self.cells is not None:
            with torch.no_grad():
                self.cells.reset()
        return True

    @torch.no_grad()
    def run(self, executor: "Executor", step: int, leaves: Sequence[Any], spec: TreeSpec, first: Signature) -> Any:
        """One evaluation; `first` is the signature that the generation began with."""
        signature = signature_of(leaves, spec)
        if self.keys is not None and executor.full_steps[step] and _many(leaves):
            inputs, named = tree_unflatten(list(leaves), spec)
            rows = named.pop(ROWS, None)
            return executor.evaluate(step, inputs, named, rows, self.keys)
        program = 0 if self.keys is None else int(executor.full_steps[step])
        if self.cells is not None:
            program = self.cells.program(step)
            self.cells.at(step)
        if self.graphs.has(program, signature):
            output = self.graphs.replay(program, signature, leaves)
        elif executor.mode == "auto" and self.cells is None and self.keys is None and not self._waits:
            inputs, named = tree_unflatten(list(leaves), spec)
            output = self._timed(executor, step, inputs, named)
        else:
            output = self._record(executor, program, step, signature, leaves, spec, first)
        self._done = torch.cuda.current_stream(self.graphs.device).record_event()
        return output

    @property
    def _waits(self) -> bool:
        """Whether the GPU waits for Python, so that a graph is worth its memory."""
        return self._pace is not None and 0 < self._pace < BUSY

    def _timed(self, executor: "Executor", step: int, inputs: Any, named: Any) -> Any:
        """An evaluation without a graph. The first one warms up. The second one measures the pace: the seconds that
        the GPU takes, divided by the seconds that Python takes to launch its kernels. It begins with an empty queue:
        if the queue is full of earlier work, Python waits for places in it and seems to be as slow as the GPU.
        """
        if self._pace != 0:
            self._pace = self._pace or 0.0
            return executor.evaluate(step, inputs, named, named.pop(ROWS, None))
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        began.synchronize()
        start = time.perf_counter()
        output = executor.evaluate(step, inputs, named, named.pop(ROWS, None))
        ended.record()
        launching = time.perf_counter() - start
        ended.synchronize()
        self._pace = began.elapsed_time(ended) / 1000 / launching
        return output

    def _record(
        self,
        executor: "Executor",
        program: int,
        step: int,
        signature: Signature,
        leaves: Sequence[Any],
        spec: TreeSpec,
        first: Signature,
    ) -> Any:
        def evaluate(*inputs: Any, **named: Any) -> Any:
            rows = named.pop(ROWS, None)
            if self.cells is None:
                return executor.evaluate(step, inputs, named, rows, self.keys)
            residual = self.cells.residual(step, rows)
            output = executor.network(*inputs, **named, residual=residual)
            self.cells.finish(residual)
            return output

        stages = executor.stages
        if self.graphs.signatures >= SIGNATURES and not self.graphs.knows(signature):
            stages.failed(first, "the inputs change from step to step in more than their values (a Python number?)")
        if stages.has_failed(first):
            inputs, named = tree_unflatten(list(leaves), spec)
            return evaluate(*inputs, **named)
        # This evaluation is the step itself, and also the warm-up that recording needs. It uses the tensors that will
        # be recorded, because a compiled function would be compiled again for other tensors.
        inputs, named = self.graphs.filled(signature, leaves, spec).arguments()
        output = evaluate(*inputs, **named)
        try:
            self.graphs.capture(program, signature, evaluate, output)
        except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
            stages.failed(first, f"recording one failed ({first_line(error)})")
        return output


def _many(leaves: Sequence[Any]) -> bool:
    """Whether the first input has so many tokens that computing them all keeps a GPU busy without a graph.

    A graph would gain nothing then, and it would reserve memory for all activations.
    """
    return isinstance(leaves[0], Tensor) and leaves[0].numel() >= MANY
