"""The ways of running that several experiments try, and the rows that report them."""

from collections.abc import Callable

from tenuto.sampling.pictures import Solver
from tenuto.scheduling.lifetimes import lifetimes
from tenuto.scheduling.refresh import refresh
from tenuto.scheduling.rewrite import rewrite
from tenuto_lab.frontier.points import everything
from tenuto_lab.judging.statistics import Interval
from tenuto_lab.paper.conditions import Lab
from tenuto_lab.paper.experiment_results import ClaimRow
from tenuto_lab.paper.trials import Bench, Trial, Way, difference, scheduled

BUDGETS = {"llada": 0.35, "dit": 0.34, "uvit": 0.36, "unet": 0.32}  # the paper's
TASKS = ("arithmetic", "needle")


def spectral(bench: Bench, budget: float | None = None, tau: float | None = None) -> Way:
    """The paper's way: lifetimes by the score, from τ or the budget."""
    return scheduled(bench.model, lambda steps, blocks: lifetimes(bench.scores, steps, budget=budget, tau=tau))


def ours(bench: Bench, budget: float) -> Way:
    """Tenuto's default."""
    if bench.writes:
        return scheduled(bench.model, lambda steps, blocks: rewrite(bench.scores, steps, budget=budget, blocks=blocks))
    return scheduled(bench.model, lambda steps, blocks: refresh(bench.scores, steps, budget=budget))


def in_full(bench: Bench) -> Way:
    return scheduled(bench.model, lambda steps, blocks: everything(bench.scores, steps))


def tried(
    lab: Lab,
    bench: Bench,
    name: str,
    way: Way,
    steps: int | None = None,
    base: int | None = None,
    solver: Solver = "ddim",
) -> Trial:
    """A trial, or its record in the journal."""
    steps = steps or lab.steps or bench.steps
    key = f"{bench.model.name}, {steps} of {base or steps} steps, {solver}: {name}"

    def measure() -> dict[str, object]:
        found = bench.trial(way, steps, base, solver)
        lab.say(f"{key}  {found.speedup:.2f}x  {told(found)}")
        return found.to_json()

    return Trial.from_json(lab.once(key, measure))


def told(trial: Trial) -> str:
    """The mean of each value and figure, in one line."""
    parts = [f"{name} {trial.mean(name)[0]:.3g}" for name in trial.values]
    return ", ".join([*parts, *(f"{name} {value:.3g}" for name, (value, _, _) in trial.figures.items())])


def quality_rows(
    bench: Bench, way: str, trial: Trial, full: Trial, paper: dict[str, float], claims: bool = True
) -> list[ClaimRow]:
    """How much worse than the full run (pictures by Fréchet distance, text by right answers), and how similar to it.

    paper   the paper's `fid` (increase, as a share of full inference's), `arithmetic` (GSM8K) and `needle`
    claims  whether the rows are the paper's claims; they hold unless the interval excludes the paper's figure
    """
    name, rows = bench.model.name, []
    if "fid_delta" in trial.figures:
        increase = relative(trial.figures["fid_delta"], trial.figures["full_fid"][0])
        claimed = paper.get("fid")
        holds = increase[1] <= claimed if claims and claimed is not None else None
        rows.append(ClaimRow.of(f"{way}: FID above full inference's, share of it", name, claimed, increase, holds))
    for task in TASKS:
        if task in trial.values:
            change, _ = difference(trial, full, task)
            claimed = paper.get(task)
            holds = change[2] >= claimed if claims and claimed is not None else None
            rows.append(
                ClaimRow.of(f"{way}: {task}, change in the share of right answers", name, claimed, change, holds)
            )
    for value, title in (
        ("psnr", "dB to the full run's picture"),
        ("agreement", "pictures of the class asked for"),
        ("likelihood", "nats a token by which its text is likelier"),
        ("same tokens", "tokens as the full run wrote them"),
        ("distinct", "different pairs of tokens, of all: repetition is likely, too"),
    ):
        if value in trial.values:
            rows.append(ClaimRow.of(f"{way}: {title}", name, None, trial.mean(value)))
    return rows


def paired_row(
    bench: Bench,
    quantity: str,
    trials: tuple[Trial, Trial],
    value: str,
    holds: Callable[[Interval], bool] | None = None,
    paper: float | None = None,
    note: str = "{test}",
) -> ClaimRow:
    """The mean paired difference, first trial − second. In `note`, `{test}` is replaced by the test's result."""
    change, p = difference(*trials, value)
    told = note.format(test=f"paired, p = {p:.2g}")
    return ClaimRow.of(quantity, bench.model.name, paper, change, holds(change) if holds else None, told)


def above(change: Interval) -> bool:
    """Whether the whole interval lies above zero."""
    return change[1] > 0


def within(change: Interval) -> bool:
    """Whether the interval contains zero."""
    return change[1] <= 0 <= change[2]


def relative(change: Interval, base: float) -> Interval:
    return change[0] / base, change[1] / base, change[2] / base
