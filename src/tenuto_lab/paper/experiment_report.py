"""Results as tables, figures and one page: the paper's figure, the measured figure, and a verdict."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tenuto.files import replacing
from tenuto.provenance import origin
from tenuto.showing.maps import KIND_COLOURS
from tenuto_lab.paper.experiment_results import picture_of
from tenuto_lab.result_files import drawn_text

COLOURS = ("#2f5d8a", "#d08a2e", "#5b9a5b", "#a3433f", "#7a6aa8")
HOLDS = {True: "yes", False: "no", None: ""}


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def interval(row: Mapping[str, Any]) -> str:
    ends = row.get("interval")
    return "" if ends is None else f"{number(ends[0])} to {number(ends[1])}"


HEAD = ("model", "quantity", "paper", "measured", "95 % interval", "holds")


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The cells of a row, in the order of HEAD."""
    measured = "not measured" if row["measured"] is None else number(row["measured"])
    return row["model"], row["quantity"], number(row["paper"]), measured, interval(row), HOLDS[row["holds"]]


def experiment_table(record: Mapping[str, Any]) -> str:
    """One experiment, in Markdown."""
    lines = [
        f"# {record['title']}\n",
        f"The paper ({record['where']}): {record['claim']}\n",
        f"**Here:** {verdict(record)}\n",
        f"{origin(record['provenance'])}; {_samples(record)}; intervals are 95 %.\n",
    ]
    if record.get("limits"):
        lines.append(f"{record['limits']}\n")
    lines += _rows(record["rows"])
    return "\n".join(lines) + "\n"


def _rows(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [f"| {' | '.join(HEAD)} | |", "|---|---|---:|---:|---|---|---|"]
    return lines + ["| " + " | ".join((*cells(row), row.get("note", ""))) + " |" for row in rows]


def results_page(records: Sequence[Mapping[str, Any]], folder: str) -> str:
    """All experiments, in Markdown, for a reader who knows only the abstract.

    folder  path from the page to the tables and figures
    """
    lines = [
        "# The paper's experiments, done again\n",
        "Tenuto began as an implementation of a paper. The paper decides from the weights alone how long each part of "
        "a diffusion model is computed before it is held for good. This page repeats every experiment of the paper on "
        "the small models that come with Tenuto. Each section says what the paper claims, what was measured here, and "
        "whether the claim holds.\n",
        "The models are small. A claim that fails here may hold on large models, and a claim that holds here is no "
        "proof. To repeat an experiment on another model, install the extra `lab` and run "
        "`tenuto lab experiment NAME --checkpoint DIR`. (The commands under the tables are those of the commit that "
        "they name; `tenuto experiment` is now `tenuto lab experiment`.)\n",
        "| experiment | the paper | here | comparisons that hold | samples × seeds |",
        "|---|---|---|---:|---:|",
    ]
    for record in records:
        said, made = _said(record), record["provenance"]
        rests_on = record.get("rests_on") or f"{made['samples']} × {made['seeds']}"
        lines.append(
            f"| [{record['title']}](#{_anchor(record['title'])}) | {record['claim']} | {_fact(record)} "
            f"| {sum(said)} of {len(said)} | {rests_on} |"
        )
    for record in records:
        name, made = record["name"], record["provenance"]
        lines += [
            f"\n## {record['title']}\n",
            f"*The paper ({record['where']}):* {record['claim']}\n",
            f"*Here:* {verdict(record)}\n",
        ]
        if record.get("figure"):
            lines.append(f"![{record['title']}]({folder}/{name}.png)\n")
        lines += _rows(_most_telling(record["rows"]))
        lines.append(
            f"\n[Every row]({folder}/{name}.md). `{made['command']}` at {made['commit']}, {made['hardware']}; "
            f"{_samples(record)}. {record.get('limits', '')}"
        )
    return "\n".join(lines) + "\n"


def _samples(record: Mapping[str, Any]) -> str:
    """The number of samples that an experiment rests on, in words."""
    if rests_on := record.get("rests_on"):
        return str(rests_on)
    made = record["provenance"]
    many = f"{made['samples']} sample{'s' * (made['samples'] != 1)}"
    return f"{many} of one seed" if made["seeds"] == 1 else f"{many} of each of {made['seeds']} seeds"


def _most_telling(rows: Sequence[Mapping[str, Any]], most: int = 24) -> list[Mapping[str, Any]]:
    """All rows that test a claim. If there is room, also rows with a figure of the paper, as many for each model."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    claims = [i for i, row in enumerate(rows) if row["holds"] is not None]
    room = max(0, most - len(claims)) // max(1, len(models))
    chosen = set(claims)
    for model in models:
        known = [i for i, row in enumerate(rows) if row["model"] == model and i not in chosen]
        chosen.update([i for i in known if None not in (rows[i]["paper"], rows[i]["measured"])][:room])
    return [row for i, row in enumerate(rows) if i in chosen] or list(rows)


def verdict(record: Mapping[str, Any]) -> str:
    """In how many comparisons the paper's claim holds, and the finding."""
    said = _said(record)
    held = f"in {sum(said)} of {len(said)} comparisons"
    if not said:
        counted = "Nothing here can be held against the paper."
    elif all(said):
        counted = f"The claim holds here ({len(said)} of {len(said)} comparisons)."
    else:
        counted = f"The claim holds here {held}." if any(said) else f"The claim does not hold here ({held})."
    return f"{counted} {record['finding']}".strip()


def _said(record: Mapping[str, Any]) -> list[bool]:
    return [row["holds"] for row in record["rows"] if row["holds"] is not None]


def _fact(record: Mapping[str, Any]) -> str:
    """The finding's first sentence that contains a number; if there is none, the verdict's first sentence."""
    found = [sentence for sentence in record["finding"].rstrip(".").split(". ") if any(c.isdigit() for c in sentence)]
    return (found or verdict(record).rstrip(".").split(". "))[0] + "."


def _anchor(title: str) -> str:
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -")
    return kept.replace(" ", "-")


# Figures


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
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


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
