"""An experiment's result as a table: the paper's figure, the measured figure, and two verdicts."""

from collections.abc import Mapping, Sequence
from typing import Any

from tenuto.provenance import origin
from tenuto_lab.paper import EXPERIMENTS
from tenuto_lab.retired import about_retired

HEAD = ("model", "quantity", "paper", "here", "95 % interval", "holds", "nearness", "nearer")
LEAST = 1e-10  # a smaller p says no more
DEFAULT = "Tenuto's default"  # which holds the whole output, and neither blocks nor branches
GRANULARITIES = {"block": "by blocks", "branch": "by branches"}


def number(value: float | None) -> str:
    """Three digits that count; thousands are written out."""
    if value is None:
        return ""
    return f"{float(f'{value:.3g}'):,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.3g}"


def interval(row: Mapping[str, Any]) -> str:
    ends = row.get("interval")
    return "" if ends is None else f"{number(ends[0])} to {number(ends[1])}"


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The cells of a row, in the order of HEAD."""
    measured = "not measured" if row["measured"] is None else number(row["measured"])
    counted, near = row.get("granularity"), row.get("nearness")
    quantity = row["quantity"]
    if counted and " by b" not in quantity and not quantity.startswith(DEFAULT):
        quantity = f"{quantity} ({GRANULARITIES[counted]})"
    beside = ("", "") if near is None else (f"{number(near['measured'])} {near['unit']}", near["holds"] or "")
    paper = _papers(row)
    return row["model"], quantity, paper, measured, interval(row), row["holds"] or "", *beside


def _papers(row: Mapping[str, Any]) -> str:
    """The paper's figure as it prints it, and in parentheses in the unit of the measured figure."""
    if not (said := row.get("said")):
        return number(row["paper"])
    return said if row["paper"] is None else f"{said} ({number(row['paper'])})"


def experiment_table(record: Mapping[str, Any]) -> str:
    """One experiment, in Markdown."""
    lines = [
        f"# {record['title']}\n",
        f"The paper ({where_of(record)}): {record['claim']}\n",
        f"**Here:** {verdict(record)}\n",
        f"{origin(record['provenance'])}; {rests_on(record)}; intervals are 95 %.{rejudged(record)}\n",
    ]
    if record.get("limits"):
        lines.append(f"{record['limits']}\n")
    lines += about_retired(row["model"] for row in record["rows"])
    return "\n".join([*lines, *table_rows(record["rows"])]) + "\n"


def where_of(record: Mapping[str, Any]) -> str:
    """Where the claim stands in the paper, as it is known now; older records number tables otherwise."""
    known = EXPERIMENTS.get(record.get("name", ""))
    return str(record["where"]) if known is None else known.where


def table_rows(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table in Markdown. Columns that are empty in every row are left out."""
    body = [(*cells(row), noted(row)) for row in rows]
    used = [i for i in range(len(HEAD) + 1) if any(row[i] for row in body)]
    marks = ("---", "---", "---:", "---:", "---", "---", "---:", "---", "---")
    head = [[*HEAD, "note"], marks]
    return [f"| {' | '.join(row[i] for i in used)} |" for row in [*head, *body]]


def noted(row: Mapping[str, Any]) -> str:
    """The note of a row, and the p of its verdict, corrected for the number of comparisons."""
    p = row.get("corrected")
    told = "" if p is None else f"p = {p:.2g}, corrected" if p >= LEAST else f"p < {LEAST:g}, corrected"
    return "; ".join(part for part in (row.get("note", ""), told) if part)


def rejudged(record: Mapping[str, Any]) -> str:
    """What to say of a result whose verdicts were made later than its measurements."""
    made, ruined = (record["provenance"].get(name) for name in ("rejudged", "restated"))
    told = f" The verdicts were made later from these measurements: {made}." if made else ""
    return told + (f" Later rules were applied to them: {ruined}." if ruined else "")


def rests_on(record: Mapping[str, Any], of_text: bool = False) -> str:
    """The number of samples that an experiment rests on, in words. of_text: its models only write"""
    if said := record.get("rests_on"):
        return str(said)
    made = record["provenance"]
    text = made.get("text_samples") or made["samples"]
    count = text if of_text else made["samples"]
    many = f"{count} sample{'s' * (count != 1)}"
    if text != count:
        many += f" ({text} of text)"
    return f"{many} of one seed" if made["seeds"] == 1 else f"{many} of each of {made['seeds']} seeds"


def counts(rows: Sequence[Mapping[str, Any]], nearness: bool = False) -> tuple[int, int, int]:
    """How many rows say yes, no, and cannot tell: by the paper's metric, or by nearness to the full run."""
    said = [row.get("nearness", {}).get("holds") if nearness else row["holds"] for row in rows]
    return said.count("yes"), said.count("no"), said.count("cannot tell")


def verdict(record: Mapping[str, Any]) -> str:
    """How often the paper's claim holds, by its own metric and by nearness, and the finding."""
    said, near = counts(record["rows"]), counts(record["rows"], nearness=True)
    counted = "Nothing here can be compared with the paper." if not sum(said) else f"{counted_words(said)}."
    if sum(near):
        counted += f" By nearness to the full run: {counted_words(near)}."
    return f"{counted} {record['finding']}".strip()


def counted_words(said: tuple[int, int, int]) -> str:
    """7 of 28 comparisons hold, 2 do not, 19 cannot be told."""
    yes, no, unsure = said
    total = f"{sum(said)} comparison{'s' * (sum(said) != 1)}"
    return f"{yes} of {total} hold{'s' * (yes == 1)}, {no} do{'es' * (no == 1)} not, {unsure} cannot be told"


def anchor(title: str) -> str:
    """The name that a heading has in links to it."""
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -")
    return kept.replace(" ", "-")
