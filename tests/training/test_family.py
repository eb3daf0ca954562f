"""The training of the Tiny-ImageNet family, on made-up pictures and networks small enough for a CPU."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tenuto
from tenuto.errors import TenutoError, UsageError
from tenuto.files import read_json, write_json
from tenuto.models import load
from tenuto.models.architecture import ConfigError
from tenuto.models.dit import DiTConfig
from training import family, loop, objectives, pieces, quantise, resuming, tiny_imagenet, train_vae
from training.autoencoder import Autoencoder, AutoencoderConfig, load_autoencoder
from training.loop import Settings
from training.resuming import Resuming

CPU = torch.device("cpu")
NARROW = AutoencoderConfig(block_out_channels=(8, 8, 8), norm_num_groups=4)
NAMES = ["cat", "dog", "fish"]


def jpeg(seed: int, mode: str = "RGB") -> bytes:
    noise = np.random.default_rng(seed).integers(256, size=(64, 64, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).convert(mode).save(stream, "JPEG", quality=60)
    return stream.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("family")


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    """Two training shards of six pictures, and four held-out pictures."""
    out = folder / "tiny"
    out.mkdir()
    for i, (name, count) in enumerate((("train-00", 6), ("train-01", 6), ("validation", 4))):
        files = [jpeg(10 * i + j, "L" if j == 1 else "RGB") for j in range(count)]
        np.savez(out / f"{name}.npz", **tiny_imagenet.pack(files, [j % 3 for j in range(count)]))
    write_json(out / "classes.json", {"names": NAMES})
    return out


@pytest.fixture(scope="module")
def vae(folder: Path, data: Path) -> Path:
    settings = Settings(seconds=60, batch=2, compile=False, max_steps=2)
    pictures = tiny_imagenet.load(data, processes=1)
    autoencoder, trained = train_vae.train_autoencoder(pictures, NARROW, settings, CPU)
    train_vae.save(folder / "vae", autoencoder, trained, settings, pictures, None)
    return folder / "vae"


def trained(folder: Path, data: Path, vae: Path, name: str, **options: object) -> Path:
    settings: dict[str, object] = {
        "seconds": 60, "size": "tiny", "batch": 4, "max_steps": 2, "compile": False, "device": "cpu", "seed": 0,
        "objective_name": "noise", "start": None, "lr": None, "ema": 0.9,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:  # a picture of few samples, drawn in few steps
        patch.setattr(family, "SHOWN", 3)
        patch.setattr(family, "STEPS", 2)
        family.main(out=folder / name, vae=vae, data=data, **{**settings, **options})  # type: ignore[arg-type]
    return folder / name


@pytest.fixture(scope="module")
def checkpoint(folder: Path, data: Path, vae: Path) -> Path:
    return trained(folder, data, vae, "tiny-family")


def test_packed_pictures_come_back_byte_for_byte() -> None:
    files = [jpeg(0), jpeg(1, "L"), jpeg(2)]
    arrays = tiny_imagenet.pack(files, [5, 6, 7])
    assert len(arrays["header_ends"]) == 2  # one for colour, one for grey
    assert tiny_imagenet.unpack(arrays) == files


def test_every_shard_is_read_and_grey_pictures_get_three_channels(data: Path) -> None:
    pictures = tiny_imagenet.load(data, processes=1)
    assert pictures.train_images.shape == (12, 3, 64, 64) and pictures.train_images.dtype == torch.uint8
    assert pictures.train_labels.tolist() == [0, 1, 2, 0, 1, 2] * 2 and len(pictures.test_images) == 4
    grey = pictures.train_images[1]
    assert torch.equal(grey[0], grey[1]) and torch.equal(grey[1], grey[2])


def test_autoencoder_has_the_layout_of_diffusers(vae: Path) -> None:
    from diffusers import AutoencoderKL

    theirs, ours, x = AutoencoderKL.from_pretrained(vae).float(), load_autoencoder(vae), torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        mean, log_variance = ours.encode(x)
        posterior = theirs.encode(x).latent_dist
        torch.testing.assert_close(posterior.mean, mean)
        torch.testing.assert_close(posterior.logvar, log_variance)
        torch.testing.assert_close(theirs.decode(mean).sample, ours.decode(mean))
    assert theirs.config.scaling_factor == 1


def test_normalising_changes_latents_and_not_pictures() -> None:
    torch.manual_seed(0)
    network, x = Autoencoder(NARROW).eval(), torch.randn(16, 3, 64, 64)
    with torch.no_grad():
        mean, log_variance = network.encode(x)
        made = network.decode(mean)
        deviation = mean.std(dim=(0, 2, 3))
        network.normalise(mean.mean(dim=(0, 2, 3)), deviation)
        after, log_variance_after = network.encode(x)
        torch.testing.assert_close(after.std(dim=(0, 2, 3)), torch.ones(4), atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(after.mean(dim=(0, 2, 3)), torch.zeros(4), atol=1e-3, rtol=0)
        torch.testing.assert_close(network.decode(after), made, atol=1e-4, rtol=1e-3)
        expected = log_variance - 2 * deviation.log()[:, None, None]
        torch.testing.assert_close(log_variance_after, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["noise", "flow"])
def test_perfect_predictions_lead_back_to_the_clean_latents(name: objectives.Name) -> None:
    """With one picture in the world the best prediction is known: the sampler must end at that picture."""
    goal, clean = objectives.objective(name, CPU), torch.randn(1, 4, 16, 16)
    alphas = objectives.alphas_cumprod(objectives.levels())

    def predict(x: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if name == "noise":
            alpha = alphas[t[0]]
            best = (x - alpha.sqrt() * clean) / (1 - alpha).sqrt()
        else:
            best = (x - clean) / (t[0] / 1000)  # ε − x₀ where x = (1 − s) x₀ + s ε
        return best, torch.zeros_like(best)

    made = goal.draw(predict, torch.randn(1, 4, 16, 16), 10, 1.0)
    torch.testing.assert_close(made, clean, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", ["noise", "flow"])
def test_what_is_to_be_predicted_gives_the_clean_latents(name: objectives.Name) -> None:
    goal, x = objectives.objective(name, CPU), torch.randn(64, 4, 16, 16)
    given, t, wanted, weights = goal.noising(x, torch.Generator().manual_seed(0))
    if name == "noise":
        alpha = objectives.alphas_cumprod(objectives.levels())[t][:, None, None, None]
        clean = (given - (1 - alpha).sqrt() * wanted) / alpha.sqrt()
        snr = (alpha / (1 - alpha)).flatten()
        share = weights * snr  # min(SNR, 5), times a constant
        torch.testing.assert_close(share / share.max() * 5, snr.clamp(max=5), atol=1e-3, rtol=1e-3)
    else:
        clean = given - (t / 1000)[:, None, None, None] * wanted
        assert torch.equal(weights, torch.ones(64))
    torch.testing.assert_close(clean, x, atol=1e-2, rtol=1e-2)


def test_checkpoint_loads_with_its_labels_and_its_autoencoder(checkpoint: Path) -> None:
    model = load(checkpoint)
    assert model.labels == tuple(NAMES) and model.config.sample_shape == (4, 16, 16)
    assert load_autoencoder(checkpoint / "vae").config == NARROW
    assert model.noise == objectives.levels()
    assert (checkpoint / "samples.png").stat().st_size > 0
    assert "cat" in (checkpoint / "README.md").read_text(encoding="utf-8")


def test_training_goes_on_from_a_checkpoint(folder: Path, data: Path, vae: Path, checkpoint: Path) -> None:
    still = trained(folder, data, vae, "still", start=checkpoint, lr=1e-12)
    before, after = load(checkpoint).network.state_dict(), load(still).network.state_dict()
    for key, value in before.items():
        torch.testing.assert_close(after[key], value, atol=1e-4, rtol=1e-3)
    record = json.loads((still / "loss.json").read_text(encoding="utf-8"))
    assert record["before"]["steps"] == 2 and record["objective"] == "noise"
    assert "It went on from 2 steps" in (still / "README.md").read_text(encoding="utf-8")
    with pytest.raises(UsageError, match="trained for the objective noise"):
        trained(folder, data, vae, "other", start=checkpoint, objective_name="flow")


def test_weights_are_also_kept_after_a_share_of_the_training(folder: Path, data: Path, vae: Path) -> None:
    out = trained(folder, data, vae, "long", max_steps=4, early=0.5)
    early = folder / "long-early"
    steps = {place: json.loads((place / "loss.json").read_text(encoding="utf-8"))["steps"] for place in (out, early)}
    assert steps == {out: 4, early: 2}
    one, other = load(out).network.state_dict(), load(early).network.state_dict()
    assert any(not torch.equal(one[key], other[key]) for key in one)
    assert "after 50% of that time" in " ".join((early / "README.md").read_text(encoding="utf-8").split())


class Killed(BaseException):
    """As if the process had ended: nothing catches it."""


@pytest.fixture
def killed_after_two_steps(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Every step's state is saved; with the second one the process ends. The steps set the learning rate, no clock."""
    rate = loop.rate_at
    monkeypatch.setattr(loop, "rate_at", lambda done: rate(round(done, 2)))
    real, saved = Resuming.save, [0]

    def save(self: Resuming, *given: Any) -> None:
        real(self, *given)
        saved[0] += 1
        if saved[0] == 2:
            raise Killed

    monkeypatch.setattr(loop, "READ_EVERY", 1)
    monkeypatch.setattr(Resuming, "save", save)
    return monkeypatch


@pytest.mark.parametrize("muon", [False, True])
def test_a_training_that_was_killed_ends_with_the_weights_of_an_uninterrupted_one(
    folder: Path, data: Path, vae: Path, killed_after_two_steps: pytest.MonkeyPatch, muon: bool
) -> None:
    asked = {"max_steps": 4, "early": 0.25, "muon": muon, "seconds": 10_000}
    whole = trained(folder, data, vae, f"whole-{muon}", **asked, state_every=1000)
    with pytest.raises(Killed):
        trained(folder, data, vae, f"killed-{muon}", **asked, state_every=0)
    out = folder / f"killed-{muon}"
    assert (out / resuming.NAME).is_file() and not (out / "model.safetensors").exists()
    assert trained(folder, data, vae, out.name, **asked, state_every=0) == out
    for one, other in ((whole, out), (Path(f"{whole}-early"), Path(f"{out}-early"))):
        assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
        ours, theirs = (read_json(place / "loss.json", "record") for place in (other, one))
        assert ours["steps"] == theirs["steps"] and ours["held_out_loss"] == theirs["held_out_loss"]
    assert read_json(out / "loss.json", "record")["resumed"] == 1
    assert ", resumed once" in (out / "README.md").read_text(encoding="utf-8")
    assert not (out / resuming.NAME).exists(), "a complete training has no state left"


def test_a_state_of_another_training_is_refused_and_a_damaged_one_named(
    folder: Path, data: Path, vae: Path, killed_after_two_steps: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Killed):
        trained(folder, data, vae, "other", max_steps=4, state_every=0)
    with pytest.raises(UsageError, match=r"another lr \(0.001, and now 0.5\).*delete the file to begin anew"):
        trained(folder, data, vae, "other", max_steps=4, lr=0.5)
    (folder / "other" / resuming.NAME).write_bytes(b"half a file")
    with pytest.raises(TenutoError, match="holds no state of a training; delete it"):
        trained(folder, data, vae, "other", max_steps=4)


def test_an_interrupted_training_saves_what_it_has_and_goes_on_when_it_is_repeated(
    folder: Path, data: Path, vae: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Resuming.save

    def interrupted(self: Resuming, *given: Any) -> None:
        real(self, *given)
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "READ_EVERY", 1)
    with monkeypatch.context() as patch:
        patch.setattr(Resuming, "save", interrupted)
        out = trained(folder, data, vae, "stopped", max_steps=3, state_every=0)
    record = read_json(out / "loss.json", "record")
    assert record["interrupted"] and record["steps"] == 1 and (out / resuming.NAME).is_file()
    trained(folder, data, vae, "stopped", max_steps=3, state_every=1000)
    record = read_json(out / "loss.json", "record")
    assert not record["interrupted"] and record["steps"] == 3 and not (out / resuming.NAME).exists()


def test_muon_can_update_the_blocks_and_the_card_says_so(folder: Path, data: Path, vae: Path, checkpoint: Path) -> None:
    out = trained(folder, data, vae, "muon", muon=True)
    ours, theirs = load(out).network.state_dict(), load(checkpoint).network.state_dict()
    changed = {key for key in ours if not torch.equal(ours[key], theirs[key])}
    assert "blocks.0.adaLN_modulation.1.weight" in changed
    assert json.loads((out / "loss.json").read_text(encoding="utf-8"))["optimizer"] == "Muon and AdamW"
    assert "Muon updated" in (out / "README.md").read_text(encoding="utf-8")


def test_a_checkpoint_in_8_bits_draws_nearly_the_same_and_says_so(folder: Path, checkpoint: Path) -> None:
    out = folder / "eight-bits"
    quantise.main(checkpoint, out, samples=2, device="cpu", seed=0)
    record = json.loads((out / "quantised.json").read_text(encoding="utf-8"))
    assert record["psnr"][0] > 40 and record["bytes"][1] < 0.7 * record["bytes"][0]
    assert "## Stored in 8 bits" in (out / "README.md").read_text(encoding="utf-8")
    with pytest.raises(UsageError, match="is there already"):
        quantise.main(checkpoint, out, samples=2, device="cpu", seed=0)


def test_a_trained_flow_is_drawn_as_the_training_draws_it(folder: Path, data: Path, vae: Path) -> None:
    model = load(trained(folder, data, vae, "flow", objective_name="flow"))
    drawn = tenuto.generate(model, [0, 2], steps=4, guidance=3.0)
    goal = objectives.objective("flow", CPU)
    ours = family.draw_latents(model.network, model.config, goal, torch.tensor([0, 2]), 4, 3.0)
    torch.testing.assert_close(drawn, ours, atol=1e-3, rtol=1e-3)
    with pytest.raises(ConfigError, match="flow_prediction"):
        _ = model.noise


def test_latents_of_another_autoencoder_are_not_reused(data: Path, vae: Path, folder: Path) -> None:
    kept = family.stored_latents(vae, data, CPU)
    assert kept.mean.shape == (24, 4, 16, 16) and kept.labels.tolist() == [0, 1, 2, 0, 1, 2] * 4
    other = folder / "other-vae"
    torch.manual_seed(1)
    fresh = Autoencoder(NARROW)
    write_json(other / "config.json", NARROW.to_json())
    family.save_weights(other, fresh.state_dict(), "diffusion_pytorch_model{suffix}.safetensors", torch.float16)
    assert not torch.equal(family.stored_latents(other, data, CPU, keep=False).mean, kept.mean)


def test_half_the_side_gives_a_quarter_of_the_latents_and_pictures_of_that_side(
    folder: Path, data: Path, vae: Path
) -> None:
    images = tiny_imagenet.load(data, processes=1).test_images
    small = family.reduced(images, 32)
    assert small.shape == (len(images), 3, 32, 32) and small.dtype == torch.uint8
    square = images[0, 0, :2, :2].float().mean()
    assert abs(float(small[0, 0, 0, 0]) - float(square)) <= 0.5
    half = trained(folder, data, vae, "tiny-family-32", side=32)
    model = load(half)
    assert model.config.input_size == 8 and read_json(half / "loss.json", "record")["side"] == 32
    assert (
        "draws\n32×32 pictures" in (half / "README.md").read_text() and "16 tokens" in (half / "README.md").read_text()
    )
    with pytest.raises(UsageError, match="--side is one of 64, 32, not 48"):
        trained(folder, data, vae, "none", side=48)


def test_sizes_are_what_they_are_said_to_be() -> None:
    for name, low, high in (("small", 7e6, 9e6), ("base", 26e6, 28.5e6), ("large", 110e6, 125e6)):
        with torch.device("meta"):
            network = family.DiT(family.SIZES[name].config(4, 16, 200))
        assert low < sum(parameter.numel() for parameter in network.parameters()) < high


def test_pieces_are_put_together_again(folder: Path, checkpoint: Path) -> None:
    out = folder / "pieces"
    made = pieces.pack(checkpoint, out, skip=("vae",), piece=100_000)
    assert len(made) > 2 and all(path.stat().st_size <= 100_000 for path in made)
    assert pieces.unpack(out, folder / "unpacked") == [checkpoint.name]
    back = folder / "unpacked" / checkpoint.name
    assert (back / "model.safetensors").read_bytes() == (checkpoint / "model.safetensors").read_bytes()
    assert (back / "scheduler" / "scheduler_config.json").exists() and not (back / "vae").exists()
    made[1].unlink()
    with pytest.raises(UsageError, match="missing"):
        pieces.unpack(out, folder / "unpacked")


def test_config_of_the_family_is_a_dit() -> None:
    config = family.SIZES["base"].config(4, 16, 200)
    assert isinstance(config, DiTConfig) and config.tokens == 64 and config.null_class == 200
