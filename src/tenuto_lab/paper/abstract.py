"""The abstract's claims, one by one, each with what was found here: for somebody who has read the abstract only.

A claim about every model and every comparison holds if all comparisons hold. It does not hold if one of them surely
does not. Otherwise it cannot be told here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tenuto_lab.paper import EXPERIMENTS
from tenuto_lab.paper.experiment_report import counts, number

Row = Mapping[str, Any]


@dataclass(frozen=True)
class AbstractClaim:
    says: str  # in the abstract
    paper: str  # its figure
    experiment: str
    about: Callable[[Row], bool]  # the rows that test it
    why: Callable[[Sequence[Row], Sequence[Row]], str]  # what these rows, and all rows, show, in a sentence


def _beginning(*words: str) -> Callable[[Row], bool]:
    return lambda row: row["holds"] is not None and row["quantity"].startswith(words)


def _with(words: str) -> Callable[[Row], bool]:
    return lambda row: row["holds"] is not None and words in row["quantity"]


def _range(rows: Sequence[Row]) -> str:
    values = [row["measured"] for row in rows if row["measured"] is not None]
    return " to ".join(dict.fromkeys((number(min(values)), number(max(values))))) if values else "nothing measured"


def _lost(rows: Sequence[Row], others: Sequence[Row]) -> str:
    pictures = [row for row in rows if "FID above" in row["quantity"]]
    text = [row for row in rows if "right answers" in row["quantity"]]
    told = [f"FID rises by {_range(pictures)} times full inference's"] if pictures else []
    told += [_answered(text)] if text else []
    return _sentence("; ".join(told))


def _answered(rows: Sequence[Row]) -> str:
    """How right answers differ; if none does, the tasks are too easy to tell anything."""
    if any(row["measured"] for row in rows):
        return f"right answers differ by {_range(rows)}"
    return "no answer changes under any schedule, so these tasks are too easy to tell"


def _ruined(rows: Sequence[Row], others: Sequence[Row]) -> str:
    held = [row for row in others if "FID above" in row["quantity"] and "held for good" in row["quantity"]]
    answers = [row for row in rows if "right answers" in row["quantity"]]
    told = [f"every schedule raises the FID, by {_range(held)} times full inference's"] if held else []
    seen = [row for row in others if "class asked for" in row["quantity"] and "held for good" in row["quantity"]]
    told += [f"{_range(seen)} of the pictures show the class asked for, where chance is 0.1"] if seen else []
    return _sentence("; ".join([*told, *([f"of text {_answered(answers)}"] if answers else [])]))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


CLAIMS = (
    AbstractClaim(
        "Weights identify branches that need not be recomputed (τ = 1, untuned).",
        "+0.07 to +0.25 FID, −0.2 points",
        "operating-points",
        _beginning("τ = 1: FID", "τ = 1: arithmetic", "τ = 1: gsm8k"),
        _lost,
    ),
    AbstractClaim(
        "At matched budgets SCR/Frobenius preserves quality better than random, depth, norm, stable-rank and "
        "Frobenius–stable-rank schedules, on four models.",
        "best in every column of Table 3",
        "rankings",
        _beginning("SCR/Frobenius against"),
        _ruined,
    ),
    AbstractClaim(
        "This holds over retrieval, reasoning, code, summarisation and open-ended text.",
        "Table 4",
        "language",
        _with("spectral against"),
        lambda rows, others: f"{_sentence(_answered(rows))} Code and summaries need the 8B model.",
    ),
    AbstractClaim(
        "The ranking is retained down to ten denoising steps.",
        "Table 5",
        "horizons",
        _with("spectral against"),
        lambda rows, others: "Against depth and random orders, at 100, 50, 30, 20 and 10 steps.",
    ),
    AbstractClaim(
        "The captured-graph system is 2.8 to 3.0 times as fast as eager inference.",
        "2.8× to 3.0×",
        "ladder",
        lambda row: True,
        lambda rows, others: (
            f"{_range(rows)} times on the full-size networks with random weights (H200, compiled branches)."
        ),
    ),
    AbstractClaim(
        "On LLaDA a padded graph gives 2.7 times; eliminating inactive branches raises it to 3.0.",
        "3.0 / 2.7 = 1.11",
        "execution",
        _beginning("jagged over padded"),
        lambda rows, others: f"Eliminating them is worth a factor of {_range(rows)} here, far more than in the paper.",
    ),
    AbstractClaim(
        "The score is a proxy of sensitivity.",
        "ρ = 0.66 to 0.76",
        "freeze-error",
        _beginning("Spearman"),
        lambda rows, others: f"The rank correlation with the error of freezing a unit is {_range(rows)}.",
    ),
    AbstractClaim(
        "The perturbation analysis motivates attention and MLP components.",
        "Lemma 2, Theorem 1",
        "bounds",
        _beginning("Theorem 1: rank"),
        lambda rows, others: f"The bound's rank correlation with the true error is {_range(rows)}.",
    ),
    AbstractClaim(
        "It needs no router, calibration prompts, or input-dependent search.",
        "by construction",
        "maps",
        lambda row: False,
        lambda rows, others: (
            "`tenuto score` and `tenuto schedule --policy lifetimes` read the weights and nothing else."
        ),
    ),
)


def abstract_table(records: Sequence[Mapping[str, Any]], ladder: Mapping[str, Any] | None) -> list[str]:
    """The one-screen table, in Markdown."""
    by_name = {record["name"]: record["rows"] for record in records}
    if ladder is not None:
        by_name["ladder"] = ladder_rows(ladder)
    lines = ["| the abstract says | the paper | here | why |", "|---|---|---|---|"]
    for claim in CLAIMS:
        if claim.experiment not in by_name:
            told, why = "not run", f"`tenuto lab experiment {claim.experiment}`"
        else:
            rows = [row for row in by_name[claim.experiment] if claim.about(row)]
            told = found(rows) + _missing(claim.experiment, rows)
            why = claim.why(rows, by_name[claim.experiment])
        lines.append(f"| {claim.says} | {claim.paper} | {told} | {why} |")
    return lines


def _missing(experiment: str, rows: Sequence[Row]) -> str:
    """The reference models of which these rows say nothing."""
    here = {row["model"] for row in rows}
    models = EXPERIMENTS[experiment].models if experiment in EXPERIMENTS else ()
    left = [model for model in models if model not in here]
    return f". Not measured: {', '.join(left)}" if left and len(left) < len(models) else ""


def found(rows: Sequence[Row]) -> str:
    """The verdict of a claim about every row, and what each model says."""
    _, no, unsure = said = counts(rows)
    if not sum(said):
        return "**holds**"
    word = "does not hold" if no else "cannot tell" if unsure else "holds"
    models: dict[str, list[str]] = {}
    for model in dict.fromkeys(row["model"] for row in rows):
        models.setdefault(_told(counts([row for row in rows if row["model"] == model])), []).append(model)
    each = "; ".join(f"{', '.join(names)}: {told}" for told, names in models.items())
    near = counts(rows, nearness=True)
    beside = f". By nearness {_told(near)}" if sum(near) else ""
    return f"**{word}**. {each}{beside}"


def _told(said: tuple[int, int, int]) -> str:
    parts = [f"{count} {word}" for count, word in zip(said, ("yes", "no", "cannot tell"), strict=True) if count]
    return parts[0].split(" ", 1)[1] if len(parts) == 1 and parts[0].startswith("1 ") else ", ".join(parts)


# The paper's settings: family and batch (or tokens) of the ladder -> its speed-up.
SETTINGS = {"llada:512": 3.0, "dit:16": 3.0, "uvit:16": 2.8, "sdxl:8": 3.0}
COMPLETE = "jagged + compiled"


def ladder_rows(ladder: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The speed of the complete system in the paper's settings, as rows of an experiment."""
    rows = []
    for row in ladder["rows"]:
        whole = row["mode"] == COMPLETE and row["schedule"].startswith("lifetimes") and row["schedule"][-1] == "%"
        if whole and row["case"] in SETTINGS:
            fast, claimed = row["speedup_over_eager"], SETTINGS[row["case"]]
            holds = "yes" if fast >= claimed else "no"
            rows.append({"quantity": row["case"], "model": row["model"], "measured": fast, "holds": holds})
    return rows
