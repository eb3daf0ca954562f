"""Scores as drawings and facts: SVG for pages, matplotlib for PNG."""

from pathlib import Path

from tenuto.showing.escaping import in_html, one_line
from tenuto.showing.facts import weights
from tenuto.showing.html import key_html
from tenuto.showing.maps import figure_of, save_figure
from tenuto_lab.scoring.scores import Scores

KIND_COLOURS = {
    "attention": "#2f5d8a",
    "cross_attention": "#6b4e9b",
    "mlp": "#d08a2e",
    "conv": "#3c8d5a",
    "group": "#777777",
}


def kinds_in(scores: Scores) -> list[tuple[str, str]]:
    """The words and colours of the units' kinds."""
    kinds = dict.fromkeys(unit.kind for unit in scores.units)
    return [(kind.replace("_", "-"), KIND_COLOURS[kind]) for kind in kinds]


def scores_facts(scores: Scores) -> dict[str, str]:
    return {
        "model": scores.model,
        "architecture": scores.architecture,
        "units": str(len(scores.units)),
        "η": f"{scores.eta:g}",
        "weights": weights(scores.fingerprint),
        "made by": f"tenuto {scores.version}",
    }


def scores_svg(scores: Scores) -> str:
    """A bar for each unit's score, coloured by kind."""
    left, top, bar, row = 8 + 6.6 * max(len(unit.name) for unit in scores.units), 4, 520, 13
    width, height = left + bar + 60, top + row * len(scores.units) + 4
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="score of each unit" font-family="ui-monospace, monospace" font-size="10">'
    ]
    for i, unit in enumerate(scores.units):
        y = top + i * row
        parts.append(
            f'<text x="{left - 6:.0f}" y="{y + 9.5:.1f}" text-anchor="end" fill="currentColor">'
            f"{in_html(unit.name)}</text>"
            f'<rect x="{left:.0f}" y="{y}" width="{max(1, unit.score * bar):.1f}" height="{row - 2.5}" '
            f'fill="{KIND_COLOURS[unit.kind]}"/>'
            f'<text x="{left + unit.score * bar + 5:.0f}" y="{y + 9.5:.1f}" fill="currentColor">{unit.score:.3f}</text>'
        )
    return "".join(parts) + "</svg>"


def scores_html(scores: Scores) -> str:
    """A bar for each unit's score, and the key of the kinds."""
    key = key_html(kinds_in(scores))
    return f"<p>The SCR/Frobenius score of each unit, within the model.{key}</p>{scores_svg(scores)}"


def save_scores_png(scores: Scores, path: Path) -> None:
    figure, axes = figure_of([one_line(unit.name) for unit in scores.units])
    colours = [KIND_COLOURS[unit.kind] for unit in scores.units]
    axes.barh(range(len(scores.units)), [unit.score for unit in scores.units], color=colours)
    axes.set_ylim(len(scores.units) - 0.5, -0.5)
    axes.set_xlim(0, 1.02)
    kinds = dict.fromkeys(unit.kind for unit in scores.units)
    handles = [axes.barh([0], [0], color=KIND_COLOURS[kind]) for kind in kinds]
    axes.legend(handles, list(kinds), loc="lower right", fontsize=8)
    title = f"{one_line(scores.model)}: SCR/Frobenius score of each unit"
    axes.set_title(title, fontsize=10, parse_math=False)
    save_figure(figure, path)
