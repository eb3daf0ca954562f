"""What holding means, by hand-computed numbers on networks small enough to follow."""

import numpy as np
import pytest
import torch
from torch import nn

from tenuto.errors import ScheduleError
from tenuto.runtime import prediction
from tenuto.runtime.executor import Executor
from tenuto.runtime.residual import Deferred, plain
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.units.unit_executor import UnitExecutor
from tests.conftest import random_dit


def schedule(rows: dict[str, str], predict="constant", keep="update") -> Schedule:
    active = np.array([[mark == "#" for mark in row] for row in rows.values()])
    return Schedule(tuple(rows), active, (1.0,) * len(rows), predict, keep, "toy", "sha256:toy")


class Toy(nn.Module):
    """h = x; h += gate · a h; h += b h. Every number can be worked out in the head."""

    def __init__(self) -> None:
        super().__init__()
        self.computed: list[str] = []

    def forward(self, x, gate, residual=plain):
        h = residual("first", x, lambda: self._branch("first", 2 * x), gate=lambda: gate)
        return residual("second", h, lambda: self._branch("second", 3 * h))

    def _branch(self, name, value):
        self.computed.append(name)
        return value


def run(toy, table, inputs):
    executor = Executor(toy, table)
    if isinstance(executor, UnitExecutor):
        executor.plan(torch.tensor(0.0), torch.tensor(0.0))
        toy.computed.clear()  # planning looks at the network once
    generation = executor.start()
    return [float(generation(torch.tensor(float(x)), torch.tensor(float(gate)))) for x, gate in inputs]


def test_full_inference():
    # h1 = x + g·2x, out = 4·h1
    assert run(Toy(), None, [(1, 1), (2, 1), (1, 3)]) == [12, 24, 28]


def test_the_held_update_is_added_to_the_current_stream():
    toy = Toy()
    outputs = run(toy, schedule({"first": "#.", "second": "##"}), [(1, 1), (10, 1)])
    # step 2: h1 = 10 + (held 2) = 12, not 10 + 20; the second unit sees the current 12 and computes 36.
    assert outputs == [12, 48]
    assert toy.computed == ["first", "second", "second"]


def test_nothing_stale_is_propagated_downstream():
    # Step 1: h1 = 3, second adds 9. Step 2: x = 10 passes through the identity path: 10 + 20 + (held 9).
    assert run(Toy(), schedule({"first": "##", "second": "#."}), [(1, 1), (10, 1)]) == [12, 39]


def test_holding_the_update_freezes_the_gate_and_holding_the_branch_does_not():
    inputs = [(1, 1), (10, 5)]
    rows = {"first": "#.", "second": "##"}
    assert run(Toy(), schedule(rows, keep="update"), inputs) == [12, 4 * (10 + 1 * 2)]
    assert run(Toy(), schedule(rows, keep="branch"), inputs) == [12, 4 * (10 + 5 * 2)]


def test_linear_reuse_extrapolates_through_the_last_two_refreshes():
    rows = {"first": "#.#..", "second": "#####"}
    inputs = [(1, 1), (0, 1), (3, 1), (0, 1), (0, 1)]
    # first: 2 at step 1, 6 at step 3, so slope 2 a step: 8 at step 4, 10 at step 5; at step 2 only one is known: 2.
    assert run(Toy(), schedule(rows, predict="linear"), inputs) == [12, 4 * 2, 36, 4 * 8, 4 * 10]
    assert run(Toy(), schedule(rows, predict="constant"), inputs) == [12, 4 * 2, 36, 4 * 6, 4 * 6]


def test_quadratic_reuse_follows_a_parabola(monkeypatch):
    monkeypatch.setattr(prediction.polynomial_weights, "__defaults__", (7.0,))  # of steady
    rows = {"first": "###.", "second": "####"}
    # branch values 2·(1, 4, 9): the parabola goes on to 2·16.
    assert run(Toy(), schedule(rows, predict="quadratic"), [(1, 1), (4, 1), (9, 1), (0, 1)])[-1] == 4 * 32


def test_a_lifetime_holds_for_good():
    toy = Toy()
    run(toy, schedule({"first": "##...", "second": "#####"}), [(1, 1)] * 5)
    assert toy.computed.count("first") == 2


def test_every_generation_starts_with_nothing_held():
    toy, table = Toy(), schedule({"first": "#.", "second": "#."})
    executor = Executor(toy, table)
    first, second = executor.start(), executor.start()
    one, gate = torch.tensor(1.0), torch.tensor(1.0)
    first(one, gate)
    second(10 * one, gate)
    assert float(first(0 * one, gate)) == 2 + 9  # its own updates, not those of the other generation
    assert float(second(0 * one, gate)) == 20 + 90


def test_an_exception_leaves_no_state_behind():
    class Failing(Toy):
        fail = False

        def _branch(self, name, value):
            if self.fail and name == "second":
                raise RuntimeError("out of luck")
            return super()._branch(name, value)

    toy = Failing()
    executor = Executor(toy, schedule({"first": "#.#", "second": "###"}))
    inputs = [(torch.tensor(x), torch.tensor(1.0)) for x in (1.0, 2.0, 3.0)]
    expected = [executor.start()(*inputs[0])]
    interrupted = executor.start()
    interrupted(*inputs[2])
    toy.fail = True
    with pytest.raises(RuntimeError):
        interrupted(*inputs[1])
    toy.fail = False
    again = executor.start()
    assert [again(*inputs[0])] == expected
    assert float(again(*inputs[1])) == 4 * (2 + 2)


def test_one_evaluation_too_many_is_an_error():
    generation = Executor(Toy(), schedule({"first": "#", "second": "#"})).start()
    one = torch.tensor(1.0)
    generation(one, one)
    with pytest.raises(ScheduleError, match="has 1 steps"):
        generation(one, one)


def test_a_unit_the_schedule_does_not_know_is_an_error():
    generation = Executor(Toy(), schedule({"first": "#"})).start()
    with pytest.raises(ScheduleError, match="a unit second"):
        generation(torch.tensor(1.0), torch.tensor(1.0))


@pytest.mark.parametrize("keep", ["update", "branch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_everything_active_a_network_is_bit_identical_to_itself(keep, dtype):
    network = random_dit().to(dtype)
    units = [f"blocks.{i}.{kind}" for i in range(3) for kind in ("attn", "mlp")]
    generation = Executor(network, schedule(dict.fromkeys(units, "###"), predict="linear", keep=keep)).start()
    for step in range(3):
        x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(step)).to(dtype)
        t, y = torch.tensor([900 - step, 900 - step]), torch.tensor([0, 4])
        assert torch.equal(generation(x, t, y), network(x, t, y))


def test_a_held_block_computes_no_norm_and_no_conditioning():
    network = random_dit()
    units = [f"blocks.{i}.{kind}" for i in range(3) for kind in ("attn", "mlp")]
    executor = UnitExecutor(network, schedule(dict.fromkeys(units, "#."), keep="update"))
    x, t, y = torch.randn(1, 1, 8, 8), torch.tensor([5]), torch.tensor([1])
    executor.plan(x, t, y)  # which looks at the network, as long as it has no hooks
    calls = []
    for block in network.blocks:
        for part in (block.norm1, block.norm2, block.adaLN_modulation):
            part.register_forward_hook(lambda module, inputs, output: calls.append(module))
    generation = executor.start()
    generation(x, t, y)
    assert len(calls) == 9  # two norms and one modulation in each of three blocks
    generation(x, t, y)
    assert len(calls) == 9


def test_what_nobody_reads_again_is_not_kept():
    toy = Toy()
    generation = Executor(toy, schedule({"first": "#.##", "second": "####"})).start()
    one = torch.tensor(1.0)
    kept = []
    for _ in range(4):
        generation(one, one)
        kept.append(len(generation._units))
    assert kept == [1, 0, 0, 0]


def test_deferred_values_are_computed_once_and_only_when_asked_for():
    calls = []
    value = Deferred(lambda: calls.append(1) or (torch.tensor(1), torch.tensor(2)))
    assert calls == []
    assert int(value[0]) + int(value[1]) == 3
    assert calls == [1]
