"""tenuto check: exact where nothing is held, and its errors are those that were made."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tenuto as package
from tenuto.checking import Check, Probing, check, safe_alternative
from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.runtime.executor import Executor
from tenuto.scheduling.schedule import Schedule
from tests.cli.conftest import Run
from tests.conftest import random_dit


@pytest.fixture
def loaded(checkpoint: Path) -> Model:
    return package.load(str(checkpoint))


def test_nothing_held_is_exact(loaded: Model) -> None:
    result = check(loaded, package.schedule(loaded, steps=10, budget=1.0), [0, 1])
    assert result.likeness == (np.inf, np.inf) and result.safe and not result.errors.any() and not result.worst_units()


def test_errors_are_what_the_held_unit_was_off_by() -> None:
    network = random_dit()
    units = [f"blocks.{i}.{kind}" for i in range(3) for kind in ("attn", "mlp")]
    active = np.ones((6, 2), dtype=bool)
    active[2, 1] = False
    schedule = Schedule(tuple(units), active, (1.0,) * 6, "constant", "update", "toy", "sha256:toy")
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def spy(unit: str, h: Tensor, branch: Any, gate: Any = None) -> Tensor:
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


def test_a_schedule_runs_under_the_probe_as_it_does_without(loaded: Model) -> None:
    schedule = package.schedule(loaded, steps=10, budget=0.3)
    want = package.generate(loaded, [0, 3], schedule=schedule)
    got = package.generate(loaded, [0, 3], executor=Probing(loaded.network, schedule))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    with pytest.raises(UsageError, match="not both"):
        package.generate(loaded, [0], schedule=schedule, executor=Executor(loaded.network, schedule))


def test_the_safe_schedule_nearest_to_the_one_asked_for_is_named(loaded: Model) -> None:
    asked: list[float] = []

    def look(one: Schedule) -> Check:
        asked.append(one.budget)
        return Check(one, (35.0 if one.policy["every"] <= 3 else 25.0,), False, np.zeros(one.active.shape))

    for budget in (0.3, 0.6):
        asked.clear()
        schedule = package.schedule(loaded, steps=12, policy="lifetimes", budget=budget)
        better = safe_alternative(look, schedule)
        assert better is not None and better.schedule.policy["every"] <= 3
        distances = [abs(one - schedule.budget) for one in asked]
        assert distances == sorted(distances)


def test_nothing_asked_for_is_an_error(loaded: Model) -> None:
    with pytest.raises(UsageError, match="nothing to compare"):
        check(loaded, package.schedule(loaded, steps=10), [])


def test_check_says_whether_a_schedule_is_safe(tenuto: Run, model: Path, tmp_path: Path) -> None:
    for name, options in {"all": ("--budget", "1"), "few": ("--policy", "lifetimes", "--budget", "0.2")}.items():
        assert tenuto("schedule", model, "--steps", "10", *options, "-o", f"{name}.json")[0] == 0
    exact = ("check", model, "--schedule", "all.json", "--samples", "1")
    status, out, _ = tenuto(*exact)
    assert status == 0
    assert out == "Safe: the pictures are identical to those of the full run (1 sample compared).\n"
    status, out, _ = tenuto(*exact, "--json")
    assert status == 0 and json.loads(out)["likeness"] == [None]
    command = ("check", model, "--schedule", "few.json", "--for", "1")
    status, out, _ = tenuto(*command, "--png", "errors.png")
    assert status == 1 and out.startswith("Not safe") and "furthest off: blocks." in out
    assert "--reuse" not in out
    assert (tmp_path / "errors.png").stat().st_size > 1000
    status, out, _ = tenuto(*command, "--json")
    record = json.loads(out)
    assert status == 1 and not record["safe"] and record["worst_units"][0]["error"] > 0


def test_a_language_model_that_computes_nothing_takes_fewer_steps(tenuto: Run) -> None:
    common = ("check", "tiny-llada", "--length", "8", "--samples", "1", "--schedule", "s.json")
    tenuto("schedule", "tiny-llada", "--steps", "8", "--every", "4", "--rows", "none", "-o", "s.json")
    status, out, _ = tenuto(*common)
    assert "At 6 of 8 steps every unit is held" in out and status in (0, 1)
    tenuto("schedule", "tiny-llada", "--steps", "8", "--every", "4", "-o", "s.json")  # the default: rows are computed
    assert "fewer steps" not in tenuto(*common)[1]
