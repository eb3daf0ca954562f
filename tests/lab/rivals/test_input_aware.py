"""The controls that look at the input: drift with one step's lag, and the oracle by its definition."""

from typing import Any

import numpy as np
import pytest
import torch

import tenuto
from tenuto.errors import ScheduleError, UsageError
from tenuto.runtime.executor import Executor
from tenuto.runtime.residual import plain
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.probing.trajectory import record, relative
from tenuto_lab.rivals import ActivationDrift, most_drifted, oracle_replay
from tests.conftest import random_dit, write_checkpoint

STEPS = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tenuto.load(str(write_checkpoint(tmp_path_factory.mktemp("model") / "dit", random_dit(depth=2))))


def sample(model: Any, classes: Any = (0,)) -> Any:
    return lambda executor: tenuto.generate(model, list(classes), steps=STEPS, executor=executor, guidance=1.0)


def schedule_of(units: Any, active: Any) -> Any:
    return Schedule(tuple(units), np.array(active), (1.0,) * len(units), "constant", "update", "toy", "sha256:toy")


# ------------------------------------------------------------------------------------------------ activation drift


def test_as_many_units_are_computed_as_the_schedule_says_and_all_of_them_is_full_inference(model: Any) -> None:
    scores = tenuto.score(model)
    for schedule in (
        tenuto.schedule(scores, STEPS, policy="lifetimes", budget=0.5),
        tenuto.schedule(scores, STEPS, policy="lifetimes", tau=1e-9),
    ):
        rival = ActivationDrift(model.network, schedule)
        got = sample(model)(rival)
        assert rival.work == schedule.budget
        assert schedule.budget < 1 or torch.equal(got, sample(model)(Executor(model.network)))


def test_the_units_whose_input_moved_most_at_the_last_step_are_computed() -> None:
    # The streams at a and b; each unit's update tells the step at which it was computed.
    at_a, at_b = [1.0, 1.0, 5.0, 5.0, 5.0], [1.0, 2.0, 2.1, 2.1, 9.0]
    seen = []

    def network(step: Any, residual: Any) -> Any:
        after_a = residual("a", torch.tensor([at_a[step]]), lambda: torch.tensor([100.0 * step]))
        after_b = residual("b", torch.tensor([at_b[step]]), lambda: torch.tensor([100.0 * step]))
        seen.append((float(after_a) - at_a[step], float(after_b) - at_b[step]))
        return after_a

    active = [[True] * 3 + [False] * 2, [True, False, False, True, True]]
    rival = ActivationDrift(network, schedule_of("ab", active))
    generation = rival.start()
    for step in range(5):
        generation(step)
    # Step 1: nothing moved yet, the first unit. Step 2: b moved (1 → 2). Step 3: a did (1 → 5). Step 4: neither.
    want = [(0, 0), (100, 0), (100, 200), (300, 200), (400, 200)]
    assert np.allclose(seen, want, atol=1e-3)
    assert rival.counts == [2, 1, 1, 1, 1] and rival.work == 0.6
    with pytest.raises(ScheduleError, match="has 5 steps"):
        generation(0)


def test_of_equal_drifts_the_first_come_first() -> None:
    assert most_drifted([0.1, 0.3, 0.1, 0.3], 3) == [1, 3, 0]
    assert most_drifted([0.0, 0.0], 0) == []


# --------------------------------------------------------------------------------------------------- oracle replay


@pytest.fixture(scope="module")
def trajectory(model: Any) -> Any:
    (found,) = record(model.network, sample(model))
    return found


def naive_oracle(model: Any, trajectory: Any, tolerance: Any) -> Any:
    """By definition: every candidate set evaluated whole."""
    held: dict[str, Any] = {}
    names, active = [unit.name for unit in model.units], []

    def run(evaluation: Any, frozen: Any) -> Any:
        updates = {}

        def residual(unit: Any, h: Any, branch: Any, gate: Any) -> Any:
            if unit not in frozen:
                updates[unit] = gate() * branch()
            return h + (held[unit] if unit in frozen else updates[unit])

        with torch.no_grad():
            return relative(evaluation.again(model.network, residual), evaluation.output), updates

    for step, evaluation in enumerate(trajectory):
        frozen: set[str] = set()
        while step and len(frozen) < len(names):
            tried = [(run(evaluation, frozen | {name})[0], name) for name in names if name not in frozen]
            off, name = min(tried, key=lambda one: one[0])
            if off > tolerance:
                break
            frozen.add(name)
        held.update(run(evaluation, frozen)[1])
        active.append([name not in frozen for name in names])
    return np.array(active).T


def test_a_trajectory_is_what_full_inference_saw(model: Any, trajectory: Any) -> None:
    assert len(trajectory) == STEPS
    for evaluation in trajectory:
        assert torch.equal(evaluation.again(model.network, plain), evaluation.output)
        assert evaluation.state.shape == (1, 1, 8, 8) and not evaluation.state.is_inference()
    with pytest.raises(UsageError, match="no trajectory"):
        record(model.network, lambda executor: None)


@pytest.mark.parametrize("tolerance", [0.02, 0.2])
def test_the_oracle_is_greedy_within_its_tolerance(model: Any, trajectory: Any, tolerance: float) -> None:
    seen = []
    oracle = oracle_replay(model, trajectory, tolerance=tolerance, progress=lambda *step: seen.append(step))
    assert (oracle.schedule.active == naive_oracle(model, trajectory, tolerance)).all()
    assert 0 < oracle.unit_steps == sum(active for _, active in seen) < len(model.units) * STEPS
    assert (oracle.deviations <= tolerance).all() and oracle.forced == 0 and seen[0] == (1, len(model.units))
    assert torch.isfinite(tenuto.generate(model, [0], schedule=oracle.schedule, guidance=1.0)).all()


def test_without_tolerance_everything_is_computed_and_without_bound_the_first_step_alone(
    model: Any, trajectory: Any
) -> None:
    assert oracle_replay(model, trajectory, tolerance=0.0).schedule.active.all()
    assert oracle_replay(model, trajectory, tolerance=1e9).unit_steps == len(model.units)


def test_a_ceiling_is_kept_beyond_the_tolerance_and_said_so(model: Any, trajectory: Any) -> None:
    oracle = oracle_replay(model, trajectory, tolerance=1e-6, ceiling=14)
    assert oracle.unit_steps <= 14 and oracle.forced == len(model.units) * STEPS - oracle.unit_steps
    loose = oracle_replay(model, trajectory, tolerance=0.2)
    same = oracle_replay(model, trajectory, tolerance=0.2, ceiling=len(model.units) * STEPS)
    assert (loose.schedule.active == same.schedule.active).all() and same.forced == 0
    with pytest.raises(UsageError, match="first step alone"):
        oracle_replay(model, trajectory, ceiling=3)


@pytest.mark.gpu
def test_patterns_of_the_library_are_replayed_and_give_what_eager_steps_give(tmp_path: Any) -> None:
    model = tenuto.load(str(write_checkpoint(tmp_path / "dit", random_dit(depth=2))), device="cuda")
    schedule = tenuto.schedule(tenuto.score(model), STEPS, policy="lifetimes", budget=0.5)
    eager, recorded = (ActivationDrift(model.network, schedule) for _ in range(2))
    eager.without_graphs = True
    want = sample(model, (0, 1))(eager)
    sample(model, (2, 3))(recorded)  # another input meets other patterns
    assert torch.allclose(sample(model, (0, 1))(recorded), want, atol=1e-4)
    assert recorded.graphs is not None and len(recorded.graphs) > 0 and not recorded.without_graphs
    assert recorded.patterns[-STEPS:] == eager.patterns
