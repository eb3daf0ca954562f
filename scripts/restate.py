"""Rules that were made after the measurements, applied to the stored results of experiments.

    python -m scripts.restate            # reads and writes results/experiments

A comparison of two schedules that have both ruined their pictures cannot tell (tenuto_lab.paper.ways.ruined). The
dispersion of the audit's Q is decided by the paper's own range. Rows name the margins that decide them. Experiments
that are run again need none of this: they apply the same rules themselves.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.places import ROOT
from scripts.command_line import run
from tenuto.files import write_json
from tenuto.provenance import commit
from tenuto_lab.cli.experiment import draw_one
from tenuto_lab.paper.freezing import NEAR_TOLD
from tenuto_lab.paper.score_validity import CV_TOLD, MOST_CV, R2_TOLD
from tenuto_lab.paper.ways import BY_FID, RUINED

CHANCE = 0.1  # of ten classes
SHOWS = ": pictures of the class asked for"
AGAINST = re.compile(r"(?P<one>.+) against (?P<other>.+): FID lower by")
FROM = {"rankings": "held for good, "}  # experiment -> the beginning of its rows about one schedule
HORIZON = re.compile(r"T = (\d+): (\w+)$")
Row = Mapping[str, Any]


def restated(name: str, rows: Sequence[Row], horizons: Mapping[tuple[str, int, str], float]) -> list[dict[str, Any]]:
    """The rows, each judged by the later rules.

    horizons  (model, steps, order) -> the lower end of how often a picture shows the class asked for
    """
    shown = {
        (row["model"], row.get("granularity"), row["quantity"].removesuffix(SHOWS)): row["interval"][0]
        for row in rows
        if row["quantity"].endswith(SHOWS)
    }

    def is_ruined(row: Row, way: str) -> bool:
        least = shown.get((row["model"], row.get("granularity"), f"{FROM.get(name, '')}{way}"))
        if least is None and (match := HORIZON.match(way)):
            least = horizons.get((row["model"], int(match[1]), match[2]))
        return least is not None and least <= CHANCE

    def one(row: Row) -> dict[str, Any]:
        quantity, match = row["quantity"], AGAINST.match(row["quantity"])
        if match and row["holds"] is not None and RUINED not in row.get("note", ""):
            title = quantity[: quantity.find(": ") + 2] if quantity.startswith("T = ") else ""
            if is_ruined(row, match["one"]) and is_ruined(row, f"{title}{match['other']}"):
                return _cannot_tell(row)
        if quantity == "coefficient of variation of Q":
            return {**row, "holds": "yes" if row["measured"] <= MOST_CV else "no", "note": CV_TOLD}
        if quantity.startswith("median R² of drift"):
            return _noted(row, R2_TOLD)
        return _noted(row, NEAR_TOLD) if quantity.startswith("right answers, lowest SCR") else dict(row)

    return [one(row) for row in rows]


def _cannot_tell(row: Row) -> dict[str, Any]:
    kept = {key: value for key, value in row.items() if key not in ("p", "corrected")}
    return _noted({**kept, "holds": "cannot tell"}, f"{RUINED}; {BY_FID}{row['holds']}")


def _noted(row: Row, told: str) -> dict[str, Any]:
    note = row.get("note", "")
    return {**row, "note": note if told in note else f"{note}; {told}" if note else told}


def known_horizons(folder: Path) -> dict[tuple[str, int, str], float]:
    """What is known of short horizons: from benchmarks.ruined, and from the same schedules in other experiments."""
    path = folder.parent / "ruined" / "ruined.json"
    measured = json.loads(path.read_text())["horizons"] if path.is_file() else []
    found = {(row["model"], row["steps"], row["order"]): row["agreement"][1] for row in measured}
    for name, steps, pattern in (("comparisons", 50, "{} static"), ("rankings", 100, "held for good, {}")):
        names = {"spectral": "SCR/Frobenius"} if name == "rankings" else {}
        rows = json.loads((folder / f"{name}.json").read_text())["rows"]
        for row in (one for one in rows if one.get("granularity") == "branch"):
            for order in ("spectral", "depth", "random"):
                if row["quantity"] == f"{pattern.format(names.get(order, order))}{SHOWS}":
                    found[row["model"], steps, order] = row["interval"][0]
    return found


def main(folder: Path = ROOT / "results" / "experiments") -> None:
    """Apply the rules, and write results, tables and figures."""
    horizons = known_horizons(folder)
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        rows = restated(path.stem, record["rows"], horizons)
        if rows == record["rows"]:
            continue
        changed = sum(a["holds"] != b["holds"] for a, b in zip(rows, record["rows"], strict=True))
        made = {**record["provenance"], "restated": f"`python -m scripts.restate` at {commit()}"}
        record |= {"rows": rows, "provenance": made}
        write_json(path, record)
        draw_one(record, folder)
        print(f"{path.stem}: {changed} verdicts changed")


if __name__ == "__main__":
    run(main)
