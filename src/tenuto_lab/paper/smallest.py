"""The smallest size at which an experiment can be tried, and how long that took on one core of a CPU."""

from pathlib import Path
from typing import Any

from tenuto_lab.paper import EXPERIMENTS
from tenuto_lab.result_files import MADE, by_name, fields, number, read_result

SIZE = ("--samples", "2", "--seeds", "1", "--steps", "8")
LONG = ("oracle", "freezing")  # whose search, or training, takes long at any size


def options_of(name: str) -> tuple[str, ...]:
    """The options to try an experiment with: one small model, few samples, few steps."""
    models = EXPERIMENTS[name].models
    return ("--model", "tiny-dit" if "tiny-dit" in models else models[0], *SIZE)


def read_smallest(path: Path) -> dict[str, Any]:
    """The file that `python -m benchmarks.smallest_experiments` wrote, checked field by field."""
    made = fields({**MADE, "core_seconds": number(least=0)}, others=True)
    return read_result(path, "record of small experiments", fields({"experiments": by_name(made)}))
