"""The family's captioned UNet, on made-up latents and a network small enough for a CPU."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import DDIMScheduler, UNet2DConditionModel
from torch import Tensor

import tenuto
from benchmarks.scaling import measuring
from benchmarks.scaling.drawing import Requests, opened
from benchmarks.scaling.measuring import measure
from benchmarks.scaling.report import effects, tables
from benchmarks.scaling.ways import OURS, WAYS, rivals
from tenuto.errors import UsageError
from tenuto.files import read_json, write_json
from tenuto.sampling.decoding import decoder_of
from tenuto_lab.frontier.cases import asked_for
from tenuto_lab.judging.judges import picture_shape
from tenuto_lab.networks.text_encoder import TextEncoder, words_of
from training import evaluate_family, family, family_unet, loop, objectives
from training.autoencoder import Autoencoder, AutoencoderConfig
from training.captions import TEMPLATES
from training.class_captions import asked, caption, captions, vocabulary
from training.ddim import alphas_cumprod, initial_noise
from training.loop import Settings
from training.loop import _progress as progress
from training.resuming import Resuming

CPU = torch.device("cpu")
NARROW = AutoencoderConfig(block_out_channels=(8, 8, 8), norm_num_groups=4)
NAMES = ["potter's wheel", "go-kart", "iPod"]
TINY = {"block_out_channels": [8, 16, 16], "attention_head_dim": [1, 2, 2], "norm_num_groups": 8}
TINY |= {"layers_per_block": 1, "transformer_layers_per_block": [1, 1, 1]}
MADE = {"command": "none", "commit": "none", "torch": "none", "hardware": "none", "date": "today"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained for four steps; the weights after two are kept as well."""
    folder = tmp_path_factory.mktemp("unet")
    torch.manual_seed(0)
    write_json(folder / "vae" / "config.json", NARROW.to_json())
    layout = "diffusion_pytorch_model{suffix}.safetensors"
    family.save_weights(folder / "vae", Autoencoder(NARROW).state_dict(), layout, torch.float32)
    (folder / "data").mkdir()
    write_json(folder / "data" / "classes.json", {"names": NAMES})
    mean, labels = torch.randn(12, 4, 16, 16).half(), torch.arange(12) % 3
    latents = family.Latents(mean, torch.full_like(mean, 0.1), labels, mean[:4], labels[:4])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(family_unet, "stored_latents", lambda *_: latents)
        patch.setattr(family, "SHOWN", 3)
        patch.setattr(family, "STEPS", 2)
        family_unet.main(
            out=folder / "unet", vae=folder / "vae", data=folder / "data", config=json.dumps(TINY), seconds=60,
            batch=4, lr=1e-3, ema=0.9, device="cpu", seed=0, compile=False, max_steps=4, early=0.5,
        )  # fmt: skip
    return folder / "unet"


def test_a_killed_training_of_the_unet_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    mean, labels = torch.randn(12, 4, 16, 16).half(), torch.arange(12) % 3
    latents = family.Latents(mean, torch.full_like(mean, 0.1), labels, mean[:4], labels[:4])
    goal, settings = objectives.objective("noise", CPU), Settings(1e4, 4, 1e-3, 0.9, compile=False, max_steps=3)
    small, kept = {**family_unet.SHIPPED, **TINY}, Resuming(tmp_path / "state.pt", {})
    rate = loop.rate_at
    monkeypatch.setattr(loop, "rate_at", lambda done: rate(round(done, 2)))  # the steps set it, no clock
    whole = family_unet.train_unet(latents, small, NAMES, goal, settings)[1].state
    monkeypatch.setattr(loop, "READ_EVERY", 1)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "_progress", lambda run: pytest.skip("killed") if run.steps == 2 else progress(run))
        with pytest.raises(pytest.skip.Exception):
            family_unet.train_unet(latents, small, NAMES, goal, replace(settings, keep_every=0.0), kept)
    again = family_unet.train_unet(latents, small, NAMES, goal, settings, kept)[1]
    assert again.resumed == 1 and again.steps == 3
    assert all(torch.equal(again.state[key], value) for key, value in whole.items())


def test_every_word_of_every_caption_is_known_and_fits() -> None:
    encoder = TextEncoder(family_unet.text_config(NAMES))
    for name in NAMES:
        assert len(captions(name)) == len(TEMPLATES)
        encoder.tokenize(captions(name))
    assert {"potter", "s", "wheel", "go", "kart", "ipod", "an"} <= set(vocabulary(NAMES))
    longest = max(len(words_of(text)) for text in captions("European fire salamander"))
    assert longest < encoder.config.length


def test_articles_are_those_of_the_names() -> None:
    assert caption("iPod") == "a photo of an iPod" and caption("American lobster") == "a photo of an American lobster"
    assert caption("European fire salamander") == "a photo of a European fire salamander"
    assert asked(["ox"]) == ["a photo of an ox", ""]


def test_the_shipped_network_has_thirty_million_parameters() -> None:
    with torch.device("meta"):
        unet = family_unet.make_painter(family_unet.SHIPPED, family_unet.text_config(NAMES)).unet
    assert 29e6 < sum(parameter.numel() for parameter in unet.parameters()) < 32e6


def test_training_shows_every_template_and_some_empty_captions() -> None:
    painter = family_unet.make_painter({**family_unet.SHIPPED, **TINY}, family_unet.text_config(NAMES))
    condition = family_unet.caption_or_none(painter, NAMES, CPU)
    labels = torch.arange(600) % 3
    ids = condition(labels, torch.Generator().manual_seed(0))
    empty = (ids == painter.text_encoder.tokenize([""])).all(1)
    assert 0.05 < empty.float().mean() < 0.15
    for label, name in enumerate(NAMES):
        known = {tuple(row) for row in painter.text_encoder.tokenize(captions(name)).tolist()}
        assert {tuple(row) for row in ids[(labels == label) & ~empty].tolist()} == known


def test_the_directory_is_whole_and_diffusers_reads_it(checkpoint: Path) -> None:
    model = tenuto.load(checkpoint)
    theirs, ours = UNet2DConditionModel.from_pretrained(checkpoint / "unet").state_dict(), model.network.state_dict()
    assert set(ours) == set(theirs) and all(torch.equal(ours[key], theirs[key].float()) for key in ours)
    assert model.labels == tuple(NAMES) and model.guidance == family.GUIDANCE
    assert picture_shape(model) == (3, 64, 64)
    assert (checkpoint / "samples.png").stat().st_size > 0
    card = (checkpoint / "README.md").read_text(encoding="utf-8")
    assert "a photo of a go-kart" in card and "Held-out loss" in card
    steps = {place: read_json(place / "loss.json", "record") for place in (checkpoint, Path(f"{checkpoint}-early"))}
    assert [(one["steps"], one["is_early"]) for one in steps.values()] == [(4, False), (2, True)]


def test_noise_levels_are_those_of_the_training_and_of_the_scheduler_beside(checkpoint: Path) -> None:
    model, scheduler = tenuto.load(checkpoint), DDIMScheduler.from_pretrained(checkpoint / "scheduler")
    assert model.noise == objectives.levels()
    torch.testing.assert_close(scheduler.alphas_cumprod, alphas_cumprod(objectives.levels()))


@torch.no_grad()
def test_the_product_predicts_what_the_trained_network_predicts(checkpoint: Path) -> None:
    model = tenuto.load(checkpoint)
    x, t, labels = torch.randn(4, 4, 16, 16), torch.tensor([3, 300, 600, 999]), torch.arange(4)
    texts = asked(NAMES)  # the last is the empty one, as the class behind the last stands for none
    conditions = model.text_encoder.conditions(texts, model.config.sample_shape, torch.float32)
    found = model.network(x, t, *conditions)
    torch.testing.assert_close(family_unet.by_class(model)(x, t, labels), found, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(found[:1], model.network(x, t, *conditions)[1:2])


@torch.no_grad()
def test_captions_draw_the_pictures_that_classes_draw(checkpoint: Path) -> None:
    model = tenuto.load(checkpoint)
    drawn = tenuto.generate(model, captions=["a photo of a potter's wheel", "a photo of an iPod"], steps=4, guidance=3)
    assert decoder_of(model)(drawn).shape == (2, 3, 64, 64)
    network, goal = family_unet.by_class(model), objectives.objective("noise", CPU)
    ours = family.draw_latents(network, network, goal, torch.tensor([0, 2]), 4, 3.0)
    torch.testing.assert_close(drawn, ours, atol=1e-3, rtol=1e-3)
    assert torch.equal(initial_noise((4, 16, 16), 0, 0, 1)[0], torch.randn(4, 16, 16, generator=seeded(0)))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_config_for_other_latents_or_text_is_refused() -> None:
    with pytest.raises(UsageError, match="it must be 256"):
        family_unet.parse_config('{"cross_attention_dim": 64}', family_unet.SHIPPED)


def test_every_way_of_the_scaling_benchmark_draws_it(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "CONVERGED", 100)
    monkeypatch.setattr(
        measuring,
        "rivals",
        lambda flow, n, few: [next(one for one in rivals(flow, n) if one.name == way) for way in WAYS[2:5]],
    )
    network = opened(checkpoint, CPU)
    *_, last = measure(network, 3.0, 2, 0, [0.2])
    assert last["complete"] and last["architecture"] == "unet"
    assert {row["way"] for row in last["rows"]} == set(WAYS)
    assert "lifetimes by branch" in tables({"cases": {"one": {**last, "provenance": MADE}}})
    many = [{**last, "parameters": 10**i, "trained_samples": 2**i} for i in range(5, 9)]
    assert effects(many, OURS, 0.2, "full") is None, "a UNet says nothing about the size of DiTs"


def test_the_benchmark_asks_for_classes_in_turn_by_caption(checkpoint: Path) -> None:
    network = opened(checkpoint, CPU)
    asked_for = Requests(network, 2.0, 4)
    assert asked_for.labels.tolist() == [0, 1, 2, 0]
    texts = [caption(NAMES[i]) for i in (0, 1, 2, 0)]
    drawn = tenuto.generate(network.model, captions=texts, steps=5, guidance=2.0)
    torch.testing.assert_close(asked_for.drawn(5), drawn, atol=1e-4, rtol=1e-4)


def test_the_evaluation_asks_by_class(checkpoint: Path) -> None:
    network, drawn = evaluate_family.asked_by_class(tenuto.load(checkpoint))
    assert (drawn.num_classes, drawn.null_class, drawn.sample_shape) == (3, 3, (4, 16, 16))
    made: Tensor = network(torch.randn(2, 4, 16, 16), torch.tensor([5, 5]), torch.tensor([0, 3]))
    assert made.shape == (2, 4, 16, 16)


def test_the_laboratory_asks_for_the_things_that_the_network_knows(checkpoint: Path) -> None:
    model = tenuto.load(checkpoint)
    labels, wanted = asked_for(model, 4)
    assert labels == [0, 1, 2, 0] and wanted[1] == "a photo of a go-kart"
    model.text_encoder.tokenize(wanted)
