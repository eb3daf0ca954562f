"""Which rows are measured, in which order, and how long each will take. The rows that are known already."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_type_hints

from benchmarks.end_to_end.building import CASES, Case
from benchmarks.end_to_end.measuring import WARM_UP, Row, warms_up_in_full
from benchmarks.end_to_end.report import KINDS, place, tables
from benchmarks.end_to_end.ways import Plan, Way, ways
from tenuto.files import write_json, write_text
from tenuto_lab.result_files import ORIGIN, both, fields, listed, makes, one_of, read_result, shaped

COMPILE_SECONDS = 12.0  # expected for the blocks of one pipeline
PATIENCE = 10.0  # seconds that the pictures of one row may take
ORDER = [case.name for case in CASES]


RANGES = {"case": one_of(*ORDER), "kind": one_of(*KINDS)}
EACH = {name: RANGES.get(name, shaped(kind)) for name, kind in get_type_hints(Row).items()}
ROW = fields({name: check for name, check in EACH.items() if name != "round_seconds"}, EACH)
RECORD = both(fields({"provenance": shaped({str: ORIGIN}), "rows": listed(ROW)}), makes(tables))


class Book:
    """The rows that are known, and the file that holds them."""

    def __init__(self, out: Path, origin: dict[str, Any]) -> None:
        self._out, self._origin = out, origin
        self.known: dict[str, Any] = {"provenance": {}, "rows": []}
        if out.exists():
            self.known = read_result(out, "table of whole pipelines", RECORD)

    def find(self, case: str, way: str) -> Row | None:
        rows = [row for row in self.known["rows"] if (row["case"], row["way"]) == (case, way)]
        return Row(**rows[0]) if rows else None

    def add(self, row: Row) -> None:
        values = {key: rounded(value) for key, value in asdict(row).items()}
        others = [one for one in self.known["rows"] if (one["case"], one["way"]) != (row.case, row.way)]
        self.known["rows"] = sorted([*others, values], key=lambda one: (ORDER.index(one["case"]), *place(one)))
        # Rows that are added later to those of another run have a provenance of their own.
        origins = self.known["provenance"]
        origins.pop(key := f"{row.case}: {row.way}", None)
        shared = {one["case"] for one in others if f"{one['case']}: {one['way']}" not in origins}
        if row.case in shared and origins.get(row.case) != self._origin:
            origins[key] = self._origin
        else:
            origins[row.case] = self._origin
        self.write()

    def write(self) -> None:
        write_json(self._out, self.known)
        write_text(self._out.with_suffix(".md"), tables(self.known))


def rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 6) if isinstance(value, float) else value


def in_order(
    cases: Sequence[Case], turn: int, peers: Sequence[str], compiled: Sequence[str], shares: Sequence[float]
) -> list[tuple[Case, Way]]:
    """The rows of cases that share a pipeline: compiled ones last, because what was compiled stays compiled."""
    found = [
        (case, way)
        for case in cases
        for way in ways(shares if case.name in peers else [], with_compiled=case.name in compiled)
        if way.turn == turn
    ]
    return sorted(found, key=lambda one: one[1].compiled)


def plan_for(case: Case, way: Way, steps: int, book: Book, tiny: bool) -> Plan:
    """A peer computes the steps that Tenuto computed with as many evaluations, if its row is known."""
    count = way.evaluations(steps)
    ours = book.find(case.name, f"Tenuto {way.share:.0%}")
    if way.kind == "peer" and ours is not None and ours.steps == steps and ours.computed_steps:
        return Plan(steps, tuple(ours.computed_steps), tiny)
    return Plan(steps, tuple(round(i * (steps - 1) / max(1, count - 1)) for i in range(count)), tiny)


def expected(
    case: Case, way: Way, plan: Plan, base: Row | None, most: int, compiles: bool = False
) -> tuple[float, int]:
    """The seconds that a row will take, compiling included, and how many of its pictures are timed: `most` or fewer."""
    step, rest = case.step_seconds, case.rest_seconds
    if base is not None and base.seconds is not None and base.denoiser_seconds and base.evaluations:
        step, rest = base.denoiser_seconds / base.evaluations, base.seconds - base.denoiser_seconds
    picture, in_full = plan.evaluations * step + rest, warms_up_in_full(way)
    repeats = max(1, min(most, int(PATIENCE / picture) - in_full))
    first = picture if in_full else min(WARM_UP, plan.evaluations) * step + rest
    return 1.1 * (repeats * picture + first) + 0.5 + (COMPILE_SECONDS if compiles else 0.0), repeats


def least_seconds(cases: Sequence[Case], book: Book, most: int) -> float:
    """The seconds that are kept back for one pipeline: for what is missing of its untouched rows and of Tenuto's."""
    missing = [(case, way) for case in cases for way in ways([], False) if book.find(case.name, way.name) is None]
    if not missing:
        return 0.0
    plans = [(case, way, Plan(case.steps, tuple(range(way.evaluations(case.steps))))) for case, way in missing]
    return cases[0].design.build_seconds + sum(expected(*one, None, most)[0] for one in plans)
