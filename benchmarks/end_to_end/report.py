"""The table of the end-to-end measurements."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.end_to_end.rounds import ratio_of
from tenuto.provenance import origin

KINDS = ("base", "tenuto", "peer")
HEAD = (
    "| way | evaluations | seconds | ± | speed-up | ideal | of ideal | text | loop | VAE | held step "
    "| of an evaluation | peak GiB | over untouched | reserved GiB | |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |"
)
LEGEND = """\
Whole pipelines with random weights: text encoders, loop and VAE (`output_type="pt"`), one picture or clip. Text \
encoders and VAEs have their published sizes; a stand-in for each tokenizer makes up the ids of 50 words. \
Seconds are medians after one picture that is not counted; ± is (slowest − fastest) / median. Rows that were measured \
in rounds have the 95 % interval of their ratio in brackets, from the seconds of the same rounds. Evaluations are \
the steps at which the network was computed, counted by a hook and as replays of CUDA graphs. Ideal: the \
evaluations of the row, each as long as in the row in which everything is computed (compiled, if the row is), \
and the rest of that row. Peers are made to compute as many steps as Tenuto, the same steps if their settings \
can say which (not TaylorSeer's in diffusers). Peak GiB counts tensors. Reserved GiB is what the allocator took: \
CUDA graphs keep some of it to themselves. A row that gives a reason at its end did not run, or not as asked."""


def place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Where a row stands in the table of its case: what was compiled last, larger shares first."""
    way = row["way"]
    return "compiled" in way, "again" in way, KINDS.index(row["kind"]), "graphs" in way, -row["asked"]


def tables(known: Mapping[str, Any]) -> str:
    lines = ["# End to end\n", LEGEND]
    for case in dict.fromkeys(row["case"] for row in known["rows"]):
        rows = [row for row in known["rows"] if row["case"] == case]
        lines.append(f"\n## {rows[0]['title']}, {rows[0]['setting']}\n")
        lines += [f"{one}\n" for one in (verdict(rows),) if one]
        lines.append(HEAD)
        peak = next((row["peak_gib"] for row in rows if row["way"] == "untouched"), None)
        lines += [line(row, peak, base_of(row, rows)) for row in rows]
        lines += origins(case, rows, known["provenance"])
    return "\n".join(lines) + "\n"


def origins(case: str, rows: Sequence[Mapping[str, Any]], known: Mapping[str, Any]) -> list[str]:
    """Where the rows of a case come from: those of one run together."""
    ways: dict[str, list[str]] = {}
    for row in rows:
        own = known.get(f"{case}: {row['way']}")
        ways.setdefault(origin(own or known[case]), []).append(row["way"])
    if len(ways) == 1:
        return [f"\n{one}" for one in ways]
    most = max(ways, key=lambda one: len(ways[one]))
    own = [f"\n{', '.join(names)}: {one}" for one, names in ways.items() if one != most]
    return [*own, f"\n{'The others' if own else ''}: {most}"]


def base_of(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The row in which everything is computed, compiled if this one is."""
    name = "compiled" if "compiled" in row["way"] else "untouched"
    return next((one for one in rows if one["way"] == name and one is not row), None)


def verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Tenuto beside the quickest and the leanest peer with as many evaluations, in words."""
    peers = [row for row in rows if row["kind"] == "peer" and row["seconds"] is not None and not row["why"]]
    ours = [row for row in rows if row["way"] in {f"Tenuto {peer['way'].rsplit(' ', 1)[1]}" for peer in peers}]
    said = []
    for row in ours:
        rivals = [peer for peer in peers if peer["evaluations"] == row["evaluations"]]
        if not rivals:
            continue
        quick = min(rivals, key=lambda peer: float(peer["seconds"]))
        gain = quick["seconds"] / row["seconds"] - 1
        said.append(
            f"{row['way']}: {row['seconds']:.3f} s. The quickest peer is {quick['way']} with {quick['seconds']:.3f} s "
            f"({abs(gain):.1%} {'more' if gain >= 0 else 'less'}{between(ratio_of(quick, row))})."
        )
        if row["peak_gib"] is not None:
            lean = min(rivals, key=lambda peer: float(peer["peak_gib"]))
            more = 1024 * (lean["peak_gib"] - row["peak_gib"])
            said.append(
                f"The leanest is {lean['way']} with {abs(more):.1f} MiB {'more' if more >= 0 else 'less'} than Tenuto."
            )
    return " ".join(said)


def between(ratio: tuple[float, float, float] | None) -> str:
    """What the rounds say of it."""
    if ratio is None:
        return ""
    return f"; in rounds {ratio[0] - 1:+.1%}, with 95 % confidence {ratio[1] - 1:+.1%} to {ratio[2] - 1:+.1%}"


def of_ideal(row: Mapping[str, Any], base: Mapping[str, Any] | None) -> str:
    """With its interval, if it was measured in rounds with the row that has everything computed."""
    ratio = None if base is None or not row["ideal_seconds"] else ratio_of(row, base)
    if ratio is None or base is None:
        return shown(row["ratio_to_ideal"], "{:.3f}")
    middle, low, high = (one * base["seconds"] / row["ideal_seconds"] for one in ratio)
    return f"{middle:.3f} ({low:.3f}–{high:.3f})"


def line(row: Mapping[str, Any], untouched_gib: float | None = None, base: Mapping[str, Any] | None = None) -> str:
    note = "" if row["graphs"] and "reserved" in row["note"] else row["note"]  # it has a column
    remarks = "; ".join(one for one in (row["why"], note) if one).replace("|", "/")
    if row["seconds"] is None:
        return f"| {row['way']} | | " + " | " * 13 + f"does not run: {remarks} |"
    more = None if untouched_gib is None or row["peak_gib"] is None else 1024 * (row["peak_gib"] - untouched_gib)
    cells = [
        row["way"],
        f"{row['evaluations']} of {row['steps']}",
        f"{row['seconds']:.3f}",
        "" if row["repeats"] < 2 else f"{row['spread']:.1%}",
        shown(row["speedup"], "{:.2f}×"),
        shown(row["ideal_seconds"], "{:.3f}"),
        of_ideal(row, base),
        shown(row["text_seconds"], "{:.3f}"),
        shown(row["loop_seconds"], "{:.3f}"),
        shown(row["vae_seconds"], "{:.3f}"),
        shown(row["held_ms"], "{:.3f} ms"),
        shown(row["held_share"], "{:.2%}"),
        shown(row["peak_gib"], "{:.2f}"),
        shown(more, "{:+.1f} MiB"),
        shown(row["reserved_gib"], "{:.2f}"),
        remarks,
    ]
    return f"| {' | '.join(cells)} |"


def shown(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
