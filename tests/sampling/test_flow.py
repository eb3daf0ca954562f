"""Networks that predict a flow: drawn by Euler's method, in full and held, and never taken for noise."""

from pathlib import Path

import pytest
import torch

import tenuto
from tenuto.errors import UsageError
from tenuto.files import write_json
from tenuto.models.architecture import ConfigError
from tenuto.models.solvers import nature_for
from tests.conftest import random_dit, write_checkpoint

SCHEDULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 1.0}


@pytest.fixture
def flow(tmp_path: Path) -> Path:
    """A random network, smooth as trained ones are, whose scheduler config says that it predicts a flow."""
    network = random_dit(seed=3)
    for parameter in network.parameters():
        parameter.mul_(0.2)
    path = write_checkpoint(tmp_path / "flow", network)
    write_json(path / "scheduler" / "scheduler_config.json", {**SCHEDULER, "prediction_type": "flow_prediction"})
    return path


def test_a_flow_is_drawn_from_all_noise_to_none_in_even_steps(flow: Path) -> None:
    model = tenuto.load(flow)
    drawn = tenuto.generate(model, [0, 3], seed=7, steps=8, guidance=1.0)
    x = torch.stack([torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(7 + i)) for i in range(2)])
    with torch.no_grad():
        for step in range(8):
            x = x - model.network(x, torch.full((2,), 1000 * (1 - step / 8)), torch.tensor([0, 3])) / 8
    torch.testing.assert_close(drawn, x, atol=1e-4, rtol=1e-4)


def test_a_held_flow_follows_the_full_run(flow: Path) -> None:
    model = tenuto.load(flow)
    full = tenuto.generate(model, [0, 1, 2, 3], steps=50)
    near = [
        float(tenuto.psnr(tenuto.generate(model, [0, 1, 2, 3], schedule=schedule), full).mean())
        for schedule in (tenuto.schedule(str(flow), steps=50, evaluations=n) for n in (25, 12, 50))
    ]
    fewer = float(tenuto.psnr(tenuto.generate(model, [0, 1, 2, 3], steps=12), full).mean())
    assert near[0] > near[1] > fewer and near[2] == float("inf")


def test_a_schedule_for_a_flow_is_placed_by_the_flows_own_levels(flow: Path) -> None:
    model = tenuto.load(flow)
    assert model.levels is not None and model.levels.flow
    levels = nature_for(model.levels, 10).levels
    assert levels is not None and levels.mixed[5] == pytest.approx((0.5, 0.5))
    schedules = [tenuto.schedule(source, steps=50, evaluations=12) for source in (model, str(flow))]
    assert (schedules[0].active == schedules[1].active).all()


def test_the_laboratory_does_not_take_a_flow_for_noise(flow: Path) -> None:
    with pytest.raises(ConfigError, match="predicts a flow .*only predictions of noise are known here"):
        _ = tenuto.load(flow).noise


def test_a_network_that_our_sampler_refuses_still_gets_a_schedule(flow: Path) -> None:
    write_json(flow / "scheduler" / "scheduler_config.json", {"prediction_type": "v_prediction"})
    assert tenuto.schedule(str(flow), steps=20, evaluations=8).full_steps.sum() == 8
    with pytest.raises(ConfigError, match="predicts 'v_prediction'"):
        tenuto.generate(tenuto.load(flow), [0], steps=4)


def test_a_flow_has_one_solver_and_no_shift(flow: Path) -> None:
    with pytest.raises(UsageError, match="drawn by Euler's method; leave out"):
        tenuto.generate(tenuto.load(flow), [0], steps=4, solver="dpm++")
    config = {**SCHEDULER, "prediction_type": "flow_prediction", "shift": 3.0}
    write_json(flow / "scheduler" / "scheduler_config.json", config)
    with pytest.raises(ConfigError, match="flows without a shift"):
        tenuto.generate(tenuto.load(flow), [0], steps=4)
