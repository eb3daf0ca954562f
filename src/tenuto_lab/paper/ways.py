"""The ways of running that several experiments try, and the rows that report and compare them.

The paper's metric decides a row: FID for pictures, right answers for text. Nearness to the full run stands beside it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from tenuto import deciding
from tenuto.sampling.pictures import Solver
from tenuto.scheduling.rewrite import rewrite
from tenuto.scheduling.schedule import Schedule
from tenuto.scheduling.units import block_of
from tenuto_lab.frontier.points import everything
from tenuto_lab.judging.statistics import SPREAD, Interval
from tenuto_lab.judging.verdicts import TELLING, Evidence, Verdict, alike, at_least, at_most, better
from tenuto_lab.paper.conditions import Lab
from tenuto_lab.paper.experiment_results import ClaimRow, Nearness
from tenuto_lab.paper.trials import Bench, Trial, Way, difference, fid_gain, scheduled
from tenuto_lab.units.lifetimes import lifetimes

BUDGETS = {"llada": 0.35, "dit": 0.34, "uvit": 0.36, "unet": 0.32}  # the paper's
FULL = {"llada": 68.3, "dit": 2.27, "uvit": 3.08, "unet": 7.84}  # the paper's full inference: GSM8K, or FID
# The paper's displayed uncertainty, as a share of full inference's FID or of right answers: differences below it count
# as alike.
UNCERTAIN = {"llada": 0.005, "dit": 0.04 / FULL["dit"], "uvit": 0.05 / FULL["uvit"], "unet": 0.10 / FULL["unet"]}
UNITS = {"psnr": "dB", "same tokens": "equal tokens"}
NEAR = {"psnr": 1.0, "same tokens": 0.01}  # differences that count as alike: dB, share of tokens
NO_FID = "FID was not measured: there is no judge for these pictures, or too few of them"
SATURATED = "saturated: no sample differs"
RUINED = "both ruined"  # see `ruined`
BY_FID = "by FID alone: "  # the verdict that a later rule took back
NOISE = 0.5  # share of the FID of noise
Claim = Literal["better", "alike"]


def spectral(bench: Bench, budget: float | None = None, tau: float | None = None) -> Way:
    """The paper's way: lifetimes by the score, from τ or the budget."""
    return scheduled(bench.model, lambda steps, blocks: lifetimes(bench.scores, steps, budget=budget, tau=tau))


def ours(bench: Bench, budget: float) -> Way:
    """Tenuto's default."""
    if bench.writes:
        return scheduled(bench.model, lambda steps, blocks: rewrite(bench.scores, steps, budget=budget, blocks=blocks))
    return scheduled(bench.model, lambda steps, blocks: deciding.schedule(bench.model, steps, budget=budget))


def in_full(bench: Bench) -> Way:
    return scheduled(bench.model, lambda steps, blocks: everything(bench.scores, steps))


def named(bench: Bench, name: str) -> str:
    """The name of a trial that depends on the granularity."""
    return f"{name}, by {bench.granularity}"


def share_of_steps(bench: Bench, schedule: Schedule) -> float:
    """Σ S_ℓ / (L T): of branches, or of blocks, which count once each, as the paper counts them."""
    if bench.granularity == "branch":
        return schedule.budget
    rows = {block_of(unit): row for unit, row in zip(schedule.units, schedule.active, strict=True)}
    return float(np.mean(list(rows.values())))


def tried(
    lab: Lab,
    bench: Bench,
    name: str,
    way: Way,
    steps: int | None = None,
    base: int | None = None,
    solver: Solver = "ddim",
    timed: bool = False,
) -> Trial:
    """A trial, or its record in the journal.

    timed  whether its time is asked for. If the trial was made beside other work, its time is measured now, alone
    """
    steps = steps or lab.steps or bench.steps
    key = trial_name(lab, bench, name, steps, base, solver)

    def measure() -> dict[str, object]:
        if bench.lacks and bench.lacks not in lab.warned:  # before hours are spent
            lab.say(bench.lacks)
            lab.warned.add(bench.lacks)
        found = bench.trial(way, steps, base, solver)
        lab.say(f"{key}  {f'{found.speedup:.2f}x' if found.speedup else 'not timed'}  {told(found)}")
        return found.to_json()

    found = Trial.from_json(lab.once(key, measure))
    if timed and found.seconds is None:
        whole = base or steps
        full = lab.time(
            f"{bench.model.name}, {whole} steps: time of full inference",
            lambda: {"seconds": bench.seconds(None, whole)},
        )
        took = lab.time(f"{key}, time", lambda: {"seconds": bench.seconds(way, steps, solver)})
        return replace(found, seconds=took.get("seconds"), full_seconds=full.get("seconds"))
    return found


NOT_TIMED = "not timed: other work ran on the same device"


def time_row(quantity: str, bench: Bench, paper: float | None, measured: float | None) -> ClaimRow:
    """A row about time."""
    return ClaimRow(quantity, bench.model.name, paper, measured, note="" if measured else NOT_TIMED)


def trial_name(
    lab: Lab, bench: Bench, name: str, steps: int | None = None, base: int | None = None, solver: Solver = "ddim"
) -> str:
    """The name of a trial in the journal."""
    steps = steps or lab.steps or bench.steps
    how = "" if bench.writes else f", {solver}"
    return f"{bench.model.name}, {steps} of {base or steps} steps{how}: {name}"


def told(trial: Trial) -> str:
    """The mean of each value and figure, in one line."""
    parts = [f"{name} {trial.mean(name)[0]:.3g}" for name in trial.values]
    return ", ".join([*parts, *(f"{name} {value:.3g}" for name, (value, _, _) in trial.figures.items())])


def drawn_value(bench: Bench, trial: Trial) -> float:
    """What figures show: the FID as a multiple of full inference's. Without one, and of text, the nearness."""
    if "fid" in trial.figures:
        return trial.figures["fid"][0] / trial.figures["full_fid"][0]
    return trial.mean(bench.quality)[0]


def drawn_title(bench: Bench, trial: Trial) -> str:
    return "FID, of full inference's" if "fid" in trial.figures else bench.quality_title


# Rows


def quality_rows(
    bench: Bench, way: str, trial: Trial, full: Trial, paper: dict[str, float], claims: bool = True
) -> list[ClaimRow]:
    """How much worse than the full run by the paper's metric, and beside it how near to the full run.

    paper   the paper's `fid` (increase, as a share of full inference's), `task` (GSM8K) and `needle`
    claims  whether the rows are the paper's claims, which are that no more is lost than the paper lost
    """
    name, rows = bench.model.name, []
    near = Nearness(UNITS[bench.quality], *_split(trial.mean(bench.quality)))
    if bench.writes:
        for place, task in enumerate(bench.tasks):
            change, _ = difference(trial, full, task)
            claimed = paper.get("task" if place == 0 else task)
            said = at_least(change, claimed) if claims and claimed is not None else None
            quantity = f"{way}: {task}, change in the share of right answers"
            why = (SATURATED if change[1] == change[2] else beyond(full, task)) if said else ""
            row = ClaimRow.of(quantity, name, claimed, change, said, _noted(_deviation(trial, task), why), near)
            row = undecided(row) if why else row
            rows.append(replace(row, said=in_papers_unit(bench.family, claimed, gain=False) if place == 0 else ""))
    elif "fid_delta" in trial.figures:
        increase = relative(trial.figures["fid_delta"], trial.figures["full_fid"][0])
        claimed = paper.get("fid")
        said = at_most(increase, claimed) if claims and claimed is not None else None
        note = _noted(_deviation(trial, "fid", trial.figures["full_fid"][0]))
        row = ClaimRow.of(f"{way}: FID above full inference's, share of it", name, claimed, increase, said, note, near)
        rows.append(replace(row, said=in_papers_unit(bench.family, claimed, gain=False)))
    else:
        rows.append(ClaimRow(f"{way}: FID above full inference's", name, None, None, note=NO_FID, nearness=near))
    for value, title in (
        ("agreement", "pictures of the class asked for"),
        ("likelihood", "nats a token by which its text is likelier"),
        ("distinct", "different pairs of tokens, of all: repetition is likely, too"),
    ):
        if value in trial.values:
            rows.append(ClaimRow.of(f"{way}: {title}", name, None, trial.mean(value)))
    return [_of(bench, row) for row in rows]


def comparison(
    bench: Bench,
    one: str,
    other: str,
    trials: tuple[Trial, Trial | Sequence[Trial]],
    claim: Claim | None = "better",
    *,
    paper: float | None = None,
    margin: float = 0.0,
    task: str | None = None,
    note: str = "",
    full: Trial | None = None,
) -> ClaimRow:
    """Two ways at the same work, over the same noise: how much better the first is by the paper's metric.

    trials  the second may be several trials of one kind (random orders); then their spread counts, too
    paper   how much better it is in the paper, in the same unit: a share of full inference's FID, or of right answers
    margin  of the claim that both are alike
    full    full inference, which says whether a task can tell
    """
    first, others = trials[0], [trials[1]] if isinstance(trials[1], Trial) else list(trials[1])
    near_gain, near_p = joined([difference(first, second, bench.quality) for second in others])
    near = Nearness(
        UNITS[bench.quality], *_split(near_gain), evidence=_evidence(near_gain, near_p, claim, NEAR[bench.quality])
    )
    if bench.writes:
        task = task or bench.tasks[0]
        gain, p = joined([difference(first, second, task) for second in others])
        quantity = f"{one} against {other}: more right answers in {task}, share"
    else:
        found = [one_gain for second in others if (one_gain := fid_gain(first, second)) is not None]
        quantity = f"{one} against {other}: FID lower by, share of full inference's"
        if not found:
            unsure: Verdict | None = "cannot tell" if claim else None
            told = _noted(note, NO_FID)
            row = ClaimRow(quantity, bench.model.name, paper, None, holds=unsure, note=told, nearness=near)
            return _of(bench, row, in_papers_unit(bench.family, paper, gain=True))
        gain, p = joined([(each, None) for each in found])
    why = _why_undecided(bench, [first, *others], gain, None if full is None or task is None else beyond(full, task))
    told = _noted(note, f"{len(others)} orders" if len(others) > 1 else "", why)
    said = _evidence(gain, p, claim, margin)
    row = ClaimRow.of(quantity, bench.model.name, paper, gain, said, told, near)
    row = undecided(row) if why and claim else row
    return _of(bench, row, in_papers_unit(bench.family, paper, gain=True))


def _why_undecided(bench: Bench, trials: Sequence[Trial], gain: Interval, beyond: str | None) -> str:
    if gain[1] == gain[2]:
        return SATURATED
    if all(ruined(trial, bench.chance) for trial in trials):
        return RUINED
    return beyond or ""


def undecided(row: ClaimRow) -> ClaimRow:
    """A row whose metric cannot tell. It is no comparison that Holm's correction should count."""
    return replace(row, evidence=None, holds="cannot tell")


def ruined(trial: Trial, chance: float | None) -> bool:
    """Whether nothing is left of the pictures, so that their FID does not rank this way.

    A judge that knows the classes sees the class asked for no more often than by chance: the 95 % interval of this
    share reaches down to chance. Without such a judge: the FID is at least half of what white noise gets.
    """
    if chance is not None and "agreement" in trial.values:
        return trial.mean("agreement")[1] <= chance
    noise = trial.figures.get("noise_fid")
    return noise is not None and trial.figures["fid"][0] >= NOISE * noise[0]


def beyond(full: Trial, task: str) -> str:
    """Why a task cannot tell: full inference is right too often, or too seldom. Empty if it can."""
    right, (least, most) = full.mean(task)[0], TELLING
    return (
        "" if least <= right <= most else f"full inference is right in {right:.0%}, outside {least:.0%} to {most:.0%}"
    )


def joined(found: Sequence[tuple[Interval, float | None]]) -> tuple[Interval, float | None]:
    """The mean of several gains over the same samples. Their spread adds to the interval."""
    if len(found) == 1:
        return found[0]
    values = np.array([gain[0] for gain, _ in found])
    within = float(np.mean([(gain[2] - gain[1]) / 2 for gain, _ in found]))
    between = SPREAD * float(values.std(ddof=1)) / len(found) ** 0.5
    width = (within**2 + between**2) ** 0.5
    mean = float(values.mean())
    return (mean, mean - width, mean + width), None


def _evidence(gain: Interval, p: float | None, claim: Claim | None, margin: float) -> Evidence | None:
    if claim is None:
        return None
    return better(gain, p) if claim == "better" else alike(gain, margin)


def relative(change: Interval, base: float) -> Interval:
    return change[0] / base, change[1] / base, change[2] / base


def _split(interval: Interval) -> tuple[float, tuple[float, float]]:
    return interval[0], (interval[1], interval[2])


def _of(bench: Bench, row: ClaimRow, said: str = "") -> ClaimRow:
    return replace(row, granularity=bench.granularity, said=row.said or said)


def in_papers_unit(family: str, claimed: float | None, gain: bool) -> str:
    """The paper's figure as the paper prints it: an FID or points, instead of a share."""
    if claimed is None or family not in FULL:
        return ""
    if family == "llada":
        return f"{100 * claimed:+.1f} points" if gain else f"{FULL[family] + 100 * claimed:.1f} %"
    return f"{FULL[family] * claimed:.2f} FID" if gain else f"FID {FULL[family] * (1 + claimed):.2f}"


def _deviation(trial: Trial, name: str, base: float = 1.0) -> str:
    found = trial.deviation(name)
    return "" if found is None else f"s.d. between {len(trial.of_seeds[name])} seeds {found / base:.2g}"


def _noted(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
