"""What a language model can still do under each schedule: retrieval, arithmetic and free continuation."""

from functools import partial

from tenuto_lab.judging.statistics import Interval
from tenuto_lab.paper.conditions import Lab
from tenuto_lab.paper.experiment_results import ClaimRow, ExperimentResult, spread
from tenuto_lab.paper.static_rankings import ranked_way
from tenuto_lab.paper.trials import Trial
from tenuto_lab.paper.ways import BUDGETS, above, in_full, ours, paired_row, tried

# (needle, GSM8K, CNN/DM, Needle-4K, MATH, HumanEval, MAUVE) in the paper's table
PAPER = {
    "full": (100.0, 68.3, 42.1, 99.6, 28.6, 32.9, 0.921),
    "random": (81.2, 63.4, 38.2, 77.9, 22.1, 25.7, 0.846),
    "depth": (90.1, 66.2, 40.1, 87.8, 25.9, 29.8, 0.884),
    "spectral": (99.8, 68.1, 41.9, 99.2, 28.2, 32.4, 0.916),
}
NEEDLE, GSM8K, LONGEST = 0, 1, 3
# Tasks for the full-size model only: column of PAPER, and the command to type.
FULL_SIZE = {
    "CNN/DailyMail, ROUGE-L": (2, "tenuto lab eval lm DIR --tasks-file cnn_dailymail.jsonl"),
    "MATH-500": (4, "tenuto lab eval lm DIR --tasks minerva_math500"),
    "HumanEval, pass@1": (5, "tenuto lab eval lm DIR --tasks humaneval"),
    "continuation, MAUVE": (6, "tenuto lab eval lm DIR --tasks-file wikitext.jsonl"),
}


def language(lab: Lab) -> ExperimentResult:
    rows: list[ClaimRow] = []
    budget = BUDGETS["llada"]
    for bench in lab.writers():
        name = bench.model.name
        full = tried(lab, bench, "full", in_full(bench))
        found = {
            order: tried(lab, bench, f"{order} at {budget:g}", ranked_way(bench, order, budget))
            for order in ("spectral", "depth", "random")
        }
        found["Tenuto's default"] = tried(lab, bench, f"tenuto at {budget:g}", ours(bench, budget))
        for order, trial in {"full": full, **found}.items():
            rows += _rows(name, order, trial, full)
            paper = PAPER.get(order)
            rows.append(
                ClaimRow.of(
                    f"{order}: needle in the longest contexts (paper: 4,096 tokens), share right",
                    name,
                    paper and paper[LONGEST] / 100,
                    trial.mean("needle, longest"),
                )
            )
        for task in ("arithmetic", "needle"):
            for other, trial in {"full": full, "depth": found["depth"], "random": found["random"]}.items():
                claimed = (PAPER["spectral"][_place(task)] - PAPER[other][_place(task)]) / 100
                claim = partial(_reaches, claimed) if other == "full" else above
                quantity = f"spectral less {other}, {task}"
                rows.append(paired_row(bench, quantity, (found["spectral"], trial), task, claim, claimed))
    for title, (place, command) in FULL_SIZE.items():
        values = {order: PAPER[order][place] for order in PAPER}
        note = f"needs the 8B checkpoint: {command} (paper: {', '.join(f'{k} {v:g}' for k, v in values.items())})"
        rows.append(
            ClaimRow(f"{title}, spectral less full", "LLaDA-8B", values["spectral"] - values["full"], None, note=note)
        )
    return ExperimentResult(
        rows,
        f"Short answers do not tell the orders apart. Free continuation does tell holding for "
        f"good from full inference: its likelihood changes by {spread(rows, 'spectral: nats')} nats a token, "
        f"under Tenuto's default by {spread(rows, 'default: nats')}.",
        limits="tiny-llada answers two kinds of problem it was trained for, and continues books. Its arithmetic is "
        "sums of two numbers, not GSM8K; code, summaries and long contexts need the full-size model.",
    )


def _rows(model: str, order: str, trial: Trial, full: Trial) -> list[ClaimRow]:
    paper = PAPER.get(order)
    rows = [
        ClaimRow.of(f"{order}: needle, share right", model, paper and paper[NEEDLE] / 100, trial.mean("needle")),
        ClaimRow.of(
            f"{order}: arithmetic (paper: GSM8K), share right",
            model,
            paper and paper[GSM8K] / 100,
            trial.mean("arithmetic"),
        ),
        ClaimRow(f"{order}: speed-up over eager full inference", model, None, trial.speedup),
    ]
    if "likelihood" in trial.values and trial is not full:
        rows.append(
            ClaimRow.of(f"{order}: nats a token by which its text is likelier", model, None, trial.mean("likelihood"))
        )
    rows.append(
        ClaimRow.of(
            f"{order}: different pairs of tokens, of all (repetition is likely, too)",
            model,
            None,
            trial.mean("distinct"),
        )
    )
    return rows


def _reaches(claimed: float, change: Interval) -> bool:
    return change[2] >= claimed


def _place(task: str) -> int:
    return NEEDLE if task == "needle" else GSM8K
