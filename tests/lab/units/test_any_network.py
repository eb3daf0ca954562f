"""Networks of any shape run as their schedule says: parallel branches, streams given away, gates that broadcast."""

import numpy as np
import pytest
import torch
from torch import nn

from tenuto.errors import ScheduleError
from tenuto.runtime.residual import plain
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.units.holding import Holding, Planes, Unplanned
from tenuto_lab.units.unit_executor import UnitExecutor


class Shaped(nn.Module):
    """Units u0, u1, …: what `body` does with them is up to the test."""

    def __init__(self, body) -> None:
        super().__init__()
        self.body = body

    def forward(self, x, residual=plain):
        return self.body(x, residual)


def runs_as_the_schedule_says(network, rows, keep="update", predict="constant", tolerance=1e-4):
    """Skipping, and the buffers that graphs work on, against the unplanned semantics."""
    units = tuple(f"u{i}" for i in range(len(rows)))
    active = np.array([[mark == "#" for mark in row] for row in rows])
    schedule = Schedule(units, active, (1.0,) * len(rows), predict, keep, "toy", "sha256:toy")
    given = [torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(s)) for s in range(len(rows[0]))]
    plain_steps, executor = Unplanned(schedule), UnitExecutor(network, schedule)
    skipping = executor.start()
    plan = executor.plan(given[0])
    static = Planes(plan, torch.device("cpu"))
    static.reset()
    for step, x in enumerate(given):
        plain_steps.step = step
        want = network(x, residual=plain_steps)
        torch.testing.assert_close(skipping(x), want, rtol=tolerance, atol=tolerance)
        static.at(step)
        got = network(x, residual=Holding(plan, static, plan.steps[step]))
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    return plan


@pytest.mark.parametrize("predict", ["constant", "linear"])
def test_a_branch_may_read_another_stream_than_its_own(predict):
    def parallel(x, residual):
        h = residual("u0", x, lambda: torch.tanh(x))
        h1 = residual("u1", h, lambda: torch.sin(h))
        return residual("u2", h1, lambda: torch.cos(h))  # of the stream before u1

    plan = runs_as_the_schedule_says(Shaped(parallel), ["#..#.", "#..#.", "#####"], predict=predict)
    assert [link.joined for link in plan.chain] == [False, True, False]


def test_a_network_may_give_a_stream_away():
    def two(x, residual):
        mid = residual("u0", x, lambda: torch.tanh(x))
        return mid, residual("u1", mid, lambda: torch.sin(mid))

    runs_as_the_schedule_says(Shaped(two), ["#..", "#.."])


def test_gates_are_asked_for_where_they_stand():
    def looped(x, residual):
        scale = torch.zeros(2, 1, 4)
        for i in range(3):
            scale.add_(1)  # what a gate gives when it is asked later is another's
            x = residual(f"u{i}", x, lambda x=x: torch.tanh(x), gate=lambda: scale.clone())
        return x

    runs_as_the_schedule_says(Shaped(looped), ["#..#."] * 3, "branch", "linear")


@pytest.mark.parametrize("shape", [(2, 1, 4), (2, 3, 1), (1, 1, 1), (2, 3, 4), (3, 4)])
def test_gates_may_have_any_shape_that_broadcasts(shape):
    def gated(x, residual):
        gates = [torch.rand(s, generator=torch.Generator().manual_seed(i)) for i, s in enumerate((shape, (2, 1, 4)))]
        for i, gate in enumerate(gates):
            x = residual(f"u{i}", x, lambda x=x: torch.tanh(x), gate=lambda gate=gate: gate)
        return x

    runs_as_the_schedule_says(Shaped(gated), ["#..#."] * 2, "branch", "linear")


@pytest.mark.parametrize("predict", ["constant", "linear"])
def test_branches_may_be_less_precise_than_the_stream_or_broadcast(predict):
    def mixed(x, residual):
        x = residual("u0", x, lambda: torch.tanh(x).bfloat16())
        x = residual("u1", x, lambda: x.mean(dim=1, keepdim=True).bfloat16())
        return residual("u2", x.relu(), lambda: torch.tanh(x))

    runs_as_the_schedule_says(Shaped(mixed), ["#..#.", "##.#.", "#.#.#"], predict=predict, tolerance=0.02)


def test_units_that_come_and_go_are_an_error():
    class Fickle(Shaped):
        both = True

        def forward(self, x, residual=plain):
            x = residual("u0", x, lambda: torch.tanh(x))
            return residual("u1", x, lambda: torch.sin(x)) if self.both else x

    schedule = Schedule(("u0", "u1"), np.array([[1, 0], [1, 0]], bool), (1.0, 1.0), "constant", "update", "t", "s")
    network = Fickle(None)
    generation = UnitExecutor(network, schedule).start()
    generation(torch.randn(2, 3))
    network.both = False
    with pytest.raises(ScheduleError, match="did not run u1"):
        generation(torch.randn(2, 3))


def test_looking_at_a_network_leaves_nothing_behind():
    class Lazy(Shaped):
        table = None

        def forward(self, x, residual=plain):
            if self.table is None:
                self.table = torch.ones(x.shape[-1])
                self.register_buffer("late", torch.ones(1), persistent=False)
            return residual("u0", x * self.table, lambda: torch.tanh(x))

    schedule = Schedule(("u0",), np.array([[1, 0]], bool), (1.0,), "constant", "update", "t", "s")
    network = Lazy(None)
    generation = UnitExecutor(network, schedule).start()
    assert type(generation(torch.randn(2, 3))) is torch.Tensor
    assert type(network.table) is torch.Tensor and type(network.late) is torch.Tensor


@pytest.mark.parametrize("width", [2, 8])
def test_sums_of_held_neighbours_keep_the_precision_of_their_updates(width):
    """The difference of two bfloat16 streams would be off by several per cent of what the units added."""

    class Small(torch.nn.Module):
        def forward(self, x, residual=plain):
            for i in range(width):
                x = residual(f"u{i}", x, lambda i=i, x=x: torch.full_like(x, 0.01 * (i + 1.3)))
            return x

    names, active = tuple(f"u{i}" for i in range(width)), np.array([[1, 0]] * width, bool)
    schedule = Schedule(names, active, (1.0,) * width, "constant", "update", "toy", None)
    stream = torch.full((4, 16), 8.3, dtype=torch.bfloat16)
    generation = UnitExecutor(Small(), schedule).start()
    first = generation(stream)
    (kept,) = generation._units._kept._kept.values()
    exact = sum(torch.tensor(0.01 * (i + 1.3), dtype=torch.bfloat16).double() for i in range(width))
    error = float((kept.double() - exact).abs().max() / exact)
    difference = float(((first - stream).double() - exact).abs().max() / exact)
    assert error < 2**-8 < difference
