"""The cards of the Tiny-ImageNet family, from what the JSON files beside the weights say."""

from pathlib import Path
from typing import Any

from tenuto.files import read_json
from training.card import table, training_section
from training.tiny_imagenet import SIZE

GUIDANCE, STEPS = 3.0, 50  # of samples.png


def family_card(directory: Path) -> str:
    """The card, from what the JSON files beside the weights say."""
    values = read_json(directory / "config.json", "config")
    names = values.pop("labels")
    record = read_json(directory / "loss.json", "training record")
    side, latent = record.get("side", SIZE), values["input_size"]
    by = (
        "Muon updated the matrices of the blocks, and AdamW all else.\n"
        if "Muon" in record.get("optimizer", "")
        else ""
    )
    return f"""# {directory.name}

A class-conditional latent diffusion transformer ({record["parameters"] / 1e6:.1f} million parameters) that draws
{side}×{side} pictures of {len(names)} kinds of things. It works on {latent}×{latent} latents of the autoencoder in
`vae`, in patches of 2×2: {(latent // 2) ** 2} tokens. {said_of_goal(record)}
Weights are the training's moving average, stored in float16. {by}{said_of_early(record)}

| config.json | |
|---|---|
{table(values)}

{rest_of_card(directory, record, len(names))}
Labels: {", ".join(f"{i} {name}" for i, name in enumerate(names))}; {len(names)} is "no class", for guidance.
"""


def said_of_goal(record: dict[str, Any]) -> str:
    return (
        "It predicts noise; 1000 timesteps, betas linear from 0.0001 to 0.02.\n"
        "The training loss was weighted by min(SNR, 5) / SNR."
        if record["objective"] == "noise"
        else "It predicts the velocity ε − x of flow matching; the timestep is 1000 times the share of noise."
    )


def said_of_early(record: dict[str, Any]) -> str:
    return (
        f"It is a training of {record['settings']['seconds']:.0f} s as it was after {record['settings']['early']:.0%} "
        "of that time, when its learning rate had not fallen yet.\n"
        if record.get("is_early")
        else ""
    )


def rest_of_card(directory: Path, record: dict[str, Any], classes: int) -> str:
    """Training, samples, evaluation, limits and licence: alike for every network of the family."""
    evaluation = directory / "evaluation.json"
    return f"""{training_section(record, directory, "latents")}
Held-out loss, all timesteps weighted alike: {record["held_out_loss"]:.5f}.

![Samples at guidance {GUIDANCE:g}, {STEPS} steps](samples.png)

{evaluation_section(read_json(evaluation, "evaluation")) if evaluation.exists() else ""}
## Limits

It was trained for minutes, not days: some classes are recognisable and many are not. It knows {classes} kinds of
things in small pictures and nothing else.

## Licence

The weights are for research, as are the pictures they were trained on: Tiny-ImageNet, a part of ImageNet.
"""


def evaluation_section(record: dict[str, Any]) -> str:
    made = record["provenance"]
    columns = (
        "Guidance",
        "Class accuracy",
        "Among the first 5",
        "Fréchet distance, judge",
        "Fréchet distance, Inception",
    )
    header = f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|\n"
    rows = "\n".join(
        f"| {row['guidance']:g} | {row['accuracy']:.1%} | {row['accuracy_top5']:.1%} | {row['distance']:.2f} | "
        f"{'not measured' if row.get('fid') is None else format(row['fid'], '.2f')} |"
        for row in record["rows"]
    )
    real = record["reconstructed"]
    fid = "" if real.get("fid") is None else f", Inception {real['fid']:.2f}"
    return f"""## Evaluation

{record["samples"]:,} samples, classes equally represented, {record["steps"]} steps, by `{made["command"]}` at commit
{made["commit"]}. The judge is a small classifier of real pictures; on the held-out ones it is right in
{record["judge_accuracy"]:.1%}. Distances are to the real pictures of the validation split. They fall as samples are
added, so compare equal numbers only. Guidance draws pictures that are more typical of their class than real pictures
are, and so the class accuracy can be higher than on real pictures.

{header}{rows}

The same real pictures, encoded and decoded by the autoencoder: class accuracy {real["accuracy"]:.1%}, Fréchet distance
{real["distance"]:.2f}{fid}.
"""


def quantised_section(record: dict[str, Any]) -> str:
    """From the quantised.json that training.quantise wrote."""
    made, (mean, low, high, least), (before, after) = record["provenance"], record["psnr"], record["bytes"]
    judged = ""
    if "right" in record:
        judged = (
            f" The judge sees the wanted class in {record['right'][0]} pictures with float16 and in "
            f"{record['right'][1]} with 8 bits, and decides alike in {record['agree']} of {record['samples']}."
        )
    return f"""## Stored in 8 bits

The matrices of the blocks are stored as int8 with a float16 scale for each row, everything else as float16:
{after / 1e6:.1f} MB in place of {before / 1e6:.1f} MB. Loading multiplies them out. {record["samples"]} pictures at
guidance {record["guidance"]:g}, drawn from the same noise with the float16 weights and with these, agree to
{mean:.1f} dB [{low:.1f}, {high:.1f}], the least alike to {least:.1f} dB.{judged}
Any other evaluation on this card is of the float16 weights.
By `{made["command"]}` at commit {made["commit"]} on {made["hardware"]}.
"""
