"""Trains the family's UNet: SDXL's layout, conditioned by captions, on the latents of Tiny-ImageNet, for a given time.

    python -m training.family_unet --seconds 100 --vae weights/natural-dit/vae --out data/family/unet

The latents, the autoencoder, the noise levels and the loss are those of training.family, so that this network and the
DiTs differ in the network only. What it should draw is said by a caption made from the class name, and a text encoder
of its own is trained with it. What is written is a checkpoint that `tenuto.load` reads, as diffusers lays pipelines
out, with the autoencoder in its folder `vae`.

A training that was killed goes on when its command is repeated, as training.family's does.

--early also writes the averaged weights as they were after that share of the time, to a folder beside --out whose name
ends in -early.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

from scripts.command_line import run
from tenuto.files import read_json, write_text
from tenuto.models import OWN_FIELDS, Model
from tenuto_lab.networks.text_encoder import TextConfig, load_text_encoder
from training.autoencoder import WEIGHTS, Autoencoder, load_autoencoder
from training.captions import EMPTY
from training.card import table
from training.class_captions import asked, caption, captions, vocabulary
from training.ddim import chance
from training.family import (
    STATE_EVERY,
    Condition,
    Latents,
    copy_vae,
    drawing_from,
    hash_of,
    held_out_loss,
    resumed_at,
    show,
    source,
    stored_latents,
)
from training.family_card import GUIDANCE, rest_of_card, said_of_early, said_of_goal
from training.loop import (
    Batch,
    Compile,
    Config,
    Device,
    Ema,
    MaxSteps,
    Out,
    Rate,
    Seconds,
    Seed,
    Settings,
    StateEvery,
    Trained,
    default_device,
    save_record,
    train,
)
from training.objectives import Objective, objective
from training.resuming import Resuming
from training.tiny_imagenet import DEFAULT_PATH, SIZE
from training.train_sdxl import EMPTY_SHARE, Painter, make_painter, parse_config, save_painter
from training.train_sdxl import SHIPPED as IN_PIXELS

WIDTH = 256  # of the text
SHIPPED: dict[str, Any] = {  # 30.5 M parameters; self- and cross-attention at 8×8 and 4×4, as SDXL has none at the top
    **IN_PIXELS,
    "sample_size": 16,
    "in_channels": 4,
    "out_channels": 4,
    "block_out_channels": [96, 160, 224],
    "attention_head_dim": [3, 5, 7],  # diffusers' name for the number of heads, of 32 channels each here
    "cross_attention_dim": WIDTH,
    "projection_class_embeddings_input_dim": 6 * IN_PIXELS["addition_time_embed_dim"] + WIDTH,
}


class ByClass(nn.Module):
    """A painter that is asked by class, as the DiTs are: each class stands for its plain caption."""

    ids: Tensor

    def __init__(self, painter: Painter, names: Sequence[str], sample_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.painter, self.sample_shape = painter, sample_shape
        self.num_classes = self.null_class = len(names)
        self.register_buffer("ids", painter.text_encoder.tokenize(asked(names)), persistent=False)

    def forward(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        """Noised latents [B, C, H, W], timesteps [B], classes [B] -> the noise in the latents."""
        found: Tensor = self.painter(x, t, self.ids[labels])
        return found


def by_class(model: Model) -> ByClass:
    """A loaded UNet of the family, apart from the seam, so that it can be compiled."""
    painter = make_painter(model.config.to_diffusers(), model.text_encoder.config)
    painter.unet.load_state_dict(model.network.state_dict())
    painter.text_encoder.load_state_dict(model.text_encoder.state_dict())
    network = ByClass(painter, model.labels, model.config.sample_shape)
    return network.to(model.device).eval().requires_grad_(False)


def fitted(config: dict[str, Any], autoencoder: Autoencoder) -> dict[str, Any]:
    """The config for this autoencoder's latents."""
    channels, size = autoencoder.config.latent_channels, autoencoder.config.latent_size
    return {**config, "in_channels": channels, "out_channels": channels, "sample_size": size}


def text_config(names: Sequence[str]) -> TextConfig:
    return TextConfig(vocabulary=vocabulary(names), width=WIDTH)


def caption_or_none(painter: Painter, names: Sequence[str], device: torch.device) -> Condition:
    """Token ids of one of the class's captions, sometimes of the empty one."""
    encoder = painter.text_encoder
    known = torch.stack([encoder.tokenize(captions(name)) for name in names]).to(device)  # [class, template, length]
    empty = encoder.tokenize([EMPTY]).to(device)

    def condition(y: Tensor, generator: torch.Generator) -> Tensor:
        variant = torch.randint(known.shape[1], y.shape, generator=generator, device=device)
        return torch.where(chance(EMPTY_SHARE, y, generator)[:, None], empty, known[y, variant])

    return condition


def train_unet(
    latents: Latents,
    config: dict[str, Any],
    names: Sequence[str],
    goal: Objective,
    settings: Settings,
    resuming: Resuming | None = None,
) -> tuple[Painter, Trained]:
    """The painter with the averaged weights, and the record. resuming: where the state is saved, and gone on from"""
    torch.manual_seed(settings.seed)
    device = latents.mean.device
    painter = make_painter(config, text_config(names)).to(device)
    painter.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    condition = caption_or_none(painter, names, device)
    loss_of, resuming = drawing_from(latents, condition, goal, settings, resuming)
    trained = train(painter, loss_of, settings, resuming=resuming)
    painter.load_state_dict(trained.state)
    return painter.eval(), trained


def save(
    out: Path,
    trained: Trained,
    config: dict[str, Any],
    names: Sequence[str],
    goal: Objective,
    settings: Settings,
    vae: Path,
    pictures: int,
    extra: dict[str, Any],
) -> None:
    config = {**config, "labels": list(names), "guidance": GUIDANCE}
    save_painter(out, trained.state, config, text_config(names), goal.scheduler, torch.float16)
    copy_vae(vae, out)
    save_record(out, trained, settings, source(pictures), None, {"objective": goal.name, **extra})


def unet_card(directory: Path) -> str:
    """The card, from what the JSON files beside the weights say."""
    config = read_json(directory / "unet" / "config.json", "UNet config")
    values = {key: value for key, value in config.items() if key not in OWN_FIELDS and not key.startswith("_")}
    record, names = read_json(directory / "loss.json", "training record"), config["labels"]
    encoder = load_text_encoder(directory / "text_encoder")
    own = sum(parameter.numel() for parameter in encoder.parameters())
    examples = ", ".join(f'"{caption(name)}"' for name in names[:3])
    return f"""# {directory.name}

diffusers' UNet in SDXL's layout ({(record["parameters"] - own) / 1e6:.1f} million parameters) that draws {SIZE}×{SIZE}
pictures of {len(names)} kinds of things from captions. It works on 16×16 latents of the autoencoder in `vae`. A text
encoder of its own ({own / 1e6:.1f} million parameters, {len(encoder.config.vocabulary)} words) was trained with it.
{said_of_goal(record)}
Weights are the training's moving average, stored in float16. {said_of_early(record)}

| unet/config.json | |
|---|---|
{table(values)}

Captions are like {examples}; the empty one is for guidance. Size and crop conditioning are always 16×16 and none.

{rest_of_card(directory, record, len(names))}
Kinds of things: {", ".join(names)}.
"""


def main(
    out: Out,
    seconds: Seconds,
    vae: Annotated[Path, typer.Option(help="The autoencoder that training.train_vae wrote.")],
    data: Annotated[Path, typer.Option(help="The folder made by training.tiny_imagenet.")] = DEFAULT_PATH,
    config: Config = None,
    batch: Batch = 512,
    lr: Rate = 6e-4,
    ema: Ema = 0.999,
    device: Device = default_device(),
    seed: Seed = 0,
    compile: Compile = True,
    max_steps: MaxSteps = None,
    early: Annotated[
        float | None, typer.Option(min=0.01, max=0.99, help="Write the weights after this share of the time, too.")
    ] = None,
    state_every: StateEvery = STATE_EVERY,
) -> None:
    """Train a UNet on the latents of Tiny-ImageNet. Ctrl-C saves what there is; the same command then goes on."""
    where = torch.device(device)
    goal = objective("noise", where)
    settings = Settings(seconds, batch, lr, ema, seed, compile, max_steps, early=early, keep_every=state_every)
    autoencoder, names = load_autoencoder(vae), read_json(data / "classes.json", "list of classes")["names"]
    unet = fitted(parse_config(config, SHIPPED), autoencoder)
    latents = stored_latents(vae, data, where)
    resuming = resumed_at(out, settings, unet, vae, latents)
    painter, trained = train_unet(latents, unet, names, goal, settings, resuming)
    network = ByClass(painter, names, (unet["in_channels"], unet["sample_size"], unet["sample_size"])).to(where).eval()
    pace = trained.steps * settings.batch / trained.seconds
    for one, place in ((trained, out), (trained.early, out.with_name(f"{out.name}-early"))):
        if one is None:
            continue
        painter.load_state_dict(one.state)
        extra = {"held_out_loss": held_out_loss(network, latents, goal), "vae": hash_of((vae / WEIGHTS).read_bytes())}
        extra |= {"is_early": one is not trained, "optimizer": "AdamW"}
        save(place, one, unet, names, goal, settings, vae, len(latents.mean) // 2, extra)
        print(f"{place}: held-out loss {extra['held_out_loss']:.5f}, {pace:,.0f} latents/s", flush=True)
        show(network, network, goal, autoencoder, place / "samples.png")
        write_text(place / "README.md", unet_card(place))
    resuming.finish(trained.interrupted)


if __name__ == "__main__":
    run(main)
