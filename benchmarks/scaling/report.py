"""What was measured, in Markdown: the networks, how each way changes with size, and a table for each case."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.scaling.ways import MANY, OURS, SOLVER, STEPS, WAYS
from tenuto.provenance import origin
from tenuto_lab.judging.statistics import mean_interval
from tenuto_lab.result_files import ORIGIN, both, fields, in_order, makes, number, shaped, text, whole
from training.tiny_imagenet import SIZE

PLANE = (
    "dB gained with ten times as many parameters / with ten times as many samples in training; then, if there are more "
    "than three networks, by how many dB the plane misses a point at most. The plane is fitted to the DiTs that "
    "predict noise and draw 64×64 pictures. Below zero: harder. ± is half a 95 % interval over samples. It follows "
    "from the dB of each sample, or, where a file holds the points' intervals only, from these as if the networks' "
    "samples were independent. It does not cover what another training of the same network would change.\n"
)
NOTATION = (
    f"All ways draw the same pictures from the same noise. *Full* is the checkpoint's own scheduler in {STEPS} steps "
    "(DDIM, or Euler for a flow), *converged* the same scheduler in 500 steps. dB is the PSNR of the decoded picture, "
    "with a 95 % bootstrap interval over samples. *Beyond full* is the Fréchet distance from real pictures in the "
    "judge's features, less the full run's, resampled in pairs; behind the class accuracy is its difference from "
    "the full run's, picture by picture, where it is known. *Fewer steps*, *best solver* (UniPC, DPM-Solver++, "
    "DEIS, orders 2 and 3, trained or Karras levels) and *best output predictor* (TaylorSeer, FoCa) are at their best "
    "setting with hindsight, for each goal by itself; the other ways have no setting.\n"
)
RESOLUTION = (
    "dB gained by pictures with more pixels: two networks of one shape are trained on the same pictures, and one of "
    "them sees each picture reduced to half of its side. Both draw by the same autoencoder.\n"
)
ENOUGH = 6  # networks, for a plane
GUIDANCE = "dB gained by stronger guidance, for each network.\n"
FEW = (
    "Size and training can be told apart only if three networks or more are measured. What is known of networks of "
    "other kinds: [networks of several sizes](across.md).\n"
)


def tables(record: Mapping[str, Any]) -> str:
    cases = sorted(record["cases"].values(), key=lambda case: (case["guidance"], case["parameters"], case["network"]))
    parts = ["# Does it scale?\n", NOTATION, "## The networks\n", *_networks(cases), ""]
    several = len({case["network"] for case in cases}) >= 3
    parts += ["## Change with size and with training\n", *(_effects(cases) if several else [FEW])]
    parts += _differences("## Change with resolution\n", RESOLUTION, list(_resolutions(cases)))
    parts += _differences("## Change with guidance\n", GUIDANCE, list(_guidances(cases)))
    for case in cases:
        parts += [f"## {case['network']}, guidance {case['guidance']:g}\n", _origin(case), *_rows(case), ""]
    return "\n".join(parts)


Pair = tuple[str, Mapping[str, Any], Mapping[str, Any]]  # what differs, and the two cases


def _resolutions(cases: Sequence[Mapping[str, Any]]) -> Iterator[Pair]:
    """Networks of one shape whose pictures have fewer and more pixels: NAME-32 and NAME."""
    known = {(case["network"], case["guidance"]): case for case in cases}
    for (name, guidance), small in known.items():
        large = known.get((name.removesuffix(f"-{side_of(small)}"), guidance))
        if large is not None and side_of(large) > side_of(small):
            sides = f"{side_of(small)}² to {side_of(large)}² pixels"
            yield f"{large['network']}, guidance {guidance:g}, {sides}", small, large


def _guidances(cases: Sequence[Mapping[str, Any]]) -> Iterator[Pair]:
    """Each network at its weakest guidance and at each stronger one."""
    for name in dict.fromkeys(case["network"] for case in cases):
        weakest, *stronger = sorted((case for case in cases if case["network"] == name), key=_guidance)
        for case in stronger:
            yield f"{name}, guidance {weakest['guidance']:g} to {case['guidance']:g}", weakest, case


def _guidance(case: Mapping[str, Any]) -> float:
    return float(case["guidance"])


def _differences(heading: str, said: str, pairs: Sequence[Pair]) -> list[str]:
    """For each pair of cases and each goal: by how much nearer the second is. Nothing if there are no pairs."""
    if not pairs:
        return []
    parts = [heading, said]
    budgets = sorted({row["budget"] for _, *both in pairs for case in both for row in case["rows"]}, reverse=True)
    for goal, ways in (("full", (OURS, SOLVER)), ("converged", (MANY, SOLVER))):
        lines = []
        for title, before, after in pairs:
            for way in ways:
                changes = [_difference(before, after, way, budget, goal) for budget in budgets]
                lines.append([title, way, *("" if change is None else str(change) for change in changes)])
        parts += [*_table([f"to the {goal} run", "way", *(f"{budget:.0%}" for budget in budgets)], lines), ""]
    return parts


def _difference(
    before: Mapping[str, Any], after: Mapping[str, Any], way: str, budget: float, goal: str
) -> "Change | None":
    """The pictures differ, so the intervals are those of independent samples."""
    rows = [
        row[goal]
        for case in (before, after)
        for row in case["rows"]
        if (row["way"], row["budget"]) == (way, budget) and goal in row
    ]
    if len(rows) < 2:
        return None
    half = math.hypot(*((row["high"] - row["low"]) / 2 for row in rows))
    return Change(rows[1]["dB"] - rows[0]["dB"], half)


def _origin(case: Mapping[str, Any]) -> str:
    few = "; rivals with few settings" if case.get("few_settings") else ""
    samples = f"; {case['near']} samples" if "near" in case else ""
    made = case.get("provenance_of_distances")
    judged = f" Fréchet distances and class accuracies: {origin(made)}; {case['judged']} samples." if made else ""
    return f"{origin(case['provenance'])}{samples}{few}.{judged}\n"


def _networks(cases: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    titles = ["network", "parameters", "predicts", "trained", "held-out loss", "guidance", "class accuracy"]
    lines = []
    for case in cases:
        full = case["full"]
        loss = "" if case["held_out_loss"] is None else f"{case['held_out_loss']:.4f}"
        early = ", cut short" if case["early"] else ""
        cells = [case["network"], f"{case['parameters'] / 1e6:.1f} M", case["prediction"]]
        cells += [f"{case['trained_seconds']:.0f} s, {case['trained_samples'] / 1e6:.1f} M samples{early}", loss]
        accuracy = f"{full['accuracy']:.1%}" if "accuracy" in full else ""
        judged = [accuracy, f"{full['distance'][0]:.2f}" if "distance" in full else ""]
        lines.append([*cells, f"{case['guidance']:g}", *judged, _interval(full["converged"])])
    yield from _table([*titles, "Fréchet distance", "full run to converged, dB"], lines)


def of_one_kind(case: Mapping[str, Any]) -> bool:
    """Whether it is a DiT that draws 64×64 pictures: the family's others differ in more than size and training.

    Older files have DiTs only.
    """
    return bool(case.get("architecture", "dit") == "dit") and side_of(case) == SIZE


def side_of(case: Mapping[str, Any]) -> int:
    """Pixels a side of the pictures. Older files have one size only."""
    return int(case.get("side", SIZE))


class Change(NamedTuple):
    """dB, for ten times as much or of one point, and half of its 95 % interval over samples."""

    value: float
    half: float

    def __str__(self) -> str:
        return f"{self.value:+.1f} ± {self.half:.1f}"

    @property
    def sign(self) -> int:
        """0 if the interval holds zero."""
        return 0 if abs(self.value) <= self.half else 1 if self.value > 0 else -1


class Effects(NamedTuple):
    size: Change
    training: Change
    miss: Change  # the point that the plane misses by most: by how many dB
    networks: int

    @property
    def free(self) -> bool:
        """Whether the plane can miss a point at all: it goes through any three."""
        return self.networks > 3

    def __str__(self) -> str:
        return f"{self.size} / {self.training}" + (f"; {abs(self.miss.value):.1f}" if self.free else "")


def effects(cases: Sequence[Mapping[str, Any]], way: str, budget: float, goal: str) -> Effects | None:
    """The change for ten times as many parameters, and for ten times as many samples seen in training.

    A plane fitted to the DiTs that predict noise: dB = a + b log₁₀(parameters) + c log₁₀(samples). None if there are
    too few networks to tell the two apart.
    """
    places, rows = [], []
    for case in cases:
        if case["prediction"] == "noise" and of_one_kind(case):
            at = 1.0, math.log10(case["parameters"]), math.log10(case["trained_samples"])
            found = [row[goal] for row in case["rows"] if (row["way"], row["budget"]) == (way, budget) and goal in row]
            places += [at] * len(found)
            rows += found
    given = np.array(places)
    if len(places) < 3 or np.linalg.matrix_rank(given) < 3:
        return None
    weights = np.linalg.pinv(given)
    left = np.eye(len(rows)) - given @ weights  # what the plane leaves of each point
    size, training = _sum(weights[1], rows), _sum(weights[2], rows)
    miss = max((_sum(one, rows) for one in left), key=lambda one: abs(one.value))
    return Effects(size, training, miss, len(rows))


def _sum(weights: Any, rows: Sequence[Mapping[str, Any]]) -> Change:
    """A weighted sum of points, with its interval.

    Every network drew the same samples. If the dB of each sample are known, the sum is taken sample by sample.
    Otherwise the points count as independent.
    """
    value = float(weights @ np.array([row["dB"] for row in rows]))
    if all("each" in row for row in rows) and len({len(row["each"]) for row in rows}) == 1:
        _, low, high = mean_interval(weights @ np.array([row["each"] for row in rows]))
        return Change(value, (high - low) / 2)
    halves = np.array([(row["high"] - row["low"]) / 2 for row in rows])
    return Change(value, float(np.sqrt(np.square(weights * halves).sum())))


def _effects(cases: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A table for each guidance and goal, and what they show."""
    yield PLANE
    ours: list[tuple[str, Effects]] = []
    for guidance in sorted({case["guidance"] for case in cases}):
        chosen = [case for case in cases if case["guidance"] == guidance]
        budgets = sorted({row["budget"] for case in chosen for row in case["rows"]}, reverse=True)
        for goal in ("full", "converged"):
            lines = []
            for way in WAYS:
                found = [effects(chosen, way, budget, goal) for budget in budgets]
                cells = ["" if one is None else str(one) for one in found]
                if any(cells):
                    lines.append([way, *cells])
                if (way, goal) in ((OURS, "full"), (MANY, "converged")):
                    ours += [(goal, one) for one in found if one is not None]
            if lines:
                title = f"guidance {guidance:g}, to the {goal} run"
                yield from _table([title, *(f"{budget:.0%}" for budget in budgets)], lines)
                yield ""
    if ours:
        networks = len({case["network"] for case in cases if case["prediction"] == "noise" and of_one_kind(case)})
        yield _shown(ours, networks)


def _shown(ours: Sequence[tuple[str, Effects]], networks: int) -> str:
    """How many changes of the default are told from zero, and how well the plane fits."""
    told = []
    for goal, way in (("full", OURS), ("converged", MANY)):
        signs = [one.size.sign for aim, one in ours if aim == goal]
        told.append(
            f"to the {goal} run ({way}), of {len(signs)} changes with size {signs.count(-1)} lie below zero, "
            f"{signs.count(1)} above, and {signs.count(0)} cannot be told from zero"
        )
    enough = "which is enough" if networks >= ENOUGH else "too few"
    free = [one for _, one in ours if one.free]
    off = sum(one.miss.sign != 0 for one in free)
    return (
        f"**The default:** {'; '.join(told)}. In {off} of the {len(free)} fits to more than three networks the plane "
        "misses the points by more than the intervals explain, so the intervals of its coefficients are too narrow "
        "there. A plane has 3 "
        f"coefficients, and {networks} networks were measured: {enough} to separate size from training.\n"
    )


def _rows(case: Mapping[str, Any]) -> Iterator[str]:
    titles = ["work", "way", "computed", "dB to full", "dB to converged", "beyond full", "class accuracy", "setting"]
    lines = []
    for row in case["rows"]:
        goals = [_interval([row[goal][name] for name in ("dB", "low", "high")]) for goal in ("full", "converged")]
        beyond = _interval(row["distance_beyond_full"], "+.2f") if "distance_beyond_full" in row else ""
        accuracy = f"{row['accuracy']:.1%}" if "accuracy" in row else ""
        if "accuracy_beyond_full" in row:
            accuracy += f"; {_interval(row['accuracy_beyond_full'], '+.1%')}"
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
                {"distance_beyond_full": INTERVAL, "accuracy": number(), "accuracy_beyond_full": INTERVAL},
                others=True,
            )
        ],
    }
)
RECORD = both(shaped({"cases": {str: CASE}}), makes(tables))
