"""The ComfyUI node in real samplings with ComfyUI's own code, on the CPU: every sampler, three small models.

    git clone https://github.com/comfyanonymous/ComfyUI ../ComfyUI
    python -m benchmarks.comfyui ../ComfyUI     # writes results/comfyui/

The node's tests are run too, against the same checkout.

unet and flux are random (noise prediction, flow); trained is this project's tiny-sdxl, which draws pictures. dB is the
PSNR to the same sampler's full run from the same noise; "fewer steps" is the sampler itself with about as many
evaluations as the node computes.
"""

import importlib.metadata
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.comfy_models import Studio, held, load_comfy
from benchmarks.places import ROOT, results_of
from scripts.command_line import run
from tenuto.files import write_json, write_text
from tenuto.provenance import origin, provenance

RESULTS = results_of("comfyui")
TESTS = ("tests/integrations/test_comfyui.py", "tests/integrations/test_comfyui_parts.py")
STEPS, BUDGET = 30, 0.3
TRAINED = ("euler", "dpmpp_2m", "uni_pc", "res_multistep", "deis", "heun", "euler_ancestral")  # others take long


def decibels(value: torch.Tensor, full: torch.Tensor) -> float | None:
    error = float((value - full).square().mean())
    span = float(full.max() - full.min())
    return None if error == 0 else round(10 * torch.log10(torch.tensor(span**2 / error)).item(), 1)


def tried(studio: Studio, sampler: str, steps: int) -> dict[str, Any]:
    scheduler = {"scheduler": "karras"} if studio.kind == "trained" else {}
    with studio.counting() as every:
        began = time.perf_counter()
        full = studio.draw(sampler=sampler, steps=steps, **scheduler)
        seconds = time.perf_counter() - began
    reports: list[Any] = []
    with studio.counting() as some:
        began = time.perf_counter()
        result = studio.draw(held(studio, reports.append, budget=BUDGET), sampler, steps, **scheduler)
        seconds_held = time.perf_counter() - began
    same = torch.equal(studio.draw(held(studio, budget=1.0), sampler, steps, **scheduler), full)
    row: dict[str, Any] = {
        "model": studio.kind, "sampler": sampler, "steps": steps, "evaluations": every[0], "computed": some[0],
        "in_full_because": reports[0].in_full_because, "psnr": decibels(result, full),
        "budget_one_is_identical": same,
        "seconds_full": round(seconds, 3), "seconds_held": round(seconds_held, 3),
    }  # fmt: skip
    if not row["in_full_because"]:
        fewer = max(2, round(steps * some[0] / every[0]))
        with studio.counting() as plain:
            row["psnr_fewer_steps"] = decibels(studio.draw(sampler=sampler, steps=fewer, **scheduler), full)
        row["evaluations_fewer_steps"] = plain[0]
    return row


def main(
    checkout: Annotated[Path, typer.Argument(help="a checkout of ComfyUI")],
    out: Annotated[Path, typer.Option(help="where the result goes")] = RESULTS,
) -> None:
    torch.set_num_threads(1)
    comfy = load_comfy(checkout.resolve())
    rows = []
    for kind in ("unet", "flux", "trained"):
        studio = Studio(comfy, kind, 2 if kind == "trained" else 1)
        for sampler in TRAINED if kind == "trained" else comfy.samplers.SAMPLER_NAMES:
            rows.append(tried(studio, sampler, STEPS))
            print(rows[-1], flush=True)
    made = provenance("cpu", comfyui=_version(checkout), torchvision=_torchvision(), tests=_tests(checkout))
    write_json(out, {"provenance": made, "samplings": rows})
    write_text(out.with_suffix(".md"), table(made, rows))


def table(made: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    lines = [
        "# ComfyUI",
        "",
        f"Written by {origin(made)}; ComfyUI {made['comfyui']}; torchvision {made['torchvision']}.",
        "",
        f"`TENUTO_COMFYUI=../ComfyUI python -m pytest {' '.join(TESTS)}` at the same commits: {made['tests']}.",
        "",
        *(__doc__ or "").strip().split("\n")[7:],
    ]
    for kind in ("trained", "unet", "flux"):
        lines += ["", f"## {kind}, {STEPS} steps, budget {BUDGET}", ""]
        lines += ["| sampler | evaluations | computed | dB | dB, fewer steps (evaluations) | in full because |"]
        lines += ["| --- | --- | --- | --- | --- | --- |"]
        for row in rows:
            if row["model"] == kind:
                other = (
                    f"{row['psnr_fewer_steps']} ({row['evaluations_fewer_steps']})" if "psnr_fewer_steps" in row else ""
                )
                lines.append(
                    f"| {row['sampler']} | {row['evaluations']} | {row['computed']} | "
                    f"{'identical' if row['psnr'] is None else row['psnr']} | {other} | {row['in_full_because']} |"
                )
    return "\n".join([*lines, ""])


def _tests(checkout: Path) -> str:
    """How many of the node's tests pass against this checkout, in pytest's words."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *TESTS],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | {"TENUTO_COMFYUI": str(checkout.resolve())},
    )  # fmt: skip
    counts = re.findall(r"\d+ (?:passed|failed|skipped|errors?)\b", run.stdout)
    return ", ".join(counts) or "they could not be run"


def _version(checkout: Path) -> str:
    run = subprocess.run(
        ["git", "-C", str(checkout), "log", "-1", "--format=%h of %cs"], capture_output=True, text=True
    )
    return run.stdout.strip() or "unknown"


def _torchvision() -> str:
    """The version. ComfyUI imports torchvision, but no sampling calls it, so its Python code alone serves as well."""
    version = importlib.metadata.version("torchvision")
    return version if _compiled() else f"{version} without its compiled operators, which no sampling calls"


def _compiled() -> bool:
    from torchvision.extension import _has_ops  # type: ignore[import-untyped, import-not-found, unused-ignore]

    return bool(_has_ops())


if __name__ == "__main__":
    run(main)
