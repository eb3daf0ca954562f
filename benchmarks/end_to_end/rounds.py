"""Ways measured in rounds: each draws a few pictures, and then each again, so that a drift of the machine is in all.

What is compared are the seconds of the same round. Their ratio has an interval, so it can be told whether one way is
quicker than another or the machine was.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.end_to_end.building import Built, Case
from benchmarks.end_to_end.measuring import Row, compare, drawn, empty_row, fill
from benchmarks.end_to_end.recording import Generation
from benchmarks.end_to_end.ways import Plan, Way
from tenuto_lab.judging.least_squares import student_quantile

MARGIN = 1.1  # of the seconds that a round may take longer than the longest so far


def by_rounds(
    rows: Sequence[tuple[Case, Way]],
    built: Built,
    plan_of: Callable[[Case, Way], Plan],
    base_of: Callable[[Case, Way], Row | None],
    repeats: int,
    rounds: int,
    deadline: float,
) -> Iterator[Row]:
    """All rows after every round, with what is known by then. A way that fails takes part in no more rounds.

    plan_of  what one row computes; asked once, when the row is first drawn
    base_of  the row in which everything is computed, if it takes no part
    """
    known: dict[tuple[str, str], tuple[Row, Plan, list[Generation]]] = {}
    longest = 0.0
    for number in range(rounds):
        began = time.perf_counter()
        if number and began + MARGIN * longest > deadline:
            return
        for case, way in rows if number % 2 == 0 else list(reversed(rows)):
            key = case.name, way.name
            if key not in known:
                plan = plan_of(case, way)
                known[key] = empty_row(case, way, built, plan), plan, []
            row, plan, runs = known[key]
            if row.why or (number == 0 and time.perf_counter() > deadline):
                continue
            new = drawn(row, way, built, plan, repeats)
            if new:
                runs += new
                row.round_seconds = [*(row.round_seconds or []), statistics.median(run.seconds for run in new)]
                fill(row, runs)
            if number == 0:
                yield row
        for case, way in rows:
            row, _, _ = known[case.name, way.name]
            base = next((one for one, _, _ in known.values() if one.case == row.case and one.kind == "base"), None)
            compare(row, base or base_of(case, way))
            yield row
        longest = max(longest, time.perf_counter() - began)


def ratio_of(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[float, float, float] | None:
    """How many times as long one row takes as another: the geometric mean over the rounds, and its 95 % interval.

    None unless both were measured in the same three rounds or more.
    """
    ours, theirs = one.get("round_seconds") or [], other.get("round_seconds") or []
    if len(ours) != len(theirs) or len(ours) < 3:
        return None
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    middle = statistics.mean(logs)
    wide = student_quantile(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle), math.exp(middle - wide), math.exp(middle + wide)
