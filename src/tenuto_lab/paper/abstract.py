"""The abstract's claims, one by one, each with what was found here: for somebody who has read the abstract only.

A claim about every model and every comparison holds if all comparisons hold. It does not hold if one of them
significantly does not. Otherwise it cannot be told here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tenuto_lab.paper import EXPERIMENTS, REFERENCE
from tenuto_lab.paper.experiment_report import anchor, counts, number
from tenuto_lab.paper.speeds import ladder_rows, mode_rows
from tenuto_lab.paper.ways import BY_FID, RUINED

Row = Mapping[str, Any]
Records = Sequence[Mapping[str, Any]]
Ladders = Sequence[Mapping[str, Any]]
TOO_EASY = "tiny-llada"  # whose tasks no schedule answers wrongly; no reference model any more
WRITES = "small-llada"  # the reference model that writes
OLDER, TIMED = "†", "‡"  # marks of verdicts that rest on older measurements, and on several runs of the ladder
LADDERS = {"ladder": "../results/ladder/ladder.md", "modes": "../results/ladder/ladder_modes.md"}  # from the page
HEAD = ("the abstract says", "the paper", "here", "verdict", "why")


@dataclass(frozen=True)
class AbstractClaim:
    says: str  # in the abstract
    paper: str  # its figure, in the unit of `here`
    experiment: str
    about: Callable[[Row], bool] | None  # the rows that test it; None: it holds by construction
    here: Callable[[Sequence[Row], Sequence[Row]], str]  # the figure that these rows, and all rows, show
    why: Callable[[Sequence[Row], Sequence[Row]], str]  # a sentence

    def tested(self, rows: Sequence[Row]) -> list[Row]:
        """The rows that test it, as the paper counts: by blocks, where a model was measured by blocks."""
        return [] if self.about is None else as_the_paper_counts([row for row in rows if self.about(row)])

    def beside(self, rows: Sequence[Row]) -> list[Row]:
        """The rows that would test it, counted by branches."""
        tested = self.tested(rows)
        return [] if self.about is None else [row for row in rows if self.about(row) and row not in tested]


def as_the_paper_counts(rows: Sequence[Row]) -> list[Row]:
    blocks = {row["model"] for row in rows if row.get("granularity") == "block"}
    return [row for row in rows if row["model"] not in blocks or row.get("granularity") != "branch"]


def _beginning(*words: str) -> Callable[[Row], bool]:
    return lambda row: row["holds"] is not None and row["quantity"].startswith(words)


def _with(words: str) -> Callable[[Row], bool]:
    return lambda row: row["holds"] is not None and words in row["quantity"]


def _range(rows: Sequence[Row], more: float = 0.0) -> str:
    values = [row["measured"] + more for row in rows if row["measured"] is not None]
    return " to ".join(dict.fromkeys((number(min(values)), number(max(values))))) if values else "not measured"


def _pictures(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if "FID above" in row["quantity"]]


def _lost(rows: Sequence[Row], others: Sequence[Row]) -> str:
    text = [row for row in rows if "right answers" in row["quantity"]]
    told = [f"FID × {_range(found, 1)}"] if (found := _pictures(rows)) else []
    return "; ".join([*told, *([_answered(text)] if text else [])])


def _answered(rows: Sequence[Row]) -> str:
    """How right answers differ."""
    return f"right answers {_range(rows)}" if any(row["measured"] for row in rows) else "no answer changes"


def _too_easy(rows: Sequence[Row]) -> bool:
    """Whether no answer changes under any schedule, so that the tasks tell nothing."""
    text = [row for row in rows if "right answers" in row["quantity"]]
    return bool(text) and not any(row["measured"] for row in text)


def _text_told(rows: Sequence[Row], others: Sequence[Row]) -> str:
    """How the orders differ. If all answer alike, whether that is because nothing was lost."""
    if not _too_easy(rows):
        return _sentence([by_model(rows, ("better", "worse", "cannot tell"))])
    lost = [row for row in others if row["quantity"].startswith("spectral against full inference")]
    if not any(row["measured"] for row in lost):
        return "No answer changes under any schedule, so the tasks are too easy."
    return f"Every order answers alike, and differs from full inference ({_answered(lost)})."


def _why_lost(rows: Sequence[Row], others: Sequence[Row]) -> str:
    worse = _saying(rows, "no")
    told = [f"significantly more is lost on {_names(worse)}" if worse else "nowhere significantly more"]
    unsure = _saying(rows, "cannot tell")
    told += [f"cannot tell on {_names(unsure)}"] if unsure else []
    return _sentence([*told, *(["the text tasks are too easy to tell"] if _too_easy(rows) else [])])


def _compared(rows: Sequence[Row], others: Sequence[Row]) -> str:
    """In how many comparisons it is better, and in how many worse."""
    better, worse, _ = said = counts(rows)
    return f"better in {better} of {sum(said)}, worse in {worse}"


def _why_compared(experiment: str) -> Callable[[Sequence[Row], Sequence[Row]], str]:
    def why(rows: Sequence[Row], others: Sequence[Row]) -> str:
        held = [row for row in _pictures(others) if "held for good" in row["quantity"]]
        ruined = [f"every order raises the FID (× {_range(held, 1)})"] if held else []
        words = ("better", "worse", "cannot tell")
        lost = sum(RUINED in row.get("note", "") for row in rows)
        nothing = f"in {lost} of {len(rows)} both orders have ruined their pictures, so FID ranks nothing"
        told = [f"{nothing}{_by_fid(rows)}"] if lost else []
        more = [row for row in others if row not in rows and row["model"] in {one["model"] for one in rows}]
        more = [row for row in more if row["holds"] is not None and row["quantity"] in {r["quantity"] for r in rows}]
        branches = [f"by branches {by_model(more, words)}"] if more else []
        return _sentence([by_model(rows, words), *told, *branches, *_missing(experiment, rows), *ruined])

    return why


def _by_fid(rows: Sequence[Row]) -> str:
    """What was said of ruined pictures before the rule about them."""
    said = [row["note"].split(BY_FID)[1] for row in rows if BY_FID in row.get("note", "")]
    return f" (alone it would say: {said.count('yes')} better, {said.count('no')} worse)" if said else ""


def _missing(experiment: str, rows: Sequence[Row]) -> list[str]:
    """The reference models that should have been compared, and were not. Of other models, nothing is missing.

    Any other model that was compared may stand in for the one that writes.
    """
    here, known = {row["model"] for row in rows}, EXPERIMENTS[experiment].models
    stands_in = {WRITES} if here - set(known) else set()
    left = [model for model in known if model not in here | stands_in] if here & set(known) else []
    return [f"{', '.join(left)} not measured"] if left else []


def _of_ladder(rows: Sequence[Row], others: Sequence[Row]) -> str:
    compiled = [{"measured": row["compiled"]} for row in rows]
    told = f"; {_times(compiled)} with compiled branches" if any(one["measured"] for one in compiled) else ""
    return f"{_times(rows)}{told}"


def _times(rows: Sequence[Row]) -> str:
    return f"{_range(rows).replace(' to ', '× to ')}×"


def _why_fast(rows: Sequence[Row], others: Sequence[Row]) -> str:
    """Which networks are as fast as the paper says, and which are not."""
    told = []
    words = {"yes": "at least as fast as claimed", "no": "slower than claimed", "cannot tell": "within the spread"}
    for holds, word in words.items():
        each = [f"{row['model']} {_both(row)} (paper {row['paper']}×)" for row in _saying(rows, holds)]
        told += [f"{word}: {', '.join(each)}"] if each else []
    return _sentence(told)


def _both(row: Row) -> str:
    """A speed-up, and that of compiled branches."""
    compiled = f", compiled {number(row['compiled'])}×" if row["compiled"] else ""
    return f"{number(row['measured'])}×{compiled}"


def _complete(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["quantity"] == "complete system"]


def _names(rows: Sequence[Row]) -> str:
    return ", ".join(dict.fromkeys(row["model"] for row in rows))


def _saying(rows: Sequence[Row], holds: str) -> list[Row]:
    return [row for row in rows if row["holds"] == holds]


def _sentence(parts: Sequence[str]) -> str:
    """The parts as one sentence. Names of models keep their small letters."""
    text = "; ".join(parts)
    named = text.startswith(("tiny-", "small-"))
    return f"{text if named else text[:1].upper() + text[1:]}."


def _why_bound(rows: Sequence[Row], others: Sequence[Row]) -> str:
    loose = [row for row in others if row["quantity"].startswith("Theorem 1: bound over")]
    return f"The bound is {_range(loose)} times the true error. {_ordered(rows)}"


def _ordered(rows: Sequence[Row]) -> str:
    ordered, rest = _saying(rows, "yes"), [row for row in rows if row["holds"] != "yes"]
    told = [f"it orders the units of {_names(ordered)}"] if ordered else []
    return _sentence([*told, *([f"cannot tell on {_names(rest)}"] if rest else [])])


CLAIMS = (
    AbstractClaim(
        "Weights alone identify branches that need not be recomputed (one setting, τ = 1, for all models).",
        "FID × 1.02 to 1.04; GSM8K −0.2 points",
        "operating-points",
        _beginning("τ = 1: FID", "τ = 1: arithmetic", "τ = 1: gsm8k", "τ = 1: all tasks", "τ = 1: sums"),
        _lost,
        _why_lost,
    ),
    AbstractClaim(
        "At equal work, the paper's order keeps more quality than random, depth, norm and stable-rank orders.",
        "better in 28 of 28 (Table 5)",
        "rankings",
        _beginning("SCR/Frobenius against"),
        _compared,
        _why_compared("rankings"),
    ),
    AbstractClaim(
        "The same holds in retrieval, reasoning, code, summaries and open-ended text.",
        "better in 14 of 14 (Table 6)",
        "language",
        _beginning("spectral against depth", "spectral against random"),
        _compared,
        lambda rows, others: f"{_text_told(rows, others)} Code and summaries need LLaDA-8B.",
    ),
    AbstractClaim(
        "The ranking is retained down to ten denoising steps.",
        "better in 20 of 20 (Table 7)",
        "horizons",
        _with("spectral against"),
        _compared,
        _why_compared("horizons"),
    ),
    AbstractClaim(
        "The captured-graph system is 2.8 to 3.0 times as fast as eager inference.",
        "2.8× to 3.0×",
        "ladder",
        _with("complete system"),
        _of_ladder,
        _why_fast,
    ),
    AbstractClaim(
        "On LLaDA a padded graph alone already gives 2.7 times.",
        "2.7×",
        "modes",
        _with("padded graph"),
        _of_ladder,
        lambda rows, others: "LLaDA-8B, 512 tokens. A padded graph computes everything and saves launches only.",
    ),
    AbstractClaim(
        "Eliminating inactive branches raises that to 3.0 times.",
        "3.0×, 1.11 times padded",
        "modes",
        _with("over padded"),
        lambda rows, others: f"{_range(_complete(others))}×, {_range(rows)} times padded",
        lambda rows, others: "Most of the gain comes from eliminating branches here; in the paper, from graphs.",
    ),
    AbstractClaim(
        "The score is a proxy of sensitivity.",
        "ρ = 0.66 to 0.76 (Figure 3)",
        "freeze-error",
        _beginning("Spearman"),
        lambda rows, others: f"ρ = {_range(rows)}",
        lambda rows, others: f"Rank correlation with the error of freezing one unit.{_negative(rows)}",
    ),
    AbstractClaim(
        "The perturbation analysis motivates attention and MLP components.",
        "a bound (Theorem 1)",
        "bounds",
        _beginning("Theorem 1: rank"),
        lambda rows, others: f"ρ of bound and error: {_range(rows)}",
        _why_bound,
    ),
    AbstractClaim(
        "It needs no router, calibration prompts, or input-dependent search.",
        "by construction",
        "maps",
        None,
        lambda rows, others: "by construction",
        lambda rows, others: "`tenuto score` and `tenuto schedule --policy lifetimes` read the weights, nothing else.",
    ),
)


def _negative(rows: Sequence[Row]) -> str:
    below = _saying(rows, "no")
    return f" Significantly below zero on {_names(below)}." if below else ""


def sources(records: Records, ladders: Ladders = (), text: Records = ()) -> dict[str, Sequence[Row]]:
    """The rows that claims are tested by: of each experiment, and of the ladder of the full-size networks.

    text  results of a language model whose tasks can tell. It stands in for the one whose tasks are too easy
    """
    found: dict[str, Sequence[Row]] = {record["name"]: record["rows"] for record in records}
    for record in text:
        others = [row for row in found.get(record["name"], ()) if row["model"] != TOO_EASY]
        found[record["name"]] = [*others, *record["rows"]]
    for ladder in reversed(ladders):  # the first that has them counts
        found |= {name: rows for name, rows in (("ladder", ladder_rows(ladder)), ("modes", mode_rows(ladder))) if rows}
    return found


def abstract_rows(records: Records, ladders: Ladders = (), text: Records = ()) -> list[tuple[str, ...]]:
    """The one-screen table: a row for each claim, with the columns HEAD.

    ladders  what `python -m benchmarks.ladder` wrote; a later one serves where the ones before lack a mode
    """
    known = sources(records, ladders, text)
    older = {record["name"] for record in records if record["provenance"].get("rejudged")}
    rows: list[tuple[str, ...]] = []
    for claim in CLAIMS:
        if not known.get(claim.experiment):
            command = f"tenuto lab experiment {claim.experiment}"
            command = "python -m benchmarks.ladder" if claim.experiment in ("ladder", "modes") else command
            rows.append((claim.says, claim.paper, "", "not run", f"`{command}`"))
            continue
        others = known[claim.experiment]
        tested = claim.tested(others)
        if claim.about is not None and not tested:
            told = f"No row of this experiment tests the claim. {_measured_in(claim, records)}".strip()
            rows.append((claim.says, claim.paper, "not measured", "**cannot tell**", told))
            continue
        mark = OLDER if claim.experiment in older else TIMED if claim.experiment in ("ladder", "modes") else ""
        word = f"**{verdict_of(tested)}**{mark and f' {mark}'}"
        why = f"{claim.why(tested, others)} {_measured_in(claim, records)}".strip()
        rows.append((claim.says, claim.paper, claim.here(tested, others), word, why))
    return rows


def _measured_in(claim: AbstractClaim, records: Records) -> str:
    """A link to what a verdict rests on."""
    if claim.experiment in ("ladder", "modes"):
        return f"See [results/ladder]({LADDERS[claim.experiment]})."
    titles = [record["title"] for record in records if record["name"] == claim.experiment]
    return f"See [{titles[0].rstrip('?')}](#{anchor(titles[0])})." if titles else ""


def abstract_table(records: Records, ladders: Ladders = (), text: Records = ()) -> list[str]:
    """The one-screen table, in Markdown."""
    head = [f"| {' | '.join(HEAD)} |", "|---|---|---|---|---|"]
    return head + [f"| {' | '.join(row)} |" for row in abstract_rows(records, ladders, text)]


def verdict_of(rows: Sequence[Row]) -> str:
    """The verdict of a claim about every row. Without rows, it holds by construction."""
    _, no, unsure = counts(rows)
    return "does not hold" if no else "cannot tell" if unsure else "holds"


def by_model(rows: Sequence[Row], words: Sequence[str] = ("yes", "no", "cannot tell"), nearness: bool = False) -> str:
    """How many rows of each model say yes, no, and cannot tell."""
    models: dict[str, list[str]] = {}
    for model in dict.fromkeys(row["model"] for row in rows):
        said = counts([row for row in rows if row["model"] == model], nearness)
        told = ", ".join(f"{count} {word}" for count, word in zip(said, words, strict=True) if count)
        models.setdefault(told, []).append(model)
    return "; ".join(f"{', '.join(names)}: {told}" for told, names in models.items() if told)


def models_table(records: Records, text: Records = ()) -> list[str]:
    """Each claim that several models test, model by model, in Markdown: by the paper's metric, and by nearness."""
    known = sources(records, (), text)
    first = list(dict.fromkeys(row["model"] for record in text for row in record["rows"] if row["model"] != "LLaDA-8B"))
    easy = [TOO_EASY] if any(row["model"] == TOO_EASY for record in records for row in record["rows"]) else []
    names = list(dict.fromkeys([*first, *easy, *REFERENCE]))
    lines = [f"| the abstract says | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for claim in CLAIMS:
        rows = known.get(claim.experiment, ())
        every = [*rows, *(row for one in records if one["name"] == claim.experiment for row in one["rows"])]
        if claim.tested(rows):
            of = {name: [row for row in every if row["model"] == name] for name in names}
            not_of_text = bool(of.get(TOO_EASY)) and not claim.tested(of[TOO_EASY])
            unasked = {WRITES} if not_of_text and not of[WRITES] else set()
            cells = ["" if name in unasked else _cell(claim, name, of[name]) for name in names]
            lines.append(f"| {claim.says} | {' | '.join(cells)} |")
    return lines


def _cell(claim: AbstractClaim, model: str, rows: Sequence[Row]) -> str:
    """What the rows of one model say of a claim. If none of them tests it, the claim is not about this model."""
    if not rows:
        return "not measured" if model in EXPERIMENTS[claim.experiment].models else ""
    unique = [row for i, row in enumerate(rows) if row not in rows[:i]]
    if not (tested := claim.tested(unique)):
        return ""
    counted = {row.get("granularity") for row in tested}
    told = _verdicts(tested)
    if beside := claim.beside(unique):
        return f"by blocks {told}; by branches {_verdicts(beside)}"
    return f"by branches {told}" if counted == {"branch"} else f"by blocks {told}" if counted == {"block"} else told


def _verdicts(rows: Sequence[Row]) -> str:
    """How many rows of one model say what, and what nearness says of them."""
    told = by_model(rows).split(": ", 1)[1]
    near = by_model(rows, nearness=True)
    return f"{told} (nearer: {near.split(': ', 1)[1]})" if near else told
