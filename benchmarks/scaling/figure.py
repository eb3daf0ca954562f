"""The figure: nearness and distance against the number of parameters, one column for each budget."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.scaling.report import of_one_kind
from benchmarks.scaling.ways import BLOCK, BRANCH, FEWER, MANY, OURS, PREDICTOR, SOLVER
from tenuto.files import replacing

COLOURS = {
    OURS: "#1f5fa8",
    MANY: "#5aa0e0",
    PREDICTOR: "#d97706",
    SOLVER: "#2f855a",
    FEWER: "#94a3b8",
    BRANCH: "#b91c1c",
    BLOCK: "#e98585",
}
SHOWN = 3.0  # guidance
BEYOND = "beyond"
MEASURES = (
    ("full", "dB to the full run"),
    ("converged", "dB to the converged run"),
    (BEYOND, "Fréchet, beyond full"),
)


def draw(record: Mapping[str, Any], path: Path) -> None:
    """Nothing is drawn of a single network, or without matplotlib."""
    cases = [case for case in record["cases"].values() if case["guidance"] == SHOWN]
    if len({case["network"] for case in cases}) < 2:
        return
    budgets = sorted({row["budget"] for case in cases for row in case["rows"]}, reverse=True)
    if not budgets:
        return
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"There is no {path.name}, because matplotlib is not installed.")
        return
    shown = [(measure, title) for measure, title in MEASURES if any(_has(case, measure) for case in cases)]
    several = len({case["guidance"] for case in record["cases"].values()}) > 1  # then a last line compares them
    lines = len(shown) + several
    figure = Figure(figsize=(2.9 * len(budgets) + 0.6, 2.2 * lines + 0.6), layout="constrained", dpi=130)
    grid: Any = figure.subplots(lines, len(budgets), sharex=True, sharey="row", squeeze=False)
    for column, budget in enumerate(budgets):
        grid[0, column].set_title(f"{budget:.0%} of the work", fontsize=10)
        for line, (measure, title) in enumerate(shown):
            axes = grid[line, column]
            for way, colour in COLOURS.items():
                _plot(axes, cases, way, budget, measure, colour, way)
            if measure == BEYOND:
                axes.set_yscale("symlog", linthresh=0.5)
                axes.axhline(0, color="0.7", linewidth=0.8)
            if not column:
                axes.set_ylabel(f"{title}\nguidance {SHOWN:g}", fontsize=9)
        if several:
            _by_guidance(grid[-1, column], record, budget)
            if not column:
                grid[-1, 0].set_ylabel("dB to the full run\ntenuto, by guidance", fontsize=9)
                grid[-1, 0].legend(fontsize=7, frameon=False)
        grid[-1, column].set_xlabel("parameters", fontsize=9)
    for axes in grid.flat:
        axes.set_xscale("log")
        axes.tick_params(labelsize=8)
        axes.grid(True, linewidth=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


def _has(case: Mapping[str, Any], measure: str) -> bool:
    return any("distance_beyond_full" in row if measure == BEYOND else measure in row for row in case["rows"])


def _by_guidance(axes: Any, record: Mapping[str, Any], budget: float) -> None:
    for guidance, width in ((1.5, 1.0), (3.0, 1.8), (5.0, 2.6)):
        some = [case for case in record["cases"].values() if case["guidance"] == guidance]
        _plot(axes, some, OURS, budget, "full", COLOURS[OURS], f"guidance {guidance:g}", width)


def _plot(
    axes: Any,
    cases: Sequence[Mapping[str, Any]],
    way: str,
    budget: float,
    measure: str,
    colour: str,
    label: str,
    width: float = 1.6,
) -> None:
    """A line through the fully trained DiTs that predict noise.

    Flows are open diamonds, cut-short DiTs crosses, other architectures and smaller pictures open squares.
    """
    kinds: tuple[tuple[str, Any], ...] = (
        ("o-", lambda case: of_one_kind(case) and case["prediction"] == "noise" and not case["early"]),
        ("D", lambda case: of_one_kind(case) and case["prediction"] == "flow"),
        ("x", lambda case: of_one_kind(case) and case["prediction"] == "noise" and case["early"]),
        ("s", lambda case: not of_one_kind(case)),
    )
    for style, belongs in kinds:
        points = []
        for case in cases:
            for row in case["rows"]:
                if belongs(case) and row["way"] == way and row["budget"] == budget and (y := _value(row, measure)):
                    points.append((case["parameters"], *y))
        if not points:
            continue
        x, y, low, high = zip(*sorted(points), strict=True)
        errors = [[a - b for a, b in zip(y, low, strict=True)], [b - a for a, b in zip(y, high, strict=True)]]
        options = {"label": label} if style == "o-" else {"markerfacecolor": "white"}
        axes.errorbar(x, y, errors, fmt=style, color=colour, linewidth=width, markersize=4, capsize=2, **options)


def _value(row: Mapping[str, Any], measure: str) -> tuple[float, float, float] | None:
    if measure == BEYOND:
        found = row.get("distance_beyond_full")
        return None if found is None else (found[0], found[1], found[2])
    return (row[measure]["dB"], row[measure]["low"], row[measure]["high"]) if measure in row else None
