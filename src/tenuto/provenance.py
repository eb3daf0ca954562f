"""Where a number came from: the command, the commit, the versions and the hardware that made it."""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tenuto import __version__


def provenance(device: object = None, **extra: Any) -> dict[str, Any]:
    """What to store beside every result; `extra` adds entries of this result only (for example a seed).

    `device` is where the work was done; by default the GPU, if there is one.
    """
    return {
        "command": command(),
        "commit": commit(),
        "tenuto": __version__,
        "python": platform.python_version(),
        **{package: version(package) for package in ("torch", "diffusers") if find_spec(package)},
        "hardware": hardware(device),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        **extra,
    }


def origin(made: Mapping[str, Any]) -> str:
    """A provenance in Markdown, for the head of a table."""
    return f"`{made['command']}` at {made['commit']}, torch {made['torch']}, {made['hardware']}, {made['date']}"


def command() -> str:
    """The command line as one would type it from the project's root."""
    started = getattr(sys.modules.get("__main__"), "__spec__", None)  # set by python -m
    if started is not None:
        module = started.name.removesuffix(".__main__")
        ours = {"tenuto": ["tenuto"], "tenuto.cli": ["tenuto"], "tenuto_lab": ["tenuto", "lab"]}
        return shlex.join([*ours.get(module, ["python", "-m", module]), *sys.argv[1:]])
    program = Path(sys.argv[0])
    script = ["python", f"{program.parent.name}/{program.name}"] if program.suffix == ".py" else [program.name]
    return shlex.join([*script, *sys.argv[1:]])


def hardware(device: object = None) -> str:
    import torch

    if torch.cuda.is_available() and not str(device).startswith("cpu"):
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"{cpu_name()}, {threads} thread{'' if threads == 1 else 's'}"


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def commit() -> str:
    """The commit that this package runs from: TENUTO_COMMIT, or else its checkout's commit, or else "unknown"."""
    if named := os.environ.get("TENUTO_COMMIT"):
        return named
    here = Path(__file__).parent
    try:
        arguments = {"cwd": here, "capture_output": True, "text": True, "check": True}
        subprocess.run(["git", "ls-files", "--error-unmatch", Path(__file__).name], **arguments)  # type: ignore[call-overload]
        found = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], **arguments).stdout.strip()  # type: ignore[call-overload]
        changed = subprocess.run(["git", "status", "--porcelain", "-uno", "."], **arguments).stdout.strip()  # type: ignore[call-overload]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{found}, with changes" if changed else found
