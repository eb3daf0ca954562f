"""The parts that all model cards share: how a model was trained, how it was measured, and by which commands."""

from pathlib import Path
from typing import Any


def table(rows: dict[str, Any]) -> str:
    return "\n".join(f"| {key} | {value} |" for key, value in rows.items())


def versions(made: dict[str, Any]) -> dict[str, Any]:
    packages = [name for name in ("torch", "diffusers") if name in made]
    return {
        "Seed": made["seed"],
        "Versions": ", ".join([f"Python {made['python']}", *(f"{name} {made[name]}" for name in packages)]),
        "Commit": made["commit"],
    }


def training_section(record: dict[str, Any], out: Path, of: str = "images") -> str:
    """From loss.json."""
    made = record["provenance"]
    ended = ", interrupted" if record["interrupted"] else ""
    if again := record.get("resumed"):
        ended += f", resumed {'once' if again == 1 else f'{again} times'}"
    if "diverged_at" in record:
        ended = f"; the loss was no longer a number at step {record['diverged_at']:,}"
    rows = {
        "Command": f"`{made['command']}`",
        "Data": record["data"],
        "Steps": f"{record['steps']:,} of {record['settings']['batch']} {of}",
        "Time": f"{record['seconds']:.0f} s on {made['hardware']}{ended}",
        "Final loss": "none" if record["final_loss"] is None else f"{record['final_loss']:.5f}, over the last tenth",
        **versions(made),
    }
    picture = "\n![Training loss](loss.png)\n" if (out / "loss.png").exists() else ""
    section = f"## Training\n\n| | |\n|---|---|\n{table(rows)}\n{picture}"
    before = record.get("before")
    while before is not None:
        earlier, interrupted = before["provenance"], ", interrupted" if before["interrupted"] else ""
        section += (
            f"\nIt went on from {before['steps']:,} steps ({before['seconds']:.0f} s{interrupted}) of "
            f"`{earlier['command']}` at commit {earlier['commit']}.\n"
        )
        before = before.get("before")
    return section


def agreement_section(record: dict[str, Any], out: Path) -> str:
    """From the evaluation.json of a model that draws classes; `measures` adds rows of the model's own."""
    made, sampler = record["provenance"], record["sampler"]
    rows = {
        "Command": f"`{made['command']}`",
        "Sampler": f"DDIM, {sampler['steps']} steps, guidance {sampler['guidance']}, {record['precision']}",
        "Samples": f"{record['samples']:,}, classes equally represented",
        "Class agreement": f"**{record['agreement']:.2%}**",
        **record.get("measures", {}),
        "Classifier on real held-out images": f"{record['classifier_accuracy']:.2%} of {record['held_out_images']:,}",
        "Hardware": made["hardware"],
        **versions(made),
    }
    by_class = {name: f"{share:.1%}" for name, share in record["agreement_by_class"].items()}
    picture = "\n![Samples, one class a row](samples.png)\n" if (out / "samples.png").exists() else ""
    return (
        "## Evaluation\n\n"
        "Class agreement is the share of samples that the classifier assigns to the class asked for.\n\n"
        f"| | |\n|---|---|\n{table(rows)}\n\n| Class | Agreement |\n|---|---|\n{table(by_class)}\n{picture}"
    )
