"""Samples the trained DiT, asks the classifier what it sees, and writes the figures, a picture and the model card.

The DDIM loop is written out here, so that the measure of the model does not rest on the package that will hold it.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from fashion_mnist import DEFAULT_PATH, HELD_OUT, LABELS, SIZE, load, run
from torch import Tensor
from train_classifier import accuracy
from train_dit import BETAS, TIMESTEPS, alphas_cumprod, parse_config

from tenuto.checkpoint import check_shapes, open_checkpoint
from tenuto.errors import UsageError
from tenuto.files import read_json, replacing, write_json, write_text
from tenuto.measure.classifier import load_classifier
from tenuto.models.dit import DiT
from tenuto.provenance import provenance

COLUMNS = 8  # of the picture: samples of each class


def load_network(directory: Path) -> DiT:
    network = DiT(parse_config(str(directory / "config.json")))
    checkpoint = open_checkpoint(directory)
    check_shapes(directory, checkpoint.shapes, {key: tuple(v.shape) for key, v in network.state_dict().items()})
    network.load_state_dict({key: checkpoint.read(key).float() for key in checkpoint.shapes})
    return network.eval()


def ddim_timesteps(steps: int) -> list[int]:
    """The "leading" spacing: 980, 960, … 0 for 50 steps of 1000."""
    if not 1 <= steps <= TIMESTEPS:
        raise UsageError(f"The model has {TIMESTEPS} timesteps, so {steps} sampling steps cannot be taken.")
    return [i * (TIMESTEPS // steps) for i in reversed(range(steps))]


@torch.no_grad()
def sample(network: DiT, noise: Tensor, labels: Tensor, steps: int, guidance: float) -> Tensor:
    """Deterministic DDIM with classifier-free guidance, both halves in one call; nothing is clipped."""
    alphas = alphas_cumprod().to(noise.device)
    one = torch.ones((), device=noise.device)
    both = torch.cat([labels, torch.full_like(labels, network.config.null_class)])
    x = noise
    for t in ddim_timesteps(steps):
        previous = t - TIMESTEPS // steps
        alpha, alpha_previous = alphas[t], alphas[previous] if previous >= 0 else one
        conditional, unconditional = network(torch.cat([x, x]), torch.full_like(both, t), both).chunk(2)
        epsilon = unconditional + guidance * (conditional - unconditional)
        clean = (x - (1 - alpha).sqrt() * epsilon) / alpha.sqrt()
        x = alpha_previous.sqrt() * clean + (1 - alpha_previous).sqrt() * epsilon
    return x


def initial_noise(seed: int, start: int, stop: int) -> Tensor:
    """Noise of the samples start..stop: each from its own seed, so that it does not depend on the batch."""
    draws = [torch.randn(1, SIZE, SIZE, generator=torch.Generator().manual_seed(seed + i)) for i in range(start, stop)]
    return torch.stack(draws)


def draw_samples(path: Path, images: Tensor) -> None:
    """images [N, 1, 32, 32], the i-th of class i mod 10, as a picture with one class a row."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = len(images) // len(LABELS)
    mosaic = images[:, 0].unflatten(0, (columns, -1)).permute(1, 2, 0, 3).flatten(2, 3).flatten(0, 1)
    figure, axes = pyplot.subplots(figsize=(0.7 * columns + 1.4, 0.7 * len(LABELS)), layout="constrained")
    axes.imshow(mosaic.numpy(), cmap="gray", vmin=-1, vmax=1, interpolation="nearest")
    axes.set_yticks([SIZE * (row + 0.5) - 0.5 for row in range(len(LABELS))], LABELS)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, bbox_inches="tight")
    pyplot.close(figure)


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
    network, judge, real = load_network(checkpoint).to(device), load_classifier(classifier).to(device), load(data)
    # Sample i is of class i mod 10: any first part of the samples shows every class.
    labels = torch.arange(samples) % len(LABELS)
    images, guesses = [], []
    for start in range(0, samples, batch):
        stop = min(start + batch, samples)
        noise = initial_noise(seed, start, stop).to(device)
        made = sample(network, noise, labels[start:stop].to(device), steps, guidance).clamp(-1, 1)
        with torch.no_grad():
            guesses.append(judge(made).argmax(1).cpu())
        images.append(made.cpu())
        print(f"{stop:,} of {samples:,} samples", flush=True)
    agrees = torch.cat(guesses) == labels
    result = {
        "agreement": agrees.float().mean().item(),
        "agreement_by_class": {name: agrees[labels == i].float().mean().item() for i, name in enumerate(LABELS)},
        "classifier_accuracy": accuracy(judge, real.test_images, real.test_labels),
        "held_out_images": len(real.test_images),
        "sampler": {"kind": "ddim", "eta": 0, "spacing": "leading", "steps": steps, "guidance": guidance},
        "samples": samples,
        "precision": "float32",
        "provenance": provenance(seed=seed),
    }
    write_json(out / "evaluation.json", result)
    try:
        draw_samples(out / "samples.png", torch.cat(images)[: COLUMNS * len(LABELS)])
    except ImportError as error:
        print(f"samples.png is not drawn: {error}.")
    write_text(out / "README.md", model_card(checkpoint, out))
    return result


def model_card(checkpoint: Path, out: Path) -> str:
    """The card, from what the JSON files beside the weights say."""
    config = parse_config(str(checkpoint / "config.json"))
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in DiT(config).parameters())
    sections = [
        f"""# DiT on Fashion-MNIST

A class-conditional diffusion transformer ({parameters / 1e6:.1f} million parameters) that draws {SIZE}×{SIZE}
pictures of ten kinds of clothing. It predicts noise; {TIMESTEPS} timesteps, betas rising linearly from
{BETAS[0]} to {BETAS[1]}. Weights are the training's moving average, stored in bfloat16. It exists to measure what
holding residual branches costs, on a model small enough to ship.

| config.json | |
|---|---|
{table(asdict(config))}

Labels: {", ".join(f"{i} {name}" for i, name in enumerate(LABELS))}; {config.num_classes} is "no class", for guidance.
"""
    ]
    if (checkpoint / "loss.json").exists():
        sections.append(training_section(read_json(checkpoint / "loss.json", "training record"), out))
    if (out / "evaluation.json").exists():
        sections.append(evaluation_section(read_json(out / "evaluation.json", "evaluation"), out))
    sections.append(
        """## Limits

It knows small grey pictures of clothing and nothing else. Its class agreement says that samples are recognisable,
not that they are as varied as real ones, and the classifier that judges them is itself wrong at times, most often
between shirts, T-shirts, pullovers and coats. Shoes point left, as they do in the data.

## Licence

The weights: Apache-2.0. The data: Fashion-MNIST, © Zalando SE, MIT.
"""
    )
    return "\n".join(sections)


def training_section(record: dict[str, Any], out: Path) -> str:
    made = record["provenance"]
    rows = {
        "Command": f"`{made['command']}`",
        "Data": f"{record['data']} (Fashion-MNIST, Zalando Research, MIT), less {HELD_OUT:,} held out of each class",
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
        "Classifier on real held-out images": f"{record['classifier_accuracy']:.2%} of {record['held_out_images']:,}",
        "Device": made["hardware"],
        **versions(made),
    }
    by_class = {name: f"{share:.1%}" for name, share in record["agreement_by_class"].items()}
    picture = "\n![Samples, one class a row](samples.png)\n" if (out / "samples.png").exists() else ""
    return (
        "## Evaluation\n\n"
        "Class agreement is the share of samples that the classifier assigns to the class asked for.\n\n"
        f"| | |\n|---|---|\n{table(rows)}\n\n| Class | Agreement |\n|---|---|\n{table(by_class)}\n{picture}"
    )


def versions(made: dict[str, Any]) -> dict[str, Any]:
    return {
        "Seed": made["seed"],
        "Versions": f"Python {made['python']}, torch {made['torch']}",
        "Commit": made["commit"],
    }


def table(rows: dict[str, Any]) -> str:
    return "\n".join(f"| {key} | {value} |" for key, value in rows.items())


def main(
    checkpoint: Annotated[Path, typer.Option(help="The directory that train_dit.py wrote.")],
    classifier: Annotated[Path, typer.Option(help="The directory that train_classifier.py wrote.")],
    data: Annotated[Path, typer.Option(help="The file made by fashion_mnist.py.")] = DEFAULT_PATH,
    samples: Annotated[int, typer.Option(min=len(LABELS))] = 2000,
    steps: Annotated[int, typer.Option(min=1)] = 50,
    guidance: Annotated[float, typer.Option()] = 1.5,
    device: Annotated[str, typer.Option()] = "cuda" if torch.cuda.is_available() else "cpu",
    seed: Annotated[int, typer.Option(help="Of the first sample; each next one's is one more.")] = 0,
    batch: Annotated[int, typer.Option(min=1)] = 250,
    out: Annotated[Path | None, typer.Option(help="Where to write; the checkpoint's directory if not given.")] = None,
) -> None:
    """Measure how often the DiT draws what it was asked to draw."""
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
        f"class agreement {result['agreement']:.2%}; "
        f"the classifier is right on {result['classifier_accuracy']:.2%} of real held-out images"
    )


if __name__ == "__main__":
    run(main)
