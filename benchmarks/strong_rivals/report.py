"""What the benchmark measured, in Markdown, and as one figure."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.strong_rivals.measuring import CONVERGED, STEPS
from tenuto.provenance import origin
from tenuto_lab.result_files import ORIGIN, Misfit, both, by_name, fields, makes, number, optional, shaped, text, whole

GOALS = {"full": f"the run of {STEPS} steps", "converged": f"the run of {CONVERGED} steps"}
DETAILS = {  # the other numbers: (title, digits)
    "ssim": ("SSIM", 4),
    "lpips": ("LPIPS", 4),
    "perceptual": ("perceptual", 4),
    "frechet": ("Fréchet", 1),
    "seconds": ("seconds", 1),
}
NOTATION = (
    "dB with 95 % intervals; each rival at its best setting with hindsight, chosen by dB once for each goal. Below a "
    "table of dB are the other numbers of the same points. *SSIM* is the structural similarity to the run named (1: "
    "equal). *LPIPS* is the published distance with AlexNet. *Perceptual* is the same idea with the features of the "
    "small judge and without learnt weights. *Fréchet* is the distance of the set from real pictures in the judge's "
    "features; of so few pictures it says how sets differ, not how good they are. *Seconds* are of the whole batch, "
    "run eagerly.\n"
)


def table(record: Mapping[str, Any]) -> str:
    lines = ["# How near every rival comes\n", NOTATION]
    for case, by_count in record["cases"].items():
        counts = sorted(by_count, key=int)
        names = list(dict.fromkeys(name for found in by_count.values() for name in found))
        lines += [f"## {case}\n", *about(record, case)]
        for goal, meaning in GOALS.items():
            cells = [[name, *(_cell(by_count[n].get(name, {}), goal) for n in counts)] for name in names]
            lines += [f"### {case}: to {meaning}\n", *_table(["evaluations", *counts], cells), ""]
            if known := _known(by_count, goal):
                titles = " / ".join(DETAILS[key][0] for key in known)
                cells = [[name, *(_details(by_count[n].get(name, {}), goal, known) for n in counts)] for name in names]
                lines += [*_table([titles, *counts], [row for row in cells if any(row[1:])]), ""]
    return "\n".join(lines) + "\n"


def about(record: Mapping[str, Any], case: str) -> list[str]:
    """Where the rows of a case come from. Older files say it once for all cases."""
    own = record.get("measured", {}).get(case, {})
    samples, made = own.get("samples", record.get("samples")), own.get("provenance", record.get("provenance"))
    lines = [f"{samples} pictures; {origin(made)}."] if made else []
    if again := own.get("provenance_of_tenuto", record.get("provenance_of_tenuto")):
        lines.append(f"Tenuto's rows: {origin(again)}.")
    later: dict[str, list[str]] = {}
    for name, one in own.get("provenance_of", {}).items():
        later.setdefault(origin(one), []).append(name)
    lines += [f"Rows of {', '.join(names)}: {came}." for came, names in later.items()]
    if isinstance(tried := own.get("settings"), list):
        lines.append(
            f"Of the solvers' 90 settings {len(tried)} were tried: those that won most often in other cases of this "
            f"file, and well-known ones ({', '.join(tried)})."
        )
    for one in own.get("check", []):
        lines.append(
            f"Checked where Tenuto's rows were measured: {one['setting']} with {one['evaluations']} evaluations comes "
            f"to {one['found']:.2f} dB of the {one['goal']} run; the rivals' run had {one['recorded']:.2f}."
        )
    if real := own.get("frechet"):
        lines.append("Fréchet distance: " + ", ".join(f"{goal} run {value:.1f}" for goal, value in real.items()) + ".")
    return [" ".join(lines) + "\n"] if lines else []


LINES = {  # of the figure: (rows that belong to it, colour, marker)
    "Tenuto": (("Tenuto, 50 steps", "Tenuto, 250 steps"), "#b5123a", "o"),
    "the best solver, with hindsight": (("UniPC", "DEIS", "DPM-Solver++", "DDIM"), "#1f5f8b", "s"),
    "the best of other predictors": (("FSampler", "FoCa", "TaylorSeer", "ZEUS", "HiCache", "AB-Cache"), "#7a7a7a", "^"),
    "plain DDIM": (("DDIM",), "#c9a227", "v"),
}


def figure(record: Mapping[str, Any], path: Path) -> None:
    """One picture that answers at a glance: how near N evaluations come, by each kind of way."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    cases = record["cases"]
    axes = plt.subplots(2, len(cases), figsize=(3.3 * len(cases), 6), sharex=True, sharey="row", squeeze=False)[1]
    for column, (case, by_count) in zip(axes.T, cases.items(), strict=True):
        column[0].set_title(case, fontsize=10)
        for axis, goal in zip(column, GOALS, strict=True):
            for label, (names, colour, marker) in LINES.items():
                if label == "Tenuto":  # the number of steps is chosen by the question that is asked
                    names = names[:1] if goal == "full" else names[1:]
                found = {int(n): _nearest(rows, names, goal) for n, rows in by_count.items()}
                points = sorted((n, near) for n, near in found.items() if near is not None)
                axis.plot(
                    *zip(*points, strict=True), color=colour, marker=marker, ms=4, label=label
                ) if points else None
            axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel(f"dB to {GOALS['full']}")
    axes[1, 0].set_ylabel(f"dB to {GOALS['converged']}")
    for axis in axes[1]:
        axis.set_xlabel("evaluations")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    axes[0, 0].figure.legend(handles, labels, loc="lower center", ncols=4, frameon=False)
    axes[0, 0].figure.tight_layout(rect=(0, 0.06, 1, 1))
    axes[0, 0].figure.savefig(path, dpi=110)
    plt.close(axes[0, 0].figure)


def _nearest(rows: Mapping[str, Any], names: Sequence[str], goal: str) -> float | None:
    near = [one[goal]["psnr"] for name, one in rows.items() if name.startswith(tuple(names)) and goal in one]
    return max(near, default=None)


def _known(by_count: Mapping[str, Mapping[str, Any]], goal: str) -> list[str]:
    """Which of the other numbers some row has. Seconds alone are no reason for a table."""
    points = [one[goal] for found in by_count.values() for one in found.values() if goal in one]
    known = [key for key in DETAILS if any(key in point for point in points)]
    return known if known != ["seconds"] else []


def _details(best: Mapping[str, Any], goal: str, known: Sequence[str]) -> str:
    one = best.get(goal, {})
    numbers = [f"{one[key]:.{DETAILS[key][1]}f}" if key in one else "–" for key in known]
    return " / ".join(numbers) if any(key in one for key in known) else ""


def _cell(best: Mapping[str, Any], goal: str) -> str:
    if not best:
        return "not measured"
    if goal not in best:
        return str(best.get("reason", "diverges"))
    one = best[goal]
    return f"{one['psnr']:.1f} [{one['low']:.1f}, {one['high']:.1f}] {one['setting']}"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    line = "|---|" + "---:|" * (len(titles) - 1)
    return ["| " + " | ".join(titles) + " |", line, *("| " + " | ".join(row) + " |" for row in rows)]


def _way(value: Any, where: str) -> None:
    """How near a way comes to each goal, or why it was not measured."""
    near = fields(
        {**dict.fromkeys(("psnr", "low", "high"), number()), "setting": text},
        {name: optional(number()) for name in DETAILS},
        others=True,
    )
    fields({}, {**dict.fromkeys(GOALS, near), "reason": text}, others=True)(value, where)


def _counts(value: Any, where: str) -> None:
    by_name(by_name(_way))(value, where)
    for count in value:
        if not (count.isascii() and count.isdecimal() and len(count) <= 6):
            raise Misfit(where, f"should name numbers of evaluations, not {count[:60]!r}")


MADE = {"samples": whole(), "provenance": shaped(ORIGIN), "provenance_of_tenuto": shaped(ORIGIN)}
CHECKED = {"setting": str, "evaluations": int, "found": float, "goal": str, "recorded": float}
MEASURED = fields({}, {**MADE, "provenance_of": by_name(shaped(ORIGIN)), "check": shaped([CHECKED])}, others=True)
RECORD = both(
    fields({"cases": by_name(_counts)}, {**MADE, "measured": by_name(MEASURED)}, others=True),
    makes(table),
)
