"""Measure whole pipelines, row after row, and write each row as soon as it is known."""

import logging
import time
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.end_to_end.building import CASES, Built, Case, build, free
from benchmarks.end_to_end.measuring import Row, measure, reason
from benchmarks.end_to_end.planning import Book, expected, in_order, least_seconds, plan_for
from benchmarks.end_to_end.rounds import by_rounds
from benchmarks.end_to_end.ways import BASE, COMPILED, TURNS, Plan, Way
from benchmarks.places import results_of, use_packages
from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.provenance import provenance

RESULTS = results_of("end_to_end")
NAMES = ", ".join(case.name for case in CASES)
ONE_OF_EACH = [case.name for case in CASES if case.name != "flux-50"]


def chosen(names: list[str] | None, default: list[str]) -> list[str]:
    known = [case.name for case in CASES]
    if names == ["none"]:
        return []
    if wrong := [name for name in names or [] if name not in known]:
        raise UsageError(f"There is no case {wrong[0]!r}; the cases are {NAMES}, or none.")
    return names or default


def main(
    out: Annotated[Path, typer.Option(help="The file to write, and to go on from.")] = RESULTS,
    packages: Annotated[Path | None, typer.Option(help="Directory with the packages cache_dit and DeepCache.")] = None,
    only: Annotated[list[str] | None, typer.Option(help=f"Cases: {NAMES}.")] = None,
    peers: Annotated[
        list[str] | None, typer.Option(help="Cases with peers; by default all but flux-50; or none.")
    ] = None,
    peer_share: Annotated[list[float] | None, typer.Option(help="Shares that peers compute; by default 0.25.")] = None,
    compiled: Annotated[
        list[str] | None, typer.Option(help="Cases with compiled rows; by default all, or none.")
    ] = None,
    way: Annotated[list[str] | None, typer.Option(help="Only these rows, by their names in the table.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Measure all rows of a pipeline, then all again, so often.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Pictures timed after the first one, if they are quick.")] = 3,
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
    packages_of_peers = {"cache-dit": "cache_dit", "DeepCache": "DeepCache"}
    others = {name: version(name) for name, module in packages_of_peers.items() if find_spec(module)}
    transformers = version("transformers")
    book = Book(out, provenance(device, seed=0, transformers=transformers, peers=others, repeats=repeats))
    if draw_only:
        book.write()
        return
    wanted = chosen(only, [case.name for case in CASES])
    asked = chosen(peers, ONE_OF_EACH), chosen(compiled, [case.name for case in CASES]), peer_share or [0.25]
    steps = steps or (12 if tiny else None)
    where = torch.device(device)
    pipelines = [list(group) for _, group in groupby(CASES, key=lambda case: case.design.title)]
    pipelines = [[case for case in group if case.name in wanted] for group in pipelines]
    for turn in range(TURNS):
        for number, cases in enumerate(pipelines):
            rows = in_order(cases, turn, *asked)
            rows = [one for one in rows if way is None or one[1].name in way]
            rows = [(case, one) for case, one in rows if again or book.find(case.name, one.name) is None]
            later = 0.0 if turn else sum(least_seconds(one, book, repeats) for one in pipelines[number + 1 :] if one)
            deadline = started + seconds - later
            if not rows:
                continue
            if time.perf_counter() + cases[0].design.build_seconds > deadline:
                print(f"{cases[0].design.title}: no time is left for it", flush=True)
                continue
            began = time.perf_counter()
            try:
                dtype = torch.bfloat16 if where.type == "cuda" else torch.float32
                built = build(cases[0].design, where, dtype, tiny, frames)
            except Exception as error:  # the other pipelines are to be measured nonetheless
                print(f"{cases[0].design.title}: cannot be built: {reason(error)}", flush=True)
                free(where)
                continue
            print(f"{built.design.title}: built in {time.perf_counter() - began:.1f} s", flush=True)
            found = measured(rows, built, book, repeats, deadline, steps, tiny)
            if rounds > 1:
                found = in_rounds(rows, built, book, repeats, rounds, deadline, steps, tiny)
            for row in found:
                book.add(row)
                print(line(row), flush=True)
            del built
            torch._dynamo.reset()
            free(where)
    print(f"{time.perf_counter() - started:.0f} s in all", flush=True)


def measured(
    rows: list[tuple[Case, Way]], built: Built, book: Book, most: int, deadline: float, few: int | None, tiny: bool
) -> Iterator[Row]:
    """The rows of one pipeline that fit into the time; few: the number of steps, if not the case's."""
    compiled = False
    for case, way in rows:
        base = book.find(case.name, (COMPILED if way.compiled else BASE).name)
        plan = plan_for(case, way, few or case.steps, book, tiny)
        price = base or book.find(case.name, BASE.name)
        needed, repeats = expected(case, way, plan, price, most, way.compiled and not compiled)
        if time.perf_counter() + needed > deadline:
            print(f"{case.name} {way.name}: would take {needed:.0f} s, which are not left", flush=True)
            continue
        compiled |= way.compiled
        row = measure(case, way, built, plan, repeats, base)
        compare_to_untouched(row, book)
        yield row


def in_rounds(
    rows: list[tuple[Case, Way]],
    built: Built,
    book: Book,
    repeats: int,
    rounds: int,
    deadline: float,
    few: int | None,
    tiny: bool,
) -> Iterator[Row]:
    """The same rows in rounds: first those that are not compiled, because what was compiled stays compiled."""

    def plan_of(case: Case, way: Way) -> Plan:
        return plan_for(case, way, few or case.steps, book, tiny)

    def base_of(case: Case, way: Way) -> Row | None:
        return book.find(case.name, (COMPILED if way.compiled else BASE).name)

    for on_compiled in (False, True):
        taking = [one for one in rows if one[1].compiled == on_compiled]
        for row in by_rounds(taking, built, plan_of, base_of, repeats, rounds, deadline):
            compare_to_untouched(row, book)
            yield row


def compare_to_untouched(row: Row, book: Book) -> None:
    untouched = row if row.way == BASE.name else book.find(row.case, BASE.name)
    if untouched is not None and untouched.seconds and row.seconds:
        row.speedup = untouched.seconds / row.seconds


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
    run(main)
