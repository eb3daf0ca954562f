"""Δ-DiT and Block Caching as schedules: which steps are computed, and that what is held is what was published."""

from typing import Any

import numpy as np
import pytest
import torch

import tenuto
from tenuto.errors import UsageError
from tenuto.runtime.executor import Executor
from tenuto_lab.rivals import block_cache, block_cache_at, block_cache_row, blocks_of, changes, delta_dit
from tests.conftest import random_dit, write_checkpoint
from tests.helpers.denoisers import branches_seen

STEPS = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tenuto.load(str(write_checkpoint(tmp_path_factory.mktemp("model") / "dit", random_dit())))


@pytest.fixture(scope="module")
def calibrate(model: Any) -> Any:
    return lambda executor: tenuto.generate(model, [0, 1], steps=STEPS, executor=executor)


# ----------------------------------------------------------------------------------------------------------- Δ-DiT


def test_rear_blocks_are_held_early_and_front_blocks_late(model: Any) -> None:
    schedule = delta_dit(model, STEPS, every=2, cached=2, boundary=0.5)
    full, rear, front = [1] * 6, [1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]  # three blocks of attention and MLP
    assert schedule.active.T.astype(int).tolist() == [full, rear, full, rear, full, front, full, front]
    assert (schedule.predict, schedule.keep) == ("constant", "update")
    assert delta_dit(model, STEPS, every=1, cached=3, boundary=0.5).active.all()
    assert delta_dit(model, STEPS, every=4, cached=0, boundary=0.5).active.all()


@torch.no_grad()
def test_what_is_held_is_the_deviation_across_the_range(model: Any) -> None:
    """As published: in between, the stream behind the held blocks is what comes in plus the deviation of then."""
    network, calls = model.network, []
    for step in range(2):
        torch.manual_seed(step)
        calls.append((torch.randn(1, 1, 8, 8), torch.tensor([900 - 20 * step]), torch.tensor([1])))
    parts = {}

    def streams(call: Any, before: Any = None) -> Any:
        """The blocks run by hand: the rear two, or what they added before."""
        x, t, y = call
        c = network.t_embedder(t) + network.y_embedder(y)
        h = network.x_embedder(x) + network.pos_embed
        for i, block in enumerate(network.blocks):
            if i == 1:
                parts["in"] = h
                if before is not None:
                    return parts["in"] + before
            m = block.adaLN_modulation(c).unsqueeze(1).chunk(6, dim=-1)
            h = h + m[2] * block.attend(h, m[0], m[1])
            h = h + m[5] * block.feed(h, m[3], m[4])
        return h

    deviation = streams(calls[0]) - parts["in"]
    want = streams(calls[1], deviation)
    seen = []
    network.final_layer.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    try:
        generation = Executor(network, delta_dit(model, 2, every=2, cached=2, boundary=1.0), mode="skip").start()
        for call in calls:
            generation(*call)
    finally:
        network.final_layer._forward_pre_hooks.clear()
    torch.testing.assert_close(seen[-1], want, rtol=1e-4, atol=1e-5)


def test_blocks_are_told_by_name() -> None:
    names = ["in_blocks.0.attn", "in_blocks.0.mlp", "mid_block.attn", "mid_block.mlp", "out_blocks.0.attn"]
    assert blocks_of(names) == [0, 0, 1, 1, 2]
    with pytest.raises(UsageError, match="do not follow"):
        blocks_of(["blocks.0.attn", "blocks.1.attn", "blocks.0.mlp"])


def test_ranges_that_there_are_not_are_refused(model: Any) -> None:
    with pytest.raises(UsageError, match="all 3 of the blocks"):
        delta_dit(model, STEPS, every=2, cached=4, boundary=0.5)
    with pytest.raises(UsageError, match="between 0 and 1"):
        delta_dit(model, STEPS, every=2, cached=1, boundary=2)


# --------------------------------------------------------------------------------------------------- Block Caching


def test_a_unit_is_computed_when_its_changes_add_up() -> None:
    change = np.array([0.1, 0.1, 0.3, 0.0, 0.2, 0.0])
    assert block_cache_row(change, 0.15).astype(int).tolist() == [1, 0, 1, 1, 0, 1]
    assert block_cache_row(change, 0.25).astype(int).tolist() == [1, 0, 0, 1, 0, 0]
    assert block_cache_row(change, np.inf).astype(int).tolist() == [1, 0, 0, 0, 0, 0]


def test_changes_are_each_units_own_and_between_neighbouring_steps(model: Any, calibrate: Any) -> None:
    seen = branches_seen(model.network, calibrate)
    found = changes(model, STEPS, calibrate)
    then, now = seen["blocks.1.mlp"][3:5]
    assert found.shape == (6, STEPS)
    assert found[3, 3] == pytest.approx(float((then - now).abs().sum() / now.abs().sum()), rel=1e-4)


def test_no_threshold_computes_everything_and_the_schedule_runs(model: Any, calibrate: Any) -> None:
    assert block_cache(model, STEPS, 0.0, calibrate).active.all()
    found = changes(model, STEPS, calibrate)
    schedule = block_cache(model, STEPS, float(np.median(found[:, :-1])), found)
    assert 0 < schedule.budget < 1 and len({row.tobytes() for row in schedule.active}) > 1
    assert torch.isfinite(tenuto.generate(model, [0, 1], schedule=schedule)).all()


def test_the_threshold_for_a_budget_is_the_nearest_and_calibrates_once(model: Any, calibrate: Any) -> None:
    runs = []
    schedule = block_cache_at(model, STEPS, 0.5, lambda executor: runs.append(calibrate(executor)))
    assert len(runs) == 1
    found = changes(model, STEPS, calibrate)
    grid = [block_cache(model, STEPS, threshold, found) for threshold in np.linspace(0, found.sum(1).max(), 200)]
    assert abs(schedule.budget - 0.5) <= min(abs(one.budget - 0.5) for one in grid) + 1e-9
    assert block_cache_at(model, STEPS, 1.0, found).active.all()
    assert block_cache_at(model, STEPS, 1 / STEPS, found).budget == 1 / STEPS
    with pytest.raises(UsageError, match="are not of"):
        block_cache_at(model, STEPS + 1, 0.5, found)
