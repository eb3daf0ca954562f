"""Puts what several processes measured, each into a file of its own, into the one file of a benchmark.

    python -m benchmarks.joining settings data/settings-*.json
    python -m benchmarks.joining strong_rivals --replace data/rivals-*.json
    python -m benchmarks.joining hindsight --fresh data/hindsight-*.json

Nothing is measured. Every row keeps the origin that it was measured with. Rows of settings, qualities, networks and
cases replace those that the file holds of the same. Rows of rivals are added only if both files are of the same
pictures. Files without an origin for each row are joined only if all of them were made by the same code on the same
hardware with as many samples.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import hindsight, quality, settings
from benchmarks.fingerprints import same
from benchmarks.model_problem import __main__ as model_problem
from benchmarks.places import results_of
from benchmarks.strong_rivals import report as rivals
from benchmarks.transfer import report as transfer
from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.files import write_json, write_text
from tenuto_lab.frontier.frontier_report import frontier_tables
from tenuto_lab.frontier.known import FRONTIER_FILE
from tenuto_lab.result_files import ORIGIN, Check, both, fields, listed, makes, read_result, shaped
from tenuto_lab.rivals.by_name import SOLVERS

Record = dict[str, Any]
ROWS = fields({"rows": listed(fields({}, {}, others=True)), "provenance": shaped(ORIGIN)}, {}, others=True)


def join_cases(known: Record, part: Record, key: Callable[[Mapping[str, Any]], Any]) -> None:
    """Cases that say themselves where they come from; those of the same key are replaced."""
    made = {name: part[name] for name in ("provenance", "samples") if name in part}
    new = [{**made, **case} for case in part["cases"]]
    keys = [key(case) for case in new]
    known["cases"] = [case for case in known["cases"] if key(case) not in keys] + new


def join_settings(known: Record, part: Record, replace: bool) -> None:
    """Rows of the same setting and number of steps are replaced; other rows of an older case stay."""

    def setting(case: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(case[name] for name in ("network", "scheduler", "guidance", "rescaled"))

    new = {(setting(case), row["steps"]) for case in part["cases"] for row in case["rows"]}
    for case in known["cases"]:
        case["rows"] = [row for row in case["rows"] if (setting(case), row["steps"]) not in new]
    known["cases"] = [case for case in known["cases"] if case["rows"]]
    join_cases(known, part, lambda case: id(case))


def join_qualities(known: Record, part: Record, replace: bool) -> None:
    join_cases(known, part, lambda case: tuple(case[name] for name in ("network", "guidance", "solver", "steps")))


def join_rivals(known: Record, part: Record, replace: bool) -> None:
    """Add a part's rows of rivals. With `replace`, a case of other pictures takes the place of the older one."""
    known.setdefault("measured", {})
    for case, by_count in part["cases"].items():
        theirs = part["measured"][case]
        ours = known["measured"].setdefault(case, {})
        if case in known["cases"] and not _same_pictures(ours, theirs):
            if not replace:
                raise UsageError(
                    f"The rows of {case} were measured on other pictures than those that the file holds. --replace "
                    "takes the new ones instead."
                )
            known["cases"].pop(case)
        if case not in known["cases"]:
            known["cases"][case], known["measured"][case] = by_count, theirs
            continue
        rows = known["cases"][case]
        added: dict[str, list[str]] = {}
        for count, found in by_count.items():
            for name, row in found.items():
                if rows.get(count, {}).get(name) != row:
                    rows.setdefault(count, {})[name] = row
                    added.setdefault(name, []).append(count)
        for name, counts in added.items():
            made = _made_by(theirs, name)
            if name.startswith("Tenuto"):
                ours["provenance_of_tenuto"] = made
            elif all(count in counts for count, found in rows.items() if name in found):
                ours.setdefault("provenance_of", {})[name] = made
            else:
                of_some = f"{name} ({', '.join(sorted(counts, key=int))} evaluations)"
                ours.setdefault("provenance_of", {})[of_some] = made
        if theirs.get("settings", "all") != ours.get("settings", "all") and any(name in SOLVERS for name in added):
            raise UsageError(f"The rows of {case} were measured with other settings of the solvers.")


def _same_pictures(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    a, b = ours.get("fingerprints"), theirs.get("fingerprints")
    return a is not None and b is not None and all(same(b[goal], a[goal]) for goal in a)


def _made_by(measured: Mapping[str, Any], name: str) -> Record:
    """Where the rows of a way come from."""
    if name.startswith("Tenuto") and "provenance_of_tenuto" in measured:
        return dict(measured["provenance_of_tenuto"])
    return dict(measured.get("provenance_of", {}).get(name) or measured["provenance"])


def join_networks(known: Record, part: Record, replace: bool) -> None:
    for kind in ("networks", "writers"):
        known.setdefault(kind, {}).update(part.get(kind, {}))


def join_frontier(known: Record, part: Record, replace: bool) -> None:
    for name, made in part["cases"].items():
        known.setdefault("cases", {})[name] = made
        for kind in ("rows", "comparisons"):
            known[kind] = [row for row in known.get(kind, []) if row["case"] != name]
            known[kind] += [row for row in part[kind] if row["case"] == name]


def join_rows(known: Record, part: Record, replace: bool) -> None:
    """Rows without an origin of their own: both files must be of one measurement."""
    if not known.get("rows"):
        known.update(part)
        return
    ours, theirs = known["provenance"], part["provenance"]
    alike = ("commit", "torch", "hardware", "seed")
    if any(ours.get(name) != theirs.get(name) for name in alike) or known.get("samples") != part.get("samples"):
        raise UsageError(
            "The rows of these files have no origin of their own, and were not made by the same code on the same "
            "hardware with as many samples; --fresh leaves out what the file held."
        )
    commands = [*ours["command"].split("; "), theirs["command"]]
    known["provenance"] = {**ours, "command": "; ".join(dict.fromkeys(commands))}
    known["rows"] += [row for row in part["rows"] if row not in known["rows"]]


def _draw_rivals(record: Record, out: Path) -> str:
    rivals.figure(record, out.with_suffix(".png"))
    return rivals.table(record)


# kind -> what its file looks like, how a part is added, what is drawn of it
KINDS: dict[str, tuple[Check, Callable[[Record, Record, bool], None], Callable[[Record, Path], str]]] = {
    "settings": (settings.RECORD, join_settings, lambda record, out: settings.table(record)),
    "quality": (quality.RECORD, join_qualities, lambda record, out: quality.summary(record)),
    "strong_rivals": (rivals.RECORD, join_rivals, _draw_rivals),
    "transfer": (transfer.RECORD, join_networks, lambda record, out: transfer.tables(record)),
    "frontier": (FRONTIER_FILE, join_frontier, lambda record, out: frontier_tables(record)),
    "hindsight": (both(ROWS, makes(hindsight.table)), join_rows, lambda record, out: hindsight.table(record)),
    "model_problem": (
        both(ROWS, makes(model_problem.table)),
        join_rows,
        lambda record, out: model_problem.table(record),
    ),
}
EMPTY: dict[str, Record] = {
    **{kind: {"cases": []} for kind in ("settings", "quality")},
    "strong_rivals": {"cases": {}, "measured": {}},
    "transfer": {"networks": {}, "writers": {}},
    "frontier": {"cases": {}, "rows": [], "comparisons": []},
    **{kind: {"rows": []} for kind in ("hindsight", "model_problem")},
}


def joined(kind: str, known: Record, parts: Sequence[Record], replace: bool = False) -> Record:
    """The content of a benchmark's file with that of all parts."""
    for part in parts:
        KINDS[kind][1](known, part, replace)
    return known


def main(
    kind: Annotated[str, typer.Argument(help=f"{', '.join(KINDS)}.")],
    files: Annotated[list[Path], typer.Argument(help="What the processes wrote.")],
    out: Annotated[
        Path | None, typer.Option(help="The file to add to; by default the benchmark's file in results.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Rivals: a case of other pictures takes the place of the older one.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Leave out what the file holds.")] = False,
) -> None:
    """Add what the files hold to the file of a benchmark, and write its table again."""
    if kind not in KINDS:
        raise UsageError(f"There is no {kind!r} to join; there are {', '.join(KINDS)}.")
    place = out or results_of(kind)
    check, _, drawn = KINDS[kind]
    known = {} if fresh or not place.is_file() else read_result(place, f"file of {kind}", check)
    parts = [read_result(file, f"file of {kind}", check) for file in files]
    record = joined(kind, {**deepcopy(EMPTY[kind]), **known}, parts, replace)
    write_json(place, record)
    write_text(place.with_suffix(".md"), drawn(record, place))


if __name__ == "__main__":
    run(main)
