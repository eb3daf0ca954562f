"""Gradients by CUDA graphs: for small networks, launching a step's kernels one by one takes longer than computing them.

The gradients of each kind of batch are recorded once and then replayed. If that fails, or gives another loss than
without a graph, everything goes on without graphs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tenuto.errors import first_line

ALIKE = 0.02  # relative difference between the loss of a graph and the loss without one
WARM_UPS = 3


class Recorded:
    """Computes the loss of a batch (any nested tensors of fixed shapes) and leaves the gradients in `.grad`."""

    def __init__(self, network: nn.Module, loss_of: Callable[[Any], Tensor], on: bool) -> None:
        self.parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self._loss_of = loss_of
        self.on = on
        self._graphs: dict[Any, tuple[list[Tensor], Tensor, torch.cuda.CUDAGraph]] = {}
        self._pool: Any = None

    def __call__(self, batch: Sequence[Sequence[Tensor]]) -> Tensor:
        """The loss, detached."""
        if not self.on:
            return self._directly(batch)
        key = tuple(tuple(part[0].shape) for part in batch)
        leaves = [tensor for part in batch for tensor in part]
        if key not in self._graphs:
            try:
                self._record(key, batch, leaves)
            except Exception as error:  # a recording fails in as many ways as there are kernels
                self._give_up(first_line(error))
                return self._directly(batch)
        inputs, loss, graph = self._graphs[key]
        for static, given in zip(inputs, leaves, strict=True):
            static.copy_(given, non_blocking=True)
        graph.replay()
        return loss.clone()

    def _directly(self, batch: Any) -> Tensor:
        for parameter in self.parameters:
            parameter.grad = None
        with torch.autocast(self.parameters[0].device.type, torch.bfloat16):
            loss = self._loss_of(batch)
        loss.backward()
        return loss.detach()

    def _computed(self, batch: Any) -> Tensor:
        """As in a graph: gradients keep their memory, and casts of weights are not kept from one step to the next."""
        torch._foreach_zero_([parameter.grad for parameter in self.parameters if parameter.grad is not None])
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            loss = self._loss_of(batch)
        loss.backward()
        return loss.detach()

    def _record(self, key: Any, batch: Sequence[Any], leaves: Sequence[Tensor]) -> None:
        inputs = [tensor.clone() for tensor in leaves]
        waiting = iter(inputs)
        static = [type(part)(*(next(waiting) for _ in part)) for part in batch]
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                expected = float(self._computed(static))
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            loss = self._computed(static)
        self._pool = self._pool or graph.pool()
        graph.replay()
        if not abs(float(loss) - expected) <= ALIKE * abs(expected):
            raise RuntimeError(f"the loss is {float(loss):.4f}, and {expected:.4f} without a graph")
        self._graphs[key] = inputs, loss, graph

    def _give_up(self, why: str) -> None:
        print(f"Recording failed, so training goes on without: {why}", flush=True)
        self.on = False
        self._graphs.clear()
        torch.cuda.synchronize()
