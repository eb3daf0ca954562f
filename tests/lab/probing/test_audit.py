"""The audit's quantities, each against its definition; amplification against finite differences in float64."""

import json
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch

import tenuto
from tenuto.errors import UsageError
from tenuto.models import Model, llada
from tenuto.models.llada import LLaDA
from tenuto.runtime.residual import plain
from tenuto.sampling.masked import MaskedSampling, generate_tokens
from tenuto.sampling.pictures import make_solver
from tenuto_lab.candidates.ranked_lifetimes import lifetimes_by
from tenuto_lab.networks import uvit
from tenuto_lab.probing.audit import audit, directional
from tenuto_lab.probing.audit_inputs import conditioning_of, ddim_betas
from tenuto_lab.probing.audit_results import from_json, joined, line_r2, moments, to_json
from tenuto_lab.probing.trajectory import RecordedEvaluation, record
from tenuto_lab.units.lifetimes import lifetimes
from tests.conftest import random_dit, write_checkpoint
from tests.lab.networks.test_uvit import random_uvit
from tests.models.test_llada import TINY as LLADA

STEPS = 10


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    stored = write_checkpoint(tmp_path_factory.mktemp("model") / "dit", random_dit(depth=2))
    return tenuto.load(str(stored), dtype=torch.float64)


@pytest.fixture(scope="module")
def sample(model: Any) -> Any:
    return lambda executor: tenuto.generate(model, [0, 1], steps=STEPS, executor=executor, guidance=1.0)


@pytest.fixture(scope="module")
def found(model: Any, sample: Any) -> Any:
    betas, conditioning = ddim_betas(model.noise, STEPS), conditioning_of(model)
    return audit(model, tenuto.score(model), sample, betas=betas, conditioning=conditioning, every=3)


def central_difference(network: Any, evaluation: Any, unit: Any, direction: Any, size: float = 1e-5) -> Any:
    def output(sign: Any) -> Any:
        def residual(name: Any, h: Any, branch: Any, gate: Any = None) -> Any:
            after = plain(name, h, branch, gate)
            return after + sign * size * direction if name == unit else after

        return evaluation.again(network, residual)

    return (output(1) - output(-1)) / (2 * size)


@torch.no_grad()
@pytest.mark.parametrize("unit", [f"blocks.{i}.{kind}" for i in range(2) for kind in ("attn", "mlp")])
def test_the_derivative_is_that_of_finite_differences(model: Any, sample: Any, unit: Any) -> None:
    (trajectory,) = record(model.network, sample)
    direction = torch.randn(2, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    got = directional(model.network, trajectory[4], unit, direction)
    want = central_difference(model.network, trajectory[4], unit, direction)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-8)


@torch.no_grad()
def test_it_follows_long_skips() -> None:
    network = random_uvit().double()
    call = (torch.randn(1, 3, 8, 8).double(), torch.tensor([500]), torch.tensor([1]))
    evaluation = RecordedEvaluation(call, {}, network(*call))
    direction = torch.randn(1, network.config.tokens, 16).double()
    got = directional(network, evaluation, "in_blocks.0.mlp", direction)
    torch.testing.assert_close(got, central_difference(network, evaluation, "in_blocks.0.mlp", direction))


@torch.no_grad()
def test_q_is_the_sum_by_definition(model: Any, sample: Any, found: Any) -> None:
    """Steps 7 to 10, refreshed at 7 and 10: those between are 8 and 9."""
    (trajectory,) = record(model.network, sample)
    betas = ddim_betas(model.noise, STEPS)
    streams, updates, conditions = [], [], []
    for one in trajectory:
        inputs: dict[str, Any] = {}
        given: dict[str, Any] = {}

        def residual(unit: Any, h: Any, branch: Any, gate: Any, inputs: Any = inputs, given: Any = given) -> Any:
            inputs[unit], given[unit] = h, gate() * branch()
            return h + given[unit]

        one.again(model.network, cast(Any, residual))
        streams.append(inputs)
        updates.append(given)
        conditions.append(model.network.t_embedder(one.inputs[1]))
    states = torch.stack([one.state for one in trajectory])
    fastest = (states[1:] - states[:-1]).flatten(2).norm(dim=2).amax(0)
    for i, unit in enumerate(found.units):
        want = torch.zeros(2, dtype=torch.float64)
        for s in (7, 8):  # counted from 0; r = 6
            moved = torch.cat([(streams[s][unit] - streams[6][unit]).flatten(1), conditions[s] - conditions[6]], 1)
            change = updates[s][unit] - updates[6][unit]
            reached = central_difference(model.network, trajectory[s], unit, change)
            amplified = reached.flatten(1).norm(dim=1) / change.flatten(1).norm(dim=1)
            want += betas[s] * amplified * moved.norm(dim=1) / fastest
        assert found.q[i] == pytest.approx(float(want.mean()), rel=1e-5)
    assert found.window == (7, 10) and found.trajectories == 2
    assert np.allclose(found.b, found.score * found.q) and found.cv == pytest.approx(found.q.std() / found.q.mean())
    assert found.score_and_q.n == found.score_and_b.n == 4
    assert (found.amplification > 0).all() and (found.drift > 0).all()


def test_the_order_by_b_is_a_schedule_of_the_same_lifetimes(model: Any, found: Any) -> None:
    scores = tenuto.score(model)
    schedule = lifetimes_by(scores, STEPS, found.b, "B_emp", 0.5)
    spectral = lifetimes(scores, STEPS, budget=0.5)
    assert sorted(schedule.lifetimes) == sorted(spectral.lifetimes)
    assert schedule.lifetimes[int(found.b.argmax())] == max(spectral.lifetimes)
    assert torch.isfinite(tenuto.generate(model, [0], schedule=schedule)).all()


def test_a_batch_counts_as_its_trajectories(model: Any, found: Any) -> None:
    one_by_one = audit(
        model,
        tenuto.score(model),
        lambda executor: tenuto.generate(model, [0, 1], steps=STEPS, executor=executor, guidance=1.0, batch=1),
        betas=ddim_betas(model.noise, STEPS),
        conditioning=conditioning_of(model),
        every=3,
    )
    assert np.allclose(one_by_one.drift_r2_each, found.drift_r2_each, rtol=1e-5) and found.drift_r2_each.shape == (4, 2)
    for name in ("q", "amplification", "drift", "drift_r2"):
        assert np.allclose(getattr(one_by_one, name), getattr(found, name), rtol=1e-6)
    assert one_by_one.trajectories == 2


def test_parts_make_up_the_whole(model: Any, found: Any) -> None:
    """Two samples audited one by one, stored and joined, are as the two audited together."""

    def part(place: int) -> Any:
        options: dict[str, Any] = {"betas": ddim_betas(model.noise, STEPS), "conditioning": conditioning_of(model)}
        given = {"steps": STEPS, "guidance": 1.0, "seed": place}
        draw = lambda executor: tenuto.generate(model, [place], executor=executor, **given)  # noqa: E731
        return from_json(json.loads(json.dumps(to_json(audit(model, tenuto.score(model), draw, every=3, **options)))))

    whole = joined([part(0), part(1)])
    for name in ("q", "amplification", "drift", "drift_r2", "drift_r2_each", "score"):
        assert np.allclose(getattr(whole, name), getattr(found, name), rtol=1e-6), name
    assert whole.trajectories == 2 and whole.window == found.window and whole.cv == pytest.approx(found.cv)


def test_pooled_r2_is_that_of_one_line(found: Any) -> None:
    ages, drifts = np.array([1.0, 2, 3, 1, 2, 3]), np.array([0.5, 1.1, 1.4, 0.7, 1.0, 1.9])
    one = replace(found, moments=np.array([moments(ages, drifts)]))
    assert one.drift_r2[0] == pytest.approx(line_r2(ages, drifts))


def test_drift_in_proportion_to_age_is_a_line() -> None:
    ages = np.array([1, 2, 3, 4, 1, 2])
    assert line_r2(ages, 0.7 * ages) == pytest.approx(1)
    assert line_r2(ages, np.array([1.0, 1.1, 0.9, 1.0, 1.1, 0.9])) < 0


@torch.no_grad()
def test_betas_are_what_ddim_multiplies_the_noise_by(model: Any) -> None:
    solver = make_solver(model.noise, tenuto.Sampling(steps=STEPS))
    x = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
    steps = [-float(solver.step(x + 1, t, x).prev_sample.mean()) for t in solver.timesteps]
    assert ddim_betas(model.noise, STEPS) == pytest.approx(steps, rel=1e-5)


def test_of_text_the_state_is_what_the_first_unit_is_given() -> None:
    torch.manual_seed(0)
    network = LLaDA(LLADA).eval().requires_grad_(False)
    model = Model("tiny", llada.ARCHITECTURE, LLADA, (), llada.units(LLADA), network)
    assert conditioning_of(model) is None
    sampling = MaskedSampling(steps=8, length=8, block_length=8)
    found = audit(model, tenuto.score(model), lambda one: generate_tokens(one, [[3, 4]], sampling=sampling))
    assert found.window == (6, 8) and (found.q > 0).all()


def test_nonsense_is_refused(model: Any, sample: Any) -> None:
    scores = tenuto.score(model)
    with pytest.raises(UsageError, match="a β for each of the 10"):
        audit(model, scores, sample, betas=[1.0])
    with pytest.raises(UsageError, match="nothing to probe"):
        audit(model, scores, sample, window=0.9)
    with pytest.raises(UsageError, match="other units"):
        audit(model, replace(scores, units=scores.units[:-1]), sample)
    other = Model("tiny", replace(uvit.ARCHITECTURE, name="other"), None, (), (), model.network)
    with pytest.raises(UsageError, match="give `conditioning`"):
        conditioning_of(other)
