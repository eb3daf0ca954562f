"""What a language model can still do under each schedule: retrieval, arithmetic and free continuation."""

from tenuto_lab.judging.verdicts import at_least
from tenuto_lab.paper.conditions import Lab
from tenuto_lab.paper.experiment_results import ClaimRow, ExperimentResult, spread
from tenuto_lab.paper.static_rankings import OURS, ranked
from tenuto_lab.paper.trials import Bench, Trial, difference
from tenuto_lab.paper.ways import BUDGETS, SATURATED, beyond, comparison, in_full, ours, time_row, tried, undecided
from tenuto_lab.paper.writing_bench import ALL

# (needle, GSM8K, CNN/DM, Needle-4K, MATH, HumanEval, MAUVE) in the paper's table
PAPER = {
    "full": (100.0, 68.3, 42.1, 99.6, 28.6, 32.9, 0.921),
    "random": (81.2, 63.4, 38.2, 77.9, 22.1, 25.7, 0.846),
    "depth": (90.1, 66.2, 40.1, 87.8, 25.9, 29.8, 0.884),
    "spectral": (99.8, 68.1, 41.9, 99.2, 28.2, 32.4, 0.916),
}
ORDERS = {"spectral": OURS, "depth": "depth", "random": "random"}
NEEDLE, GSM8K, LONGEST = 0, 1, 3
# Tasks for the full-size model only: column of PAPER, and the command to type.
# The files are made by `tenuto lab eval build` (docs/evaluation.md).
FULL_SIZE = {
    "CNN/DailyMail, ROUGE-L": (2, "tenuto lab eval lm DIR --tasks-file cnn-dailymail.jsonl --length 128 -o run.json"),
    "MATH-500": (4, "tenuto lab eval lm DIR --tasks-file math-500.jsonl --length 512 -o run.json"),
    "HumanEval, pass@1": (
        5,
        "tenuto lab eval lm DIR --tasks-file humaneval.jsonl --length 512 --allow-code-execution -o run.json",
    ),
    "continuation, MAUVE": (6, "tenuto lab eval lm DIR --tasks-file wikitext.jsonl --length 128 -o run.json"),
}


def language(lab: Lab) -> ExperimentResult:
    rows: list[ClaimRow] = []
    budget = BUDGETS["llada"]
    for bench in lab.writers():
        name = bench.model.name
        full = tried(lab, bench, "full", in_full(bench), timed=True)
        found = {order: ranked(lab, bench, ranking, budget, timed=True) for order, ranking in ORDERS.items()}
        default = tried(lab, bench, f"tenuto at {budget:g}", ours(bench, budget), timed=True)
        firsts = {"full": full, **{order: trials[0] for order, trials in found.items()}, "Tenuto's default": default}
        for order, trial in firsts.items():
            rows += _rows(bench, order, trial, trial is full)
        spectral = found["spectral"][0]
        for task in (one for one in bench.tasks if one != ALL):
            claimed = (PAPER["spectral"][_place(task)] - PAPER["full"][_place(task)]) / 100
            change, _ = difference(spectral, full, task)
            why = SATURATED if change[1] == change[2] else beyond(full, task)
            quantity = f"spectral against full inference: more right answers in {task}, share"
            row = ClaimRow.of(quantity, name, claimed, change, at_least(change, claimed), why)
            rows.append(undecided(row) if why else row)
            for other in ("depth", "random"):
                gain = (PAPER["spectral"][_place(task)] - PAPER[other][_place(task)]) / 100
                pair = spectral, found[other]
                rows.append(comparison(bench, "spectral", other, pair, paper=gain, task=task, full=full))
    for title, (place, command) in FULL_SIZE.items():
        values = {order: PAPER[order][place] for order in PAPER}
        note = f"needs the 8B checkpoint: {command} (paper: {', '.join(f'{k} {v:g}' for k, v in values.items())})"
        change_of_paper = values["spectral"] - values["full"]
        rows.append(ClaimRow(f"{title}, spectral less full", "LLaDA-8B", change_of_paper, None, note=note))
    return ExperimentResult(
        rows,
        _likelihood(rows),
        limits="The small models answer kinds of problem that they were trained for. Their arithmetic is sums of two "
        "numbers, not GSM8K; real code, summaries and long contexts need the full-size model.",
    )


def _likelihood(rows: list[ClaimRow]) -> str:
    if not any("nats a token" in row.quantity for row in rows):
        return ""
    return (
        "Free continuation does tell holding for good from full inference: its likelihood changes by "
        f"{spread(rows, 'spectral: nats')} nats a token, under Tenuto's default by {spread(rows, 'default: nats')}."
    )


def _rows(bench: Bench, order: str, trial: Trial, full: bool) -> list[ClaimRow]:
    paper, model, rows = PAPER.get(order), bench.model.name, []
    for task in bench.tasks:
        quantity = f"{order}: {task}, share right"
        rows.append(ClaimRow.of(quantity, model, paper and paper[_place(task)] / 100, trial.mean(task)))
    if "needle, longest" in trial.values:
        quantity = f"{order}: needle in the longest contexts (paper: 4,096 tokens), share right"
        rows.append(ClaimRow.of(quantity, model, paper and paper[LONGEST] / 100, trial.mean("needle, longest")))
    rows.append(time_row(f"{order}: speed-up over eager full inference", bench, None, trial.speedup))
    if "likelihood" in trial.values and not full:
        rows.append(
            ClaimRow.of(f"{order}: nats a token by which its text is likelier", model, None, trial.mean("likelihood"))
        )
    quantity = f"{order}: different pairs of tokens, of all (repetition is likely, too)"
    return [*rows, ClaimRow.of(quantity, model, None, trial.mean("distinct"))]


def _place(task: str) -> int:
    return NEEDLE if task.startswith(("needle", "codes")) else GSM8K
