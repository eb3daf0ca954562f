"""What a plan does must be what the schedule says, whatever it merges, reorders or uses again."""

import gc
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tenuto.errors import ScheduleError, UsageError
from tenuto.runtime.executor import Slower, executor_for
from tenuto.runtime.prediction import polynomial_weights
from tenuto.runtime.residual import plain
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.candidates.padded import Padded
from tenuto_lab.units import kernels
from tenuto_lab.units.chain import chain_of
from tenuto_lab.units.holding import Holding, Planes
from tenuto_lab.units.lifetimes import with_fewer_lifetimes
from tenuto_lab.units.offloading import AHEAD, HostPlanes
from tenuto_lab.units.plan import make_plan
from tenuto_lab.units.unit_executor import UnitExecutor


class Net(nn.Module):
    """Eight units on one stream: some gated, a skip around two of them, and a live layer that reads in the middle."""

    UNITS = tuple(f"u{i}" for i in range(8))

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weights = [0.3 * torch.randn(4, 4, generator=generator, dtype=torch.float64) for _ in self.UNITS]

    def forward(self, x, gate, residual=plain):
        h = x
        for i in range(3):
            h = self.unit(i, h, residual)
        skip = h
        h = self.unit(3, h, residual, gate=lambda: gate)
        h = self.unit(4, h, residual, gate=lambda: 1 + gate)
        h = torch.tanh(h) + skip
        for i in range(5, 8):
            h = self.unit(i, h, residual)
        return h.sin()

    def unit(self, i, h, residual, gate=None):
        return residual(f"u{i}", h, lambda: torch.tanh(h @ self.weights[i]), gate)


def naive(schedule: Schedule):
    """The semantics, as simply as they can be written: each unit's last refreshes, extrapolated one by one."""
    held: dict[str, deque] = {unit: deque(maxlen=schedule.order + 1) for unit in schedule.units}

    def at(step):
        def residual(unit, h, branch, gate=None):
            late = gate is not None and schedule.keep == "branch"
            if schedule.active[schedule.units.index(unit), step]:
                value = branch()
                value = value if gate is None or late else gate() * value
                held[unit].appendleft((step, value))
            else:
                weights = polynomial_weights([s for s, _ in held[unit]], step)
                value = sum(w * v for w, (_, v) in zip(weights, held[unit], strict=True))
            return h + (gate() * value if late else value)

        return residual

    return at


def inputs(steps):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield (
            torch.randn(2, 3, 4, generator=generator, dtype=torch.float64),
            torch.rand(2, 1, 4, generator=generator, dtype=torch.float64),
        )


@st.composite
def schedules(draw):
    steps = draw(st.integers(1, 12))
    if draw(st.booleans()):  # any rows at all, or few different ones, which is where neighbours merge
        rows = [draw(st.lists(st.booleans(), min_size=steps, max_size=steps)) for _ in Net.UNITS]
    else:
        few = [draw(st.lists(st.booleans(), min_size=steps, max_size=steps)) for _ in range(2)]
        rows = [draw(st.sampled_from(few)) for _ in Net.UNITS]
    if draw(st.booleans()):  # lifetimes
        rows = [[step <= sum(row) for step in range(steps)] for row in rows]
    active = np.array(rows, dtype=bool)
    active[:, 0] = True
    predict = draw(st.sampled_from(["constant", "linear", "quadratic"]))
    keep = draw(st.sampled_from(["update", "branch"]))
    return Schedule(Net.UNITS, active, (1.0,) * 8, predict, keep, "toy", "sha256:toy")


def expected(net, schedule):
    at = naive(schedule)
    return [net(x, gate, residual=at(step)) for step, (x, gate) in enumerate(inputs(schedule.steps))]


@given(schedules())
@settings(deadline=None, max_examples=150)
def test_skipping_follows_the_schedule(schedule):
    net = Net()
    generation = UnitExecutor(net, schedule).start()
    for (x, gate), want in zip(inputs(schedule.steps), expected(net, schedule), strict=True):
        torch.testing.assert_close(generation(x, gate), want, rtol=1e-9, atol=1e-9)
    assert len(generation._units) == 0


@given(schedules())
@settings(deadline=None, max_examples=100)
def test_so_do_the_buffers_that_graphs_work_on(schedule):
    net = Net()
    first = next(inputs(1))
    plan = make_plan(schedule, chain_of(net, first, {}))
    planes = Planes(plan, torch.device("cpu"))
    for storage in planes.storages:
        storage.fill_(1e3)  # what an earlier generation left
    planes.reset()
    for step, ((x, gate), want) in enumerate(zip(inputs(schedule.steps), expected(net, schedule), strict=True)):
        planes.at(step)
        got = net(x, gate, residual=Holding(plan, planes, plan.steps[step]))
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)  # weights are float32 there


@given(schedules())
@settings(deadline=None, max_examples=50)
def test_so_does_padding(schedule):
    net = Net()
    padded = Padded(schedule, chain_of(net, next(inputs(1)), {}), torch.device("cpu"))
    padded.reset()
    for step, ((x, gate), want) in enumerate(zip(inputs(schedule.steps), expected(net, schedule), strict=True)):
        padded.at(step)
        torch.testing.assert_close(net(x, gate, residual=padded), want, rtol=1e-5, atol=1e-5)


def planned(rows, predict="constant", keep="update"):
    active = np.array([[mark == "#" for mark in row] for row in rows])
    schedule = Schedule(Net.UNITS, active, (1.0,) * 8, predict, keep, "toy", "sha256:toy")
    return make_plan(schedule, chain_of(Net(), next(inputs(1)), {}))


def test_the_chain_is_found():
    chain = chain_of(Net(), next(inputs(1)), {})
    assert [link.unit for link in chain] == list(Net.UNITS)
    # u2 ends at the skip, u4 at the live layer, u7 at the output.
    assert [link.joined for link in chain] == [True, True, False, True, False, True, True, False]
    assert [link.gated for link in chain] == [False] * 3 + [True] * 2 + [False] * 3
    assert all(link.shape == (2, 3, 4) for link in chain)


def test_neighbours_refreshed_together_are_one_buffer():
    plan = planned(["#..#.."] * 8)
    assert plan.storages[0].planes == 3  # one for each stretch between readers
    assert len(plan.programs) == 2  # one that computes everything, one that adds three sums
    assert sum(len(action.adds) for action in plan.programs[1]) == 3
    assert planned(["#..#.."] * 8, predict="linear").storages[0].planes == 6


def test_a_branch_before_its_gate_keeps_its_own_buffer():
    plan = planned(["#..#.."] * 8, keep="branch")
    assert plan.storages[0].planes == 4
    assert plan.cache_bytes == 4 * 2 * 3 * 4 * 8


def test_lifetimes_collapse_as_neighbours_end():
    plan = planned(["#.....", "##....", "###...", *["######"] * 5])
    assert plan.storages[0].planes == 1  # the sum grows; there is never a second one
    held = planned(["#.....", "######", "#.....", *["######"] * 5])
    assert held.storages[0].planes == 2  # a computed unit between them


def test_refresh_schedules_have_as_many_programs_as_patterns():
    for predict in ("constant", "linear", "quadratic"):
        plan = planned([("#" + "." * 4) * 6] * 8, predict=predict, keep="branch")
        assert len(plan.programs) == 2
        assert len({moment.program for moment in plan.steps}) == 2


def test_buffers_nobody_reads_are_used_again():
    rows = ["#.####", "######", "###.##", *["######"] * 5]
    assert planned(rows).storages[0].planes == 1


@pytest.mark.parametrize("predict", ["constant", "linear"])
def test_nothing_is_kept_where_nothing_is_read(predict):
    plan = planned(["######"] * 8, predict=predict)
    assert plan.cells == () and plan.cache_bytes == 0 and len(plan.programs) == 1


# ---------------------------------------------------------------------------------------------------------- bounds


def table(rows, predict="constant", keep="update"):
    active = np.array([[mark == "#" for mark in row] for row in rows])
    return Schedule(Net.UNITS, active, (1.0,) * 8, predict, keep, "toy", "sha256:toy")


def run(executor):
    generation = executor.start()
    return [generation(x, gate) for x, gate in inputs(executor.schedule.steps)]


PLANE = 2 * 3 * 4 * 8  # bytes


@pytest.mark.parametrize(
    ("planes", "predict", "keep"),
    [(8, "linear", "branch"), (7, "constant", "branch"), (4, "constant", "branch"), (3, "constant", "update")],
)
def test_a_plan_keeps_within_its_memory_and_says_what_it_gave_up(planes, predict, keep):
    schedule = table(["#..#..#.."] * 8, "linear", "branch")
    executor = UnitExecutor(Net(), schedule, memory=planes * PLANE)
    got = run(executor)
    assert executor.plan(*next(inputs(1))).cache_bytes <= planes * PLANE
    assert executor.report().cache_bytes <= planes * PLANE
    for a, b in zip(got, expected(Net(), table(["#..#..#.."] * 8, predict, keep)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    given_up = executor.report().given_up
    assert ("predict linear became constant" in given_up) == (predict == "constant")
    assert ("update after the gate" in given_up) == (keep == "update")


def test_memory_that_cannot_be_kept_to_is_refused():
    with pytest.raises(ScheduleError, match=r"keeps less than 576 bytes, and 100 are allowed"):
        run(UnitExecutor(Net(), table(["#..#..#.."] * 8, "linear", "branch"), memory=100))


def test_lifetimes_of_neighbours_are_made_alike_where_memory_is_short():
    rows = [
        "#.........",
        "########..",
        "##........",
        "#######...",
        "###.......",
        "########..",
        "#.........",
        "######....",
    ]
    schedule = table(rows)
    alone = make_plan(schedule, chain_of(Net(), next(inputs(1)), {})).cache_bytes
    executor = UnitExecutor(Net(), schedule, memory=alone - PLANE)
    got = run(executor)
    assert executor.report().cache_bytes < alone
    assert "each that of 2 neighbours" in executor.report().given_up
    pairs = [4, 4, 4, 4, 6, 6, 4, 4]  # the means, halves to even
    alike = table(["#" * last + "." * (10 - last) for last in pairs])
    for a, b in zip(got, expected(Net(), alike), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_a_bound_on_graphs_merges_the_nearest_lifetimes():
    rows = ["#.........", "##........", "##........", "#####.....", "######....", "########..", *["##########"] * 2]
    assert len(make_plan(table(rows), chain_of(Net(), next(inputs(1)), {})).programs) > 6
    executor = UnitExecutor(Net(), table(rows), graphs=6)
    run(executor)
    assert len(executor.plan(*next(inputs(1))).programs) <= 6
    assert "6 lifetimes became" in executor.report().given_up
    with pytest.raises(UsageError, match="Only schedules of lifetimes"):
        run(UnitExecutor(Net(), table(["#.#"] + ["#.."] * 7), graphs=1))


def test_merging_moves_as_few_unit_steps_as_it_can():
    rows = ["#.........", "##........", "##........", "#####.....", *["##########"] * 4]
    merged = with_fewer_lifetimes(table(rows), 3)
    assert merged.lifetimes == (2, 2, 2, 5, 10, 10, 10, 10)
    assert with_fewer_lifetimes(table(rows), 2).lifetimes == (2, 2, 2, 2, 10, 10, 10, 10)
    assert with_fewer_lifetimes(table(rows), 9).lifetimes == table(rows).lifetimes


@given(schedules())
@settings(deadline=None, max_examples=30)
def test_offloaded_caches_give_the_same(schedule):
    if schedule.order:
        schedule = replace(schedule, predict="constant")
    net = Net()
    plan = make_plan(schedule, chain_of(net, next(inputs(1)), {}))
    planes = HostPlanes(plan, torch.device("cpu"))
    for step, ((x, gate), want) in enumerate(zip(inputs(schedule.steps), expected(net, schedule), strict=True)):
        planes.at(step)
        got = net(x, gate, residual=(holding := planes.residual(step, None)))
        planes.finish(holding)
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
        assert not planes._reads and not planes._coming  # what was fetched ahead was read, all of it
    assert planes.bytes == 0


def test_values_in_the_hosts_memory_are_fetched_before_they_are_read():
    schedule = table(["##...", "#....", "#....", "#####", *["#...."] * 4])
    planes = HostPlanes(make_plan(schedule, chain_of(Net(), next(inputs(1)), {})), torch.device("cpu"))
    holding = planes.residual(2, None)
    wanted = [cell for action in holding.program for cell in action.adds]
    assert len(wanted) > 1 and [cell for cell, *_ in planes._coming] == wanted[:AHEAD]
    assert list(planes._reads) == wanted[AHEAD:]


def test_a_network_that_cannot_be_looked_at_beforehand_runs_right_and_says_so():
    class Curious(Net):
        def forward(self, x, gate, residual=plain):
            return super().forward(x * (1.0 if x.sum().item() else 2.0), gate, residual)

    for predict in ("constant", "linear"):
        schedule = table(["#..#.", "##.#.", *["#.#.#"] * 6], predict, "branch")
        with pytest.warns(Slower, match="cannot be looked at beforehand"):
            got = run(UnitExecutor(Curious(), schedule))
        for a, b in zip(got, expected(Net(), schedule), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_threads_do_not_disturb_one_another():
    net = Net()
    tables = [table(["#..#..#.."] * 8, "linear", "branch"), table(["##.......", "#.#.#.#.#", *["#...#...#"] * 6])]
    wants = [expected(net, one) for one in tables]
    executors = [UnitExecutor(net, one) for one in tables]
    with ThreadPoolExecutor(4) as threads:
        futures = [threads.submit(run, executors[i % 2]) for i in range(12)]
        for i, future in enumerate(futures):
            for a, b in zip(future.result(), wants[i % 2], strict=True):
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_buffers_serve_within_inference_mode_and_without():
    schedule = table(["#..#..#.."] * 8, "linear", "branch")
    with torch.inference_mode():
        plan = make_plan(schedule, chain_of(Net(), next(inputs(1)), {}))
        planes = Planes(plan, torch.device("cpu"))
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            planes.reset()
            for step, (x, gate) in enumerate(inputs(9)):
                planes.at(step)
                Net()(x, gate, residual=Holding(plan, planes, plan.steps[step]))


def test_options_that_cannot_work_together_are_refused():
    schedule = table(["#.."] * 8)
    for options in ({"mode": "skip", "offload": True},):
        with pytest.raises(UsageError):
            UnitExecutor(Net(), schedule, **options)
    with pytest.raises(UsageError, match="predict 'constant'"):
        UnitExecutor(Net(), table(["#.."] * 8, "linear"), offload=True)


def test_what_was_given_up_is_told_of_every_shape():
    executor = UnitExecutor(Net(), table(["#..#..#.."] * 8, "linear", "branch"), memory=7 * PLANE)
    run(executor)
    x, gate = next(inputs(1))
    executor.plan(x[:1], gate[:1])  # half the batch fits as it is
    assert "linear became constant" in executor.report().given_up


def test_a_network_is_not_kept_alive_by_its_executor():
    network = Net()
    executor_for(network, table(["#.."] * 8)).start()
    gone = weakref.ref(network)
    del network
    gc.collect()
    assert gone() is None


def test_the_kernel_takes_gates_of_one_shape_only():
    def fits(h, gate):
        storage, gates = torch.zeros(1, *h.shape), torch.zeros(1, *gate)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernels, "has_triton", lambda: True)
            patch.setattr(Tensor, "is_cuda", True)
            return kernels.fits_kernel(h, storage, gates)

    h = torch.zeros(2, 4, 4)
    assert fits(h, (2, 1, 4)) and not fits(h, (2, 4, 1)) and not fits(torch.zeros(4, 4, 3), (4, 3))
