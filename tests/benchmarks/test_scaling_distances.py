"""Fréchet distances and class accuracies of the scaling benchmark, in parts and with an untrained network."""

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.kept import Kept
from benchmarks.scaling import judging
from benchmarks.scaling.drawing import Network, opened
from benchmarks.scaling.report import tables
from benchmarks.scaling.ways import OURS, SOLVER
from tenuto.errors import UsageError
from tenuto.files import read_json
from tenuto.models import place_of
from tenuto.models.dit import DiT
from tenuto_lab.judging.judges import PictureJudge
from training import family, objectives
from training.autoencoder import Autoencoder, AutoencoderConfig
from training.loop import Settings, Trained

CPU = torch.device("cpu")
NARROW = AutoencoderConfig(block_out_channels=(8, 8, 8), norm_num_groups=4)
MADE = {"command": "none", "commit": "none", "torch": "none", "hardware": "none", "date": "today"}
SETTING = "UniPC 2 linspace sigma_min"


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Network:
    folder = tmp_path_factory.mktemp("judged")
    torch.manual_seed(0)
    vae = folder / "vae"
    family.write_json(vae / "config.json", NARROW.to_json())
    layout = "diffusion_pytorch_model{suffix}.safetensors"
    family.save_weights(vae, Autoencoder(NARROW).state_dict(), layout, torch.float32)
    config = family.SIZES["tiny"].config(4, 16, 200)
    names = read_json(place_of("natural-judge") / "config.json", "judge")["labels"]  # type: ignore[operator]
    made, goal = DiT(config), objectives.objective("noise", CPU)
    family.save(folder, Trained(made.state_dict()), config, names, goal, Settings(1.0), vae, 1, {"held_out_loss": 1.0})
    return opened(folder, CPU)


def case() -> dict[str, Any]:
    near = {"dB": 40.0, "low": 39.0, "high": 41.0}
    rows = [
        {"way": way, "budget": 0.2, "work": 0.2, "evaluations": 10}
        | {goal: {**near, "setting": setting} for goal in ("full", "converged")}
        for way, setting in ((OURS, ""), (SOLVER, SETTING))
    ]
    about = {"network": "one", "guidance": 2.0, "prediction": "noise", "architecture": "dit", "early": False}
    about |= {"parameters": 7, "trained_samples": 1, "trained_seconds": 1.0, "held_out_loss": None, "complete": True}
    return {**about, "near": 2, "full": {"converged": [40.0, 39.0, 41.0]}, "rows": rows, "provenance": MADE}


@pytest.fixture
def parts(network: Network, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.setattr(judging, "PART", 2)
    monkeypatch.setattr(PictureJudge, "least", 4)
    return list(judging.judged(network, case(), 4, [0.2]))


def test_after_each_part_all_pictures_so_far_are_judged_and_distances_wait_for_enough(
    parts: list[dict[str, Any]],
) -> None:
    assert [found["judged"] for found in parts] == [2, 4]
    few, enough = parts
    assert all("accuracy_beyond_full" in row and "distance" not in row for row in few["rows"])
    for row in enough["rows"]:
        beyond = row["distance"][0] - enough["full"]["distance"][0]
        assert row["distance_beyond_full"][0] == pytest.approx(beyond)
    assert "distance" not in few["full"] and tables({"cases": {"one": few}})
    text = tables({"cases": {"one": {**parts[-1], "provenance_of_distances": {**MADE, "command": "judge"}}}})
    assert "Fréchet distances and class accuracies: `judge` at none" in text and "; 4 samples." in text


def test_parts_do_not_change_what_is_drawn(
    parts: list[dict[str, Any]], network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "PART", 4)
    monkeypatch.setattr(PictureJudge, "least", 4)
    (whole,) = judging.judged(network, case(), 4, [0.2])
    for row, other in zip(whole["rows"], parts[-1]["rows"], strict=True):
        assert row["distance"] == pytest.approx(other["distance"], rel=1e-3)


def test_a_run_that_was_stopped_draws_no_part_again(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "PART", 2)
    monkeypatch.setattr(judging, "commit", lambda: "abc")
    first = next(judging.judged(network, case(), 4, [0.2], kept=Kept(tmp_path)))
    with monkeypatch.context() as patch:
        patch.setattr(judging.Requests, "drawn", lambda *_: pytest.fail("drawn again"))
        patch.setattr(judging.Requests, "held", lambda *_: pytest.fail("drawn again"))
        assert next(judging.judged(network, case(), 4, [0.2], kept=Kept(tmp_path))) == first
    monkeypatch.setattr(judging, "commit", lambda: "abc, with changes")
    list(judging.judged(network, case(), 2, [0.2], kept=Kept(tmp_path / "none")))
    assert not (tmp_path / "none").exists(), "changes have no name"


def test_a_network_without_a_judge_is_refused(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "picture_judge", lambda *_: None)
    with pytest.raises(UsageError, match="no judge of the pictures"):
        next(judging.judged(network, case(), 4, [0.2]))
