"""Measure whole pipelines, row after row, and write each row as soon as it is known."""

import logging
import time
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.end_to_end.building import CASES, Built, Case, build, free
from benchmarks.end_to_end.measuring import WARM_UP, Row, measure, reason
from benchmarks.end_to_end.report import tables
from benchmarks.end_to_end.ways import BASE, COMPILED, Plan, Way, ways
from benchmarks.places import results_of, use_packages
from tenuto.errors import UsageError
from tenuto.files import read_json, write_json, write_text
from tenuto.provenance import provenance

RESULTS = results_of("end_to_end")
COMPILE_SECONDS = 35.0  # expected for the blocks of one pipeline
NAMES = ", ".join(case.name for case in CASES)


class Book:
    """The rows that are known, and the file that holds them."""

    def __init__(self, out: Path, origin: dict[str, Any]) -> None:
        self._out, self._origin = out, origin
        self.known: dict[str, Any] = {"provenance": {}, "rows": []}
        if out.exists():
            self.known = read_json(out, "end to end")

    def find(self, case: str, way: str) -> Row | None:
        rows = [row for row in self.known["rows"] if (row["case"], row["way"]) == (case, way)]
        return Row(**rows[0]) if rows else None

    def add(self, row: Row) -> None:
        rows = self.known["rows"]
        values = {key: round(value, 6) if isinstance(value, float) else value for key, value in asdict(row).items()}
        places = [place for place, one in enumerate(rows) if (one["case"], one["way"]) == (row.case, row.way)]
        if places:
            rows[places[0]] = values
        else:
            rows.append(values)
        order = [case.name for case in CASES]
        rows.sort(key=lambda one: order.index(one["case"]))
        self.known["provenance"][row.case] = self._origin
        self.write()

    def write(self) -> None:
        write_json(self._out, self.known)
        write_text(self._out.with_suffix(".md"), tables(self.known))


def plan_for(case: Case, way: Way, steps: int, book: Book, tiny: bool) -> Plan:
    """A peer computes the steps that Tenuto computed with as many evaluations, if its row is known."""
    count = way.evaluations(steps)
    ours = book.find(case.name, f"Tenuto {way.share:.0%}")
    if way.kind == "peer" and ours is not None and ours.steps == steps and ours.computed_steps:
        return Plan(steps, tuple(ours.computed_steps), tiny)
    return Plan(steps, tuple(round(i * (steps - 1) / max(1, count - 1)) for i in range(count)), tiny)


def expected_seconds(case: Case, way: Way, plan: Plan, base: Row | None, repeats: int, compiles: bool) -> float:
    """What a row will take, compiling included."""
    step, rest = case.step_seconds, case.rest_seconds
    if base is not None and base.seconds is not None and base.denoiser_seconds and base.evaluations:
        step, rest = base.denoiser_seconds / base.evaluations, base.seconds - base.denoiser_seconds
    first = min(WARM_UP, plan.steps) if way.kind == "base" else plan.evaluations
    pictures = (repeats * plan.evaluations + first) * step + (repeats + 1) * rest
    return 1.1 * pictures + (COMPILE_SECONDS if compiles else 0.0)


def in_order(cases: list[Case], peers: list[str], compiled: list[str], shares: list[float]) -> list[tuple[Case, Way]]:
    """The rows of cases that share a pipeline: compiled ones last, because what was compiled stays compiled."""
    found = [
        (case, way)
        for case in cases
        for way in ways(shares if case.name in peers else [], with_compiled=case.name in compiled)
    ]
    return sorted(found, key=lambda one: one[1].compiled)


def chosen(names: list[str] | None, default: list[str]) -> list[str]:
    known = [case.name for case in CASES]
    if names == ["none"]:
        return []
    if wrong := [name for name in names or [] if name not in known]:
        raise UsageError(f"There is no case {wrong[0]!r}; the cases are {NAMES}, or none.")
    return names or default


def main(
    out: Annotated[Path, typer.Option(help="The file to write, and to go on from.")] = RESULTS,
    packages: Annotated[Path | None, typer.Option(help="Directory with the package cache_dit.")] = None,
    only: Annotated[list[str] | None, typer.Option(help=f"Cases: {NAMES}.")] = None,
    peers: Annotated[
        list[str] | None, typer.Option(help="Cases with peers; by default flux-28, sdxl; or none.")
    ] = None,
    peer_share: Annotated[list[float] | None, typer.Option(help="Shares that peers compute; by default 0.25.")] = None,
    compiled: Annotated[
        list[str] | None, typer.Option(help="Cases with compiled rows; by default flux-28, sdxl; or none.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Pictures timed after the first one.")] = 2,
    seconds: Annotated[float, typer.Option(help="Stop before a row that would end later than this.")] = float("inf"),
    frames: Annotated[int, typer.Option(help="Of the clip that Wan draws.")] = 33,
    steps: Annotated[int | None, typer.Option(min=2, help="Steps of every case, to try the script.")] = None,
    again: Annotated[bool, typer.Option(help="Measure what is in the file already, too.")] = False,
    tiny: Annotated[bool, typer.Option(help="Small networks: to try the script, not to measure.")] = False,
    draw_only: Annotated[bool, typer.Option("--draw-only", help="Measure nothing; write the table again.")] = False,
    device: Annotated[str, typer.Option(help="Where to run.")] = "cuda" if torch.cuda.is_available() else "cpu",
) -> None:
    """Time whole pipelines: untouched, compiled, with Tenuto, and with its peers."""
    started = time.perf_counter()
    if packages is not None:
        use_packages(packages)
    if tiny and out == RESULTS:
        raise UsageError("Miniatures measure nothing: name another file with --out.")
    others = {"cache-dit": version("cache-dit")} if find_spec("cache_dit") else {}
    transformers = version("transformers")
    book = Book(out, provenance(device, seed=0, transformers=transformers, peers=others, repeats=repeats))
    if draw_only:
        book.write()
        return
    wanted = chosen(only, [case.name for case in CASES])
    with_peers, with_compiled = chosen(peers, ["flux-28", "sdxl"]), chosen(compiled, ["flux-28", "sdxl"])
    steps = steps or (12 if tiny else None)
    where = torch.device(device)
    dtype = torch.bfloat16 if where.type == "cuda" else torch.float32
    for _, group in groupby(CASES, key=lambda case: case.design.title):
        cases = [case for case in group if case.name in wanted]
        rows = in_order(cases, with_peers, with_compiled, peer_share or [0.25])
        rows = [(case, way) for case, way in rows if again or book.find(case.name, way.name) is None]
        if not rows:
            continue
        left = seconds - (time.perf_counter() - started)
        if left < cases[0].design.build_seconds + 3 * cases[0].steps * cases[0].step_seconds:
            print(f"{cases[0].design.title}: no time is left for it", flush=True)
            continue
        began = time.perf_counter()
        try:
            built = build(cases[0].design, where, dtype, tiny, frames)
        except Exception as error:  # the other pipelines are to be measured nonetheless
            print(f"{cases[0].design.title}: cannot be built: {reason(error)}", flush=True)
            free(where)
            continue
        print(f"{built.design.title}: built in {time.perf_counter() - began:.1f} s", flush=True)
        for row in measured(rows, built, book, repeats, started + seconds, steps, tiny):
            book.add(row)
            print(line(row), flush=True)
        del built
        torch._dynamo.reset()
        free(where)
    print(f"{time.perf_counter() - started:.0f} s in all", flush=True)


def measured(
    rows: list[tuple[Case, Way]],
    built: Built,
    book: Book,
    repeats: int,
    deadline: float,
    few: int | None,
    tiny: bool,
) -> Iterator[Row]:
    """The rows of one pipeline that fit into the time; few: the number of steps, if not the case's."""
    compiled = False
    for case, way in rows:
        base = book.find(case.name, (COMPILED if way.compiled else BASE).name)
        plan = plan_for(case, way, few or case.steps, book, tiny)
        expected = expected_seconds(case, way, plan, base, repeats, way.compiled and not compiled)
        if time.perf_counter() + expected > deadline:
            print(f"{case.name} {way.name}: would take {expected:.0f} s, which are not left", flush=True)
            continue
        compiled |= way.compiled
        row = measure(case, way, built, plan, repeats, base)
        untouched = book.find(case.name, BASE.name)
        whole = row.seconds if untouched is None else untouched.seconds
        if row.seconds and whole and (untouched is not None or way is BASE):
            row.speedup = whole / row.seconds
        yield row


def line(row: Row) -> str:
    start = f"{row.case:8} {row.way:36}"
    if row.seconds is None:
        return f"{start} does not run: {row.why}"
    ideal = "" if row.ratio_to_ideal is None else f"  {row.ratio_to_ideal:5.3f} of ideal"
    memory = "" if row.peak_gib is None else f"  {row.peak_gib:6.2f} GiB"
    counted = f"{row.evaluations:3} of {row.steps}"
    return f"{start} {counted}  {row.seconds:7.3f} s  x{row.speedup or 1:.2f}{ideal}{memory}  {row.why or row.note}"


if __name__ == "__main__":
    logging.disable(logging.INFO)  # cache-dit tells a lot
    typer.run(main)
