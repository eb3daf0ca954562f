"""The verdicts of stored experiments, made again by the paper's metric, from the figures that they stored.

    python -m scripts.rejudge            # reads the results of commit 84a0cc6, writes results/experiments

Those results were judged by nearness to the full run. They hold the FID of every way with the interval of its
difference from full inference, but not the paired difference of two ways. So the difference of two ways gets an
interval as wide as any correlation of the two could make it: the sum of their half-widths. That is cautious; a new run
is more certain.
"""

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.places import ROOT
from scripts.command_line import run
from tenuto.files import write_json
from tenuto.provenance import commit
from tenuto_lab.cli.experiment import draw_one
from tenuto_lab.judging.statistics import Interval
from tenuto_lab.judging.verdicts import Evidence, alike, at_least, at_most, better
from tenuto_lab.paper.experiment_results import ClaimRow, Nearness, judged
from tenuto_lab.paper.horizons import HORIZONS
from tenuto_lab.paper.horizons import PAPER as HORIZON_PAPER
from tenuto_lab.paper.static_rankings import NAMES, OURS
from tenuto_lab.paper.static_rankings import PAPER as RANKING_PAPER
from tenuto_lab.paper.ways import FULL, NEAR, SATURATED, UNCERTAIN, in_papers_unit

SOURCE = "84a0cc6"  # the last commit with the results as they were judged first
MEASURED_AGAIN = ("maps",)  # needs no GPU, so it was run again instead
FID, DB = ": FID above full inference's, share of it", ": dB to the full run's picture"
TOKENS = ": tokens as the full run wrote them"
FAMILIES = {"tiny-llada": "llada", "tiny-dit": "dit", "tiny-uvit": "uvit", "tiny-sdxl": "unet"}
Row = Mapping[str, Any]


class Stored:
    """The rows of one stored experiment, by model and quantity."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.known = {(row["model"], row["quantity"]): row for row in rows}

    def interval(self, model: str, quantity: str) -> Interval | None:
        row = self.known.get((model, quantity))
        if row is None or row["measured"] is None:
            return None
        low, high = row.get("interval") or (row["measured"], row["measured"])
        return row["measured"], low, high

    def nearness(self, model: str, way: str) -> Nearness | None:
        """How near a way is to the full run."""
        for quantity, unit in ((f"{way}{DB}", "dB"), (f"{way}{TOKENS}", "equal tokens")):
            if (found := self.interval(model, quantity)) is not None:
                return Nearness(unit, found[0], found[1:])
        return None


def widest(first: Interval, second: Interval) -> Interval:
    """second − first, with the widest interval that their correlation allows."""
    width = (first[2] - first[1]) / 2 + (second[2] - second[1]) / 2
    gain = second[0] - first[0]
    return gain, gain - width, gain + width


def compared(
    stored: Stored, row: Row, one: str, other: str, ways: tuple[str, str], claim: str | None, paper: float | None
) -> ClaimRow:
    """An old row of nearness as a comparison by the paper's metric, with the nearness beside it."""
    model, family = row["model"], FAMILIES[row["model"]]
    near = Nearness(
        "equal tokens" if family == "llada" else "dB", row["measured"], tuple(row["interval"]), None, _near(row, claim)
    )
    if family == "llada":
        quantity = f"{one} against {other}: more right answers in arithmetic, share"
        first, second = (_answers(stored, model, way) for way in ways)
        gain = None if first is None or second is None else widest(second, first)
    else:
        quantity = f"{one} against {other}: FID lower by, share of full inference's"
        first, second = (_distance(stored, model, way) for way in ways)
        gain = None if first is None or second is None else widest(first, second)
    if gain is None:
        note = "the paper's metric of this pair was not stored"
        unsure = ClaimRow(quantity, model, paper, None, None, "cannot tell" if claim else None, note, "branch")
        return replace(unsure, nearness=near)
    note = SATURATED if gain[1] == gain[2] else "interval as wide as any correlation could make it"
    said = None if claim is None else better(gain) if claim == "better" else alike(gain, UNCERTAIN[family])
    made = ClaimRow.of(quantity, model, paper, gain, said, note, near)
    return replace(made, granularity="branch", said=in_papers_unit(family, paper, gain=True))


def _answers(stored: Stored, model: str, way: str) -> Interval | None:
    plain = stored.interval(model, f"{way}: arithmetic, change in the share of right answers")
    return plain or stored.interval(model, f"{way}, arithmetic, change in right answers")


def _distance(stored: Stored, model: str, way: str) -> Interval | None:
    return stored.interval(model, f"{way}{FID}") or stored.interval(model, f"{way}, {FID.removeprefix(': ')}")


def _near(row: Row, claim: str | None) -> Evidence | None:
    if claim is None:
        return None
    interval = row["measured"], *row["interval"]
    p = re.search(r"p = ([\d.e-]+)", row.get("note", ""))
    margin = NEAR["same tokens" if FAMILIES[row["model"]] == "llada" else "psnr"]
    return better(interval, float(p[1])) if claim == "better" and p else alike(interval, margin)


# How each experiment's rows are read.

PATTERNS: dict[str, tuple[str, str]] = {  # experiment -> pattern of its comparisons, claim
    "rankings": (r"(held for good|refreshed): SCR/Frobenius less (?P<other>.+), (psnr|same tokens)$", "better"),
    "horizons": (r"(?P<title>T = .+): spectral less (?P<other>\w+), (psnr|same tokens)$", "better"),
    "comparisons": (r"spectral static less (?P<other>.+), dB to the full run$", "better"),
    "input-aware": (r"activation drift less spectral static, (psnr|same tokens)$", "alike"),
    "audit": (r"order by B less order by the score, (psnr|same tokens)$", "alike"),
}


def rows_of(name: str, record: Mapping[str, Any]) -> list[ClaimRow]:
    stored = Stored(record["rows"])
    made = [one for row in record["rows"] if (one := _row(name, stored, row)) is not None]
    return judged(made)


def _row(name: str, stored: Stored, row: Row) -> ClaimRow | None:
    quantity, model = row["quantity"], row["model"]
    if quantity.endswith((DB, TOKENS)):
        return None  # stands beside the row of the paper's metric
    pattern, claim = PATTERNS.get(name, ("$^", ""))
    if match := re.match(pattern, quantity):
        return _comparison(name, stored, row, match, claim)
    interval = stored.interval(model, quantity) if row.get("interval") else None
    kept = ClaimRow(quantity, model, row["paper"], row["measured"], row.get("interval"), note=row.get("note", ""))
    kept = replace(kept, granularity="branch" if FAMILIES.get(model) and name not in UNGRANULAR else None)
    way = re.sub(r"(: FID above.*|: (arithmetic|needle), change.*)$", "", quantity)
    if way != quantity:
        kept = replace(kept, nearness=stored.nearness(model, way))
        said = in_papers_unit(FAMILIES[model], row["paper"], gain=False) if "needle" not in quantity else ""
        kept = replace(kept, said=said)
    if row["holds"] is None:
        return kept
    if interval is not None and "FID above" in quantity:
        return replace(kept, evidence=at_most(interval, row["paper"]))
    if interval is not None and ("right answers" in quantity or quantity.startswith("spectral less")):
        told = SATURATED if interval[1] == interval[2] else kept.note
        if name == "freezing":
            return replace(kept, evidence=at_least(interval, -0.01))
        limit = at_least(interval, row["paper"]) if "less full" in quantity or way != quantity else better(interval)
        against = re.sub(
            r"spectral less (\w+), (\w+)", r"spectral against \1: more right answers in \2, share", quantity
        )
        return replace(kept, quantity=against, evidence=limit, note=told)
    if interval is not None and name == "freezing":
        return replace(kept, evidence=better(interval))
    if name == "freeze-error" and (p := re.search(r"p = ([\d.e-]+)", row.get("note", ""))):
        return replace(kept, evidence=Evidence(float(p[1]), row["measured"] > 0))
    if name == "audit" and "score and Q" in quantity and (p := re.search(r"p = ([\d.e-]+)", row.get("note", ""))):
        return replace(kept, evidence=Evidence(float(p[1]), favours=False))
    if name == "oracle":
        return replace(kept, holds="cannot tell", note=f"{kept.note}; one input")
    return replace(kept, holds="yes" if row["holds"] else "no")


UNGRANULAR = ("execution", "failures", "freezing", "oracle")  # experiments whose rows do not depend on it


def _comparison(name: str, stored: Stored, row: Row, match: re.Match[str], claim: str) -> ClaimRow:
    family, said = FAMILIES[row["model"]], match.groupdict()
    other = said.get("other", "")
    if name == "rankings":
        kind = match[1]
        ways = f"{kind}, {OURS}", f"{kind}, {other}"
        paper = RANKING_PAPER[family]
        place = list(NAMES).index(other)
        unit = -100 if family == "llada" else FULL[family]
        tested = claim if kind == "held for good" else None
        one = OURS if tested else f"refreshed: {OURS}"
        return compared(stored, row, one, other, ways, tested, (paper[place] - paper[-1]) / unit)
    if name == "horizons":
        title = said["title"]
        steps = next(steps for steps in HORIZONS if title.startswith(f"T = {steps}"))
        figures, unit = HORIZON_PAPER[family][steps], 100 if family == "llada" else FULL[family]
        paper_gain = abs(figures[("spectral", "depth", "random").index(other)] - figures[0]) / unit
        ways = f"{title}: spectral", f"{title}: {other}"
        return compared(stored, row, f"{title}: spectral", other, ways, claim, paper_gain)
    if name == "comparisons":
        tested = None if other == "Tenuto's default" else claim
        return compared(stored, row, "spectral static", other, ("spectral static", other), tested, None)
    if name == "input-aware":
        ways = "activation drift", "spectral static"
        return compared(stored, row, *ways, ways, claim, None)
    return compared(stored, row, "order by B", "order by the score", ("by B", "by the score"), claim, None)


def main() -> None:
    """Judge the stored results again."""
    folder = ROOT / "results" / "experiments"
    listed = _git("ls-tree", "--name-only", SOURCE, "results/experiments/").split()
    for path in listed:
        name = path.rsplit("/", 1)[1].removesuffix(".json")
        if not path.endswith(".json") or name in MEASURED_AGAIN:
            continue
        record = json.loads(_git("show", f"{SOURCE}:{path}"))
        rows = rows_of(name, record)
        made = {**record["provenance"], "rejudged": f"`python -m scripts.rejudge` at {commit()}"}
        finding = FINDINGS.get(name, record["finding"])
        judged_again = {**record, "provenance": made, "finding": finding, "rows": [row.to_json() for row in rows]}
        write_json(folder / f"{name}.json", judged_again)
        draw_one(judged_again, folder)
        print(f"{name}: {len(rows)} rows")


FINDINGS = {  # what the first verdicts said is no longer said
    "rankings": "Every ranking gives out the same lifetimes, and is oriented by the sign of its correlation with the "
    "freeze errors measured on this network. One random order.",
    "horizons": "Spectral against depth and one random order.",
    "comparisons": "Methods differ in their work, as in the paper's table; the rows say how much each computes.",
}


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    run(main)
