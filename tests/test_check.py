"""The self-check: exact where nothing is held, and its errors are those that were made."""

import numpy as np
import pytest
import torch
from conftest import random_dit

import tenuto
from tenuto.errors import UsageError
from tenuto.executor import Executor
from tenuto.measure.check import PERIODS, Check, Probing, check, safe_alternative
from tenuto.policies.refreshing import like


@pytest.fixture
def model(checkpoint):
    return tenuto.load(str(checkpoint))


def test_nothing_held_is_exact(model):
    result = check(model, tenuto.schedule(model, steps=10, budget=1.0), [0, 1])
    assert result.likeness == (np.inf, np.inf) and result.safe and not result.errors.any() and not result.worst_units()


def test_errors_are_what_the_held_unit_was_off_by():
    network = random_dit()
    units = [f"blocks.{i}.{kind}" for i in range(3) for kind in ("attn", "mlp")]
    active = np.ones((6, 2), dtype=bool)
    active[2, 1] = False
    schedule = tenuto.Schedule(tuple(units), active, (1.0,) * 6, "hold", "update", "toy", "sha256:toy")
    seen = {}

    def spy(unit, h, branch, gate=None):
        update = gate() * branch()
        seen.setdefault(unit, []).append((h, update))
        return h + update

    given = [(torch.randn(1, 1, 8, 8), torch.tensor([900 - s]), torch.tensor([2])) for s in range(2)]
    for inputs in given:
        network(*inputs, residual=spy)
    (_, old), (h, new) = seen["blocks.1.attn"]
    probing = Probing(network, schedule)
    generation = probing.start()
    for inputs in given:
        generation(*inputs)
    assert probing.errors[2, 1] == pytest.approx(float((old - new).norm() / (h + new).norm()), rel=1e-4)
    assert np.count_nonzero(probing.errors) == 1


def test_a_schedule_runs_under_the_probe_as_it_does_without(model):
    schedule = tenuto.schedule(model, steps=10, budget=0.3)
    want = tenuto.generate(model, [0, 3], schedule=schedule)
    got = tenuto.generate(model, [0, 3], executor=Probing(model.network, schedule))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    with pytest.raises(UsageError, match="not both"):
        tenuto.generate(model, [0], schedule=schedule, executor=Executor(model.network, schedule))


def test_the_cheapest_safe_period_is_named(model):
    schedule = tenuto.schedule(model, steps=12, policy="lifetimes", budget=0.3)
    asked = []

    def look(one):
        asked.append((one.policy["every"], one.reuse))
        return Check(one, (35.0 if one.policy["every"] <= 4 else 25.0,), False, np.zeros(one.active.shape))

    better = safe_alternative(look, schedule)
    assert better is not None and better.schedule.policy["every"] == 4
    assert asked == [(every, "linear") for every in PERIODS[: PERIODS.index(4) + 1]]  # few refreshes: only a line
    asked.clear()
    assert safe_alternative(look, tenuto.schedule(model, steps=50, policy="lifetimes")) is not None
    assert asked == [
        (8, "quadratic"),
        (8, "linear"),
        (6, "quadratic"),
        (6, "linear"),
        (5, "cubic"),
        (5, "linear"),
        (4, "cubic"),
    ]
    assert like(schedule, 4).active[0].tolist() == [step % 4 == 0 for step in range(12)]


def test_nothing_asked_for_is_an_error(model):
    with pytest.raises(UsageError, match="nothing to compare"):
        check(model, tenuto.schedule(model, steps=10), [])
