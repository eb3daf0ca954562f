"""CUDA graphs: a network's evaluation recorded once for each program, and replayed without Python.

The only file that knows CUDA graphs. All graphs of a stage share one memory pool and one set of input and output
buffers for each signature of inputs.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from tenuto.runtime.private_torch import TreeSpec, tree_flatten, tree_unflatten
from tenuto.runtime.signature import Signature

_recording = Lock()


@cache
def recording_stream(device: torch.device) -> "torch.cuda.Stream":
    """The one stream for all recordings on a device, because matrix libraries keep a workspace for every stream."""
    return torch.cuda.Stream(device)


@dataclass
class Buffers:
    """Where graphs of one signature find their inputs, and leave their output."""

    inputs: list[Any]
    spec: TreeSpec
    outputs: list[Tensor] = field(default_factory=list)
    output_spec: TreeSpec | None = None  # unknown until the first evaluation

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of an evaluation on these buffers."""
        inputs, named = tree_unflatten(self.inputs, self.spec)
        return inputs, dict(named)

    def fill(self, leaves: Sequence[Any]) -> None:
        for static, given in zip(self.inputs, leaves, strict=True):
            if isinstance(static, Tensor):
                static.copy_(given, non_blocking=True)

    def result(self) -> Any:
        """A copy: the next replay writes over the buffers."""
        assert self.output_spec is not None
        return tree_unflatten([output.clone() for output in self.outputs], self.output_spec)


class Graphs:
    """The recorded programs of one stage."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.capture_seconds = 0.0
        self._pools = [torch.cuda.graph_pool_handle()]  # new graphs are recorded in the last one
        self._stream = recording_stream(device)
        self._buffers: dict[Signature, Buffers] = {}
        self._graphs: dict[tuple[Any, Signature], torch.cuda.CUDAGraph] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    @property
    def bytes(self) -> int:
        """The bytes of the graphs' memory pools, inputs and outputs."""
        mine = {tuple(pool) for pool in self._pools}
        pools = sum(one["total_size"] for one in torch.cuda.memory_snapshot() if tuple(one["segment_pool_id"]) in mine)
        static = (leaf for buffers in self._buffers.values() for leaf in (*buffers.inputs, *buffers.outputs))
        return pools + sum(leaf.nbytes for leaf in static if isinstance(leaf, Tensor))

    def replay(self, program: Any, signature: Signature, leaves: Sequence[Any]) -> Any:
        buffers = self._buffers[signature]
        buffers.fill(leaves)
        self._graphs[program, signature].replay()
        return buffers.result()

    @property
    def signatures(self) -> int:
        return len(self._buffers)

    def knows(self, signature: Signature) -> bool:
        return signature in self._buffers

    def filled(self, signature: Signature, leaves: Sequence[Any], spec: TreeSpec) -> Buffers:
        """The buffers of a signature, filled with these inputs."""
        if signature not in self._buffers:
            with torch.inference_mode(False):  # so that they can be used inside and outside of inference mode
                self._buffers[signature] = Buffers([_static(leaf) for leaf in leaves], spec)
        self._buffers[signature].fill(leaves)
        return self._buffers[signature]

    def has(self, program: Any, signature: Signature) -> bool:
        return (program, signature) in self._graphs

    def capture(self, program: Any, signature: Signature, evaluate: Callable[..., Any], example: Any) -> None:
        """Record `evaluate` on the buffers of a signature. It must have run on them before and returned `example`.

        Recording computes nothing, so it changes no tensor.
        """
        start = time.perf_counter()
        with _recording:  # a process can record only one graph at a time
            buffers = self._buffers[signature]
            if buffers.output_spec is None:
                _add_outputs(buffers, example)
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self._stream):
                graph = self._recorded(buffers, evaluate)
            torch.cuda.current_stream(self.device).wait_stream(self._stream)
        self._graphs[program, signature] = graph
        self.capture_seconds += time.perf_counter() - start

    def _recorded(self, buffers: Buffers, evaluate: Callable[..., Any]) -> "torch.cuda.CUDAGraph":
        with suppress(torch.cuda.OutOfMemoryError):
            return _record(self._pools[-1], buffers, evaluate)
        # While torch records, its allocator cannot free the memory that it caches; now it can. The second try uses a
        # new pool, because torch may believe that a pool no longer exists after a recording in it failed.
        torch.cuda.empty_cache()
        self._pools.append(torch.cuda.graph_pool_handle())
        return _record(self._pools[-1], buffers, evaluate)


def _record(pool: Any, buffers: Buffers, evaluate: Callable[..., Any]) -> "torch.cuda.CUDAGraph":
    inputs, named = buffers.arguments()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        outputs, output_spec = tree_flatten(evaluate(*inputs, **named))
        if output_spec != buffers.output_spec:
            raise RuntimeError("the network's output changed its structure")
        for static, output in zip(buffers.outputs, outputs, strict=True):
            static.copy_(output)
    except BaseException:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that the graph is empty
            with suppress(RuntimeError):  # a broken recording has no proper end; the first error is the one to show
                graph.capture_end()
            with suppress(RuntimeError):
                _record_nothing()
        raise
    graph.capture_end()
    return graph


def _record_nothing() -> None:
    """Record an empty graph: after a failed recording, the random number generator still believes it is recorded."""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    graph.capture_end()


def _add_outputs(buffers: Buffers, example: Any) -> None:
    outputs, output_spec = tree_flatten(example)
    if not all(isinstance(output, Tensor) for output in outputs):
        raise RuntimeError("the network gives something that is no tensor")
    with torch.inference_mode(False):
        buffers.outputs = [torch.empty_like(output) for output in outputs]
    buffers.output_spec = output_spec


def _static(tensor: Any) -> Any:
    """A copy of a tensor. An expanded tensor gets memory for every element, so that it can be filled."""
    if not isinstance(tensor, Tensor):
        return tensor
    return (
        tensor.clone()
        if 0 in tensor.stride()
        else torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    )
