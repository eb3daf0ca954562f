"""Finds the folder of results, and reads the frontier in it."""

from collections.abc import Mapping
from dataclasses import MISSING
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any, get_args

from tenuto_lab.frontier.measurements import Comparison, Kind, Measurement
from tenuto_lab.result_files import (
    MADE,
    Check,
    Misfit,
    both,
    by_name,
    fields,
    listed,
    number,
    one_of,
    optional,
    read_result,
    text,
    whole,
)

FRONTIER = Path("frontier") / "frontier.json"  # within a folder of results


def known_frontier(folder: Path) -> dict[str, Any] | None:
    """The frontier that `python -m benchmarks.frontier` wrote to a folder of results; None if there is none yet."""
    path = folder / FRONTIER
    return read_frontier(path) if path.is_file() else None


def read_frontier(path: Path) -> dict[str, Any]:
    """The file that `tenuto lab frontier` or `python -m benchmarks.frontier` wrote, checked field by field."""
    return read_result(path, "frontier", FRONTIER_FILE)


def way_of(policy: str) -> str:
    """The way that a policy belongs to. Policies that differ only in their threshold share one line in a picture."""
    return policy.split(", threshold")[0]


# A number that is shown with other numbers, like the ends of its interval, needs all of them.
TOGETHER: Mapping[str, tuple[str, ...]] = {
    "psnr": ("psnr_low", "psnr_high"),
    "fid_delta": ("fid", "fid_delta_low", "fid_delta_high"),
    "nll_delta": ("nll", "nll_delta_low", "nll_delta_high"),
}


def _check_together(row: Any, where: str) -> None:
    for name, others in TOGETHER.items():
        if name in row and (missing := [other for other in others if other not in row]):
            raise Misfit(where, f"has {name!r} and lacks {missing[0]!r}")


def _check_rows(record: Any, where: str) -> None:
    """Every row must belong to a case of the file, and all rows of a way must have the same kind."""
    kinds: dict[str, str] = {}
    for i, row in enumerate(record["rows"]):
        if row["case"] not in record["cases"]:
            raise Misfit(f"rows[{i}].case", "is none of the cases")
        if kinds.setdefault(way_of(row["policy"]), row["kind"]) != row["kind"]:
            raise Misfit(f"rows[{i}].kind", "is not the kind of the rows above with the same policy")


TYPES: dict[Any, Check] = {str: text, int: whole(), float: number()}
TYPES |= {kind | None: check for kind, check in list(TYPES.items())}
SECONDS = number(least=1e-9, most=1e9)
RANGES = {
    "kind": one_of(*get_args(Kind)),
    "flop_work": number(least=0, most=1e6),
    "base_steps": whole(least=1),
    "seconds": SECONDS,
    "full_seconds": SECONDS,
}


def _row(kind: type[Measurement] | type[Comparison]) -> Check:
    """The fields of a row, as its class declares them. Fields with a default may be missing."""
    checks = {one.name: RANGES.get(one.name, TYPES[one.type]) for one in fields_of(kind)}
    needed = {one.name: checks.pop(one.name) for one in fields_of(kind) if one.default is MISSING}
    return fields({"case": text, **needed}, checks)


CASE = fields(
    MADE,
    {
        "date": text,
        "converged": optional(by_name(number())),
        "unable": optional(by_name(text)),
        "ours": optional(fields({"command": text, "commit": text}, others=True)),
    },
    others=True,
)
FRONTIER_FILE = both(
    fields(
        {"cases": by_name(CASE), "rows": listed(both(_row(Measurement), _check_together))},
        {"comparisons": listed(_row(Comparison))},
    ),
    _check_rows,
)
