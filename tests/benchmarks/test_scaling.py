"""The scaling benchmark on an untrained network: every way draws, with as many evaluations as it says."""

from pathlib import Path

import pytest
import torch

from benchmarks.scaling import measuring
from benchmarks.scaling.drawing import Network, Requests, opened
from benchmarks.scaling.figure import draw
from benchmarks.scaling.measuring import Near, measure
from benchmarks.scaling.report import effects, tables
from benchmarks.scaling.ways import OURS, PREDICTOR, STEPS, WAYS, Way, _predicted, rivals
from tenuto.models.dit import DiT
from tenuto_lab.rivals.whole_output import methods
from training import family, objectives
from training.autoencoder import Autoencoder, AutoencoderConfig
from training.loop import Settings, Trained

CPU = torch.device("cpu")
NARROW = AutoencoderConfig(block_out_channels=(8, 8, 8), norm_num_groups=4)
MADE = {"command": "none", "commit": "none", "torch": "none", "hardware": "none", "date": "today"}


@pytest.fixture(scope="module", params=["noise", "flow"])
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Network:
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    vae = folder / "vae"
    family.write_json(vae / "config.json", NARROW.to_json())
    layout = "diffusion_pytorch_model{suffix}.safetensors"
    family.save_weights(vae, Autoencoder(NARROW).state_dict(), layout, torch.float32)
    config = family.SIZES["tiny"].config(4, 16, 3)
    made = DiT(config)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    goal = objectives.objective(request.param, CPU)
    family.save(folder, Trained(made.state_dict()), config, "abc", goal, Settings(1.0), vae, 1, {"held_out_loss": 1.0})
    return opened(folder, CPU)


def test_every_rival_evaluates_so_often_and_ours_too(network: Network) -> None:
    asked = Requests(network, 2.0, 1)
    counted = 0

    def count(*_: object) -> None:
        nonlocal counted
        counted += 1

    handle = network.model.network.register_forward_hook(count)
    for way in list(rivals(network.prediction == "flow", 6))[::5]:
        counted = 0
        if way.draw(asked) is not None:
            assert counted == 6, way
    counted = 0
    assert asked.held(STEPS, 0.2)[1] == counted == 10
    handle.remove()


def test_a_predictor_that_evaluates_every_step_gives_the_full_run(network: Network) -> None:
    asked = Requests(network, 2.0, 2)
    drawn = _predicted(asked, methods()["TaylorSeer (output)"][0], STEPS)
    torch.testing.assert_close(drawn, asked.drawn(STEPS), atol=1e-4, rtol=1e-4)


def test_every_way_has_a_row_and_the_tables_name_it(
    network: Network, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measuring, "CONVERGED", 100)
    monkeypatch.setattr(
        measuring,
        "rivals",
        lambda flow, n, few: [next(one for one in rivals(flow, n) if one.name == way) for way in WAYS[2:5]],
    )
    *_, last = measure(network, 3.0, 2, 0, [0.34, 0.2])
    assert last["complete"]
    found = {**last, "provenance": MADE}
    assert {row["way"] for row in found["rows"]} == set(WAYS)
    assert all(row["full"]["low"] <= row["full"]["dB"] <= row["full"]["high"] for row in found["rows"])
    one = {**found, "prediction": "noise", "trained_samples": 1000}
    larger = {**one, "network": "larger", "parameters": 10 * found["parameters"]}
    longer = {**one, "network": "longer", "trained_samples": 2000}
    record = {"cases": {"one": one, "two": larger, "three": longer}}
    text = tables(record)
    assert all(way in text for way in WAYS)
    cases = list(record["cases"].values())
    assert effects(cases, OURS, 0.2, "full") == pytest.approx((0, 0), abs=1e-9)
    assert effects(cases[:2], OURS, 0.2, "full") is None
    draw(record, tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").stat().st_size > 0


def test_the_best_setting_is_chosen_for_each_goal_by_itself() -> None:
    zero = torch.zeros(2, 1, 2, 2)
    near = Near({"full": zero, "converged": zero + 0.5})
    for setting, value in (("a", 0.1), ("b", 0.45), ("c", torch.nan)):
        near.take(Way(PREDICTOR, setting, None), zero + value)
    row = near.row(PREDICTOR)
    assert (row["full"]["setting"], row["converged"]["setting"]) == ("a", "b")
    assert near.aimed(PREDICTOR).setting == "a"
