"""Two sets from the same noise are compared in pairs; solvers and guided channels are what was asked for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tenuto.errors import CheckpointError, TenutoError, UsageError
from tenuto_lab.cli import app
from tenuto_lab.full_size.fidelity import evaluate_pictures, paired_set, read_set
from tenuto_lab.full_size.inception import load_inception
from tenuto_lab.full_size.samples import Order, make_samples
from tenuto_lab.judging.statistics import Distance, Statistics
from tests.conftest import random_dit, write_checkpoint
from tests.helpers.layouts import SmallInception, latent_dit, scripted_inception

pytestmark = pytest.mark.filterwarnings("ignore")  # of TorchScript, about itself


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path, Path, Path]:
    """A full set, one in fewer evaluations, real pictures, and Inception as TorchScript."""
    import tenuto

    place = write_checkpoint(tmp_path / "model", random_dit())
    order = Order(str(place), 12, steps=6, batch=6)
    make_samples(order, tmp_path / "full")
    make_samples(replace(order, schedule=tenuto.schedule(place, 6, every=3)), tmp_path / "held")
    pictures = np.random.default_rng(0).integers(0, 256, size=(20, 8, 8, 1), dtype=np.uint8)
    np.savez(tmp_path / "real.npz", arr_0=pictures)
    return tmp_path / "full", tmp_path / "held", tmp_path / "real.npz", scripted_inception(tmp_path / "inception.pt")


def test_the_difference_of_two_sets_is_paired(sets: Any) -> None:
    full, held, real, inception = sets
    report = evaluate_pictures(held, real, inception=inception, against_set=full)
    apart = [evaluate_pictures(one, real, inception=inception)["figures"]["fid"] for one in (held, full)]
    value, low, high = report["figures"]["fid_delta"]
    assert value == pytest.approx(apart[0][0] - apart[1][0], rel=1e-6) and low <= value <= high
    assert evaluate_pictures(full, real, inception=inception, against_set=full)["figures"]["fid_delta"] == [0, 0, 0]
    assert report["against"]["name"] == str(full) and report["figures"]["sfid"] is None
    done = CliRunner().invoke(
        app,
        [
            "eval",
            "pictures",
            str(held),
            "--reference",
            str(real),
            "--inception",
            str(inception),
            "--against",
            str(full),
        ],
    )
    assert done.exit_code == 0, done.output
    assert "less that of the other set" in done.output and "TorchScript" in done.output


def test_sets_that_make_no_pairs_are_refused(sets: Any, tmp_path: Path) -> None:
    full, _, real, _ = sets
    np.savez(tmp_path / "bare.npz", arr_0=np.zeros((12, 8, 8, 1), np.uint8))
    with pytest.raises(UsageError, match="Only sets with a manifest"):
        paired_set(read_set(full), tmp_path / "bare.npz")
    with pytest.raises(UsageError, match="make no pairs"):
        paired_set(read_set(full), real)
    make_samples(Order(str(tmp_path / "model"), 12, steps=6, batch=6, seed=5), tmp_path / "other")
    with pytest.raises(UsageError, match="differ in seed"):
        paired_set(read_set(full), tmp_path / "other")


def test_scripted_inception_gives_the_features_of_its_module(tmp_path: Path) -> None:
    loaded = load_inception(scripted_inception(tmp_path / "inception.pt"), "cpu")
    torch.manual_seed(0)
    module = SmallInception().eval()
    pixels = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    features, logits = loaded(pixels)  # type: ignore[misc]
    torch.testing.assert_close(features, module(pixels, return_features=True))
    assert logits.shape == (4, 5) and Distance.of(features, Statistics.of(features)).value == pytest.approx(0, abs=1e-9)
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "other.pt"))
    with pytest.raises(CheckpointError, match="is no TorchScript Inception"):
        load_inception(tmp_path / "other.pt", "cpu")


def test_a_missing_inception_is_called_missing(tmp_path: Path) -> None:
    """Not a package that is not installed: a mistyped path needs none."""
    with pytest.raises(TenutoError, match=r"Cannot read the Inception weights .*nowhere.pt: No such file"):
        load_inception(tmp_path / "nowhere.pt", "cpu")


def test_three_channels_of_four_are_guided(tmp_path: Path) -> None:
    place = latent_dit(tmp_path / "model")
    order = Order(str(place), 2, steps=4, guidance=4.0)
    drawn = {}
    for channels in (None, 3, 4):
        manifest = make_samples(replace(order, guided_channels=channels), tmp_path / f"set{channels}")
        assert manifest is not None and manifest["settings"].get("guided_channels") == channels
        drawn[channels] = np.load(tmp_path / f"set{channels}" / "samples.npz")["arr_0"]
    assert np.array_equal(drawn[None], drawn[4]) and not np.array_equal(drawn[None], drawn[3])


def test_a_pipelines_solver_can_be_chosen(tmp_path: Path, pipeline_directory: Any) -> None:
    order = Order(str(pipeline_directory), 1, captions=("a car",), steps=4)
    own, other = (make_samples(replace(order, solver=solver), tmp_path / str(solver)) for solver in (None, "dpm++"))
    assert own is not None and other is not None
    assert own["settings"]["solver"] == "DDIMScheduler"
    assert other["settings"]["solver"] == "DPMSolverMultistepScheduler"
    with pytest.raises(UsageError, match="its own VAE draws"):
        make_samples(replace(order, guided_channels=3), tmp_path / "x")
