"""The rivals: exact where they save nothing, and otherwise what was published."""

import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import tenuto
from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.runtime.executor import Executor
from tenuto.scheduling.schedule import Keep, Predict
from tenuto_lab.candidates.composition import both
from tenuto_lab.networks import unet
from tenuto_lab.rivals import (
    DeepCache,
    FirstBlock,
    SkippedEvaluations,
    TaylorSeer,
    deep_cache,
    deep_cache_schedule,
    drifts,
    first_block,
    shallow_units,
    smooth_cache,
    smooth_cache_at,
    smooth_row,
)
from tenuto_lab.scoring.scores import Scores, UnitScore
from tenuto_lab.seam.attachment import attach
from tenuto_lab.units.lifetimes import lifetimes
from tests.conftest import random_dit
from tests.helpers.denoisers import branches_seen, inputs, make, run

UNITS = [f"blocks.{i}.{kind}" for i in range(3) for kind in ("attn", "mlp")]
STEPS = 8


@pytest.fixture
def model(checkpoint: Path) -> Any:
    return tenuto.load(str(checkpoint))


@pytest.fixture
def calibrate(model: Any) -> Any:
    return lambda executor: tenuto.generate(model, [0, 1], steps=STEPS, executor=executor)


def given(steps: Any) -> Any:
    torch.manual_seed(0)
    return [(torch.randn(2, 1, 8, 8), torch.tensor([900 - 40 * s] * 2), torch.tensor([2, 0])) for s in range(steps)]


def run_all(executor: Any, steps: Any) -> Any:
    generation = executor.start()
    return [generation(*one) for one in given(steps)]


def schedule_of(active: Any, predict: Predict = "constant", keep: Keep = "branch") -> Any:
    return tenuto.Schedule(tuple(UNITS), active, (1.0,) * len(UNITS), predict, keep, "toy", "sha256:toy")


def unet_at_the_seam(kind: Any) -> Any:
    """A tiny UNet as an executor's network, called with the seed of its input; and its units' names."""
    module = make(kind)
    attachment = attach(module)

    def network(seed: Any, timestep: int = 7, *, residual: Any) -> Any:
        with attachment.using(residual):
            return run(module, {**inputs(kind, seed), "timestep": timestep})

    return network, [unit.name for unit in attachment.units]


# -------------------------------------------------------------------------------------------------- saving nothing


@pytest.mark.parametrize(
    "make_rival",
    [
        lambda network: SkippedEvaluations(network, 1),
        lambda network: FirstBlock(network, first_block(UNITS), 0.0),
        lambda network: TaylorSeer(network, 1, 2),
    ],
)
def test_a_rival_that_saves_nothing_is_full_inference(model: Any, make_rival: Any) -> None:
    rival = make_rival(model.network)
    got = tenuto.generate(model, [0, 3], steps=STEPS, executor=rival)
    assert torch.equal(got, tenuto.generate(model, [0, 3], steps=STEPS))
    assert rival.work == rival.flop_work(model.units) == 1


def test_on_a_unet_too() -> None:
    network, units = unet_at_the_seam("sd1")
    full = Executor(network).start()
    rivals = [
        SkippedEvaluations(network, 1),
        FirstBlock(network, first_block(units), 0.0),
        TaylorSeer(network, 1, 2),
        DeepCache(network, units, 1),
    ]
    generations = [rival.start() for rival in rivals]
    for seed in range(3):
        want = full(seed)
        assert all(torch.equal(generation(seed), want) for generation in generations)
    assert all(rival.work == 1 for rival in rivals)


def test_there_is_no_work_before_anything_ran_and_nonsense_is_refused(network: Any) -> None:
    with pytest.raises(UsageError, match="Nothing was generated"):
        TaylorSeer(network, 2, 1).work  # noqa: B018
    for nonsense in (
        lambda: SkippedEvaluations(network, 0),
        lambda: SkippedEvaluations(network, 2, -1),
        lambda: TaylorSeer(network, 2, 1, -1),
        lambda: FirstBlock(network, [], 0.1),
        lambda: FirstBlock(network, first_block(UNITS), math.nan),
        lambda: first_block([]),
    ):
        with pytest.raises(UsageError):
            nonsense()


# --------------------------------------------------------------------------------------------- skipped evaluations


def test_an_output_linear_in_the_step_is_extrapolated_exactly() -> None:
    start, slope = torch.tensor([[1.0, -3.0]]), torch.tensor([[2.0, 0.5]])
    evaluated = []

    def network(step: Any, residual: Any) -> Any:
        evaluated.append(step)
        return start + step * slope

    rival = SkippedEvaluations(network, every=4, order=1)
    generation = rival.start()
    outputs = [generation(step) for step in range(12)]
    assert evaluated == [0, 4, 8] and rival.work == 0.25
    for step, output in enumerate(outputs):  # before the second evaluation there is no slope to be seen
        assert torch.equal(output, start + (step if step >= 4 else 0) * slope)


def test_order_zero_repeats_the_last_output(network: Any) -> None:
    outputs = run_all(SkippedEvaluations(network, 3, 0), 6)
    assert all(torch.equal(outputs[step], outputs[step // 3 * 3]) for step in range(6))


# ----------------------------------------------------------------------------------------------- first-block cache


def test_the_first_block_is_what_its_name_says() -> None:
    assert first_block(UNITS) == ["blocks.0.attn", "blocks.0.mlp"]
    assert first_block([f"blocks.{i}" for i in (1, 10, 2)]) == ["blocks.1"]
    assert first_block(unet_at_the_seam("sd1")[1]) == ["down_blocks.0.resnets.0"]


def test_an_infinite_threshold_computes_everything_once_and_then_the_first_block(network: Any) -> None:
    rival = FirstBlock(network, first_block(UNITS), math.inf)
    got = run_all(rival, 4)
    assert rival.computed == {unit: 4 if unit.startswith("blocks.0") else 1 for unit in UNITS}
    assert rival.work == (2 * 4 + 4) / (6 * 4)
    active = np.array([[True] * 4 if unit.startswith("blocks.0") else [True] + [False] * 3 for unit in UNITS])
    want = run_all(Executor(network, schedule_of(active, keep="update"), mode="skip"), 4)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_what_is_held_is_the_streams_difference_across_the_other_blocks(network: Any) -> None:
    streams: dict[str, Any] = {}

    def spy(residual: Any) -> Any:
        def spying(unit: Any, h: Any, branch: Any, gate: Any = None) -> Any:
            after = residual(unit, h, branch, gate)
            streams.setdefault(unit, []).append((h, after))
            return after

        return spying

    def spied(*call: Any, residual: Any) -> Any:
        return network(*call, residual=spy(residual))

    run_all(FirstBlock(spied, first_block(UNITS), math.inf), 2)
    then, now = (
        last[1] - first[0] for first, last in zip(streams["blocks.1.attn"], streams["blocks.2.mlp"], strict=True)
    )
    torch.testing.assert_close(now, then, rtol=1e-4, atol=1e-5)


def test_the_change_since_the_last_full_evaluation_decides() -> None:
    first = [1.0, 1.2, 1.4, 1.5]  # against 1: 0.2, 0.4; then against 1.4: 0.07

    def network(step: Any, residual: Any) -> Any:
        h = residual("blocks.0.mlp", torch.zeros(1, 2), lambda: torch.full((1, 2), first[step]))
        return residual("blocks.1.mlp", h, lambda: torch.full((1, 2), 10.0 * step))

    rival = FirstBlock(network, ["blocks.0.mlp"], 0.3)
    generation = rival.start()
    assert [float(generation(step)[0, 0]) for step in range(4)] == pytest.approx([1.0, 1.2, 21.4, 21.5])
    assert rival.computed == {"blocks.0.mlp": 4, "blocks.1.mlp": 2}


def test_a_first_block_that_does_not_come_first_is_refused(network: Any) -> None:
    with pytest.raises(UsageError, match="runs blocks.0.attn before"):
        run_all(FirstBlock(network, ["blocks.1.attn"], 0.1), 1)


# ------------------------------------------------------------------------------------------------------ TaylorSeer


def test_the_first_order_without_warm_up_is_our_linear_schedule(network: Any) -> None:
    active = np.tile(np.arange(9) % 3 == 0, (len(UNITS), 1))
    want = run_all(Executor(network, schedule_of(active, "linear"), mode="skip"), 9)
    for warmup in (0, 1):
        rival = TaylorSeer(network, 3, 1, warmup)
        torch.testing.assert_close(run_all(rival, 9), want, rtol=1e-4, atol=1e-5)
        assert rival.work == pytest.approx(1 / 3)


def test_the_second_order_is_the_published_formula_before_the_gate() -> None:
    values, gates = [3.0, 4.0, 0.0, 0.0, 10.0, 0.0, 0.0, 1.0, 0.0], [float(step + 1) for step in range(9)]

    def network(step: Any, residual: Any) -> Any:
        return residual(
            "blocks.0.mlp", torch.tensor(100.0), lambda: torch.tensor(values[step]), lambda: torch.tensor(gates[step])
        )

    rival = TaylorSeer(network, every=3, order=2)  # refreshes at 0, 1, 4, 7
    generation = rival.start()
    got = [(float(generation(step)) - 100) / gates[step] for step in range(9)]
    d1 = 4.0 - 3.0
    e1 = (10.0 - 4.0) / 3
    e2 = (e1 - d1) / 3
    f1 = (1.0 - 10.0) / 3
    f2 = (f1 - e1) / 3
    want = [3, 4, 4 + d1, 4 + 2 * d1, 10, 10 + e1 + e2 / 2, 10 + 2 * e1 + 4 * e2 / 2, 1, 1 + f1 + f2 / 2]
    assert got == pytest.approx(want, abs=1e-4)
    assert rival.work == pytest.approx(4 / 9)


def test_a_longer_warm_up_is_computed_and_differenced_from_its_last_step_on() -> None:
    def network(step: Any, residual: Any) -> Any:
        return residual("blocks.0.mlp", torch.tensor(0.0), lambda: torch.tensor(float(step**2)))

    rival = TaylorSeer(network, every=4, order=2, warmup=3)
    assert [step for step in range(12) if rival.refreshes(step)] == [0, 1, 2, 6, 10]
    generation = rival.start()
    assert [float(generation(step)) for step in range(4)] == [0, 1, 4, 4 + 3]  # no second difference yet


# ----------------------------------------------------------------------------------------------------- SmoothCache


def test_drifts_are_relative_changes_of_the_branches_averaged_by_kind(model: Any, calibrate: Any) -> None:
    seen = branches_seen(model.network, calibrate)
    found = drifts(model, STEPS, calibrate, max_skip=2)
    assert set(found) == {"attention", "mlp"}
    off = [(seen[f"blocks.{i}.mlp"][3] - seen[f"blocks.{i}.mlp"][5]).abs().sum() for i in range(3)]
    size = [seen[f"blocks.{i}.mlp"][5].abs().sum() for i in range(3)]
    want = np.mean([float(a / b) for a, b in zip(off, size, strict=True)])
    assert found["mlp"].shape == (2, STEPS) and found["mlp"][1, 3] == pytest.approx(want, rel=1e-4)
    assert np.isnan(found["mlp"]).sum(axis=1).tolist() == [1, 2]


def test_no_threshold_computes_everything_and_an_infinite_one_skips_what_it_may(model: Any, calibrate: Any) -> None:
    everything = smooth_cache(model, STEPS, 0.0, calibrate)
    assert everything.active.all() and (everything.predict, everything.keep) == ("constant", "branch")
    least = smooth_cache(model, STEPS, math.inf, calibrate)
    assert all(row.tolist() == [step in (0, 4, 7) for step in range(STEPS)] for row in least.active)


def test_units_of_a_kind_share_a_row_and_the_schedule_runs(model: Any, calibrate: Any) -> None:
    found = drifts(model, STEPS, calibrate)
    schedule = smooth_cache(model, STEPS, float(np.nanmedian(found["attention"])), found)
    rows = {unit.kind: schedule.active[i] for i, unit in enumerate(model.units)}
    assert all((schedule.active[i] == rows[unit.kind]).all() for i, unit in enumerate(model.units))
    assert 0 < schedule.budget < 1
    assert torch.isfinite(tenuto.generate(model, [0, 1], schedule=schedule)).all()


def test_the_furthest_step_within_the_threshold_is_skipped_to() -> None:
    nan = math.nan
    drift = np.array([[0.1, 0.3, 0.1, 0.1, 0.3, nan], [0.1, 0.1, 0.3, 0.1, nan, nan], [0.3, 0.3, 0.3, nan, nan, nan]])
    assert smooth_row(drift, 0.2).tolist() == [True, False, False, True, False, True]
    assert smooth_row(drift[:1], 0.2).tolist() == [True, False, True, False, True, True]


def test_the_threshold_for_a_budget_is_the_nearest_and_calibrates_once(model: Any, calibrate: Any) -> None:
    runs = []
    schedule = smooth_cache_at(model, STEPS, 0.6, lambda executor: runs.append(calibrate(executor)))
    assert len(runs) == 1
    found = drifts(model, STEPS, calibrate)
    grid = [smooth_cache(model, STEPS, threshold, found) for threshold in np.linspace(0, np.nanmax(found["mlp"]), 50)]
    assert abs(schedule.budget - 0.6) <= min(abs(one.budget - 0.6) for one in grid) + 1e-9
    assert smooth_cache_at(model, STEPS, 1.0, found).active.all()
    assert smooth_cache_at(model, STEPS, 0.6, found).policy == schedule.policy


def test_a_calibration_of_other_steps_is_refused(model: Any, calibrate: Any) -> None:
    with pytest.raises(UsageError, match="takes more"):
        drifts(model, STEPS - 1, calibrate)
    with pytest.raises(UsageError, match=f"took {STEPS}"):
        drifts(model, STEPS + 1, calibrate)
    with pytest.raises(UsageError, match="took no"):
        drifts(model, STEPS, lambda executor: None)
    with pytest.raises(UsageError, match="These drifts are not of"):
        smooth_cache(model, STEPS + 1, 0.1, drifts(model, STEPS, calibrate))


# ------------------------------------------------------------------------------------------------------- DeepCache

# Depth: the layers outside of that skip branch, by hand, of a UNet of three levels with two layers each.
SHALLOW = {
    0: ["up_blocks.2.resnets.2"],
    1: ["down_blocks.0.resnets.0", "up_blocks.2.resnets.1", "up_blocks.2.resnets.2"],
    4: ["down_blocks.0.", "down_blocks.1.resnets.0", "down_blocks.1.attentions.0.", "up_blocks.2."]
    + [f"up_blocks.1.{kind}.{layer}" for kind in ("resnets", "attentions") for layer in (1, 2)],
    8: ["down_blocks.", "up_blocks."],
}


@pytest.mark.parametrize("depth", SHALLOW)
def test_the_units_outside_of_the_branch_are_computed_at_every_step(depth: Any) -> None:
    _, units = unet_at_the_seam("sdxl")
    active = deep_cache(units, 6, 3, depth)
    assert active[:, ::3].all()
    assert [unit for unit, row in zip(units, active, strict=True) if row.all()] == [
        unit for unit in units if unit.startswith(tuple(SHALLOW[depth]))
    ]
    assert all(row.all() or row.tolist() == [True, False, False] * 2 for row in active)


@pytest.mark.parametrize("depth", SHALLOW)
def test_it_is_a_unet_whose_deep_modules_return_what_they_returned(depth: Any) -> None:
    """As the published helper does it: a deep module's forward gives its last output."""
    network, units = unet_at_the_seam("sdxl")
    rival = DeepCache(network, units, 2, depth)
    reference, skip, last = make("sdxl"), [False], {}
    for path, module in reference.named_modules():
        if path.split(".")[-2:-1] in (["resnets"], ["attentions"]) and not (path + ".").startswith(
            tuple(SHALLOW[depth])
        ):

            def forward(*args: Any, path: Any = path, original: Any = module.forward, **named: Any) -> Any:
                if not skip[0]:
                    last[path] = original(*args, **named)
                return last[path]

            module.forward = forward
    generation = rival.start()
    for step in range(4):
        skip[0] = step % 2 == 1
        want = run(reference, inputs("sdxl", step))
        torch.testing.assert_close(generation(step), want, rtol=1e-4, atol=1e-5)
    assert rival.work == pytest.approx(deep_cache(units, 4, 2, depth).mean())


@pytest.mark.parametrize("kind", ["sdxl", "sd1"])
@pytest.mark.parametrize(("every", "depth"), [(2, 0), (3, 1), (3, 4), (2, 8)])
def test_it_is_the_published_package(kind: str, every: int, depth: int) -> None:
    """DeepCache 0.1.1 on diffusers' own UNet: the same modules called at the same steps, and the same output."""
    package = pytest.importorskip("DeepCache")
    steps = 7
    network, units = unet_at_the_seam(kind)
    rival = DeepCache(network, units, every, depth)
    module = make(kind)
    timesteps = torch.arange(steps).flip(0) * 100
    helper = package.DeepCacheSDHelper(SimpleNamespace(unet=module, scheduler=SimpleNamespace(timesteps=timesteps)))
    layers = [
        (path, layer)
        for path, layer in module.named_modules()
        if path.split(".")[-2:-1] in (["resnets"], ["attentions"])
    ]
    ran: Counter[str] = Counter()
    for path, layer in layers:  # before the helper wraps them: a layer that it skips does not get here

        def forward(*args: Any, path: Any = path, original: Any = layer.forward, **named: Any) -> Any:
            ran[path] += 1
            return original(*args, **named)

        layer.forward = forward
    helper.set_params(cache_interval=every, cache_branch_id=depth)
    helper.enable()
    generation = rival.start()
    for step, timestep in enumerate(timesteps):
        call = {**inputs(kind, step), "timestep": timestep}
        with torch.no_grad():  # the timestep by place, for the package finds it there
            want = module(call.pop("sample"), call.pop("timestep"), **call).sample
        torch.testing.assert_close(generation(step, timestep), want, rtol=1e-4, atol=1e-5)
    computed = {
        path: {n for unit, n in rival.computed.items() if (unit + ".").startswith(path + ".")} for path, _ in layers
    }
    assert computed == {path: {ran[path]} for path, _ in layers}


def test_with_lifetimes_on_top_deep_units_are_held_in_between_and_all_when_their_lifetime_ends() -> None:
    """The paper's Spectral + DeepCache."""
    network = make("sdxl")
    model = Model("tiny", unet.ARCHITECTURE, None, (), attach(network).units, network)
    deep = deep_cache_schedule(model, 6, 3, 1)
    scores = Scores(
        "tiny",
        "unet",
        "sha256:0",
        tuple(UnitScore(unit.name, unit.kind, unit.flops, (), i, i / 100) for i, unit in enumerate(model.units)),
    )
    lives = lifetimes(scores, 6, budget=0.5)
    joined = both(lives, deep)
    shallow = shallow_units(joined.units, 1)
    for unit, row, life in zip(joined.units, joined.active, lives.lifetimes, strict=True):
        want = [step < life and (unit in shallow or step % 3 == 0) for step in range(6)]
        assert row.tolist() == want


def test_its_schedule_is_a_schedule_of_the_model() -> None:
    network = make("sdxl")
    model = Model("tiny", unet.ARCHITECTURE, None, (), attach(network).units, network)
    schedule = deep_cache_schedule(model, 6, 3, 1)
    model.check_fits(schedule)
    assert (schedule.predict, schedule.keep, schedule.policy["depth"]) == ("constant", "update", 1)
    assert (schedule.active == deep_cache(schedule.units, 6, 3, 1)).all()


def test_only_unets_have_skip_branches_and_only_so_many() -> None:
    with pytest.raises(UsageError, match="needs long skips"):
        deep_cache(UNITS, 6, 3)
    _, units = unet_at_the_seam("sdxl")
    with pytest.raises(UsageError, match="0 to 8"):
        shallow_units(units, 9)


def test_generations_do_not_share_what_they_hold() -> None:
    rival = TaylorSeer(random_dit(), 3, 2)
    assert all(torch.equal(a, b) for a, b in zip(run_all(rival, 5), run_all(rival, 5), strict=True))
