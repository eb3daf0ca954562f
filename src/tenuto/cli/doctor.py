"""`tenuto doctor`: what this machine has for Tenuto, what it lacks, and what to install for that."""

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir
from typing import Annotated, Any, Literal

import typer

from tenuto import __version__
from tenuto.cli.app import AsJson, app
from tenuto.errors import TenutoError, first_line
from tenuto.extras import EXTRAS, install, missing

Status = Literal["fine", "absent", "broken"]
MARKS = {"fine": "[green]✓[/]", "absent": "[yellow]–[/]", "broken": "[red]✗[/]"}
PACKAGES = ("torch", "diffusers", "transformers", "triton", "huggingface_hub", "safetensors", "gradio", "lm_eval")


@app.command(epilog="Example: tenuto doctor --json")
def doctor(
    network: Annotated[bool, typer.Option("--network", help="Also ask the hub whether it answers.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look at this machine: versions, GPU, what is available, and what to install for the rest.

    Ends with 1 if something is broken. What is merely not installed is not broken.
    """
    from tenuto.cli.console import print_json

    diagnosis = diagnose(network)
    if as_json:
        print_json(diagnosis.to_json())
    else:
        _tell(diagnosis)
    if not diagnosis.healthy:
        raise typer.Exit(1)


@dataclass(frozen=True)
class Finding:
    name: str
    status: Status  # absent: it works without, but something is left out; broken: what should work does not
    what: str
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    versions: dict[str, str | None]  # None: not installed
    hardware: dict[str, Any]
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        return all(finding.status != "broken" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "healthy": self.healthy}


def diagnose(network: bool = False) -> Diagnosis:
    """Look at this machine; the hub is asked only if `network` says so."""
    looks: Sequence[Callable[[], list[Finding]]] = (_torch, _gpu, _compilation, _extras, _models, _caches)
    findings = [finding for look in looks for finding in look()]
    if network:
        findings.append(_hub())
    return Diagnosis(_versions(), _hardware(), tuple(findings))


def _versions() -> dict[str, str | None]:
    return {"tenuto": __version__, "python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _hardware() -> dict[str, Any]:
    from tenuto.provenance import cpu_name

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found: dict[str, Any] = {"cpu": cpu_name(), "cores": cores, "cuda": None, "gpus": []}
    torch = _import_torch()
    if torch is not None:
        found["threads"] = torch.get_num_threads()
        found["cuda"] = torch.version.cuda
        if torch.cuda.is_available():
            found["gpus"] = [_gpu_facts(torch.cuda.get_device_properties(i)) for i in range(torch.cuda.device_count())]
    return found


def _gpu_facts(properties: Any) -> dict[str, Any]:
    capability = f"{properties.major}.{properties.minor}"
    return {"name": properties.name, "gib": round(properties.total_memory / 2**30, 1), "capability": capability}


def _import_torch() -> Any:
    try:
        import torch
    except Exception:  # a library that it links against, say
        return None
    return torch


def _torch() -> list[Finding]:
    try:
        import torch

        torch.linalg.eigvalsh(torch.eye(2))
    except Exception as error:
        return [Finding("torch", "broken", first_line(error), "pip install --force-reinstall torch")]
    return [Finding("torch", "fine", f"{torch.__version__} computes")]


def _gpu() -> list[Finding]:
    torch = _import_torch()
    if torch is None:
        return []
    if not torch.cuda.is_available():
        if torch.version.cuda is None:
            why, remedy = "this torch was built without CUDA", "with an NVIDIA GPU: https://pytorch.org/get-started"
        else:
            why, remedy = "torch sees no CUDA device", "check the driver with nvidia-smi"
        return [Finding("CUDA graphs", "absent", f"{why}; schedules run by skipping, on the CPU", remedy)]
    try:
        _capture(torch)
    except Exception as error:
        return [Finding("CUDA graphs", "broken", f"none can be recorded: {first_line(error)}", "update the driver")]
    return [Finding("CUDA graphs", "fine", "recorded and replayed; schedules run as graphs (--device cuda)")]


def _capture(torch: Any) -> None:
    x, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        y = x * 2
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        y = x * 2
    graph.replay()
    if y.sum().item() != 8:
        raise TenutoError("a replayed graph gave a wrong result")


def _compilation() -> list[Finding]:
    torch = _import_torch()
    if torch is None:
        return []
    if not torch.cuda.is_available():
        return [Finding("compilation", "absent", "--compile is worth its time on a GPU only")]
    if find_spec("triton") is None:
        return [Finding("compilation", "absent", "--compile and the fused kernels need triton", "pip install triton")]
    return [Finding("compilation", "fine", "triton is there for --compile and the fused kernels")]


def _extras() -> list[Finding]:
    findings = []
    for extra, packages in EXTRAS.items():
        if absent := missing(extra):
            what = f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed"
            findings.append(Finding(f"extra {extra}", "absent", what, install(extra)))
        else:
            findings.append(Finding(f"extra {extra}", "fine", ", ".join(packages)))
    return findings


def _models() -> list[Finding]:
    if _import_torch() is None:
        return []
    from tenuto.models import SHIPPED, open_model, place_of

    findings = []
    for name in SHIPPED:
        if (place := place_of(name)) is None:
            findings.append(Finding(name, "absent", "its weights are not here", "set TENUTO_WEIGHTS to their folder"))
            continue
        try:
            findings.append(Finding(name, "fine", f"{len(open_model(name).units)} units, in {place}"))
        except TenutoError as error:
            findings.append(Finding(name, "broken", str(error), "fetch the weights again"))
    return findings


def _caches() -> list[Finding]:
    from huggingface_hub import constants

    places = {
        "hub cache": (Path(constants.HF_HUB_CACHE), "HF_HOME"),
        "compilation cache": (
            Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or gettempdir()),
            "TORCHINDUCTOR_CACHE_DIR",
        ),
    }
    findings = []
    for name, (place, variable) in places.items():
        here = next(folder for folder in (place, *place.parents) if folder.exists())
        if os.access(here, os.W_OK):
            findings.append(Finding(name, "fine", f"{place} can be written to"))
        else:
            remedy = f"set {variable} to a folder of yours"
            findings.append(Finding(name, "broken", f"{place} cannot be written to", remedy))
    return findings


def _hub() -> Finding:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return Finding("hub", "absent", "HF_HUB_OFFLINE is set: only what is cached is used", "unset HF_HUB_OFFLINE")
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    try:
        urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=5).close()
    except HTTPError:
        pass  # it answered
    except (OSError, ValueError) as error:
        return Finding("hub", "absent", f"{constants.ENDPOINT} does not answer ({first_line(error)})", "go online")
    return Finding("hub", "fine", f"{constants.ENDPOINT} answers")


def _tell(diagnosis: Diagnosis) -> None:
    from rich.table import Table

    from tenuto.cli.console import out, quoted

    hardware = diagnosis.hardware
    facts = Table.grid(padding=(0, 2))
    facts.add_column(justify="right", style="dim")
    facts.add_column()
    for name, number in diagnosis.versions.items():
        facts.add_row(name, number or "[dim]not installed[/]")
    facts.add_row("CUDA", hardware["cuda"] or "[dim]not in this torch[/]")
    facts.add_row("CPU", quoted(f"{hardware['cpu']}, {hardware['cores']} cores"))
    for gpu in hardware["gpus"]:
        facts.add_row("GPU", quoted(f"{gpu['name']}, {gpu['gib']} GiB, capability {gpu['capability']}"))
    out.print(facts)
    findings = Table.grid(padding=(0, 2))
    for finding in diagnosis.findings:
        remedy = f"\n[dim]→ {quoted(finding.remedy)}[/]" if finding.remedy else ""
        findings.add_row(MARKS[finding.status], finding.name, quoted(finding.what) + remedy)
    out.print()
    out.print(findings)
    out.print("\nNothing is broken." if diagnosis.healthy else "\n[bold]Something is broken[/]: see ✗ above.")
