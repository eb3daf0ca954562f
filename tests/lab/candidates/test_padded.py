"""The padded graph computes every unit and selects what is held: it gives what skipping gives."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.models.dit import DiT, units
from tenuto.runtime.executor import Executor
from tenuto.runtime.stages import Cells, Inputs
from tenuto.scheduling.making import make
from tenuto.scheduling.refresh import refresh
from tenuto.scheduling.schedule import Keep, Predict, Schedule
from tenuto.scheduling.units import Unscored
from tenuto_lab.candidates.padded import Padded, PaddedExecutor
from tenuto_lab.units.lifetimes import refresh_pattern
from tests.conftest import random_dit

STEPS = 7
KINDS: list[tuple[Predict, Keep]] = [("constant", "update"), ("linear", "branch"), ("quadratic", "update")]


def schedule_of(network: DiT, predict: Predict, keep: Keep) -> Schedule:
    """All units every third step, and the first unit at every step: programs differ."""
    subject = Unscored("toy", "dit", units(network.config))
    active = refresh_pattern(len(subject.units), STEPS, 3)
    active[0] = True
    return make(subject, active, predict, keep, {"name": "by hand"})


def inputs(step: int, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(step))
    return x.to(device), torch.full((2,), 10 * step, device=device), torch.tensor([0, 1], device=device)


@torch.inference_mode()
def run(executor: Executor, device: str = "cpu") -> list[Tensor]:
    generation: Callable[..., Any] = executor.start()
    return [generation(*inputs(step, device)).clone() for step in range(STEPS)]


@pytest.mark.parametrize(("predict", "keep"), KINDS)
@torch.inference_mode()
def test_what_it_selects_is_what_skipping_gives(predict: Predict, keep: Keep) -> None:
    network = random_dit()
    executor = PaddedExecutor(network, schedule_of(network, predict, keep))
    cells: Cells = executor.cells_for(Inputs((), inputs(0), {}), torch.device("cpu"))
    assert isinstance(cells, Padded)
    cells.reset()
    want = run(Executor(network, executor.schedule, mode="skip"))
    for step in range(STEPS):
        cells.at(step)
        residual = cells.residual(step, None)
        torch.testing.assert_close(network(*inputs(step), residual=residual), want[step], rtol=1e-4, atol=1e-5)
        cells.finish(residual)
    assert {cells.program(step) for step in range(STEPS)} == {0} and cells.bytes > 0


def test_it_is_for_single_units() -> None:
    network = random_dit()
    whole = refresh(Unscored("toy", "dit", units(network.config)), STEPS)
    with pytest.raises(UsageError, match="holds single units, and this schedule keeps 'output'"):
        PaddedExecutor(network, whole)


@pytest.mark.gpu
@pytest.mark.parametrize(("predict", "keep"), KINDS)
def test_one_graph_serves_all_steps(predict: Predict, keep: Keep) -> None:
    network = random_dit().cuda()
    executor = PaddedExecutor(network, schedule_of(network, predict, keep))
    want = run(Executor(network, executor.schedule, mode="skip"), "cuda")
    for _ in range(2):  # recorded, and replayed
        for got, wanted in zip(run(executor, "cuda"), want, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
    assert executor.report().graphs == 1 and executor.report().cache_bytes > 0
