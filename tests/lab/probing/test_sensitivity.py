"""Freeze errors by their definition, and the statistics that are drawn from them."""

from typing import Any, cast

import numpy as np
import pytest
import torch

import tenuto
from tenuto.errors import UsageError
from tenuto.runtime.executor import Executor
from tenuto.scheduling.units import Component, Matrix
from tenuto_lab.candidates.ranked_lifetimes import statistic_of
from tenuto_lab.probing.sensitivity import depth_regression, freeze_errors, orientation, scr_and_stable_rank, spearman
from tenuto_lab.scoring.scores import ComponentScore, Scores, UnitScore
from tenuto_lab.scoring.spectrum import spectrum
from tenuto_lab.units.lifetimes import lifetimes, lifetimes_at
from tests.conftest import random_dit, write_checkpoint

STEPS = 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tenuto.load(str(write_checkpoint(tmp_path_factory.mktemp("model") / "dit", random_dit())))


@pytest.fixture(scope="module")
def sample(model: Any) -> Any:
    return lambda executor: tenuto.generate(model, [0, 1], steps=STEPS, executor=executor, batch=1)


def scored(units: int = 40) -> Any:
    """Random scores of made-up units of two kinds."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for i in range(units):
        matrix = torch.randn(20, 30, generator=generator) * (1 + torch.rand(1, generator=generator))
        matrix[:, 0] *= 1 + 8 * float(torch.rand(1, generator=generator))
        found = spectrum(matrix)
        kind = "mlp" if i % 2 else "conv"
        roles = ("w1", "w2") if i % 2 else ("kernel",)
        component = Component(cast(Any, kind), {role: Matrix.whole(f"{i}.{role}") for role in roles})
        parts = (ComponentScore(component, dict.fromkeys(roles, found), 1.0),)
        made.append(UnitScore(f"unit{i}", kind, 1.0, parts, 1.0, float(i) / units))
    return Scores("toy", "toy", "sha256:toy", tuple(made))


# --------------------------------------------------------------------------------------------------- freeze errors


@torch.no_grad()
def test_a_units_error_is_the_outputs_deviation_while_it_alone_is_held(model: Any, sample: Any) -> None:
    last = [2, STEPS, 3, 1, 4, 2]
    found = freeze_errors(model, last, sample)
    assert np.isnan(found.errors).tolist() == [False, True, False, False, False, False]
    seen: list[Any] = []

    class Spy(Executor):
        def start(self) -> Any:
            seen.append([])
            generation = super().start()

            def call(*inputs: Any, **named: Any) -> Any:
                output = generation(*inputs, **named)
                seen[-1].append((inputs, named, output.clone()))
                return output

            return call

    sample(Spy(model.network))
    errors = []
    for run in seen:  # blocks.1.attn, computed at the first three steps
        held: list[Any] = []

        def residual(unit: Any, h: Any, branch: Any, gate: Any, held: Any = held) -> Any:
            update = gate() * branch()
            if unit == "blocks.1.attn":
                held.append(update)
                update = held[min(len(held), 3) - 1]
            return h + update

        outputs = [model.network(*inputs, **named, residual=residual) for inputs, named, _ in run]
        errors += [
            float((got - want).norm() / want.norm()) for got, (*_, want) in list(zip(outputs, run, strict=True))[3:]
        ]
    assert found.errors[2] == pytest.approx(np.mean(errors), rel=1e-4)


def test_of_samples_it_is_the_end_of_a_run_of_its_own(model: Any, sample: Any) -> None:
    done: list[Any] = []
    last = [2] * 6
    found = freeze_errors(model, last, sample, of="sample", progress=done.append)
    scores = tenuto.score(model)
    units = [
        UnitScore(unit.name, unit.kind, unit.flops, (), 1.0, 2 / STEPS if i == 4 else 1.0)
        for i, unit in enumerate(scores.units)
    ]
    schedule = lifetimes(Scores(scores.model, scores.architecture, scores.fingerprint, tuple(units)), STEPS)
    full, held = (sample(Executor(model.network, one, mode="skip")) for one in (None, schedule))
    assert found.errors[4] == pytest.approx(float((held - full).norm() / full.norm()), rel=1e-4)
    assert done == list(found.units)


def test_at_the_papers_operating_point_units_that_live_to_the_end_have_no_error(model: Any, sample: Any) -> None:
    values = [unit.score for unit in tenuto.score(model).units]
    found = freeze_errors(model, lifetimes_at(values, STEPS, 1.0), sample)
    assert np.isnan(found.errors[int(np.argmax(values))])
    assert spearman(values, found.errors).n == int(np.isfinite(found.errors).sum()) < len(values)


def test_nonsense_is_refused(model: Any, sample: Any) -> None:
    with pytest.raises(UsageError, match="Each of the 6 units"):
        freeze_errors(model, [1], sample)
    with pytest.raises(UsageError, match="of outputs or of the sample"):
        freeze_errors(model, [1] * 6, sample, of=cast(Any, "pictures"))
    with pytest.raises(UsageError, match="must give what it generated"):
        freeze_errors(model, [1] * 6, lambda executor: [sample(executor)], of="sample")


# -------------------------------------------------------------------------------------------------------- statistics


def test_ranks_are_correlated_where_both_have_values() -> None:
    found = spearman([1.0, 2.0, 3.0, 4.0, np.nan], [1.0, 8.0, 27.0, 64.0, 0.0])
    assert found.rho == pytest.approx(1.0) and found.n == 4
    assert np.isnan(spearman([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]).rho)
    with pytest.raises(UsageError, match="at least 3"):
        spearman([1.0, 2.0], [1.0, 2.0])


def test_a_ranking_is_turned_towards_the_errors() -> None:
    assert orientation([3.0, 2.0, 1.0], [1.0, 2.0, 5.0]).sign == -1
    assert orientation([1.0, 2.0, 3.0], [1.0, 2.0, 5.0]).sign == 1
    assert orientation([1.0, 1.0, 1.0], [1.0, 2.0, 5.0]).sign == 1


def test_concentrated_matrices_have_a_low_stable_rank() -> None:
    found = scr_and_stable_rank(scored())
    assert found.rho < -0.5 and found.n == 40


def test_the_regression_finds_what_made_the_errors() -> None:
    scores = scored()
    standard = {
        name: (column - column.mean()) / column.std()
        for name in ("scr", "depth", "frobenius")
        for column in [statistic_of(scores, name)]
    }
    noise = np.random.default_rng(0).normal(size=40)
    kind = np.array([unit.kind == "mlp" for unit in scores.units])
    errors = 0.8 * standard["scr"] + 0.5 * standard["depth"] + 0.3 * kind + 0.1 * noise
    found = depth_regression(scores, errors)
    size = errors.std()
    assert [one.name for one in found.coefficients] == ["scr", "depth", "frobenius", "kind mlp"]
    for name, want in {"scr": 0.8, "depth": 0.5, "frobenius": 0.0, "kind mlp": 0.3}.items():
        one = found[name]
        assert one.low < one.beta < one.high and abs(one.beta - want / size) < 4 * one.error
    assert found["scr"].p < 1e-6 < found["frobenius"].p
    assert found.r2_depth < found.r2_full <= 1 and found.n == 40


def test_the_regression_equals_least_squares_by_hand() -> None:
    scores, generator = scored(), np.random.default_rng(1)
    errors = generator.normal(size=40)
    errors[3] = np.nan
    kept = np.isfinite(errors)
    columns = [statistic_of(scores, name)[kept] for name in ("scr", "depth", "frobenius")]
    kinds = np.array([unit.kind == "mlp" for unit in scores.units])[kept].astype(float)
    design = np.column_stack([np.ones(39), *((c - c.mean()) / c.std() for c in columns), kinds])
    y = (errors[kept] - errors[kept].mean()) / errors[kept].std()
    want, residuals, *_ = np.linalg.lstsq(design, y, rcond=None)
    found = depth_regression(scores, errors)
    assert [one.beta for one in found.coefficients] == pytest.approx(want[1:].tolist())
    assert found.r2_full == pytest.approx(1 - residuals[0] / (y**2).sum())


def test_too_few_units_or_errors_that_do_not_vary_are_refused() -> None:
    with pytest.raises(UsageError, match="too few"):
        depth_regression(scored(units=5), [1.0, 2.0, 3.0, 4.0, 5.0])
    with pytest.raises(UsageError, match="the freeze error does not vary"):
        depth_regression(scored(), [1.0] * 40)
