"""The unit × step map and the scores, as drawings: SVG for pages, matplotlib for PNG, blocks for the terminal."""

from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from tenuto.files import replacing
from tenuto.schedules import Schedule
from tenuto.scores import Scores

COMPUTED_COLOUR, HELD_COLOUR = "#2f5d8a", "#e4e9ee"
KIND_COLOURS = {
    "attention": "#2f5d8a",
    "cross_attention": "#6b4e9b",
    "mlp": "#d08a2e",
    "conv": "#3c8d5a",
    "group": "#777777",
}
SHADES = " ░▒▓█"


def terminal_map(schedule: Schedule, width: int = 60) -> Text:
    """One line a unit, or one for all that are treated alike; where the steps would not fit, several share a cell.

    Cells are shaded by how many of their steps are computed.
    """
    per_cell = -(-schedule.steps // width)
    rows = list(zip(schedule.units, schedule.active, strict=True))
    if len(rows) > 1 and (schedule.active == schedule.active[0]).all():
        rows = [(f"all {len(rows)} units", schedule.active[0])]
    label = max(len(name) for name, _ in rows)
    text = Text(no_wrap=True)
    for unit, row in rows:
        cells = [row[i : i + per_cell].mean() for i in range(0, len(row), per_cell)]
        text.append(f"{unit:>{label}} ", style="dim")
        for share in cells:
            text.append("·" if share == 0 else SHADES[int(np.ceil(share * 4))], style="dim" if share == 0 else "cyan")
        text.append("\n")
    caption = f"step 1 to {schedule.steps}, noisiest first; █ computed, · held"
    text.append(" " * (label + 1) + caption + (f" ({per_cell} steps a cell)" if per_cell > 1 else ""), style="dim")
    return text


def schedule_svg(schedule: Schedule) -> str:
    """The unit × step map, steps from left to right, the first unit on top."""
    left, top, cell_w, cell_h = 8 + 6.6 * max(len(u) for u in schedule.units), 4, max(3.0, 720 / schedule.steps), 13
    width, height = left + cell_w * schedule.steps + 4, top + cell_h * len(schedule.units) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="which unit is computed at which step" font-family="ui-monospace, monospace" font-size="10">'
    ]
    for i, (unit, row) in enumerate(zip(schedule.units, schedule.active, strict=True)):
        y = top + i * cell_h
        parts.append(
            f'<text x="{left - 6:.0f}" y="{y + 9.5:.1f}" text-anchor="end" fill="currentColor">{escape(unit)}</text>'
        )
        for start, stop, on in _runs(row):
            parts.append(
                f'<rect x="{left + start * cell_w:.2f}" y="{y}" width="{(stop - start) * cell_w - 0.6:.2f}" '
                f'height="{cell_h - 1.5}" fill="{COMPUTED_COLOUR if on else HELD_COLOUR}"/>'
            )
    base = top + cell_h * len(schedule.units)
    for step in sorted({1, *range(10, schedule.steps + 1, 10), schedule.steps}):
        x = left + (step - 0.5) * cell_w
        parts.append(f'<text x="{x:.1f}" y="{base + 12}" text-anchor="middle" fill="currentColor">{step}</text>')
    middle = left + cell_w * schedule.steps / 2
    parts.append(
        f'<text x="{middle:.0f}" y="{base + 27}" text-anchor="middle" fill="currentColor">'
        "step (network evaluation), noisiest first</text></svg>"
    )
    return "".join(parts)


def scores_svg(scores: Scores) -> str:
    """A bar for each unit's score, coloured by kind."""
    left, top, bar, row = 8 + 6.6 * max(len(u.name) for u in scores.units), 4, 520, 13
    width, height = left + bar + 60, top + row * len(scores.units) + 4
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="score of each unit" font-family="ui-monospace, monospace" font-size="10">'
    ]
    for i, unit in enumerate(scores.units):
        y = top + i * row
        parts.append(
            f'<text x="{left - 6:.0f}" y="{y + 9.5:.1f}" text-anchor="end" fill="currentColor">'
            f"{escape(unit.name)}</text>"
            f'<rect x="{left:.0f}" y="{y}" width="{max(1, unit.score * bar):.1f}" height="{row - 2.5}" '
            f'fill="{KIND_COLOURS[unit.kind]}"/>'
            f'<text x="{left + unit.score * bar + 5:.0f}" y="{y + 9.5:.1f}" fill="currentColor">{unit.score:.3f}</text>'
        )
    return "".join(parts) + "</svg>"


def save_schedule_png(schedule: Schedule, path: Path) -> None:
    from matplotlib.colors import ListedColormap

    figure, axes = _figure(len(schedule.units), schedule.units)
    axes.imshow(
        schedule.active,
        aspect="auto",
        interpolation="nearest",
        cmap=ListedColormap([HELD_COLOUR, COMPUTED_COLOUR]),
        vmin=0,
        vmax=1,
        extent=(0.5, schedule.steps + 0.5, len(schedule.units) - 0.5, -0.5),
    )
    axes.set_xlabel("step (network evaluation), noisiest first")
    axes.set_title(
        f"{schedule.model}: {schedule.budget:.0%} of unit-steps computed (dark), {schedule.flop_budget:.0%} of FLOPs",
        fontsize=10,
    )
    _save(figure, path)


def save_errors_png(schedule: Schedule, errors: Any, path: Path) -> None:
    """How far off each held unit was, unit × step; computed ones are left white."""
    figure, axes = _figure(len(schedule.units), schedule.units)
    shown = axes.imshow(
        np.ma.masked_where(schedule.active, 100 * errors),
        aspect="auto",
        interpolation="nearest",
        cmap="magma_r",
        vmin=0,
        extent=(0.5, schedule.steps + 0.5, len(schedule.units) - 0.5, -0.5),
    )
    figure.colorbar(shown, label="off by, % of the stream")
    axes.set_xlabel("step (network evaluation), noisiest first")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_title(f"{schedule.model}: error of what is held (white: computed)", fontsize=10)
    _save(figure, path)


def save_scores_png(scores: Scores, path: Path) -> None:
    figure, axes = _figure(len(scores.units), [unit.name for unit in scores.units])
    colours = [KIND_COLOURS[unit.kind] for unit in scores.units]
    axes.barh(range(len(scores.units)), [unit.score for unit in scores.units], color=colours)
    axes.set_ylim(len(scores.units) - 0.5, -0.5)
    axes.set_xlim(0, 1.02)
    kinds = dict.fromkeys(unit.kind for unit in scores.units)
    handles = [axes.barh([0], [0], color=KIND_COLOURS[kind]) for kind in kinds]
    axes.legend(handles, list(kinds), loc="lower right", fontsize=8)
    axes.set_title(f"{scores.model}: SCR/Frobenius score of each unit", fontsize=10)
    _save(figure, path)


def _figure(rows: int, labels: Any) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, max(2.5, 0.8 + 0.17 * rows)), layout="constrained", dpi=150)
    axes = figure.subplots()
    axes.set_yticks(range(rows), labels, fontsize=6, family="monospace")
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


def _runs(row: Any) -> list[tuple[int, int, bool]]:
    """(start, stop, computed) of each run of held steps, and of each single computed step."""
    runs: list[tuple[int, int, bool]] = []
    for i, on in enumerate(row):
        if not on and runs and not runs[-1][2]:
            runs[-1] = (runs[-1][0], i + 1, False)
        else:
            runs.append((i, i + 1, bool(on)))
    return runs
