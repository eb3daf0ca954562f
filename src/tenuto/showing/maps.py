"""The unit × step map as a drawing: SVG for pages, matplotlib for PNG."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tenuto.files import replacing
from tenuto.scheduling.schedule import Schedule
from tenuto.showing.escaping import in_html, one_line
from tenuto.showing.facts import POSITIONS, together, work
from tenuto.showing.plotting import plotting

NETWORK = "network"  # the name of the only line if all units are computed together
COMPUTED_COLOUR, PARTLY_COLOUR, HELD_COLOUR = "#2f5d8a", "#a9c3dc", "#e4e9ee"


@dataclass(frozen=True)
class Band:
    """One line of a map: a unit, or the whole network if all units are computed together."""

    name: str
    active: NDArray[np.bool_]  # [step]


def bands(schedule: Schedule) -> list[Band]:
    """The lines of a schedule's map."""
    if len(schedule.units) > 1 and together(schedule):
        return [Band(NETWORK, schedule.active[0])]
    return [Band(one_line(unit), row) for unit, row in zip(schedule.units, schedule.active, strict=True)]


def word_between(schedule: Schedule) -> str:
    """The word for a cell that is not computed."""
    if schedule.rows != "none":
        return f"computed at {POSITIONS[schedule.rows]} only"
    return "held" if schedule.predict == "constant" else "predicted"


def legend(schedule: Schedule) -> list[tuple[str, str]]:
    """The words and colours of a schedule's map."""
    colour = PARTLY_COLOUR if schedule.rows != "none" else HELD_COLOUR
    return [("computed", COMPUTED_COLOUR), (word_between(schedule), colour)]


def schedule_svg(schedule: Schedule) -> str:
    """The unit × step map, steps from left to right, the first unit on top."""
    lines, (_, (_, between)) = bands(schedule), legend(schedule)
    cell_w, cell_h = max(3.0, 720 / schedule.steps), 13 if len(lines) > 1 else 26
    left, top = 8 + 6.6 * max(len(line.name) for line in lines), 4
    width, height = left + cell_w * schedule.steps + 4, top + cell_h * len(lines) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="which unit is computed at which step" font-family="ui-monospace, monospace" font-size="10">'
    ]
    for i, line in enumerate(lines):
        y = top + i * cell_h
        parts.append(
            f'<text x="{left - 6:.0f}" y="{y + cell_h / 2 + 3:.1f}" text-anchor="end" fill="currentColor">'
            f"{in_html(line.name)}</text>"
        )
        for start, stop, on in _runs(line.active):
            parts.append(
                f'<rect x="{left + start * cell_w:.2f}" y="{y}" width="{(stop - start) * cell_w - 0.6:.2f}" '
                f'height="{cell_h - 1.5}" fill="{COMPUTED_COLOUR if on else between}"/>'
            )
    base = top + cell_h * len(lines)
    for step in _ticks(schedule.steps):
        x = left + (step - 0.5) * cell_w
        parts.append(f'<text x="{x:.1f}" y="{base + 12}" text-anchor="middle" fill="currentColor">{step}</text>')
    middle = left + cell_w * schedule.steps / 2
    parts.append(f'<text x="{middle:.0f}" y="{base + 27}" text-anchor="middle" fill="currentColor">step</text></svg>')
    return "".join(parts)


def _ticks(steps: int) -> list[int]:
    """The first step, the last, and round numbers in between that leave room for each other."""
    apart = next(apart for apart in (10, 20, 50, 100, 200, 500, steps) if steps <= 15 * apart)
    between = [step for step in range(apart, steps, apart) if steps - step > apart / 3]
    return [1, *between, *([steps] if steps > 1 else [])]


def save_schedule_png(schedule: Schedule, path: Path) -> None:
    figure, axes = map_of(
        schedule,
        np.array([line.active for line in bands(schedule)]),
        [line.name for line in bands(schedule)],
        cmap=_two_colours([colour for _, colour in reversed(legend(schedule))]),
        vmin=0,
        vmax=1,
    )
    axes.set_title(f"{one_line(schedule.model)}: {work(schedule)}", fontsize=10, parse_math=False)
    save_figure(figure, path)


def _two_colours(colours: list[str]) -> Any:
    plotting()
    from matplotlib.colors import ListedColormap

    return ListedColormap(colours)


def map_of(schedule: Schedule, cells: Any, names: list[str], **look: Any) -> tuple[Any, Any]:
    """cells [name, step] as colours, steps counted from 1."""
    figure, axes = figure_of(names)
    extent = (0.5, schedule.steps + 0.5, len(names) - 0.5, -0.5)
    axes.imshow(cells, aspect="auto", interpolation="nearest", extent=extent, **look)
    axes.set_xlabel("step")
    return figure, axes


def figure_of(names: list[str] | None) -> tuple[Any, Any]:
    """A figure with a line for each name; without names, a figure of fixed height."""
    plotting()
    from matplotlib.figure import Figure

    rows = 10 if names is None else len(names)
    figure = Figure(figsize=(8, max(1.6, 0.8 + 0.17 * rows)), layout="constrained", dpi=150)
    axes = figure.subplots()
    if names is not None:
        axes.set_yticks(range(rows), names, fontsize=6 if rows > 1 else 9, family="monospace", parse_math=False)
    return figure, axes


def save_figure(figure: Any, path: Path) -> None:
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
