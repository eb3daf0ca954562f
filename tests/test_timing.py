"""Fair times: who is measured when, and what is said of a speed-up that cannot be."""

import pytest

from tenuto import timing
from tenuto.timing import doubt, equal_parts, in_turns


def test_runs_take_turns_and_every_second_round_goes_backwards() -> None:
    order: list[str] = []
    runs = [lambda turn, name=name: order.append(f"{name}{turn}") or name for name in "ab"]  # type: ignore[func-returns-value,misc]
    found = in_turns(runs, 3)
    assert order == ["a0", "b0", "b1", "a1", "a2", "b2"]
    assert [one.made for one in found] == [["a"] * 3, ["b"] * 3] and len(found[0].seconds) == 3


def test_a_disturbed_round_changes_no_total(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lasts = [0.0], iter([2.0, 50.0, 2.0])

    def run(turn: int) -> None:
        clock[0] += next(lasts)

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    (found,) = in_turns([run], 3)
    assert found.seconds == [2.0, 50.0, 2.0] and found.total == 6.0


@pytest.mark.parametrize(("count", "parts"), [(0, 0), (1, 1), (2, 2), (3, 3), (6, 3), (7, 7), (10, 5), (100, 10)])
def test_pictures_are_divided_evenly_into_three_rounds_or_more(count: int, parts: int) -> None:
    found = equal_parts(count)
    assert len(found) == parts and [i for part in found for i in range(count)[part]] == list(range(count))
    assert len({part.stop - part.start for part in found}) <= 1


def test_more_than_the_work_saved_is_doubted() -> None:
    assert doubt(4.0, 0.24) is None
    assert doubt(5.2, 0.24) == (
        "With 24% of the work computed, at most 4.17× is possible, and 5.20× were measured: this machine was busy with "
        "other work."
    )
