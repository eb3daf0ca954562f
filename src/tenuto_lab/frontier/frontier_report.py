"""A frontier as tables and as pictures: quality against work, and against time."""

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

from PIL import Image

from tenuto.files import replacing
from tenuto.showing.page import Table
from tenuto_lab.frontier.known import way_of
from tenuto_lab.frontier.measurements import HIGHEST, times_as_fast
from tenuto_lab.judging.verdicts import TELLING
from tenuto_lab.result_files import drawn_text
from tenuto_lab.retired import about_retired

MeanPoint = Mapping[str, Any]  # a row, averaged over the seeds
Record = Mapping[str, Any]  # the file that benchmarks.frontier writes

KINDS = ("full", "ours", "option", "rival", "paper")
NOTATION = (
    "A row is the mean over the seeds, of times the median; ± and brackets are the mean of the seeds' 95 % intervals, "
    "and · marks one that contains 0. *Work* is unit-steps and *FLOPs* their arithmetic, of the full run's; *kept* is "
    "for one sample. Ours is bold.\n"
)
COLUMNS: tuple[tuple[str, str, Callable[[MeanPoint], str]], ...] = (  # title, the field it needs, cell
    ("way", "policy", lambda row: row["policy"]),
    ("work", "work", lambda row: f"{row['work']:.1%}"),
    ("FLOPs", "flop_work", lambda row: f"{row['flop_work']:.1%}"),
    ("over full", "faster", lambda row: f"{row['faster']:.2f}×"),
    ("kept", "cache_bytes", lambda row: f"{row['cache_bytes'] / 2**20:.1f} MiB" if row["cache_bytes"] else ""),
    ("dB to full", "psnr", lambda row: _decibels(row)),
    ("to converged", "converged_psnr", lambda row: f"{row['converged_psnr']:.1f}"),
    ("perceptual", "lpips", lambda row: f"{row['lpips']:.4f}"),
    ("ΔFID", "fid_delta", lambda row: _difference(row, "fid", 2, "FID {:.2f}")),
    ("agreement", "agreement", lambda row: f"{row['agreement']:.1%}"),
    ("Δ nats a token", "nll_delta", lambda row: _difference(row, "nll", 3, "{:.3f} nats")),
    ("same tokens", "same_tokens", lambda row: f"{row['same_tokens']:.1%}"),
    ("distinct pairs", "distinct", lambda row: f"{row['distinct']:.0%}"),
    ("needle", "needle", lambda row: f"{row['needle']:.1%}"),
    ("arithmetic", "arithmetic", lambda row: f"{row['arithmetic']:.1%}"),
)
PROBLEMS = ("needle", "arithmetic")  # columns that count right answers
COMPARED = ("a", "b", "difference", "interval", "p")
MEASURES = {"psnr": (2, " dB"), "nll": (3, " nats")}  # digits and unit


def frontier_tables(record: Record) -> str:
    """For each case, a table of all ways of spending work and a table of their comparisons, in Markdown."""
    parts: list[str] = []
    for case, made in record.get("cases", {}).items():
        if points := _points(record, case):
            said = [_origin(record, case), *_agreement(made, points), *_untelling(points)]
            parts += [f"## {_title(points)}\n", *said, *_ways(points), ""]
            parts += _comparisons([one for one in record.get("comparisons", ()) if one["case"] == case])
    gone = about_retired(models_of(record))
    return "\n".join(["# Quality against work and time\n", NOTATION, *gone, *parts]) if parts else ""


def page_tables(record: Record) -> list[Table]:
    """The same tables, as objects for a page."""
    tables: list[Table] = []
    for case, made in record.get("cases", {}).items():
        if points := _points(record, case):
            titles, rows = _way_cells(points)
            said = [_origin(record, case), *_agreement(made, points), *_untelling(points)]
            tables.append(Table(_title(points), titles, rows, " ".join(said).replace("`", "").strip()))
            if found := [one for one in record.get("comparisons", ()) if one["case"] == case]:
                title = f"{_title(points)}, compared"
                tables.append(Table(title, COMPARED, _comparison_cells(found), _comparisons_lead(found)))
    return tables


def models_of(record: Record) -> list[str]:
    """The models of a record, in the order of its cases."""
    models = {row["case"]: row["model"] for row in record.get("rows", ())}
    return list(dict.fromkeys(models[case] for case in record.get("cases", ()) if case in models))


def _points(record: Record, case: str) -> list[MeanPoint]:
    """One mean point for each policy and budget of a case, in the order of the table."""
    groups: dict[tuple[str, float], list[MeanPoint]] = {}
    for row in record.get("rows", ()):
        if row["case"] == case:
            groups.setdefault((row["policy"], row["budget"]), []).append(row)
    return sorted((_mean(rows) for rows in groups.values()), key=lambda p: (KINDS.index(p["kind"]), -p["flop_work"]))


def _mean(rows: Sequence[MeanPoint]) -> MeanPoint:
    """The mean over the seeds of every number that all seeds have; other values are those of the first seed."""
    names = [name for name in rows[0] if all(name in row for row in rows)]
    mean = {
        name: rows[0][name] if isinstance(rows[0][name], str) else fmean(row[name] for row in rows) for name in names
    }
    faster = times_as_fast((row["full_seconds"] for row in rows), (row["seconds"] for row in rows))
    return {**mean, "faster": faster}


def _is_text(points: Sequence[MeanPoint]) -> bool:
    return any("same_tokens" in point or "nll_delta" in point for point in points)


def _title(points: Sequence[MeanPoint]) -> str:
    title = f"{points[0]['model']}, {points[0]['base_steps']:.0f} steps"
    return f"{title}, {points[0]['setting']}" if _is_text(points) else title


def _origin(record: Record, case: str) -> str:
    made = record["cases"][case]
    rows = [row for row in record["rows"] if row["case"] == case]
    seeds, samples = len({row["seed"] for row in rows}), rows[0]["samples"]
    facts = [f"torch {made['torch']}", made["hardware"], *([made["date"]] if "date" in made else [])]
    counted = f"{seeds} seed{'s' if seeds > 1 else ''} of {samples} sample{'s' if samples > 1 else ''}"
    again = f" The full run and ours: `{ours['command']}` at {ours['commit']}." if (ours := made.get("ours")) else ""
    return f"`{made['command']}` at {made['commit']}, {', '.join(facts)}. {counted}.{again}\n"


def _agreement(made: Mapping[str, Any], points: Sequence[MeanPoint]) -> list[str]:
    """A sentence on how far pictures of very many steps agree, if they were drawn; one on rivals that cannot run."""
    unable = [f"{name}: {reason}" for name, reason in made.get("unable", {}).items()]
    silent = [f"Rivals without a row: {'; '.join(unable)}.\n"] if unable else []
    if not (apart := made.get("converged")):
        return silent
    agree = ", ".join(f"of {pair} to {value:.1f} dB" for pair, value in apart.items())
    known = any("converged_psnr" in point for point in points)
    return [
        f"How far outputs agree: {agree}{'' if known else '; too little to call any of them converged'}.\n",
        *silent,
    ]


def _untelling(points: Sequence[MeanPoint]) -> list[str]:
    """A sentence on problems that full inference nearly always, or rarely, gets right."""
    full = next((point for point in points if point["kind"] == "full"), {})
    found = [
        f"{full.get('task', name) if name == 'arithmetic' else name} {full[name]:.1%}"
        for name in PROBLEMS
        if name in full and not TELLING[0] <= full[name] <= TELLING[1]
    ]
    if not found:
        return []
    low, high = TELLING
    return [f"Cannot tell ways apart: {', '.join(found)} right in full inference, not {low:.0%} to {high:.0%}.\n"]


def _ways(points: Sequence[MeanPoint]) -> list[str]:
    titles, rows = _way_cells(points)
    for row, point in zip(rows, points, strict=True):
        if point["kind"] == "ours":
            row[:] = [f"**{cell}**" if cell else "" for cell in row]
    return _table(titles, rows)


def _way_cells(points: Sequence[MeanPoint]) -> tuple[list[str], list[list[str]]]:
    """Titles and rows; a column without any number is left out."""
    cells = [[cell(point) if needed in point else "" for _, needed, cell in COLUMNS] for point in points]
    used = [i for i in range(len(COLUMNS)) if any(row[i] for row in cells)]
    titles = [points[0].get("task", title) if title == "arithmetic" else title for title, _, _ in COLUMNS]
    return [titles[i] for i in used], [[row[i] for i in used] for row in cells]


def _comparisons(found: Sequence[Mapping[str, Any]]) -> list[str]:
    if not found:
        return []
    return [_comparisons_lead(found), "", *_table(COMPARED, _comparison_cells(found)), ""]


def _comparisons_lead(found: Sequence[Mapping[str, Any]]) -> str:
    better = "less is better" if found[0]["measure"] == "nll" else "more is better"
    return f"Sample by sample at the same budget, all seeds together, a less b ({better}):"


def _comparison_cells(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    rows = []
    for one in found:
        digits, unit = MEASURES.get(one["measure"], (3, ""))
        p = f"{one['p']:.2g}" if one["p"] >= 0.001 else "< 0.001"
        interval = f"[{one['low']:+.{digits}f}, {one['high']:+.{digits}f}]"
        rows.append([one["a"], one["b"], f"{one['difference']:+.{digits}f}{unit}", interval, p])
    return rows


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    names = [i for i, title in enumerate(titles) if title in ("way", "a", "b")]
    line = "|" + "".join("---|" if i in names else "---:|" for i in range(len(titles)))
    return ["| " + " | ".join(titles) + " |", line, *("| " + " | ".join(row) + " |" for row in rows)]


def _decibels(row: MeanPoint) -> str:
    if row["psnr"] >= HIGHEST:
        return "equal"
    spread = (row["psnr_high"] - row["psnr_low"]) / 2
    return f"{row['psnr']:.1f}" + (f" ± {spread:.1f}" if spread else "")  # one picture has no interval


def _difference(row: MeanPoint, name: str, digits: int, absolute: str) -> str:
    """The difference from the full run, with its interval; for the full run itself, its absolute value."""
    if row["kind"] == "full":
        return absolute.format(row[name])
    delta, low, high = (row[f"{name}_delta{end}"] for end in ("", "_low", "_high"))
    text = f"{delta:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
    return f"{text} ·" if low <= 0 <= high else text


PANELS = 3
SHARE = 0.65  # share of the full run's FLOPs up to which points are drawn
BEST, HARD_TO_SEE = 70.0, 30.0  # dB
ACCENT, PAPER, FAINT = "#2f5d8a", "#222222", "#8793a0"
COOL = ("#6fa3d0", "#7b8794", "#8fbce6", "#a3adb8", "#56789c")
WARM = ("#d08a2e", "#b3261e", "#f0795b", "#8a5a2b", "#e2b93b", "#c2557e", "#5e1f2b")
MARKERS = "s^Dv<>Ph"
HEADINGS = {"ours": "ours", "option": "options", "rival": "rivals", "paper": "the paper"}
NATS, TIMES = (-0.3, -0.1, -0.05, 0, 0.05, 0.1, 0.3, 1, 3, 10), (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24)


def frontier_picture(record: Record, model: str, path: Path) -> None:
    """Quality against work, and below it quality against time. One column per case, at most three, fewest steps first.

    A single case shows both side by side. If the record has no points of the model, no file is written.
    """
    if drawn := _figure(record, model):
        figure, made = drawn
        with replacing(path) as temporary:
            figure.savefig(temporary, format="png", metadata={"Description": made})


def frontier_image(record: Record, model: str) -> Image.Image | None:
    """The same picture, in memory."""
    if not (drawn := _figure(record, model)):
        return None
    buffer = BytesIO()
    drawn[0].savefig(buffer, format="png")
    return Image.open(buffer)


def _figure(record: Record, model: str) -> tuple[Any, str] | None:
    """The figure, and the command that measured it."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    names = dict.fromkeys(row["case"] for row in record.get("rows", ()) if row["model"] == model)
    cases = {name: points for name in names if (points := _drawn(_points(record, name)))}
    cases = dict(sorted(cases.items(), key=lambda case: float(case[1][0]["base_steps"]))[:PANELS])
    if not cases:
        return None
    layout = ConstrainedLayoutEngine(w_pad=0.07, h_pad=0.07)
    figure = Figure(figsize=(12, 7.6 if len(cases) > 1 else 4.6), layout=layout, dpi=130)
    shape = (2, len(cases)) if len(cases) > 1 else (1, 2)
    axes = figure.subplots(*shape, sharey=True, squeeze=False).reshape(2, len(cases))
    looks = _looks(record)
    for (case, points), (above, below) in zip(cases.items(), axes.T, strict=True):
        _lines(above, points, "flop_work", looks)
        _lines(below, points, "faster", looks)
        above.set_title(drawn_text(_title(points)), fontsize=10, loc="left")
        above.set_xlabel("FLOPs computed, of the full run's", fontsize=8)
        hardware = drawn_text(record["cases"][case]["hardware"])
        below.set_xlabel(f"times as fast as the full run\non {hardware}", fontsize=8)
    every = [point for points in cases.values() for point in points]
    _scale(axes, every)
    _legend(figure, every, looks)
    return figure, " ".join(_origin(record, case).strip() for case in cases)


def _drawn(points: Sequence[MeanPoint]) -> list[MeanPoint]:
    """Points up to SHARE of the full run's FLOPs, or up to the costliest point of ours; never the full run."""
    share = max([SHARE, *(point["flop_work"] for point in points if point["kind"] == "ours")])
    return [
        point
        for point in points
        if point["kind"] != "full" and point["flop_work"] <= share and ("psnr" in point or "nll_delta" in point)
    ]


def _height(point: MeanPoint, end: str = "") -> float:
    """The value on the vertical axis, or an end of its interval: dB for pictures, nats for text."""
    return float(point[f"nll_delta{end}"] if "nll_delta" in point else min(point[f"psnr{end}"], BEST))


def _by_way(points: Sequence[MeanPoint]) -> dict[str, list[MeanPoint]]:
    ways: dict[str, list[MeanPoint]] = {}
    for point in sorted(points, key=lambda point: float(point["flop_work"])):
        ways.setdefault(way_of(point["policy"]), []).append(point)
    return ways


def _looks(record: Record) -> dict[str, dict[str, Any]]:
    """Colour and marker of each way, the same in all pictures of a record. Ways without a line have hollow markers."""
    kinds = {way_of(row["policy"]): row["kind"] for row in record["rows"]}
    cases = dict.fromkeys(row["case"] for row in record["rows"])
    several = {way for case in cases for way, its in _by_way(_points(record, case)).items() if len(its) > 1}
    looks: dict[str, dict[str, Any]] = {}
    for kind in HEADINGS:
        for i, way in enumerate(way for way, its in kinds.items() if its == kind):
            look = {
                "ours": {"color": ACCENT, "marker": "o", "linewidth": 2.8, "markersize": 6.5, "zorder": 5},
                "option": {"color": COOL[i % len(COOL)], "linewidth": 1.1, "zorder": 2},
                "rival": {"color": WARM[i % len(WARM)], "linewidth": 1.3, "linestyle": "--", "zorder": 3},
                "paper": {"color": PAPER, "marker": "x", "linestyle": "none", "markeredgewidth": 2, "zorder": 4},
            }[kind]
            alone = {} if way in several else {"linestyle": "none", "markerfacecolor": "white"}
            looks[way] = {"marker": MARKERS[i % len(MARKERS)], "markersize": 5, **look, **alone}
    return looks


def _lines(ax: Any, points: Sequence[MeanPoint], across: str, looks: Mapping[str, Mapping[str, Any]]) -> None:
    for way, its in _by_way(points).items():
        x = [point[across] for point in its]
        ax.plot(x, [_height(point) for point in its], **looks[way])
        if its[0]["kind"] == "ours":
            low, high = ([_height(point, end) for point in its] for end in ("_low", "_high"))
            ax.fill_between(x, low, high, color=ACCENT, alpha=0.18, linewidth=0)


def _scale(axes: Any, points: Sequence[MeanPoint]) -> None:
    """Every panel of a row has the same horizontal axis, and all panels have the same vertical axis."""
    times = [point["faster"] for point in points]
    for ax in axes.flat:
        ax.tick_params(labelsize=8)
        ax.grid(color="#e4e9ee", linewidth=0.7)
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_axisbelow(True)
    for ax in axes[0]:
        ax.set_xlim(0, max(SHARE, *(point["flop_work"] + 0.01 for point in points)))
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    for ax in axes[1]:
        ax.set_xscale("log")
        ax.set_xlim(min(1, 0.95 * min(times)), 1.08 * max(times))
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
        ax.xaxis.set_major_locator(_at(TIMES))
        ax.minorticks_off()
    text = "nll_delta" in points[0]
    for ax in axes[:, 0] if axes.shape[1] > 1 else axes[0]:
        label = "nats a token more than the full run (up is better)" if text else "dB to the full run"
        ax.set_ylabel(label, fontsize=8)
    if text:
        axes[0, 0].set_yscale("symlog", linthresh=0.1, linscale=0.6)
        axes[0, 0].yaxis.set_major_formatter(lambda value, _: f"{value:+g}" if value else "0")
        axes[0, 0].yaxis.set_major_locator(_at(NATS))
        axes[0, 0].autoscale_view(scalex=False)  # with the margins of this scale
        axes[0, 0].invert_yaxis()
    else:
        _mark_hard_to_see(axes)


def _at(ticks: Sequence[float]) -> Any:
    from matplotlib.ticker import FixedLocator

    return FixedLocator(ticks)


def _mark_hard_to_see(axes: Any) -> None:
    for ax in axes.flat:
        ax.axhline(HARD_TO_SEE, color=FAINT, alpha=0.7, linewidth=0.9, zorder=1)
    for ax in axes[:, -1]:  # beside the last panel, so that the label covers no data
        place = {"transform": ax.get_yaxis_transform(), "va": "bottom", "linespacing": 0.95}
        ax.text(1.01, HARD_TO_SEE, "hard\nto see", fontsize=7, color=FAINT, **place)


def _legend(figure: Any, points: Sequence[MeanPoint], looks: Mapping[str, Mapping[str, Any]]) -> None:
    """The legend beside the panels, grouped by kind."""
    from matplotlib.lines import Line2D

    kinds = {way_of(point["policy"]): point["kind"] for point in points}
    handles = []
    for kind, heading in HEADINGS.items():
        if ways := [way for way in looks if kinds.get(way) == kind]:
            handles.append(Line2D([], [], linestyle="none", label=heading))
            handles += [Line2D([], [], label=fill(drawn_text(way), 30), **looks[way]) for way in ways]
    look: dict[str, Any] = {"frameon": False, "fontsize": 8, "handlelength": 2.6, "borderaxespad": 1.5}
    legend = figure.legend(handles=handles, loc="outside right upper", **look)
    for handle, text in zip(handles, legend.get_texts(), strict=True):
        if handle.get_marker() == "None":
            text.set(weight="bold", x=-3.4 * 8 / 72 * figure.dpi)  # to the left of the lines
