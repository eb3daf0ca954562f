"""`tenuto lab eval pictures`: a set of pictures against a reference."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tenuto.cli.app import AsJson, Device
from tenuto_lab.cli.app import evaluation, interval

Features = Literal["inception", "own"]


@evaluation.command(
    epilog="Example: tenuto lab eval pictures run --reference VIRTUAL_imagenet256_labeled.npz --device cuda"
)
def pictures(
    samples: Annotated[Path, typer.Argument(metavar="DIR_OR_NPZ", help="A set of pictures.")],
    reference: Annotated[
        Path | None,
        typer.Option(help="Pictures (directory, npz) or statistics (npz with mu and sigma; safetensors of ours)."),
    ] = None,
    features: Annotated[
        Features, typer.Option(help="inception: torch-fidelity's, as published. own: the shipped classifiers'.")
    ] = "inception",
    inception: Annotated[
        Path | None, typer.Option(help="Inception weights in a file, for a machine without network.")
    ] = None,
    clip: Annotated[
        Path | None, typer.Option(help="A CLIP model's directory: also score pictures by their captions.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="A second set from the same noise: tell the paired difference of the distances.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=65_536, help="Pictures looked at at a time.")] = 64,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the figures here, as JSON.")] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Judge a set of pictures against a reference, and say under which conditions the figures hold."""
    from tenuto.cli.app import check_device
    from tenuto.cli.console import out, print_json
    from tenuto.extras import needs
    from tenuto.files import check_writable, write_json
    from tenuto_lab.full_size.fidelity import evaluate_pictures

    if features == "inception" and (inception is None or inception.suffix != ".pt"):  # TorchScript needs nothing
        needs("--features inception (--features own does not need it)", "eval", "torch_fidelity")
    if clip is not None:
        needs("--clip", "eval", "transformers")
    check_device(device)
    if output is not None:
        check_writable(output, reads=[samples, *([reference] if reference else [])])
    report = evaluate_pictures(
        samples,
        reference,
        features=features,
        inception=inception,
        clip=clip,
        batch=batch,
        device=device,
        against_set=against,
    )
    if output is not None:
        write_json(output, report)
    if as_json:
        print_json(report)
        return
    for line in _lines(report):
        out.print(line, soft_wrap=True, markup=False)


def _lines(report: dict[str, Any]) -> list[str]:
    from tenuto.cli.console import counted
    from tenuto_lab.cli.eval_samples import conditions

    figures, reference, drawn = report["figures"], report["reference"], report["samples"]
    value, low, high = figures["fid"]
    lines = [f"Fréchet distance   {value:.3f} {interval(low, high, drawn['count'])}"]
    if "fid_delta" in figures:
        value, low, high = figures["fid_delta"]
        told = interval(low, high, drawn["count"])
        lines.append(f"less that of the other set  {value:+.3f} {told}, paired: {report['against']['name']}")
    if figures["sfid"] is not None:
        lines.append(f"spatial, sFID      {figures['sfid']:.3f}")
    if figures["inception_score"] is not None:
        lines.append("inception score    {:.3f} ± {:.3f}".format(*figures["inception_score"]))
    if figures["precision"] is not None:
        lines.append(f"precision, recall  {figures['precision']:.3f}, {figures['recall']:.3f}")
    if "clip_score" in figures:
        value, low, high = figures["clip_score"]
        lines.append(f"CLIP score         {value:.2f} {interval(low, high, drawn['count'], '.2f')}")
    count = "" if reference["count"] is None else f", {counted(reference['count'], 'picture')}"
    known = drawn["manifest"]
    made = ", and no manifest tells how they were made" if known is None else f": {conditions(known)}"
    return [
        *(line.rstrip() for line in lines),
        f"in {report['features']}, against {reference['name']}{count}",
        f"{counted(drawn['count'], 'picture')} of {drawn['name']}{made}",
    ]
