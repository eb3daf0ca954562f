"""Samples the trained UNet by caption, asks the classifier what it sees, and writes figures, a picture and the card.

The DDIM loop is written out here, so that the measure of the model does not rest on the package that will hold it.
"""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from PIL import Image
from torch import Tensor

import tenuto
from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.files import read_json, replacing, write_json, write_text
from tenuto.models import open_model
from tenuto.provenance import provenance
from tenuto_lab.judging.cifar_classifier import load_cifar_classifier
from tenuto_lab.networks.text_encoder import load_text_encoder
from training.captions import COLOURS, EMPTY, NOUNS, captions, colours
from training.card import agreement_section, table, training_section
from training.cifar10 import DEFAULT_PATH, LABELS, SIZE, load, scaled
from training.ddim import ddim, initial_noise
from training.judge import accuracy, guesses
from training.train_sdxl import NOISE, Painter

COLUMNS = 8  # of the picture: samples of each class
SCALE = 2
COLOUR_CLASSES = ("automobile", "truck", "bird")  # things that come in colours


def load_painter(directory: Path) -> Painter:
    model = tenuto.load(str(directory))
    return Painter(model.network.denoiser, model.text_encoder).eval().requires_grad_(False)  # type: ignore[arg-type]


def sample(painter: Painter, noise: Tensor, ids: Tensor, steps: int, guidance: float) -> Tensor:
    empty = painter.text_encoder.tokenize([EMPTY]).to(ids.device).expand(len(ids), -1)
    both = torch.cat([ids, empty])

    def predict(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        conditional, unconditional = painter(torch.cat([x, x]), torch.cat([t, t]), both).chunk(2)
        return conditional, unconditional

    return ddim(predict, noise, NOISE, steps, guidance)


def to_bytes(images: Tensor) -> Tensor:
    return ((images.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


def draw(
    painter: Painter, texts: list[str], steps: int, guidance: float, seed: int, batch: int, device: torch.device
) -> Tensor:
    """A picture for each caption, uint8 [N, 3, 32, 32]."""
    ids, made = painter.text_encoder.tokenize(texts), []
    for start in range(0, len(texts), batch):
        stop = min(start + batch, len(texts))
        noise = initial_noise((3, SIZE, SIZE), seed, start, stop).to(device)
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
    agrees = guesses(judge, scaled(images)) == labels
    colour_agreement = (colours(painted) == torch.tensor([c for _, c in named])).float().mean().item()
    result = {
        "agreement": agrees.float().mean().item(),
        "agreement_by_class": {name: agrees[labels == i].float().mean().item() for i, name in enumerate(LABELS)},
        "colour_agreement": colour_agreement,
        "measures": {"Colour agreement": f"{colour_agreement:.2%} of {len(named):,}"},
        "classifier_accuracy": accuracy(judge, scaled(real.test_images), real.test_labels),
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
    stored = open_model(str(checkpoint))
    encoder = load_text_encoder(checkpoint / "text_encoder")
    parameters = sum(torch.Size(shape).numel() for shape in stored.checkpoint.shapes.values())
    own = sum(parameter.numel() for parameter in encoder.parameters())
    arguments = {key: value for key, value in stored.config.to_diffusers().items() if not key.startswith("_")}
    sections = [
        f"""# SDXL in miniature, on CIFAR-10

diffusers' UNet in SDXL's structure ({parameters / 1e6:.1f} million parameters) that draws {SIZE}×{SIZE} colour
pictures from captions, in pixels rather than latents. A text encoder of its own ({own / 1e6:.2f} million parameters,
{len(encoder.config.vocabulary)} words) was trained with it. It predicts noise; {NOISE.timesteps} timesteps, betas
{NOISE.schedule} from {NOISE.start} to {NOISE.end}, as SDXL's. Weights are the training's
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
        sections.append(agreement_section(read_json(out / "evaluation.json", "evaluation"), out))
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


def main(
    checkpoint: Annotated[Path, typer.Option(help="The directory that training.train_sdxl wrote.")],
    classifier: Annotated[Path, typer.Option(help="The directory that training.train_cifar_classifier wrote.")],
    data: Annotated[Path, typer.Option(help="The file made by training.cifar10.")] = DEFAULT_PATH,
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
