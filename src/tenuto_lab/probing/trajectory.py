"""Recorded generations: the inputs and the output of the network at each step of a full run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.runtime.executor import Executor
from tenuto.runtime.private_torch import tree_map_only
from tenuto.runtime.residual import Residual, plain

Network = Callable[..., Any]
Sample = Callable[[Executor], object]  # generates with the executor it receives


@dataclass(frozen=True, eq=False)
class RecordedEvaluation:
    """One evaluation of the network."""

    inputs: tuple[Any, ...]
    named: Mapping[str, Any]
    output: Tensor

    @property
    def state(self) -> Tensor:
        """z_s, the state that is denoised."""
        first: Tensor = self.inputs[0]
        return first

    def again(self, network: Network, residual: Residual) -> Tensor:
        """The network's output for the same inputs, with another residual."""
        output: Tensor = network(*self.inputs, **self.named, residual=residual)
        return output


Trajectory = list[RecordedEvaluation]  # noisiest first


def record(network: Network, sample: Sample) -> list[Trajectory]:
    """The full generations that `sample` makes, one for each batch; every unit is computed at every step."""
    recorder = _Recorder(network)
    sample(recorder)
    if not any(recorder.trajectories):
        raise UsageError("Nothing was generated with the executor that was given, so there is no trajectory.")
    if len({len(trajectory) for trajectory in recorder.trajectories}) > 1:
        raise UsageError("The generations took different numbers of steps; take one number for all.")
    return recorder.trajectories


class _Recorder(Executor):
    def __init__(self, network: Network) -> None:
        super().__init__(network, None, mode="skip")
        self.trajectories: list[Trajectory] = []

    def start(self) -> Any:
        self.trajectories.append([])
        return self._evaluate

    def _evaluate(self, *inputs: Any, **named: Any) -> Any:
        given = _copied((inputs, named))  # a sampler may overwrite its inputs later
        output = self.network(*inputs, **named, residual=plain)
        self.trajectories[-1].append(RecordedEvaluation(given[0], given[1], _copied(output)))
        return output


def _copied(tree: Any) -> Any:
    with torch.inference_mode(False):  # a sampler's inference tensors allow no derivatives; the copies do
        return tree_map_only(Tensor, torch.clone, tree)


def relative(given: Tensor, exact: Tensor) -> float:
    """‖given − exact‖ / (‖exact‖ + 1e-8), as the paper measures deviations."""
    off = torch.linalg.vector_norm((given - exact).double())
    return float(off / (torch.linalg.vector_norm(exact.double()) + 1e-8))
