"""Samples the trained UNet by caption, asks the classifier what it sees, and writes figures, a picture and the card.

The DDIM loop is written out here, so that the measure of the model does not rest on the package that will hold it.
"""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from captions import COLOURS, EMPTY, NOUNS, captions, colours
from cifar10 import DEFAULT_PATH, LABELS, SIZE, load
from loop import run
from PIL import Image
from torch import Tensor
from train_cifar_classifier import accuracy, guesses
from train_sdxl import NOISE, SAMPLER, TIMESTEPS, Painter, alphas_cumprod

from tenuto.errors import UsageError
from tenuto.files import read_json, replacing, write_json, write_text
from tenuto.integrations.diffusers import build
from tenuto.measure.cifar_classifier import load_cifar_classifier
from tenuto.models.text_encoder import load_text_encoder
from tenuto.models.unet import open_unet
from tenuto.provenance import provenance

COLUMNS = 8  # of the picture: samples of each class
SCALE = 2
COLOUR_CLASSES = ("automobile", "truck", "bird")  # things that come in colours


def load_painter(directory: Path) -> Painter:
    checkpoint, config = open_unet(directory)
    unet = build(config.to_diffusers())
    unet.load_state_dict({key: checkpoint.read(key).float() for key in checkpoint.shapes})
    return Painter(unet, load_text_encoder(directory / "text_encoder")).eval().requires_grad_(False)


def ddim_timesteps(steps: int) -> list[int]:
    """The "leading" spacing, one above the multiples: 981, 961, … 1 for 50 steps of 1000."""
    if not 1 <= steps < TIMESTEPS:
        raise UsageError(f"The model has {TIMESTEPS} timesteps, so {steps} sampling steps cannot be taken.")
    return [i * (TIMESTEPS // steps) + SAMPLER["steps_offset"] for i in reversed(range(steps))]


@torch.no_grad()
def sample(painter: Painter, noise: Tensor, ids: Tensor, steps: int, guidance: float) -> Tensor:
    """DDIM with η = 0 and classifier-free guidance, both halves in one call; nothing is clipped."""
    alphas = alphas_cumprod().to(noise.device)
    empty = painter.text_encoder.tokenize([EMPTY]).to(ids.device).expand(len(ids), -1)
    both, x = torch.cat([ids, empty]), noise
    for t in ddim_timesteps(steps):
        alpha, alpha_previous = alphas[t], alphas[max(t - TIMESTEPS // steps, 0)]
        times = torch.full((len(both),), t, device=noise.device)
        conditional, unconditional = painter(torch.cat([x, x]), times, both).chunk(2)
        epsilon = unconditional + guidance * (conditional - unconditional)
        clean = (x - (1 - alpha).sqrt() * epsilon) / alpha.sqrt()
        x = alpha_previous.sqrt() * clean + (1 - alpha_previous).sqrt() * epsilon
    return x


def initial_noise(seed: int, start: int, stop: int) -> Tensor:
    """Noise of the samples start..stop: each from its own seed, so that it does not depend on the batch."""
    return torch.stack(
        [torch.randn(3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed + i)) for i in range(start, stop)]
    )


def to_bytes(images: Tensor) -> Tensor:
    return ((images.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


def draw(
    painter: Painter, texts: list[str], steps: int, guidance: float, seed: int, batch: int, device: torch.device
) -> Tensor:
    """A picture for each caption, uint8 [N, 3, 32, 32]."""
    ids, made = painter.text_encoder.tokenize(texts), []
    for start in range(0, len(texts), batch):
        stop = min(start + batch, len(texts))
        noise = initial_noise(seed, start, stop).to(device)
        made.append(to_bytes(sample(painter, noise, ids[start:stop].to(device), steps, guidance)).cpu())
        print(f"{stop:,} of {len(texts):,} samples", flush=True)
    return torch.cat(made)


def save_picture(path: Path, images: Tensor) -> None:
    """images [N, 3, 32, 32], the i-th of class i mod 10, as a picture with one class a row."""
    mosaic = images.unflatten(0, (-1, len(LABELS))).permute(1, 3, 0, 4, 2).flatten(2, 3).flatten(0, 1)
    with replacing(path) as temporary:
        picture = Image.fromarray(mosaic.contiguous().numpy())
        picture.resize((SCALE * picture.width, SCALE * picture.height), Image.Resampling.NEAREST).save(temporary, "PNG")


def evaluate(
    checkpoint: Path,
    classifier: Path,
    data: Path,
    samples: int,
    steps: int,
    guidance: float,
    device: torch.device,
    seed: int,
    batch: int,
    out: Path,
) -> dict[str, Any]:
    if samples % len(LABELS):
        raise UsageError(f"{samples} samples cannot be shared equally among {len(LABELS)} classes.")
    painter, judge = load_painter(checkpoint).to(device), load_cifar_classifier(classifier).to(device)
    real = load(data)
    # Sample i is of class i mod 10: any first part of the samples shows every class. Captions take their turn.
    labels = torch.arange(samples) % len(LABELS)
    texts = [captions(i % len(LABELS))[i // len(LABELS) % len(captions(0))] for i in range(samples)]
    images = draw(painter, texts, steps, guidance, seed, batch, device)
    named = [(LABELS.index(name), colour) for name in COLOUR_CLASSES for colour in range(len(COLOURS))]
    named = (named * samples)[: max(samples // 5, 1)]
    painted = draw(
        painter, [f"a {COLOURS[c]} {NOUNS[n][0]}" for n, c in named], steps, guidance, seed + samples, batch, device
    )
    agrees = guesses(judge, images) == labels
    result = {
        "agreement": agrees.float().mean().item(),
        "agreement_by_class": {name: agrees[labels == i].float().mean().item() for i, name in enumerate(LABELS)},
        "colour_agreement": (colours(painted) == torch.tensor([c for _, c in named])).float().mean().item(),
        "classifier_accuracy": accuracy(judge, real.test_images, real.test_labels),
        "held_out_images": len(real.test_images),
        "sampler": {"kind": "ddim", "eta": 0, "spacing": "leading", "steps": steps, "guidance": guidance},
        "samples": samples,
        "colour_samples": len(named),
        "precision": "float32",
        "provenance": provenance(seed=seed),
    }
    write_json(out / "evaluation.json", result)
    save_picture(out / "samples.png", images[: COLUMNS * len(LABELS)])
    write_text(out / "README.md", model_card(checkpoint, out))
    return result


def model_card(checkpoint: Path, out: Path) -> str:
    """The card, from what the JSON files beside the weights say."""
    checkpointed, config = open_unet(checkpoint)
    encoder = load_text_encoder(checkpoint / "text_encoder")
    parameters = sum(torch.Size(shape).numel() for shape in checkpointed.shapes.values())
    own = sum(parameter.numel() for parameter in encoder.parameters())
    arguments = {key: value for key, value in config.to_diffusers().items() if not key.startswith("_")}
    sections = [
        f"""# SDXL in miniature, on CIFAR-10

diffusers' UNet in SDXL's structure ({parameters / 1e6:.1f} million parameters) that draws {SIZE}×{SIZE} colour
pictures from captions, in pixels rather than latents. A text encoder of its own ({own / 1e6:.2f} million parameters,
{len(encoder.config.vocabulary)} words) was trained with it. It predicts noise; {TIMESTEPS} timesteps, betas
{NOISE["beta_schedule"]} from {NOISE["beta_start"]} to {NOISE["beta_end"]}, as SDXL's. Weights are the training's
moving average, stored in bfloat16. It exists to measure what holding residual branches costs, on a model small enough
to ship.

| unet/config.json | |
|---|---|
{table(arguments)}

Captions are like "{captions(1, "red")[7]}", "{captions(8)[0]}" or "{captions(6, "green")[12]}"; the empty one is for
guidance. The colour in a training caption is measured in the middle of the picture. Size and crop conditioning
are always {SIZE}×{SIZE} and none.
"""
    ]
    if (checkpoint / "loss.json").exists():
        sections.append(training_section(read_json(checkpoint / "loss.json", "training record"), out))
    if (out / "evaluation.json").exists():
        sections.append(evaluation_section(read_json(out / "evaluation.json", "evaluation"), out))
    sections.append(
        """## Limits

It knows ten kinds of things, in small pictures, and refuses words it was never shown. Its class agreement says that
samples are recognisable, not that they are as varied as real ones, and the classifier that judges them is itself wrong
at times, most often between cats and dogs. Guidance raises agreement at the cost of variety.

## Licence

The weights: Apache-2.0. The data: CIFAR-10 (Krizhevsky, Nair and Hinton), a labelled part of the 80 million tiny
images, which its authors have withdrawn; use it for research.
"""
    )
    return "\n".join(sections)


def training_section(record: dict[str, Any], out: Path) -> str:
    made = record["provenance"]
    rows = {
        "Command": f"`{made['command']}`",
        "Data": f"{record['data']} (50,000 pictures, kept as JPEG of quality 92)",
        "Steps": f"{record['steps']:,} of {record['settings']['batch']} images",
        "Time": f"{record['seconds']:.0f} s on {made['hardware']}" + (", interrupted" if record["interrupted"] else ""),
        "Final loss": "none" if record["final_loss"] is None else f"{record['final_loss']:.5f}, over the last tenth",
        **versions(made),
    }
    picture = "\n![Training loss](loss.png)\n" if (out / "loss.png").exists() else ""
    return f"## Training\n\n| | |\n|---|---|\n{table(rows)}\n{picture}"


def evaluation_section(record: dict[str, Any], out: Path) -> str:
    made, sampler = record["provenance"], record["sampler"]
    rows = {
        "Command": f"`{made['command']}`",
        "Sampler": f"DDIM, {sampler['steps']} steps, guidance {sampler['guidance']}, {record['precision']}",
        "Samples": f"{record['samples']:,}, classes equally represented",
        "Class agreement": f"**{record['agreement']:.2%}**",
        "Colour agreement": f"{record['colour_agreement']:.2%} of {record['colour_samples']:,}",
        "Classifier on real held-out images": f"{record['classifier_accuracy']:.2%} of {record['held_out_images']:,}",
        "Hardware": made["hardware"],
        **versions(made),
    }
    by_class = {name: f"{share:.1%}" for name, share in record["agreement_by_class"].items()}
    picture = "\n![Samples, one class a row](samples.png)\n" if (out / "samples.png").exists() else ""
    return (
        "## Evaluation\n\n"
        "Class agreement is the share of samples that the classifier assigns to the class their caption asked for; "
        f"colour agreement is the share of {', '.join(COLOUR_CLASSES)} pictures whose middle is of the colour their "
        f"caption named, with {len(COLOURS)} colours to choose from.\n\n"
        f"| | |\n|---|---|\n{table(rows)}\n\n| Class | Agreement |\n|---|---|\n{table(by_class)}\n{picture}"
    )


def versions(made: dict[str, Any]) -> dict[str, Any]:
    return {
        "Seed": made["seed"],
        "Versions": f"Python {made['python']}, torch {made['torch']}, diffusers {made['diffusers']}",
        "Commit": made["commit"],
    }


def table(rows: dict[str, Any]) -> str:
    return "\n".join(f"| {key} | {value} |" for key, value in rows.items())


def main(
    checkpoint: Annotated[Path, typer.Option(help="The directory that train_sdxl.py wrote.")],
    classifier: Annotated[Path, typer.Option(help="The directory that train_cifar_classifier.py wrote.")],
    data: Annotated[Path, typer.Option(help="The file made by cifar10.py.")] = DEFAULT_PATH,
    samples: Annotated[int, typer.Option(min=len(LABELS))] = 2000,
    steps: Annotated[int, typer.Option(min=1)] = 50,
    guidance: Annotated[float, typer.Option()] = 3.0,
    device: Annotated[str, typer.Option()] = "cuda" if torch.cuda.is_available() else "cpu",
    seed: Annotated[int, typer.Option(help="Of the first sample; each next one's is one more.")] = 0,
    batch: Annotated[int, typer.Option(min=1)] = 250,
    out: Annotated[Path | None, typer.Option(help="Where to write; the checkpoint's directory if not given.")] = None,
) -> None:
    """Measure how often the UNet draws what its captions ask for."""
    result = evaluate(
        checkpoint,
        classifier,
        data,
        samples,
        steps,
        guidance,
        torch.device(device),
        seed,
        batch,
        out or checkpoint,
    )
    print(
        f"class agreement {result['agreement']:.2%}, colour agreement {result['colour_agreement']:.2%}; "
        f"the classifier is right on {result['classifier_accuracy']:.2%} of real held-out images"
    )


if __name__ == "__main__":
    run(main)
