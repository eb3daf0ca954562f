"""What was measured, in Markdown: the networks, how each way changes with size, and a table for each case."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.scaling.ways import STEPS, WAYS
from tenuto.provenance import origin
from tenuto_lab.result_files import ORIGIN, both, fields, in_order, makes, number, shaped, text, whole

NOTATION = (
    f"All ways draw the same pictures from the same noise. *Full* is the checkpoint's own scheduler in {STEPS} steps "
    "(DDIM, or Euler for a flow), *converged* the same scheduler in 500 steps. dB is the PSNR of the decoded picture, "
    "with a 95 % bootstrap interval over samples. *Beyond full* is the Fréchet distance from real pictures in the "
    "judge's features, less the full run's, resampled in pairs. *Fewer steps*, *best solver* (UniPC, DPM-Solver++, "
    "DEIS, orders 2 and 3, trained or Karras levels) and *best output predictor* (TaylorSeer, FoCa) are at their best "
    "setting with hindsight, for each goal by itself; the other ways have no setting.\n"
)
FEW = (
    "Size and training can be told apart only if three networks or more are measured. What is known of networks of "
    "other kinds: [networks of several sizes](across.md).\n"
)


def tables(record: Mapping[str, Any]) -> str:
    cases = list(record["cases"].values())
    parts = ["# Does it scale?\n", NOTATION, "## The networks\n", *_networks(cases), ""]
    several = len({case["network"] for case in cases}) >= 3
    parts += ["## Change with size and with training\n", *(_effects(cases) if several else [FEW])]
    for case in cases:
        parts += [f"## {case['network']}, guidance {case['guidance']:g}\n", _origin(case), *_rows(case), ""]
    return "\n".join(parts)


def _origin(case: Mapping[str, Any]) -> str:
    few = "; rivals with few settings" if case.get("few_settings") else ""
    samples = f"; {case['near']} samples" if "near" in case else ""
    return f"{origin(case['provenance'])}{samples}{few}.\n"


def _networks(cases: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    titles = ["network", "parameters", "predicts", "trained", "held-out loss", "guidance", "class accuracy"]
    lines = []
    for case in cases:
        full = case["full"]
        loss = "" if case["held_out_loss"] is None else f"{case['held_out_loss']:.4f}"
        early = ", cut short" if case["early"] else ""
        cells = [case["network"], f"{case['parameters'] / 1e6:.1f} M", case["prediction"]]
        cells += [f"{case['trained_seconds']:.0f} s, {case['trained_samples'] / 1e6:.1f} M samples{early}", loss]
        judged = [f"{full['accuracy']:.1%}", f"{full['distance'][0]:.2f}"] if "accuracy" in full else ["", ""]
        lines.append([*cells, f"{case['guidance']:g}", *judged, _interval(full["converged"])])
    yield from _table([*titles, "Fréchet distance", "full run to converged, dB"], lines)


def is_dit(case: Mapping[str, Any]) -> bool:
    """The family's other networks differ in more than size and training. Older files have DiTs only."""
    return bool(case.get("architecture", "dit") == "dit")


def effects(cases: Sequence[Mapping[str, Any]], way: str, budget: float, goal: str) -> tuple[float, float] | None:
    """The change for ten times as many parameters, and for ten times as many samples seen in training.

    A plane fitted to the DiTs that predict noise: dB = a + b log₁₀(parameters) + c log₁₀(samples). None if there are
    too few networks to tell the two apart.
    """
    points = []
    for case in cases:
        if case["prediction"] == "noise" and is_dit(case):
            at = 1.0, math.log10(case["parameters"]), math.log10(case["trained_samples"])
            points += [
                (*at, row[goal]["dB"])
                for row in case["rows"]
                if row["way"] == way and row["budget"] == budget and goal in row
            ]
    if len(points) < 3 or np.linalg.matrix_rank(np.array(points)[:, :3]) < 3:
        return None
    given, found = np.array(points)[:, :3], np.array(points)[:, 3]
    _, size, training = np.linalg.lstsq(given, found, rcond=None)[0]
    return float(size), float(training)


def _effects(cases: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A table for each guidance and goal."""
    yield (
        "dB gained with ten times as many parameters / with ten times as many samples in training, by a plane fitted "
        "to the DiTs that predict noise. They are few, so this says which way it goes and not how far. Below "
        "zero: harder.\n"
    )
    for guidance in sorted({case["guidance"] for case in cases}):
        chosen = [case for case in cases if case["guidance"] == guidance]
        budgets = sorted({row["budget"] for case in chosen for row in case["rows"]}, reverse=True)
        for goal in ("full", "converged"):
            lines = []
            for way in WAYS:
                found = [effects(chosen, way, budget, goal) for budget in budgets]
                cells = ["" if one is None else f"{one[0]:+.1f} / {one[1]:+.1f}" for one in found]
                if any(cells):
                    lines.append([way, *cells])
            if lines:
                title = f"guidance {guidance:g}, to the {goal} run"
                yield from _table([title, *(f"{budget:.0%}" for budget in budgets)], lines)
                yield ""


def _rows(case: Mapping[str, Any]) -> Iterator[str]:
    titles = ["work", "way", "computed", "dB to full", "dB to converged", "beyond full", "class accuracy", "setting"]
    lines = []
    for row in case["rows"]:
        goals = [_interval([row[goal][name] for name in ("dB", "low", "high")]) for goal in ("full", "converged")]
        beyond = _interval(row["distance_beyond_full"], "+.2f") if "distance_beyond_full" in row else ""
        accuracy = f"{row['accuracy']:.1%}" if "accuracy" in row else ""
        named = dict.fromkeys(row[goal]["setting"] for goal in ("full", "converged") if row[goal]["setting"])
        cells = [f"{row['budget']:.0%}", row["way"], f"{row['work']:.1%}", *goals, beyond, accuracy, "; ".join(named)]
        lines.append(cells)
    yield from _table(titles, lines)


def _interval(values: Sequence[float], form: str = ".1f") -> str:
    value, low, high = values
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    line = "|---|" + "---:|" * (len(titles) - 1)
    return ["| " + " | ".join(titles) + " |", line, *("| " + " | ".join(row) + " |" for row in rows)]


def _goal(value: Any, where: str) -> None:
    shaped({"dB": float, "low": float, "high": float, "setting": str | None})(value, where)


INTERVAL = in_order(number(), number(), number())
CASE = shaped(
    {
        **{"network": str, "guidance": float, "prediction": str, "early": bool, "complete": bool, "provenance": ORIGIN},
        **{
            "parameters": whole(1),
            "trained_samples": whole(),
            "trained_seconds": float,
            "held_out_loss": float | None,
        },
        "full": fields({"converged": INTERVAL}, {"accuracy": number(), "distance": INTERVAL}, others=True),
        "rows": [
            fields(
                {"way": text, "budget": number(), "work": number(), "full": _goal, "converged": _goal},
                {"distance_beyond_full": INTERVAL, "accuracy": number()},
                others=True,
            )
        ],
    }
)
RECORD = both(shaped({"cases": {str: CASE}}), makes(tables))
