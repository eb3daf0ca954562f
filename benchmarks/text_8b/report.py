"""The table, and what a file of this benchmark must hold."""

from typing import Any

from tenuto.provenance import origin
from tenuto_lab.result_files import ORIGIN, both, fields, makes, number, shaped

CHECK = (
    "*checked* tests the cache there, and a text that fails uses it no more; a test of random weights takes its time, "
    "and how it ends is given. "
)


def table(record: dict[str, Any]) -> str:
    limit, before = record["limits"], record["eager_before_joining"]
    checked = any(way.startswith("tenuto, checked") for done in record["points"].values() for way in done)
    lines = [
        "# LLaDA-8B's shapes: tokens a second",
        "",
        origin(record["provenance"]),
        "",
        f"Random weights; the tokens that an evaluation writes are replayed: {record['rate']} on average, blocks of "
        f"{record['block_length']}. Reading the {limit['weight_bytes'] / 1e9:.1f} GB of weights once takes "
        f"**{limit['weights_ms']:.2f} ms** at the bandwidth measured in the same run "
        f"({max(limit['copy_bytes_per_second'], limit['read_bytes_per_second'] or 0) / 1e12:.2f} TB/s). "
        "*tenuto* computes everything once, at the beginning, and then a block at every evaluation. *early* computes "
        f"everything at the evaluations 0 to 4, 8, 16, 32 and so on, too. {CHECK if checked else ''}"
        "Eager inference computes everything at every evaluation and writes one token with each; before matrices were "
        f"joined, it wrote {before['tokens_per_second']:.0f} tokens/s at the first point.",
        "",
        "| batch | prompt | tokens | way | tokens/s | × eager | a step, ms | evaluations |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    later: dict[str, list[str]] = {}
    for name, done in record["points"].items():
        full = done.get("eager", {}).get("tokens_per_second")
        if full and name == next(iter(record["points"])):  # it was read twice, and the faster one counts
            full = max(full, before["tokens_per_second"])
        for way, one in done.items():
            if "made_by" in one:
                later.setdefault(origin(one["made_by"]), []).append(f"{name.replace('x', ' × ')} {way}")
            if "failed" in one:
                lines.append(f"| {name.replace('x', ' | ')} | {way} | {one['failed']} | | | |")
                continue
            times = "" if not full else f"{one['tokens_per_second'] / full:.1f}"
            step = one.get("step_ms", one.get("evaluation_ms"))
            shown = "" if step is None else f"{step:.2f}"
            lines.append(
                f"| {name.replace('x', ' | ')} | {way} | {one['tokens_per_second']:,.0f} | {times} | {shown} | "
                f"{one.get('evaluations', '')} |"
            )
    for where, rows in later.items():
        lines += ["", f"Of another run: {'; '.join(rows)}. {where}"]
    return "\n".join(lines) + "\n"


def measured_way(value: Any, where: str) -> None:
    """What was measured of a way, or why it failed."""
    if isinstance(value, dict) and "failed" in value:
        return shaped({"failed": str})(value, where)
    fields(
        {"tokens_per_second": number()},
        {"step_ms": number(), "evaluation_ms": number(), "evaluations": number()},
        others=True,
    )(value, where)


RECORD = both(
    shaped(
        {
            **{
                "provenance": ORIGIN,
                "rate": float,
                "block_length": int,
                "eager_before_joining": {"tokens_per_second": float},
            },
            "limits": {
                "copy_bytes_per_second": float,
                "read_bytes_per_second": float | None,
                **dict.fromkeys(("weight_bytes", "weights_ms"), float),
            },
            "points": {str: {str: measured_way}},
        }
    ),
    makes(table),
)
