"""Trains one of a family of class-conditional DiTs on the latents of Tiny-ImageNet, for a given time.

    python -m training.family --size base --seconds 290 --vae family/vae --out family/base
    python -m training.family --size base --seconds 290 --vae family/vae --start family/base --out family/base-longer
    python -m training.family --size large --seconds 450 --early 0.33 --vae family/vae --out family/large

The first command made weights/natural-dit. The other sizes are trained in the same way, `small` in 70 seconds.

Latents have 16×16 places and the patches 2×2, so there are 64 tokens (training.train_vae says why latents). All
latents, of the pictures and of their mirror images, are computed once and stay on the GPU. What is written is a
checkpoint that `tenuto.load` reads, with the autoencoder in its folder `vae`, as diffusers lays pipelines out.

--early also writes the averaged weights as they were after that share of the time, when the learning rate had not
fallen yet, to a folder beside --out whose name ends in -early.

A training that was killed or interrupted goes on when its command is repeated: every --state-every seconds all that
the next step depends on is saved beside the weights (training.resuming), and removed when the training is complete.

--start begins another training from the averaged weights of a complete one and keeps its record. The optimiser's state
does not travel; therefore the learning rate warms up again.
"""

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
import typer
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.files import read_json, replacing, write_json, write_text
from tenuto.models import OWN_FIELDS
from tenuto.models.checkpoint import open_checkpoint
from tenuto.models.dit import DiT, DiTConfig
from tenuto.showing.images import grid, save_image
from training.autoencoder import WEIGHTS, Autoencoder, load_autoencoder
from training.ddim import chance, initial_noise
from training.family_card import GUIDANCE, STEPS, family_card
from training.loop import (
    Compile,
    Device,
    Ema,
    MaxSteps,
    Out,
    Seconds,
    Seed,
    Settings,
    StateEvery,
    Trained,
    default_device,
    save_record,
    save_weights,
    train,
)
from training.muon import MuonAndAdam, of_blocks
from training.objectives import Name, Objective, objective, weighted_loss
from training.resuming import NAME, Resuming
from training.tiny_imagenet import DEFAULT_PATH, SIZE, SOURCE, TinyImageNet, load
from training.train_vae import decode_all, encode_all

HELD_OUT_SEED = 1_000_003  # of the noise that the held-out loss is measured with: the same for every network
STATE_EVERY = 30.0  # seconds
SHOWN = 64  # pictures of samples.png
SIDES = (SIZE, SIZE // 2)  # of the pictures, in pixels


@dataclass(frozen=True)
class Size:
    """A network's shape, and what suits its training."""

    width: int
    depth: int
    heads: int
    batch: int
    lr: float

    def config(self, channels: int, input_size: int, classes: int) -> DiTConfig:
        return DiTConfig(
            input_size=input_size,
            patch_size=2,
            in_channels=channels,
            hidden_size=self.width,
            depth=self.depth,
            num_heads=self.heads,
            mlp_ratio=4.0,
            class_dropout_prob=0.1,
            num_classes=classes,
            learn_sigma=False,
        )


SIZES = {
    "tiny": Size(64, 2, 2, 64, 1e-3),  # for tests
    "small": Size(256, 6, 4, 1024, 1e-3),  # 7.4 M parameters
    "base": Size(384, 10, 6, 1024, 6e-4),  # 27.4 M: 55 MB in float16
    "large": Size(768, 11, 12, 1024, 3e-4),  # 119 M
}


class Drawn(Protocol):
    """What a network draws: samples of one shape, of some classes, and of "no class" for guidance."""

    @property
    def sample_shape(self) -> tuple[int, int, int]: ...

    @property
    def num_classes(self) -> int: ...

    @property
    def null_class(self) -> int: ...


class Latents(NamedTuple):
    """Posterior mean and deviation float16 [2 N, C, 16, 16] of all training pictures, then of their mirror images."""

    mean: Tensor
    deviation: Tensor
    labels: Tensor  # [2 N]
    test_mean: Tensor  # of the held-out pictures
    test_labels: Tensor


def latents_of(autoencoder: Autoencoder, data: TinyImageNet, device: torch.device, side: int = SIZE) -> Latents:
    autoencoder.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    train_images, test_images = reduced(data.train_images, side), reduced(data.test_images, side)
    both = [encode_all(autoencoder, images, device) for images in (train_images, train_images.flip(-1))]
    mean, log_variance = (torch.cat([part[i] for part in both]) for i in range(2))
    labels = data.train_labels.to(device).repeat(2)
    test_mean, _ = encode_all(autoencoder, test_images, device)
    deviation = (log_variance / 2).exp()
    tensors = (mean.half(), deviation.half(), labels, test_mean.half(), data.test_labels.to(device))
    return Latents(*(tensor.contiguous() for tensor in tensors))


def reduced(images: Tensor, side: int) -> Tensor:
    """uint8 pictures [N, 3, 64, 64] with `side` pixels a side: each is the mean of a square of pixels."""
    if side == images.shape[-1]:
        return images
    means = (F.avg_pool2d(part.float(), images.shape[-1] // side) for part in images.split(1000))
    return torch.cat([mean.round().to(torch.uint8) for mean in means])


def stored_latents(vae: Path, folder: Path, device: torch.device, keep: bool = True, side: int = SIZE) -> Latents:
    """The latents, from the file beside the data if this autoencoder made it, else computed and kept there."""
    name = "latents.safetensors" if side == SIZE else f"latents-{side}.safetensors"
    path, stamp = folder / name, (vae / WEIGHTS).read_bytes()
    pictures = len(list(folder.glob("train-*.npz")))
    mark = f"{hash_of(stamp)} {pictures}"
    if path.exists():
        with safe_open(path, "pt") as opened:
            made_by = opened.metadata().get("made_by")
        if made_by == mark:
            return Latents(**load_file(path, device=str(device)))
    latents = latents_of(load_autoencoder(vae), load(folder), device, side)
    if keep:
        with replacing(path) as temporary:
            tensors = {key: value.cpu().contiguous() for key, value in latents._asdict().items()}
            save_file(tensors, temporary, {"made_by": mark})
    return latents


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


# (labels, generator) -> what the network is told about its samples, sometimes nothing
Condition = Callable[[Tensor, torch.Generator], Tensor]


def class_or_none(config: DiTConfig) -> Condition:
    def condition(y: Tensor, generator: torch.Generator) -> Tensor:
        return y.masked_fill(chance(config.class_dropout_prob, y, generator), config.null_class)

    return condition


def loss_function(
    latents: Latents, condition: Condition, goal: Objective, batch: int, generator: torch.Generator
) -> Any:
    """What `loop.train` minimises; everything is drawn on the latents' device, which the generator is for."""
    device = latents.mean.device

    def loss_of(forward: Any) -> Tensor:
        chosen = torch.randint(len(latents.mean), (batch,), generator=generator, device=device)
        x, y = latents.mean[chosen].float(), latents.labels[chosen]
        noise = torch.randn(x.shape, generator=generator, device=device)
        x = x + latents.deviation[chosen].float() * noise
        told = condition(y, generator)
        given, t, wanted, weights = goal.noising(x, generator)
        return weighted_loss(forward(given, t, told), wanted, weights)

    return loss_of


def drawing_from(
    latents: Latents, condition: Condition, goal: Objective, settings: Settings, resuming: Resuming | None
) -> tuple[Any, Resuming | None]:
    """The loss, and the state file with the loss's random numbers."""
    generator = torch.Generator(latents.mean.device).manual_seed(settings.seed)
    kept = None if resuming is None else replace(resuming, generators=[generator])
    return loss_function(latents, condition, goal, settings.batch, generator), kept


@torch.no_grad()
def held_out_loss(network: nn.Module, latents: Latents, goal: Objective, batch: int = 1000) -> float:
    """The plain mean squared error, all timesteps weighted alike, on the held-out pictures."""
    device = latents.mean.device
    generator = torch.Generator(device).manual_seed(HELD_OUT_SEED)
    total = torch.zeros((), device=device)
    for x, y in zip(latents.test_mean.split(batch), latents.test_labels.split(batch), strict=True):
        given, t, wanted, _ = goal.noising(x.float(), generator)
        with torch.autocast(device.type, torch.bfloat16):
            predicted = network(given, t, y)
        total += (predicted.float() - wanted).square().mean() * len(x)
    return total.item() / len(latents.test_mean)


@torch.no_grad()
def draw_latents(
    network: nn.Module, config: Drawn, goal: Objective, labels: Tensor, steps: int, guidance: float, seed: int = 0
) -> Tensor:
    """Latents for these classes. Sample i starts from the noise of seed + i, whatever the batch."""
    device = labels.device
    both = torch.cat([labels, torch.full_like(labels, config.null_class)])

    def predict(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            conditional, unconditional = network(torch.cat([x, x]), torch.cat([t, t]), both).float().chunk(2)
        return conditional, unconditional

    return goal.draw(predict, initial_noise(config.sample_shape, seed, 0, len(labels)).to(device), steps, guidance)


def train_family(
    latents: Latents,
    config: DiTConfig,
    goal: Objective,
    settings: Settings,
    start: dict[str, Tensor] | None = None,
    muon: bool = False,
    resuming: Resuming | None = None,
) -> tuple[DiT, Trained]:
    """The network with the averaged weights, and the record.

    muon      update the blocks' matrices by Muon, not AdamW
    resuming  where the state is saved, and gone on from
    """
    torch.manual_seed(settings.seed)
    network = DiT(config)
    network.initialize_weights()
    if start is not None:
        network.load_state_dict(start)
    network.to(latents.mean.device)
    optimizer = None
    if muon:
        optimizer = MuonAndAdam(network, of_blocks(network), settings.lr, settings.betas, settings.weight_decay)
    loss_of, resuming = drawing_from(latents, class_or_none(config), goal, settings, resuming)
    trained = train(network, loss_of, settings, optimizer, resuming=resuming)
    network.load_state_dict(trained.state)
    return network.eval(), trained


def save(
    out: Path,
    trained: Trained,
    config: DiTConfig,
    names: Sequence[str],
    goal: Objective,
    settings: Settings,
    vae: Path,
    pictures: int,
    extra: dict[str, Any],
    before: dict[str, Any] | None = None,
) -> None:
    write_json(
        out / "config.json", {"model_type": "dit", **asdict(config), "labels": list(names), "guidance": GUIDANCE}
    )
    save_weights(out, trained.state, dtype=torch.float16)
    write_json(out / "scheduler" / "scheduler_config.json", goal.scheduler)
    copy_vae(vae, out)
    save_record(out, trained, settings, source(pictures), before, {"objective": goal.name, **extra})


def copy_vae(vae: Path, out: Path) -> None:
    """The autoencoder beside the network, where the samplers look for it."""
    if (out / "vae").resolve() != vae.resolve():
        (out / "vae").mkdir(parents=True, exist_ok=True)
        for name in ("config.json", WEIGHTS):
            shutil.copyfile(vae / name, out / "vae" / name)


def source(pictures: int) -> str:
    return f"{SOURCE}; the latents of {pictures:,} pictures and their mirror images"


def show(network: nn.Module, config: Drawn, goal: Objective, autoencoder: Autoencoder, path: Path) -> None:
    """8×8 samples, of classes spread over all."""
    device = next(network.parameters()).device
    labels = torch.linspace(0, config.num_classes - 1, SHOWN).round().long().to(device)
    pictures = decode_all(autoencoder.to(device), draw_latents(network, config, goal, labels, STEPS, GUIDANCE))
    save_image(grid(pictures, 8, 2), path)


def resumed_at(out: Path, settings: Settings, mark: dict[str, Any], vae: Path, latents: Latents) -> Resuming:
    """The state file of a training, and what the training depends on."""
    own = {name: value for name, value in asdict(settings).items() if name not in ("keep_every", "compile")}
    data = {"autoencoder": hash_of((vae / WEIGHTS).read_bytes()), "pictures": len(latents.mean) // 2}
    return Resuming(out / NAME, {**own, **mark, **data, "device": latents.mean.device.type})


def start_from(directory: Path) -> tuple[dict[str, Tensor], DiTConfig, dict[str, Any]]:
    """Weights in float32, config and record of an earlier training."""
    checkpoint = open_checkpoint(directory)
    state = {key: checkpoint.read(key).float() for key in checkpoint.shapes}
    values = read_json(directory / "config.json", "DiT config")
    config = DiTConfig(**{key: value for key, value in values.items() if key not in OWN_FIELDS})
    return state, config, read_json(directory / "loss.json", "training record")


def check_start(config: DiTConfig, wanted: DiTConfig, record: dict[str, Any], goal: Name) -> None:
    if config != wanted:
        raise UsageError("--start holds a network of another size or for other latents: choose the same --size.")
    if record["objective"] != goal:
        raise UsageError(f"--start was trained for the objective {record['objective']}: choose the same --objective.")


def main(
    out: Out,
    seconds: Seconds,
    vae: Annotated[Path, typer.Option(help="The autoencoder that training.train_vae wrote.")],
    size: Annotated[str, typer.Option(help=f"One of {', '.join(SIZES)}.")] = "base",
    objective_name: Annotated[str, typer.Option("--objective", help="noise or flow.")] = "noise",
    data: Annotated[Path, typer.Option(help="The folder made by training.tiny_imagenet.")] = DEFAULT_PATH,
    start: Annotated[Path | None, typer.Option(help="A checkpoint of this command to go on from.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples a step; what suits the size if not given.")] = None,
    lr: Annotated[float | None, typer.Option(help="The peak learning rate; what suits the size if not given.")] = None,
    ema: Ema = 0.999,
    device: Device = default_device(),
    seed: Seed = 0,
    compile: Compile = True,
    max_steps: MaxSteps = None,
    muon: Annotated[
        bool, typer.Option("--muon", help="Update the blocks' matrices by Muon in place of AdamW.")
    ] = False,
    early: Annotated[
        float | None, typer.Option(min=0.01, max=0.99, help="Write the weights after this share of the time, too.")
    ] = None,
    state_every: StateEvery = STATE_EVERY,
    side: Annotated[
        int, typer.Option(help=f"Pixels a side, {', '.join(map(str, SIDES))}; pictures are reduced.")
    ] = SIZE,
) -> None:
    """Train a DiT on the latents of Tiny-ImageNet. Ctrl-C saves what there is; the same command then goes on."""
    if size not in SIZES or objective_name not in ("noise", "flow"):
        raise UsageError(f"--size is one of {', '.join(SIZES)}, and --objective is noise or flow.")
    if side not in SIDES:
        raise UsageError(f"--side is one of {', '.join(map(str, SIDES))}, not {side}.")
    shape, where = SIZES[size], torch.device(device)
    goal = objective("noise" if objective_name == "noise" else "flow", where)
    settings = Settings(seconds, batch or shape.batch, lr or shape.lr, ema, seed, compile, max_steps)
    settings = replace(settings, betas=(0.9, 0.95), weight_decay=0.0, early=early, keep_every=state_every)
    autoencoder, names = load_autoencoder(vae), read_json(data / "classes.json", "list of classes")["names"]
    latent_size = autoencoder.config.latent_size * side // SIZE
    config = shape.config(autoencoder.config.latent_channels, latent_size, len(names))
    state, before = None, None
    if start is not None:
        state, found, before = start_from(start)
        check_start(found, config, before, goal.name)
    latents = stored_latents(vae, data, where, side=side)
    mark = {"objective": goal.name, "muon": muon, "start": before and before["provenance"]}
    resuming = resumed_at(out, settings, {**asdict(config), **mark}, vae, latents)
    network, trained = train_family(latents, config, goal, settings, state, muon, resuming)
    pace = trained.steps * settings.batch / trained.seconds
    for one, place in ((trained, out), (trained.early, out.with_name(f"{out.name}-early"))):
        if one is None:
            continue
        network.load_state_dict(one.state)
        extra = {"held_out_loss": held_out_loss(network, latents, goal), "vae": hash_of((vae / WEIGHTS).read_bytes())}
        extra |= {"is_early": one is not trained, "optimizer": "Muon and AdamW" if muon else "AdamW", "side": side}
        save(place, one, config, names, goal, settings, vae, len(latents.mean) // 2, extra, before)
        print(f"{place}: held-out loss {extra['held_out_loss']:.5f}, {pace:,.0f} latents/s", flush=True)
        show(network, config, goal, autoencoder, place / "samples.png")
        write_text(place / "README.md", family_card(place))
    resuming.finish(trained.interrupted)


if __name__ == "__main__":
    run(main)
