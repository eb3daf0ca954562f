"""The figures of experiments, as PNG."""

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from tenuto.files import replacing
from tenuto_lab.paper.experiment_results import picture_of
from tenuto_lab.result_files import drawn_text
from tenuto_lab.scoring.score_pictures import KIND_COLOURS

COLOURS = ("#2f5d8a", "#d08a2e", "#5b9a5b", "#a3433f", "#7a6aa8")


def draw(record: Mapping[str, Any], path: Path) -> None:
    """The figure of an experiment, as PNG."""
    from matplotlib.figure import Figure

    panels, kind = record["figure"]["panels"], record["figure"]["kind"]
    if kind == "pictures":
        across = 1
        size = (11.0, sum(0.55 + 0.62 * len(panel["series"]) for panel in panels))
    else:
        across = min(2, len(panels))
        size = (11.0 if across == 2 else 6.5, 3.4 * -(-len(panels) // across))
    figure = Figure(figsize=size, layout="constrained", dpi=120)
    axes = list(figure.subplots(-(-len(panels) // across), across, squeeze=False).flat)
    for ax, panel in zip(axes, panels, strict=False):
        DRAWN[kind](ax, panel)
        ax.set_title(drawn_text(panel["title"]), fontsize=10, loc="left")
        if panel.get("across") or panel.get("up"):
            ax.set_xlabel(drawn_text(panel.get("across", "")), fontsize=8)
            ax.set_ylabel(drawn_text(panel.get("up", "")), fontsize=8)
        ax.tick_params(labelsize=7)
    for ax in axes[len(panels) :]:
        ax.remove()
    drawn = BytesIO()
    figure.savefig(drawn, format="png")
    with Image.open(drawn) as picture, replacing(path) as temporary:  # 256 colours take a third of the bytes
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(temporary, format="png", optimize=True)


def _lines(ax: Any, panel: Mapping[str, Any]) -> None:
    for colour, (name, points) in zip(COLOURS, panel["series"].items(), strict=False):
        ax.plot(
            [x for x, _ in points], [y for _, y in points], "o-", color=colour, label=drawn_text(name), markersize=4
        )
    ax.legend(fontsize=7, frameon=False)
    ax.spines[["top", "right"]].set_visible(False)


def _bars(ax: Any, panel: Mapping[str, Any]) -> None:
    kinds = panel["series"]
    labels = [drawn_text(name) for name, _ in next(iter(kinds.values()))]
    height = 0.8 / len(kinds)
    for i, (colour, (kind, values)) in enumerate(zip(COLOURS, kinds.items(), strict=False)):
        ax.barh(
            [j + i * height for j in range(len(values))],
            [v for _, v in values],
            height,
            color=colour,
            label=drawn_text(kind),
        )
    ax.set_yticks([j + 0.4 - height / 2 for j in range(len(labels))], labels)
    ax.invert_yaxis()
    ax.legend(fontsize=7, frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(kinds))
    ax.spines[["top", "right"]].set_visible(False)


def _scatter(ax: Any, panel: Mapping[str, Any]) -> None:
    for name, points in panel["series"].items():
        colour = KIND_COLOURS.get(name, COLOURS[0])
        ax.plot(
            [x for x, _ in points],
            [y for _, y in points],
            "o",
            color=colour,
            label=drawn_text(name.replace("_", "-")),
            markersize=4,
        )
    ax.legend(fontsize=7, frameon=False)
    ax.spines[["top", "right"]].set_visible(False)


def _map(ax: Any, panel: Mapping[str, Any]) -> None:
    series = panel["series"]
    colours = [KIND_COLOURS.get(kind, COLOURS[0]) for kind in series["kinds"]]
    ax.bar(range(len(series["lifetimes"])), series["lifetimes"], width=1.0, color=colours)
    ax.set_xlim(-0.5, len(series["lifetimes"]) - 0.5)
    ax.set_ylim(0, series["steps"])
    for kind in dict.fromkeys(series["kinds"]):
        ax.bar([0], [0], color=KIND_COLOURS.get(kind, COLOURS[0]), label=drawn_text(kind.replace("_", "-")))
    ax.legend(
        fontsize=6, frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=4, handlelength=1, columnspacing=1
    )
    ax.set_xlabel("unit, in the order they run", fontsize=8)
    ax.set_ylabel("last step computed", fontsize=8)


def _pictures(ax: Any, panel: Mapping[str, Any]) -> None:
    """One sheet of pictures for each name, stored as PNG; the sheets are stacked."""
    import numpy as np

    sheets = [picture_of(sheet) for sheet in panel["series"].values()]
    gap = ((1, 1), (0, 0), (0, 0))[: sheets[0].ndim]
    stacked = np.concatenate([np.pad(sheet, gap, constant_values=255) for sheet in sheets])
    ax.imshow(stacked, cmap="gray", interpolation="nearest", aspect="equal")
    height = len(stacked) / len(sheets)
    ax.set_yticks([height * (i + 0.5) for i in range(len(sheets))], [drawn_text(name) for name in panel["series"]])
    ax.set_xticks([])
    ax.spines[:].set_visible(False)


DRAWN = {"lines": _lines, "bars": _bars, "scatter": _scatter, "map": _map, "pictures": _pictures}
