"""Latent models: whatever shows or compares pictures decodes them by the VAE beside the model."""

from dataclasses import asdict

import pytest
import torch
from safetensors.torch import save_file

import tenuto
from tenuto.files import write_json
from tenuto.models import Model
from tenuto.models.dit import DiT, DiTConfig
from tenuto.quality import psnr
from tenuto.runtime.executor import Executor
from tenuto.sampling.decoding import decoder_of
from tenuto.sampling.pictures import vae_of
from tenuto_lab.checking import check
from tenuto_lab.frontier.drawing import DrawingCase, measure_pictures
from tenuto_lab.judging.judges import picture_shape
from tests.helpers.pipelines import tiny_vae


@pytest.fixture(scope="module")
def latent(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A small network of 4-channel latents, and its VAE."""
    folder = tmp_path_factory.mktemp("latent")
    config = DiTConfig(
        input_size=8,
        patch_size=2,
        in_channels=4,
        hidden_size=16,
        depth=2,
        num_heads=2,
        num_classes=3,
        learn_sigma=False,
    )
    torch.manual_seed(0)
    network = DiT(config)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    save_file(network.state_dict(), folder / "model.safetensors")
    write_json(folder / "config.json", {"model_type": "dit", **asdict(config)})
    tiny_vae().save_pretrained(folder / "vae")
    return tenuto.load(str(folder))


def test_latents_become_pictures_and_pictures_stay_as_they_are(latent: Model) -> None:
    samples = tenuto.generate(latent, [0, 1], steps=2)
    pictures = decoder_of(latent)(samples)
    assert samples.shape == (2, 4, 8, 8) and pictures.shape == (2, 3, 8, 8) == (2, *picture_shape(latent))
    model = tenuto.load("tiny-dit")
    drawn = torch.randn(2, 1, 32, 32)
    assert decoder_of(model)(drawn) is drawn and picture_shape(model) == (1, 32, 32)


def test_check_compares_decoded_pictures(latent: Model) -> None:
    schedule = tenuto.schedule(latent, steps=8, budget=0.5)
    result = check(latent, schedule, [0, 2])
    decoded = decoder_of(latent)
    full = decoded(tenuto.generate(latent, [0, 2], steps=8))
    held = decoded(tenuto.generate(latent, [0, 2], schedule=schedule))
    assert result.likeness == pytest.approx(psnr(held, full).tolist(), abs=1e-2)


def test_the_frontier_and_the_experiments_measure_decoded_pictures(latent: Model) -> None:
    case = DrawingCase(latent, 8, [0, 1], seeds=[0], batch=2, budgets=[0.5], ours_only=True, vae=vae_of(latent))
    drawn = case.draw(Executor(latent.network), 8, "ddim", 0)
    assert drawn.shape == (2, 3, 8, 8) and drawn.abs().max() <= 1
    found = measure_pictures(case)
    held = next(row for row in found.rows if row.policy == "tenuto")
    schedule = tenuto.schedule(latent, steps=8, budget=0.5)
    shown = case.draw(Executor(latent.network, schedule), 8, "ddim", 0)
    assert held.psnr == pytest.approx(float(psnr(shown, drawn).mean()), abs=3)


def test_the_page_shows_decoded_pictures(latent: Model) -> None:
    pytest.importorskip("gradio")
    from tenuto.ui.compare import SIDE, compare_pictures

    found = compare_pictures(latent, tenuto.schedule(latent, steps=4, budget=0.5), [0, 1])
    assert found.full.mode == "RGB" and len(found.decibels) == 2 and found.full.size[1] >= SIDE
