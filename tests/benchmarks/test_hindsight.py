"""The benchmark of hindsight moves evaluations, and nothing but evaluations."""

from typing import Any, cast

from benchmarks.hindsight import Judged, moved, table
from benchmarks.search import Scheme


class Wanted:
    """As near as evaluations are to wanted steps."""

    def __init__(self, wanted: list[int]) -> None:
        self.wanted, self.tried = wanted, 0

    def near(self, scheme: Scheme, computed: list[int]) -> float:
        self.tried += 1
        return -float(sum(abs(a - b) for a, b in zip(self.wanted, computed, strict=True)))


def as_judged(wanted: Wanted) -> Judged:
    return cast(Judged, wanted)


def test_evaluations_move_to_where_they_come_nearest() -> None:
    best, computed = moved(as_judged(Wanted([0, 4, 9, 19])), Scheme(), [0, 6, 12, 18], 20, tries=200)
    assert (best, computed) == (0.0, [0, 4, 9, 19])


def test_the_first_evaluation_stays_and_steps_stay_in_order() -> None:
    _, computed = moved(as_judged(Wanted([5, 5, 5, 5])), Scheme(), [0, 6, 12, 18], 20, tries=200)
    assert computed[0] == 0
    assert computed == sorted(set(computed))


def test_no_more_placements_are_tried_than_asked_for() -> None:
    wanted = Wanted([0, 2, 4, 6])
    moved(as_judged(wanted), Scheme(), [0, 6, 12, 18], 20, tries=7)
    assert wanted.tried == 1 + 7


def test_the_table_shows_gains_over_the_default() -> None:
    row: dict[str, Any] = {"network": "net", "guidance": 5.0, "grid": "ddim-50", "evaluations": 8, "default": 40.0}
    row |= {"moved": 41.5, "bounds": {2.0: 39.0, 3.0: 40.25}, "other_begin": 38.0}
    made = {"command": "c", "commit": "abc", "torch": "2", "hardware": "h", "date": "today"}
    lines = table({"provenance": made, "samples": 4, "rows": [row]}).splitlines()
    assert lines[-1] == "| net | 5 | ddim-50 | 8 | 40.0 | +1.5 | +0.2 (3) | -2.0 |"
