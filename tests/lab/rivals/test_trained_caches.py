"""Learning-to-Cache and ProCache: what they compute, at which work, and that what they learn is worth something."""

from typing import Any

import numpy as np
import pytest
import torch

import tenuto
from tenuto.runtime.executor import Executor
from tenuto_lab.probing.trajectory import record, relative
from tenuto_lab.rivals.common import schedule_for
from tenuto_lab.rivals.learning_to_cache import learning_to_cache, router_weights
from tenuto_lab.rivals.pro_cache import patterns, pro_cache, selective
from tests.conftest import random_dit, write_checkpoint

STEPS = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tenuto.load(str(write_checkpoint(tmp_path_factory.mktemp("model") / "dit", random_dit(depth=4))))


@pytest.fixture(scope="module")
def sample(model: Any) -> Any:
    return lambda executor: tenuto.generate(model, [0, 1], steps=STEPS, executor=executor, guidance=1.0)


def test_every_second_step_is_full_and_the_budget_is_met(model: Any, sample: Any) -> None:
    made = learning_to_cache(model, STEPS, 0.75, sample, lessons=3)
    assert made.active[:, ::2].all() and made.budget == 0.75 and made.keep == "branch"
    assert learning_to_cache(model, STEPS, 0.5, sample, lessons=1).budget == 0.5
    assert not any(parameter.requires_grad for parameter in model.network.parameters())


def test_a_router_learns_which_units_may_be_held(model: Any, sample: Any) -> None:
    """At one step, the units with the highest w bring the output nearer than those with the lowest."""
    trajectory = record(model.network, sample)[0]
    weights = router_weights(model, trajectory[:2], 30, 0.1)[:, 1]
    assert weights.std() > 0.01
    names = [unit.name for unit in model.units]
    best, worst = (
        set(np.array(names)[order[: len(names) // 2]]) for order in (np.argsort(-weights), np.argsort(weights))
    )

    def error(computed: set[str]) -> float:
        held: dict[str, torch.Tensor] = {}

        def note(unit: str, h: Any, branch: Any, gate: Any = None) -> Any:
            held[unit] = gate() * branch()
            return h + held[unit]

        def run(unit: str, h: Any, branch: Any, gate: Any = None) -> Any:
            return h + (gate() * branch() if unit in computed else held[unit])

        with torch.no_grad():
            trajectory[0].again(model.network, note)
            return relative(trajectory[1].again(model.network, run), trajectory[1].output)

    assert error(best) < error(worst)


def test_intervals_never_grow_and_deep_blocks_are_computed_in_between(model: Any) -> None:
    for pattern in patterns(40, 9, seed=0):
        starts = np.flatnonzero(pattern)
        lengths = np.diff([*starts, 40])
        assert pattern[0] and len(starts) == 9 and (np.diff(lengths) <= 0).all() and lengths.max() <= 9
    assert len(patterns(40, 9, seed=0)) == 5 and patterns(4, 4, 0)[0].all()
    active = selective(model, np.array([1, 0, 0, 0, 0, 1, 0], dtype=bool))
    last = active[-2:].all(axis=0)  # the deepest of four blocks
    assert last.tolist() == [True, False, True, False, True, True, False]
    assert active[:-2].any(axis=0).tolist() == [True, False, False, False, False, True, False]


def test_the_pattern_nearest_to_the_full_run_is_taken(model: Any, sample: Any) -> None:
    made = pro_cache(model, STEPS, 0.5, sample)
    assert made.budget == pytest.approx(0.5, abs=0.08) and made.active[:, 0].all()
    full = sample(Executor(model.network))
    tried = [
        schedule_for(model, selective(model, one), "update", {"name": "one"})
        for one in patterns(STEPS, len(made.policy["full"]), 0)
    ]
    errors = [relative(sample(Executor(model.network, one)), full) for one in tried]
    assert len(errors) > 1 and relative(sample(Executor(model.network, made)), full) == pytest.approx(min(errors))
