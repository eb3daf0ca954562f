"""The ladder's timings as tables and as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tenuto.files import replacing
from tenuto.provenance import origin
from tenuto_lab.result_files import ORIGIN, both, makes, number, optional, read_result, shaped, whole

FIXED, COMPUTED, OVERHEAD = "#9aa5b1", "#2f5d8a", "#d08a2e"
COLUMNS = (
    ("way of running", lambda row: row["mode"]),
    ("schedule", lambda row: row["schedule"]),
    ("work", lambda row: f"{row['budget']:.0%}"),
    ("ms an evaluation", lambda row: f"{row['ms_per_evaluation']:.2f} ± {50 * row['spread']:.1f} %"),
    ("over eager", lambda row: _ratio(row["speedup_over_eager"])),
    ("over compiled", lambda row: _ratio(row["speedup_over_compiled"])),
    ("over padded", lambda row: _ratio(row["speedup_over_padded"])),
    ("of the ideal", lambda row: "" if row["share_of_ideal"] is None else f"{row['share_of_ideal']:.0%}"),
    ("TFLOP/s", lambda row: f"{row['tflops']:.0f}"),
    ("GB/s of weights", lambda row: f"{row['gbps']:.0f}"),
    ("peak", lambda row: "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.2f} GiB"),
    ("over full", lambda row: "" if row.get("memory_over_full") is None else f"{row['memory_over_full']:+.0%}"),
    ("kept", lambda row: f"{row['cache_bytes'] / 2**20:.0f} MiB" if row["cache_bytes"] else ""),
    ("graphs", lambda row: str(row["graphs"]) if row["graphs"] else ""),
    ("recording", lambda row: f"{row['capture_s']:.1f} s" if row["capture_s"] else ""),
)


POSITIVE = number(least=1e-9, most=1e12)
COUNT, SHARE = optional(whole()), optional(number())
SETTING = {**ORIGIN, "ceilings": {"tflops": POSITIVE, "gbps": POSITIVE}}
ROW = {
    **dict.fromkeys(("case", "model", "setting", "mode", "schedule"), str),
    **{name: number() for name in ("budget", "flop_budget", "spread", "tflops", "gbps")},
    **dict.fromkeys(("speedup_over_eager", "speedup_over_compiled", "speedup_over_padded"), SHARE),
    **dict.fromkeys(("ms_per_evaluation", "ms_per_generation"), POSITIVE),
    **{"share_of_ideal": SHARE, "capture_s": SHARE, "steps": whole(1)},
    **dict.fromkeys(("peak_bytes", "cache_bytes", "graphs"), COUNT),
}
WHOLE = {"steps": int, **dict.fromkeys(("eager_s", "scheduled_s", "speedup"), float)}
POSSIBLE = {"end_to_end": optional(shaped(WHOLE)), "spent": optional(shaped({str: number(least=0)}))}


def read_ladder(path: Path) -> dict[str, Any]:
    """The file that `python -m benchmarks.ladder` wrote, checked field by field."""
    return read_result(path, "ladder", LADDER_FILE)


def _check_settings(known: Any, where: str) -> None:
    for made in known["settings"].values():
        for name, check in POSSIBLE.items():
            check(made.get(name), f"settings.{name}")
    for row in known["rows"]:
        SHARE(row.get("memory_over_full"), "rows.memory_over_full")


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}×"


def ladder_tables(known: Mapping[str, Any], paper: Mapping[str, float]) -> str:
    """A table with one line for each setting, and then one table for each setting, in Markdown.

    paper: the paper's speed-up over eager inference, by family
    """
    parts = ["# Every way of running a schedule\n", headlines(known, paper), ""]
    for case, made in known["settings"].items():
        rows = _rows(known, case)
        best = made["ceilings"]
        parts.append(f"## {rows[0]['model']}, {rows[0]['setting']}\n")
        parts.append(
            f"{origin(made)}. The chip's own best here: {best['tflops']:.0f} TFLOP/s, {best['gbps']:.0f} GB/s.\n"
        )
        parts.append("| " + " | ".join(title for title, _ in COLUMNS) + " |")
        parts.append("|" + "---|" * len(COLUMNS))
        parts += ["| " + " | ".join(cell(row) for _, cell in COLUMNS) + " |" for row in rows]
        if whole := made.get("end_to_end"):
            parts.append(
                f"\nA whole generation of {whole['steps']} steps, with sampler, guidance and VAE: "
                f"{whole['eager_s']:.2f} s "
                f"eager, {whole['scheduled_s']:.2f} s under the lifetimes, {whole['speedup']:.2f}×."
            )
        if spent := made.get("spent"):
            total = sum(spent.values())
            shares = ", ".join(f"{kind} {share / total:.0%}" for kind, share in spent.items())
            parts.append(f"\nWhere the time of full, compiled inference goes: {shares}.")
        parts.append("")
    return "\n".join(parts)


def headlines(known: Mapping[str, Any], paper: Mapping[str, float]) -> str:
    """One line for each setting: full inference, the complete system at the paper's budget, and its lower bound."""
    lines = [
        "| network, setting | eager | full, compiled graphs | at the paper's budget | over eager | of the ideal "
        "| the chip's bound | the paper | every 8th step |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for case, made in known["settings"].items():
        rows = {(row["mode"], row["schedule"]): row for row in _rows(known, case)}
        full, eager = rows.get(("jagged + compiled", "full")), rows["eager", "full"]
        best = next((row for (mode, name), row in rows.items() if mode == "jagged + compiled" and "life" in name), None)
        eighth = rows.get(("jagged + compiled", "refresh 8"))
        if full is None or best is None or eighth is None:
            continue
        claim = paper.get(case.split(":")[0])
        lines.append(
            f"| {best['model']}, {best['setting']} | {eager['ms_per_evaluation']:.2f} ms "
            f"| {full['ms_per_evaluation']:.2f} ms | **{best['ms_per_evaluation']:.2f} ms** at {best['budget']:.0%} "
            f"| **{best['speedup_over_eager']:.2f}×** | {best['share_of_ideal']:.0%} "
            f"| {_bound(best, made['ceilings']):.2f} ms | {f'{claim:.1f}×' if claim else ''} "
            f"| {eighth['speedup_over_eager']:.2f}× |"
        )
    return "\n".join(lines)


def _bound(row: Mapping[str, Any], ceilings: Mapping[str, float]) -> float:
    """A lower bound in ms: the time to do the units' arithmetic, or to read their weights, at the chip's best rate."""
    return max(row["tflops"] / ceilings["tflops"], row["gbps"] / ceilings["gbps"]) * float(row["ms_per_evaluation"])


def _rows(known: Mapping[str, Any], case: str) -> list[dict[str, Any]]:
    return [row for row in known["rows"] if row["case"] == case]


def ladder_picture(known: Mapping[str, Any], path: Path) -> None:
    """One bar for each way of each setting: the part that always runs, the units' part, and everything else."""
    from matplotlib.figure import Figure

    cases = list(known["settings"])
    figure = Figure(figsize=(12, 0.6 + 2.6 * -(-len(cases) // 2)), layout="constrained", dpi=130)
    axes = list(figure.subplots(-(-len(cases) // 2), 2, squeeze=False).flat)
    for ax, case in zip(axes, cases, strict=False):
        _bars(ax, _rows(known, case))
    for ax in axes[len(cases) :]:
        ax.remove()
    handles = [_patch(colour, label) for colour, label in _LEGEND]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


_LEGEND = (
    (FIXED, "always live: embeddings, conditioning, skips, head"),
    (COMPUTED, "the units' share of compiled graphs' time"),
    (OVERHEAD, "everything else"),
)


def _patch(colour: str, label: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=colour, label=label)


def _bars(ax: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    fixed, full = _parts(rows)
    shown = [row for row in rows if row["schedule"] != "nothing"]
    labels = [f"{row['mode']}, {row['schedule']}" for row in shown]
    totals = [row["ms_per_evaluation"] for row in shown]
    live = [min(fixed, total) for total in totals]
    units = [
        max(0.0, min((1.0 if "padded" in row["mode"] else row["flop_budget"]) * (full - fixed), total - part))
        for row, total, part in zip(shown, totals, live, strict=True)
    ]
    rest = [total - a - b for total, a, b in zip(totals, live, units, strict=True)]
    left = [0.0] * len(shown)
    for values, colour in ((live, FIXED), (units, COMPUTED), (rest, OVERHEAD)):
        ax.barh(labels, values, left=left, color=colour, height=0.75)
        left = [a + b for a, b in zip(left, values, strict=True)]
    for i, row in enumerate(shown):
        ax.text(totals[i], i, f" {row['speedup_over_eager']:.2f}×", va="center", fontsize=7)
    ax.set_title(f"{rows[0]['model']}, {rows[0]['setting']}: ms an evaluation", fontsize=9, loc="left")
    ax.invert_yaxis()
    ax.tick_params(labelsize=7)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_xlim(0, 1.12 * max(totals))


def _parts(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """(the part that always runs, full inference) in ms, of the fastest way; the first is 0 if it was not measured."""
    full = min(row["ms_per_evaluation"] for row in rows if row["schedule"] == "full")
    nothing = [row for row in rows if row["schedule"] == "nothing"]
    if not nothing:
        return 0.0, full
    return (nothing[0]["ms_per_generation"] - full) / (nothing[0]["steps"] - 1), full


LADDER_FILE = both(
    both(shaped({"settings": {str: SETTING}, "rows": [ROW]}), _check_settings),
    makes(lambda known: (ladder_tables(known, {}), [_parts(_rows(known, case)) for case in known["settings"]])),
)
