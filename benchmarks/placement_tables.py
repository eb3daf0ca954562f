"""Writes what the placement of evaluations gained, before and now, from what `python -m benchmarks.search` measured.

python -m benchmarks.placement_tables   # signal.md (--signal), noise.md (--noise) and few_steps.md (--few-steps)
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.places import results_of
from tenuto.files import read_json, write_text
from tenuto.provenance import origin

FOLDER = results_of("search").parent
GRIDS = {"ddim": "DDIM", "karras": "Karras", "flow": "flow matching"}
SIGNAL = """# What placing and predicting by noise level is worth

dB of the default before → now, {samples} pictures each, for networks whose runs begin with signal. *To the full run*:
N of 50 steps evaluated, compared with all 50. *To the converged run*: N of 250 steps evaluated. The converged run is
one of 500 steps of which 64 are evaluated. tiny-sdxl chose the measure, together with the [model
problem](../model_problem/model_problem.md); tiny-uvit had no part in it.

| network | guidance | evaluations | to the full run | to the converged run |
|---|---:|---:|---:|---:|
"""
NOISE = """# What a placement that does not depend on the scheduler is worth

dB of the default before → now, {samples} pictures each, to the run that evaluates every step, for runs that begin in
noise alone. Before, half of the placement was the number of the step, and predictions were polynomials in that number.
Now it is the time of flow matching instead, and predictions are polynomials in the time of the noise. The networks were
trained to predict noise, and can be asked at the levels of Karras and of flow matching (shifted by 3) as well. tiny-dit
at guidance 5 chose the shift of this time; natural-dit had no part in it. Nothing asks ahead here, as in pipelines.
"""
FEW_STEPS = """# What ending before the last step is worth with few evaluations of few steps

dB of the default before → now, {samples} pictures each, to the run that evaluates every step, for runs that begin in
noise alone. Before, fewer than nine evaluations ended earlier than the last step only if there were four steps for each
of them. Now they do so whenever more than half of the steps are left out. tiny-dit chose this, under four schedulers;
natural-dit had a part in one thing: that nothing changes if half of the steps are evaluated. Nothing asks ahead here.
"""
GAINS = """
On average over all rows: {gain:+.1f} dB; nearer than before in {nearer} of {rows} rows. What is gained on average:

| network | guidance | {levels} |
|---|---:|{lines}|
{means}
Every row:

| network | guidance | levels | steps | evaluations | to the full run | gained |
|---|---:|---|---:|---:|---:|---:|
"""


def signal_rows(record: dict[str, Any]) -> Iterator[str]:
    fifty, many = record["cases"]
    for number, count in enumerate(record["evaluations"]):
        full, converged = (
            " → ".join(f"{row[number][goal]:.1f}" for row in case["rows"]) for case, goal in ((fifty, 0), (many, 1))
        )
        yield f"| {fifty['network']} | {fifty['guidance']:g} | {count} | {full} | {converged} |\n"


def means(record: dict[str, Any], levels: dict[str, list[str]]) -> str:
    """A line of what was gained on average, in a column for each kind of levels."""
    gained = {
        kind: [now[0] - before[0] for case in record["cases"] if case["grid"] in grids for before, now in pairs(case)]
        for kind, grids in levels.items()
    }
    first = record["cases"][0]
    cells = " | ".join(f"{sum(one) / len(one):+.1f}" for one in gained.values())
    return f"| {first['network']} | {first['guidance']:g} | {cells} |\n"


def pairs(case: dict[str, Any]) -> Iterator[tuple[list[float], list[float]]]:
    """For each number of evaluations, what was reached before and now."""
    before, now = case["rows"]
    return zip(before, now, strict=True)


def noise_rows(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Each line, and what was gained."""
    for case in record["cases"]:
        kind, steps = case["grid"].split("-")
        for count, ((before, _), (now, _)) in zip(record["evaluations"], pairs(case), strict=True):
            about = f"{case['network']} | {case['guidance']:g} | {GRIDS[kind]} | {steps} | {count}"
            yield f"| {about} | {before:.1f} → {now:.1f} | {now - before:+.1f} |\n", now - before


def read(folder: Path, kind: str) -> tuple[list[dict[str, Any]], dict[str, str], str]:
    """The records of a kind, how many samples they have, and where they come from."""
    records = [read_json(path, "search") for path in sorted(folder.glob(f"{kind}-*.json"))]
    samples = " or ".join(str(one) for one in sorted({record["samples"] for record in records}))
    made = "".join(f"- {origin(record['provenance'])}\n" for record in records)
    return records, {"samples": samples}, made


def signal_table(folder: Path) -> str:
    records, samples, made = read(folder, "signal")
    lines = "".join(line for record in records for line in signal_rows(record))
    return f"{SIGNAL.format(**samples)}{lines}\n{made}"


def noise_table(folder: Path, kind: str, heading: str) -> str:
    records, samples, made = read(folder, kind)
    rows = [row for record in records for row in noise_rows(record)]
    gains = [gain for _, gain in rows]
    levels: dict[str, list[str]] = {}
    for grid in dict.fromkeys(case["grid"] for record in records for case in record["cases"]):
        levels.setdefault(GRIDS[grid.split("-")[0]], []).append(grid)
    about: dict[str, Any] = {
        "gain": sum(gains) / len(gains),
        "nearer": sum(gain > 0 for gain in gains),
        "rows": len(rows),
        "levels": " | ".join(levels),
        "lines": "|".join("---:" for _ in levels),
        "means": "".join(means(record, levels) for record in records),
    }
    return f"{heading.format(**samples)}{GAINS.format(**about)}{''.join(line for line, _ in rows)}\n{made}"


if __name__ == "__main__":
    write_text(FOLDER / "signal.md", signal_table(FOLDER))
    write_text(FOLDER / "noise.md", noise_table(FOLDER, "noise", NOISE))
    write_text(FOLDER / "few_steps.md", noise_table(FOLDER, "few_steps", FEW_STEPS))
