"""The training commands, on made-up data and networks small enough for a CPU.

What they write must be whole and readable; whether the real models are any good is their model cards' matter.
"""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tenuto.errors import CheckpointError, UsageError
from tenuto.models import load
from tenuto.models.architecture import NoiseLevels
from tenuto.models.checkpoint import open_checkpoint
from tenuto.models.dit import DiT, DiTConfig
from tenuto.sampling.pictures import generate
from tenuto_lab.judging.cifar_classifier import CifarClassifier
from tenuto_lab.judging.classifier import Classifier, load_classifier
from tenuto_lab.networks.uvit import UViTConfig
from training import ddim, evaluate_classes, fashion_mnist, loop, train_classifier, train_dit, train_uvit
from training.cifar10 import Cifar10

CPU = torch.device("cpu")
TINY = DiTConfig(
    patch_size=8, in_channels=1, hidden_size=16, depth=2, num_heads=2, mlp_ratio=2.0, num_classes=10, learn_sigma=False
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("training")


@pytest.fixture(scope="module")
def tarball(folder: Path) -> Path:
    """Five rows a class, of value 10 × class + row; the first class with the package's empty rows."""
    path = folder / "package.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for label in range(10):
            rows = [[10 * label + row] * 784 for row in range(5)]
            content = json.dumps({"data": [*rows[:2], [], *rows[2:], []] if label == 0 else rows}).encode()
            info = tarfile.TarInfo(f"package/src/clothes/{label}.json")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture(scope="module")
def data(folder: Path, tarball: Path) -> Path:
    path = folder / "data.npz"
    fashion_mnist.convert(tarball, path, held_out=2)
    return path


@pytest.fixture(scope="module")
def classifier(folder: Path, data: Path) -> Path:
    train_classifier.main(out=folder / "classifier", data=data, epochs=1, device="cpu", seed=0)
    return folder / "classifier"


@pytest.fixture(scope="module")
def checkpoint(folder: Path, data: Path) -> Path:
    settings = loop.Settings(seconds=60, batch=4, compile=False, max_steps=3)
    trained = train_dit.train_dit(fashion_mnist.load(data), TINY, settings, CPU)
    train_dit.save(folder / "dit", trained, TINY, settings)
    return folder / "dit"


def test_data_is_split_by_class_and_empty_rows_are_dropped(data: Path) -> None:
    with np.load(data) as arrays:
        assert arrays["train_images"].shape == (30, 28, 28)
        assert arrays["train_images"].dtype == np.uint8
        assert arrays["train_images"][:, 0, 0].tolist() == [10 * c + row for c in range(10) for row in range(3)]
        assert arrays["test_images"][:, 0, 0].tolist() == [10 * c + row for c in range(10) for row in (3, 4)]
        assert arrays["train_labels"].tolist() == [c for c in range(10) for _ in range(3)]


def test_images_are_padded_with_black_and_scaled() -> None:
    image = np.full((1, 28, 28), 255, dtype=np.uint8)
    image[0, 0, 0] = 0
    tensor = fashion_mnist.to_tensor(image)
    assert tensor.shape == (1, 1, 32, 32) and tensor.dtype == torch.float32
    assert tensor[0, 0, 2, 2] == -1 and tensor[0, 0, 2, 3] == 1
    assert (tensor[..., :2] == -1).all() and (tensor[..., -2:, :] == -1).all()


def test_another_tarball_is_refused(folder: Path) -> None:
    path = folder / "other.tgz"
    with tarfile.open(path, "w:gz"):
        pass
    with pytest.raises(UsageError, match=r"must be fashion-mnist@1\.1\.0"):
        fashion_mnist.convert(path, folder / "other.npz")
    assert not (folder / "other.npz").exists()


def test_classifier_shapes() -> None:
    network, x = Classifier().eval(), torch.randn(3, 1, 32, 32)
    assert network.features(x).shape == (3, 128)
    assert network(x).shape == (3, 10)
    assert 200_000 < sum(parameter.numel() for parameter in network.parameters()) < 500_000


def test_augmentation_moves_an_image_without_changing_it() -> None:
    x = torch.full((16, 1, 32, 32), -1.0)
    x[:, 0, 10:12, 10:20] = 1.0
    moved = train_classifier.augment(x)
    assert moved.shape == x.shape
    assert torch.equal(moved.sum(dim=(1, 2, 3)), x.sum(dim=(1, 2, 3)))
    assert not torch.equal(moved, x)


def test_trained_classifier_loads(classifier: Path) -> None:
    assert load_classifier(classifier)(torch.zeros(1, 1, 32, 32)).shape == (1, 10)
    assert "Held-out accuracy" in (classifier / "README.md").read_text(encoding="utf-8")


def test_absent_classifier_is_a_sentence(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="There is no classifier"):
        load_classifier(folder / "nowhere")


def test_learning_rate_warms_up_and_anneals() -> None:
    assert loop.rate_at(0.0) == 0
    assert loop.rate_at(loop.WARM_UP) == pytest.approx(1)
    assert loop.rate_at(1.0) == pytest.approx(loop.FLOOR)


def test_only_shoes_are_never_mirrored(data: Path) -> None:
    ramp = torch.linspace(-1, 1, 32).expand(30, 1, 32, 32).clone()
    draw = train_dit.pictures(fashion_mnist.load(data)._replace(train_images=ramp), TINY, 512, CPU)
    x, y = draw(torch.Generator().manual_seed(0))
    mirrored = x[:, 0, 0, 0] > x[:, 0, 0, -1]
    shoes = torch.isin(y, torch.tensor(train_dit.SHOES))
    others = ~shoes & (y != TINY.null_class)
    assert not mirrored[shoes].any()
    assert mirrored[others].any() and not mirrored[others].all()
    assert (y == TINY.null_class).any()


def test_batches_hold_the_noise_that_was_added() -> None:
    picture = torch.rand(6, 1, 4, 4)
    noise_levels = NoiseLevels("linear", 1e-4, 0.02)
    stream = ddim.noised_batches(lambda generator: (picture, torch.arange(6)), noise_levels, 0, CPU)
    x, t, y, noise = next(stream)
    alpha = ddim.alphas_cumprod(noise_levels)[t][:, None, None, None]
    torch.testing.assert_close(x, alpha.sqrt() * picture + (1 - alpha).sqrt() * noise)
    assert torch.equal(y, torch.arange(6)) and not torch.equal(next(stream)[1], t)


def test_checkpoint_is_whole(checkpoint: Path) -> None:
    assert load(str(checkpoint)).config == TINY
    record = json.loads((checkpoint / "loss.json").read_text())
    assert record["steps"] == 3 and record["loss"][-1][0] == 3 and record["final_loss"] > 0
    assert (checkpoint / "loss.png").stat().st_size > 0
    assert not list(checkpoint.glob(".*"))


def test_large_checkpoints_are_sharded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = DiT(TINY).state_dict()
    loop.save_weights(tmp_path, state)
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o644
    monkeypatch.setattr(loop, "SHARD_BYTES", 8000)
    loop.save_weights(tmp_path, state)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(state)
    assert set(index["weight_map"].values()) == {file.name for file in tmp_path.glob("*.safetensors")}
    stored = open_checkpoint(tmp_path)
    assert all(torch.equal(stored.read(key), value.bfloat16()) for key, value in state.items())


def test_interrupted_training_keeps_what_it_has(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(done: float) -> float:
        if done > 0.3:
            raise KeyboardInterrupt
        return 1.0

    monkeypatch.setattr(loop, "rate_at", interrupted)
    settings = loop.Settings(seconds=600, batch=4, compile=False, max_steps=10)
    trained = train_dit.train_dit(fashion_mnist.load(data), TINY, settings, CPU)
    assert trained.interrupted and trained.steps == 4
    assert set(trained.state) == set(DiT(TINY).state_dict())


@pytest.mark.parametrize("given", ['{"depth": 2}', '{"nonsense": 1}', '{"depth"', "absent.json"])
def test_configs_that_make_no_sense_are_refused(given: str) -> None:
    with pytest.raises(Exception, match=r"\.$"):
        train_dit.parse_config(given)


def test_timesteps_lead() -> None:
    assert ddim.timesteps(50, 1000)[:2] == [980, 960]
    assert ddim.timesteps(3, 1000) == [666, 333, 0]
    assert ddim.timesteps(50, 1000, offset=1)[-1] == 1


def test_evaluation_runs(checkpoint: Path, classifier: Path, data: Path) -> None:
    result = evaluate_classes.evaluate(checkpoint, classifier, data, 10, 3, 1.5, CPU, 0, 4)
    assert 0 <= result["agreement"] <= 1
    assert json.loads((checkpoint / "evaluation.json").read_text()) == result
    assert (checkpoint / "samples.png").exists()
    card = (checkpoint / "README.md").read_text(encoding="utf-8")
    assert "Class agreement" in card and "Final loss" in card


def test_the_written_out_sampler_is_the_packages(checkpoint: Path) -> None:
    model = load(str(checkpoint))
    labels = torch.arange(4)
    together = evaluate_classes.draw(model, labels, 3, 1.5, seed=5, batch=4)
    apart = evaluate_classes.draw(model, labels, 3, 1.5, seed=5, batch=3)
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-4)
    ours = generate(model, labels.tolist(), seed=5, steps=3, guidance=1.5).clamp(-1, 1)
    torch.testing.assert_close(together, ours, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("schedule", ["linear", "scaled_linear"])
def test_noise_levels_are_diffusers(schedule: str) -> None:
    from diffusers import DDIMScheduler

    theirs = DDIMScheduler(beta_schedule=schedule, beta_start=0.00085, beta_end=0.012).alphas_cumprod
    torch.testing.assert_close(ddim.alphas_cumprod(NoiseLevels(schedule, 0.00085, 0.012)), theirs)


def test_uvit_trains_and_is_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = UViTConfig(img_size=32, patch_size=8, in_chans=3, embed_dim=16, depth=2, num_heads=2, num_classes=11)
    images = torch.randint(256, (20, 3, 32, 32), dtype=torch.uint8)
    cifar = Cifar10(images, torch.arange(20) % 10, images, torch.arange(20) % 10)
    settings = loop.Settings(seconds=60, batch=4, compile=False, max_steps=2)
    trained = train_uvit.train_uvit(cifar, config, settings, CPU)
    train_uvit.save(tmp_path / "uvit", trained, config, settings)
    judge = CifarClassifier()
    (tmp_path / "judge").mkdir()
    save_file(judge.state_dict(), tmp_path / "judge" / "model.safetensors")
    monkeypatch.setattr("training.cifar10.load", lambda path: cifar)
    result = evaluate_classes.evaluate(tmp_path / "uvit", tmp_path / "judge", Path("x"), 10, 2, 1.5, CPU, 0, 5)
    assert result["samples"] == 10
    assert (tmp_path / "uvit" / "README.md").read_text().startswith("# uvit")
