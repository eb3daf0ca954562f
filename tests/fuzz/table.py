"""The last soak on a CPU and on a GPU, as one table: results/fuzz/soak.md.

python -m tests.fuzz.table
"""

import json
from pathlib import Path
from typing import Any

from tenuto.files import write_text
from tenuto.provenance import origin

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


PARTS = {
    "plain": "the plain pipeline draws; Tenuto is never enabled",
    "recording": "torch alone records the denoiser as a CUDA graph, and drops the graph",
    "replaying": "Tenuto draws with the graphs that it recorded once",
    "enabling": "Tenuto is enabled, draws, is disabled: graphs are recorded in every round",
}


def table(runs: dict[str, dict[str, Any]], controls: dict[str, Any] | None = None) -> str:
    """runs: what a soak wrote, by the name of its column; controls: what tests.fuzz.controls wrote"""
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
    gpu = runs.get("GPU", {}).get("soak", {})
    grew = gpu.get("growth", {})
    if grew.get("graphs"):
        kept = grew["malloc_mib"]
        lines += [
            "",
            f"While the GPU machine recorded {grew['graphs']:,} graphs for {grew['generations']:,} pictures, native "
            f"code of its host kept {kept} MiB, which is {1024 * kept / grew['graphs']:.0f} KiB a "
            "graph. Objects of Python, tensors and the device's memory did not grow."
            + ("" if controls else " Whose memory it is, `python -m tests.fuzz.controls` tells; it was not run yet."),
        ]
    if controls:
        lines += [
            "",
            f"The same on the GPU, one part at a time ({origin(controls['provenance'])}):",
            "",
            _row("what is done in each round", ["rounds", "native memory of the host grew by, KiB a round"]),
            _row("---", ["---:", "---:"]),
            *(
                _row(PARTS[name], [one.get("rounds", "failed"), one.get("kib_a_round", "")])
                for name, one in controls["controls"].items()
            ),
        ]
    return "\n".join([*lines, ""])


def _row(title: str, cells: list[Any]) -> str:
    return f"| {title} | {' | '.join(f'{one:,}' if isinstance(one, int) else str(one) for one in cells)} |"


def main() -> None:
    runs = {"CPU": _read("fuzz"), "GPU": _read("soak_gpu")}
    write_text(RESULTS / "soak.md", table({name: run for name, run in runs.items() if run}, _read("controls")))


def _read(name: str) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


if __name__ == "__main__":
    main()
