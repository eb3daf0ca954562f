"""Writes results/search/signal.md from what `python -m benchmarks.search --signal` measured.

python -m benchmarks.signal_table
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.places import results_of
from tenuto.files import read_json, write_text
from tenuto.provenance import origin

FOLDER = results_of("search").parent
TEXT = """# What placing and predicting by noise level is worth

dB of the default before → now, {samples} pictures each, for networks whose runs begin with signal. *To the full run*:
N of 50 steps evaluated, compared with all 50. *To the converged run*: N of 250 steps evaluated. The converged run is
one of 500 steps of which 64 are evaluated. tiny-sdxl chose the measure, together with the [model
problem](../model_problem/model_problem.md); tiny-uvit had no part in it.

| network | guidance | evaluations | to the full run | to the converged run |
|---|---:|---:|---:|---:|
"""


def rows(record: dict[str, Any]) -> Iterator[str]:
    fifty, many = record["cases"]
    for number, count in enumerate(record["evaluations"]):
        full, converged = (
            " → ".join(f"{row[number][goal]:.1f}" for row in case["rows"]) for case, goal in ((fifty, 0), (many, 1))
        )
        yield f"| {fifty['network']} | {fifty['guidance']:g} | {count} | {full} | {converged} |\n"


def table(folder: Path) -> str:
    records = [read_json(path, "search") for path in sorted(folder.glob("signal-*.json"))]
    made = "".join(f"- {origin(record['provenance'])}\n" for record in records)
    lines = "".join(line for record in records for line in rows(record))
    return f"{TEXT.format(samples=records[0]['samples'])}{lines}\n{made}"


if __name__ == "__main__":
    write_text(FOLDER / "signal.md", table(FOLDER))
