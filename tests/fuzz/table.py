"""The last soak on a CPU and on a GPU, as one table: results/fuzz/soak.md.

python -m tests.fuzz.table
"""

import json
from pathlib import Path
from typing import Any

from tenuto.files import write_text
from tenuto.provenance import origin
from tests.fuzz.soak import kib_a_graph

RESULTS = Path(__file__).parents[2] / "results" / "fuzz"
ROWS = {
    "generations": "generations",
    "enabled": "times enabled and disabled",
    "adapter_states": "LoRA loaded, fused or removed, weights changed in place",
    "faults": "exceptions and interrupts in the middle",
    "compared": "pictures compared with a fresh pipeline's",
    "stale": "**stale pictures**",
    "largest_difference": "largest difference of a picture",
    "leaked": "**hooks and attributes left after `disable`**",
    "graphs_recorded": "CUDA graphs recorded",
    "seconds": "seconds",
}
GREW = {
    "resident_mib": "**the process**, MiB",
    "malloc_mib": "what native code allocated, MiB",
    "python_objects": "objects of Python",
    "tensors": "tensors",
    "pinned_mib": "pinned memory, MiB",
    "device_mib": "**the device**, MiB",
}


def table(runs: dict[str, dict[str, Any]]) -> str:
    """runs: what a soak wrote, by the name of its column"""
    lines = [
        "# The soak: thousands of generations in one process",
        "",
        "Shapes, batches, numbers of steps, schedulers, requests, adapters and faults change at random;",
        "`tests/fuzz/soak.py` has the details, and `make fuzz` runs it again.",
        "",
        *(f"- {name}: {origin(run['provenance'])}" for name, run in runs.items()),
        "",
        _row("", list(runs)),
        _row("---", ["---:"] * len(runs)),
        *(_row(title, [run["soak"][key] for run in runs.values()]) for key, title in ROWS.items()),
    ]
    for key, title in GREW.items():
        grew = [run["soak"]["growth"].get(key, "") for run in runs.values()]
        lines.append(_row(f"growth after the first quarter: {title}", grew))
    for run in runs.values():
        if alone := run.get("torch_alone"):
            lines += [
                "",
                f"On the GPU, the host's memory grew by {kib_a_graph(run['soak'])} KiB for every graph recorded. The "
                f"same network recorded and dropped by torch alone, without Tenuto: {kib_a_graph(alone)} KiB a graph.",
            ]
    return "\n".join([*lines, ""])


def _row(title: str, cells: list[Any]) -> str:
    return f"| {title} | {' | '.join(f'{one:,}' if isinstance(one, int) else str(one) for one in cells)} |"


def main() -> None:
    files = {"CPU": RESULTS / "fuzz.json", "GPU": RESULTS / "soak_gpu.json"}
    write_text(RESULTS / "soak.md", table({name: json.loads(path.read_text()) for name, path in files.items()}))


if __name__ == "__main__":
    main()
