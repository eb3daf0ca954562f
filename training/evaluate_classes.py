"""Samples a trained DiT or U-ViT, asks a classifier what it sees, and writes figures, a picture and the card."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

import tenuto
from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.files import read_json, write_json, write_text
from tenuto.provenance import provenance
from tenuto.showing.images import labelled_grid, save_image
from tenuto_lab.judging.cifar_classifier import load_cifar_classifier
from tenuto_lab.judging.classifier import load_classifier
from training import cifar10, fashion_mnist
from training.card import agreement_section, table, training_section
from training.ddim import ddim, initial_noise
from training.judge import accuracy, guesses

COLUMNS = 8  # of the picture: samples of each class
DESCRIPTIONS = {
    "dit": "A class-conditional diffusion transformer",
    "uvit": "A U-ViT, a vision transformer with the long skips of a U-Net,",
}


def judge_for(channels: int, classifier: Path, data: Path) -> tuple[nn.Module, Tensor, Tensor]:
    """What assigns classes to pictures in [-1, 1], and the held-out real pictures it is itself judged by."""
    if channels == 1:
        fashion = fashion_mnist.load(data)
        return load_classifier(classifier), fashion.test_images, fashion.test_labels
    cifar = cifar10.load(data)
    return load_cifar_classifier(classifier), cifar10.scaled(cifar.test_images), cifar.test_labels


def draw(model: tenuto.Model, labels: Tensor, steps: int, guidance: float, seed: int, batch: int) -> Tensor:
    """A picture for each label, in [-1, 1]."""
    made = []
    for start in range(0, len(labels), batch):
        stop = min(start + batch, len(labels))
        y = labels[start:stop].to(model.device)
        both = torch.cat([y, torch.full_like(y, model.config.null_class)])

        def predict(x: Tensor, t: Tensor, both: Tensor = both) -> tuple[Tensor, Tensor]:
            conditional, unconditional = model.network(torch.cat([x, x]), torch.cat([t, t]), both).chunk(2)
            return conditional, unconditional

        noise = initial_noise(model.config.sample_shape, seed, start, stop).to(model.device)
        assert model.architecture.noise is not None
        made.append(ddim(predict, noise, model.architecture.noise, steps, guidance).clamp(-1, 1).cpu())
        print(f"{stop:,} of {len(labels):,} samples", flush=True)
    return torch.cat(made)


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
) -> dict[str, Any]:
    model = tenuto.load(str(checkpoint), device=device, dtype=torch.float32)
    names = model.labels
    if samples % len(names):
        raise UsageError(f"{samples} samples cannot be shared equally among {len(names)} classes.")
    judge, real, truth = judge_for(model.config.sample_shape[0], classifier, data)
    judge = judge.to(device)
    # Sample i is of class i mod 10: any first part of the samples shows every class.
    labels = torch.arange(samples) % len(names)
    images = draw(model, labels, steps, guidance, seed, batch)
    agrees = guesses(judge, images) == labels
    result = {
        "agreement": agrees.float().mean().item(),
        "agreement_by_class": {name: agrees[labels == i].float().mean().item() for i, name in enumerate(names)},
        "classifier_accuracy": accuracy(judge, real, truth),
        "held_out_images": len(real),
        "sampler": {"kind": "ddim", "eta": 0, "spacing": "leading", "steps": steps, "guidance": guidance},
        "samples": samples,
        "precision": "float32",
        "provenance": provenance(seed=seed),
    }
    write_json(checkpoint / "evaluation.json", result)
    shown = images[: COLUMNS * len(names)].unflatten(0, (-1, len(names))).transpose(0, 1)
    save_image(labelled_grid(shown, names), checkpoint / "samples.png")
    write_text(checkpoint / "README.md", model_card(model, checkpoint))
    return result


def model_card(model: tenuto.Model, directory: Path) -> str:
    """The card, from what the JSON files beside the weights say."""
    noise = model.architecture.noise
    assert noise is not None
    parameters = sum(parameter.numel() for parameter in model.network.parameters())
    channels, side, _ = model.config.sample_shape
    grey = channels == 1
    sections = [
        f"""# {directory.name}

{DESCRIPTIONS[model.architecture.name]} ({parameters / 1e6:.1f} million parameters) that draws {side}×{side}
{"pictures of ten kinds of clothing" if grey else "colour pictures of ten kinds of things"}. It predicts noise;
{noise.timesteps} timesteps, betas {noise.schedule} from {noise.start} to {noise.end}. Weights are the training's moving
average, stored in bfloat16. It exists to measure what holding residual branches costs, on a model small enough to ship.

| config.json | |
|---|---|
{table(asdict(model.config))}

Labels: {", ".join(f"{i} {name}" for i, name in enumerate(model.labels))}; {model.config.null_class} is "no class", for
guidance.
""",
        training_section(read_json(directory / "loss.json", "training record"), directory),
        agreement_section(read_json(directory / "evaluation.json", "evaluation"), directory),
        LIMITS_GREY if grey else LIMITS_COLOUR,
    ]
    return "\n".join(sections)


LIMITS_GREY = """## Limits

It knows small grey pictures of clothing and nothing else. Its class agreement says that samples are recognisable,
not that they are as varied as real ones, and the classifier that judges them is itself wrong at times, most often
between shirts, T-shirts, pullovers and coats. Shoes point left, as they do in the data.

## Licence

The weights: Apache-2.0. The data: Fashion-MNIST, © Zalando SE, MIT.
"""
LIMITS_COLOUR = """## Limits

It knows ten kinds of things in very small pictures and nothing else. Its class agreement says that samples are
recognisable, not that they are as varied as real ones, and the classifier that judges them is itself wrong at times,
most often between cats and dogs.

## Licence

The weights: Apache-2.0. The data: CIFAR-10 (Krizhevsky, Nair and Hinton), a labelled part of the 80 million tiny
images, which its authors have withdrawn; meant for research.
"""


def main(
    checkpoint: Annotated[
        Path, typer.Option(help="The directory that training.train_dit or training.train_uvit wrote.")
    ],
    classifier: Annotated[Path, typer.Option(help="The directory of the classifier for the same data.")],
    data: Annotated[Path, typer.Option(help="The data it was trained on.")],
    samples: Annotated[int, typer.Option(min=10)] = 2000,
    steps: Annotated[int, typer.Option(min=1)] = 50,
    guidance: Annotated[float, typer.Option()] = 1.5,
    device: Annotated[str, typer.Option()] = "cuda" if torch.cuda.is_available() else "cpu",
    seed: Annotated[int, typer.Option(help="Of the first sample; each next one's is one more.")] = 0,
    batch: Annotated[int, typer.Option(min=1)] = 250,
) -> None:
    """Measure how often a model draws what it was asked to draw."""
    place = torch.device(device)
    result = evaluate(checkpoint, classifier, data, samples, steps, guidance, place, seed, batch)
    print(
        f"class agreement {result['agreement']:.2%}; "
        f"the classifier is right on {result['classifier_accuracy']:.2%} of real held-out images"
    )


if __name__ == "__main__":
    run(main)
