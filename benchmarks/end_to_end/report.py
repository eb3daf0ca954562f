"""The table of the end-to-end measurements."""

from collections.abc import Mapping
from typing import Any

from tenuto.provenance import origin

HEAD = (
    "| way | evaluations | seconds | ± | speed-up | ideal | of ideal | text | loop | VAE | held step "
    "| of an evaluation | peak GiB | reserved GiB | |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |"
)
LEGEND = """\
Whole pipelines with random weights: text encoders, loop and VAE (`output_type="pt"`), one picture or clip. Text \
encoders and VAEs have their published sizes; a stand-in for each tokenizer makes up the ids of 50 words. \
Seconds are medians after one picture that is not counted; ± is (slowest − fastest) / median. Evaluations are \
the steps at which the network was computed, counted by a hook and as replays of CUDA graphs. Ideal: the \
evaluations of the row, each as long as in the row in which everything is computed (compiled, if the row is), \
and the rest of that row. Peers are made to compute as many steps as Tenuto, the same steps if their settings \
can say which (not TaylorSeer's in diffusers). A row that gives a reason at its end did not run, or not as \
asked."""


def tables(known: Mapping[str, Any]) -> str:
    lines = ["# End to end\n", LEGEND]
    for case in dict.fromkeys(row["case"] for row in known["rows"]):
        rows = [row for row in known["rows"] if row["case"] == case]
        lines.append(f"\n## {rows[0]['title']}, {rows[0]['setting']}\n\n{HEAD}")
        lines += [line(row) for row in rows]
        lines.append(f"\n{origin(known['provenance'][case])}")
    return "\n".join(lines) + "\n"


def line(row: Mapping[str, Any]) -> str:
    remarks = "; ".join(one for one in (row["why"], row["note"]) if one).replace("|", "/")
    if row["seconds"] is None:
        return f"| {row['way']} | | " + " | " * 12 + f"does not run: {remarks} |"
    cells = [
        row["way"],
        f"{row['evaluations']} of {row['steps']}",
        f"{row['seconds']:.3f}",
        f"{row['spread']:.1%}",
        shown(row["speedup"], "{:.2f}×"),
        shown(row["ideal_seconds"], "{:.3f}"),
        shown(row["ratio_to_ideal"], "{:.3f}"),
        shown(row["text_seconds"], "{:.3f}"),
        shown(row["loop_seconds"], "{:.3f}"),
        shown(row["vae_seconds"], "{:.3f}"),
        shown(row["held_ms"], "{:.3f} ms"),
        shown(row["held_share"], "{:.2%}"),
        shown(row["peak_gib"], "{:.2f}"),
        shown(row["reserved_gib"], "{:.2f}"),
        remarks,
    ]
    return f"| {' | '.join(cells)} |"


def shown(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
