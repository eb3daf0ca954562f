"""The speed of the full-size networks as rows of an experiment, from the files of `python -m benchmarks.ladder`.

The paper captures CUDA graphs and names no compiler, so the ways without compiled branches decide. A speed-up is known
as precisely as its two times were repeated: its interval has their spread.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tenuto_lab.judging.verdicts import Verdict

Row = Mapping[str, Any]
# The paper's settings: family and batch (or tokens) of the ladder -> its speed-up.
SETTINGS = {"llada:512": 3.0, "dit:16": 3.0, "uvit:16": 2.8, "sdxl:8": 3.0}
LANGUAGE = "llada:512"
EAGER, COMPLETE, PADDED, COMPILED = "eager", "jagged", "padded", " + compiled"
PADDED_PAPER = 2.7


def ladder_rows(ladder: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The speed of the complete system in the paper's settings."""
    found = [_row(ladder, "complete system", case, COMPLETE, EAGER, claimed) for case, claimed in SETTINGS.items()]
    return [row for row in found if row is not None]


def mode_rows(ladder: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What graphs alone, and eliminating inactive branches, are worth on LLaDA-8B. One run must have timed both."""
    found = [
        _row(ladder, "padded graph", LANGUAGE, PADDED, EAGER, PADDED_PAPER),
        _row(ladder, "over padded", LANGUAGE, COMPLETE, PADDED, 1.0),
        _row(ladder, "complete system", LANGUAGE, COMPLETE, EAGER, None),
    ]
    rows = [row for row in found if row is not None]
    return rows if len(rows) == len(found) else []


def _row(
    ladder: Mapping[str, Any], quantity: str, case: str, fast: str, slow: str, claimed: float | None
) -> dict[str, Any] | None:
    """A speed-up and its verdict; `compiled` is the same of compiled branches. None if it was not timed."""
    one, other = _timing(ladder, case, fast), _timing(ladder, case, slow)
    if one is None or other is None:
        return None
    speed, low, high = _speedup(one, other)
    compiled, base = _timing(ladder, case, fast + COMPILED), _timing(ladder, case, slow + COMPILED)
    against = other if slow == EAGER else base  # eager inference is not compiled
    beside = None if compiled is None or against is None else _speedup(compiled, against)[0]
    holds = None if claimed is None else _decided(low, high, claimed)
    found = {"quantity": quantity, "model": one["model"], "paper": claimed, "holds": holds}
    return {**found, "measured": speed, "interval": [low, high], "compiled": beside}


def _timing(ladder: Mapping[str, Any], case: str, mode: str) -> Row | None:
    """The row of this way: eager full inference, or the paper's kind of schedule with nothing moved to the host."""
    return next((row for row in ladder["rows"] if (row["case"], row["mode"]) == (case, mode) and _meant(row)), None)


def _meant(row: Row) -> bool:
    if row["mode"] == EAGER:
        return bool(row["schedule"] == "full")
    return row["schedule"].startswith("lifetimes") and row["schedule"][-1] == "%"


def _speedup(fast: Row, slow: Row) -> tuple[float, float, float]:
    """How much faster, with the least and the greatest value that the repeated times allow."""
    speed = slow["ms_per_evaluation"] / fast["ms_per_evaluation"]
    one, other = fast["spread"] / 2, slow["spread"] / 2
    return speed, speed * (1 - other) / (1 + one), speed * (1 + other) / (1 - one)


def _decided(low: float, high: float, claimed: float) -> Verdict:
    return "yes" if low >= claimed else "no" if high < claimed else "cannot tell"


def runs_differ(ladders: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Of each network, the speed-ups of compiled branches in several runs."""
    speeds: dict[str, list[float]] = {}
    for ladder in ladders:
        for case in SETTINGS:
            fast, slow = _timing(ladder, case, COMPLETE + COMPILED), _timing(ladder, case, EAGER)
            if fast is not None and slow is not None:
                speeds.setdefault(fast["model"], []).append(_speedup(fast, slow)[0])
    return {model: each for model, each in speeds.items() if len(each) > 1}
