"""Which unit is computed at which step, how a held unit is reused in between, and where that decision came from.

A schedule is plain data: a small JSON file that can be read, compared, shared, and refused when it does not fit.
"""

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tenuto import __version__
from tenuto.errors import ScheduleError, TenutoError
from tenuto.files import check_fields, read_json, write_json

FORMAT = "tenuto.schedule/1"
COMPUTED, HELD = "#", "."

# What is kept: a unit's update after the timestep's gate (the paper), its branch before it (the gate stays live), or,
# where all units are computed together, nothing of them: the network's output alone (steps in between do not evaluate
# it), or of text the keys and values of every attention (steps in between evaluate it at some positions only).
Hold = Literal["update", "branch", "output", "keys"]
# How it is reused: as it was, or extrapolated through its last refreshes by a polynomial of this degree.
Reuse = Literal["hold", "linear", "quadratic", "cubic"]
# Of text: the positions at which held units are computed all the same. Those written since the last step that computed
# every unit, those of the block that is being written, all that are to be written, or none.
Rows = Literal["none", "written", "block", "generated"]


@dataclass(frozen=True, eq=False)
class Schedule:
    units: tuple[str, ...]
    active: NDArray[np.bool_]  # [unit, step]; steps are network evaluations, noisiest first
    flops: tuple[float, ...]  # of one evaluation of each unit
    reuse: Reuse
    hold: Hold
    model: str
    fingerprint: str  # of the weights the schedule was made from
    policy: dict[str, Any] = field(default_factory=dict)  # the policy's name and the parameters that made this schedule
    rows: Rows = "none"
    corrected: bool = False  # whether a computed output makes up for those extrapolated since the last
    version: str = __version__

    def __post_init__(self) -> None:
        if self.active.dtype != np.bool_ or self.active.ndim != 2:
            raise ScheduleError("A schedule's map must be a table of units × steps, each computed or held.")
        if self.active.shape[0] != len(self.units) or len(self.flops) != len(self.units) or not self.units:
            raise ScheduleError(
                f"A schedule needs one row and one cost for each unit: there are {len(self.units)} units, "
                f"{self.active.shape[0]} rows and {len(self.flops)} costs."
            )
        if len(set(self.units)) != len(self.units):
            raise ScheduleError("A schedule names a unit twice.")
        if self.active.shape[1] < 1:
            raise ScheduleError("A schedule needs at least one step.")
        if not self.active[:, 0].all():
            unit = self.units[int(np.flatnonzero(~self.active[:, 0])[0])]
            raise ScheduleError(
                f"The first step must compute every unit, for there is nothing to reuse yet; {unit} is held there."
            )
        if self.reuse not in get_args(Reuse):
            raise ScheduleError(f"Reuse is one of {', '.join(get_args(Reuse))}, not {self.reuse!r}.")
        if self.hold not in get_args(Hold):
            raise ScheduleError(f"What is held is one of {', '.join(get_args(Hold))}, not {self.hold!r}.")
        if self.hold in ("output", "keys") and not (self.active == self.active[0]).all():
            raise ScheduleError(f"Where the {self.hold} is held, every step computes all units or none.")
        if self.corrected and self.hold != "output":
            raise ScheduleError(f"Only outputs are corrected, and this schedule holds {self.hold!r}.")
        if self.hold == "output" and self.rows != "none":
            raise ScheduleError("Where the output is held, there are no rows of held units to compute.")
        if self.hold == "keys" and self.rows not in ("block", "generated"):
            raise ScheduleError("Where keys are held, the block or all that is generated is computed at every step.")
        if self.rows not in get_args(Rows):
            raise ScheduleError(f"Rows are one of {', '.join(get_args(Rows))}, not {self.rows!r}.")
        if self.rows != "none" and self.reuse != "hold":
            raise ScheduleError("Where some positions of held units are computed, the others are held as they were.")
        object.__setattr__(self, "active", self.active.copy())
        self.active.flags.writeable = False

    def __repr__(self) -> str:
        name = self.policy.get("name", "hand-made")
        return f"<Schedule for {self.model}: {name}, {self.steps} steps, {self.budget:.1%} of unit-steps computed>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and to_json(self) == to_json(other)

    @property
    def steps(self) -> int:
        return self.active.shape[1]

    @property
    def order(self) -> int:
        """Degree of the polynomial a held unit is extrapolated by."""
        return get_args(Reuse).index(self.reuse)

    @property
    def budget(self) -> float:
        """Share of unit-steps computed, Σ S_ℓ / (L T)."""
        return float(self.active.mean())

    @property
    def flop_budget(self) -> float:
        """The same share, each unit weighted by its cost."""
        cost = np.asarray(self.flops)
        return float(cost @ self.active.mean(axis=1) / cost.sum())

    @property
    def lifetimes(self) -> tuple[int, ...]:
        """S_ℓ: the last step, counted from 1, at which each unit is computed."""
        return tuple(int(np.flatnonzero(row)[-1]) + 1 for row in self.active)

    @property
    def full_steps(self) -> NDArray[np.bool_]:
        """[step]: whether every unit is computed there."""
        return np.logical_and.reduce(self.active, axis=0)

    @property
    def patterns(self) -> int:
        """How many different sets of computed units occur."""
        return len(np.unique(self.active, axis=1).T)

    @cached_property
    def read_later(self) -> NDArray[np.bool_]:
        """[unit, step]: whether what is computed there is ever reused, and so worth keeping."""
        read = np.zeros_like(self.active)
        for row, marks in zip(self.active, read, strict=True):
            refreshes = np.flatnonzero(row)
            for step in np.flatnonzero(~row):
                marks[refreshes[refreshes < step][-(self.order + 1) :]] = True
        return read

    def check_fits(
        self, units: Sequence[str], fingerprints: Collection[str], model: str, remedy: str | None = None
    ) -> None:
        """Refuse to run on a model this schedule was not made for; `remedy` is how to make one that fits."""
        remedy = remedy or f"tenuto schedule {model} --steps {self.steps}"
        if tuple(units) != self.units:
            mine, theirs = set(self.units), set(units)
            difference = sorted(mine ^ theirs)[:3]
            detail = f"they differ in {', '.join(difference)}, …" if difference else "in another order"
            raise ScheduleError(
                f"The schedule was made for {self.model} ({len(self.units)} units), not for {model} "
                f"({len(units)} units; {detail}). Make one with: {remedy}"
            )
        if self.fingerprint not in fingerprints:
            raise ScheduleError(
                f"The schedule was made from other weights than those of {model} (its fingerprint is "
                f"{self.fingerprint[:19]}…, the model's {min(fingerprints)[:19]}…). "
                f"Make one with: {remedy}"
            )

    def save(self, path: str | Path) -> None:
        write_json(Path(path), to_json(self))


def to_json(schedule: Schedule) -> dict[str, Any]:
    """One line of `#` (computed) and `.` (held) for each unit, so that the file itself shows the map."""
    return {
        "format": FORMAT,
        "tenuto_version": schedule.version,
        "model": schedule.model,
        "fingerprint": schedule.fingerprint,
        "policy": schedule.policy,
        "steps": schedule.steps,
        "reuse": schedule.reuse,
        "hold": schedule.hold,
        "rows": schedule.rows,
        "corrected": schedule.corrected,
        "flops": dict(zip(schedule.units, schedule.flops, strict=True)),
        "active": {
            unit: "".join(COMPUTED if on else HELD for on in row)
            for unit, row in zip(schedule.units, schedule.active, strict=True)
        },
    }


def identity(schedule: Schedule | None) -> dict[str, Any] | None:
    """What to note of a schedule beside what was made with it: a digest of all it says, its policy and its work."""
    if schedule is None:
        return None
    digest = hashlib.sha256(json.dumps(to_json(schedule), sort_keys=True).encode()).hexdigest()
    shares = {"work": schedule.budget, "flop_work": schedule.flop_budget}
    return {"fingerprint": f"sha256:{digest}", "policy": schedule.policy, **shares}


def load_schedule(path: str | Path) -> Schedule:
    """Read a schedule file strictly."""
    return from_json(read_json(Path(path), "schedule"), str(path))


def from_json(record: dict[str, Any], where: str) -> Schedule:
    try:
        return _from_json(record, where)
    except ScheduleError as error:
        raise ScheduleError(f"{where}: {error}") from error
    except TenutoError as error:
        raise ScheduleError(str(error)) from error


def _from_json(record: dict[str, Any], where: str) -> Schedule:
    if record.get("format") != FORMAT:
        raise ScheduleError(
            f"this is no schedule of the format {FORMAT!r} but {record.get('format')!r}; make one with: tenuto schedule"
        )
    kinds: dict[str, type | tuple[type, ...]] = dict.fromkeys(
        ("format", "tenuto_version", "model", "fingerprint", "reuse", "hold"), str
    )
    kinds |= {"rows": str, "corrected": bool, "policy": dict, "steps": int, "flops": dict, "active": dict}
    record = {"rows": "none", "corrected": False, **record}  # which the first files did not have
    check_fields(record, where, kinds)
    rows, flops, steps = record["active"], record["flops"], record["steps"]
    if not rows:
        raise ScheduleError('"active" lists no units.')
    for unit, row in rows.items():
        if not isinstance(row, str) or set(row) - {COMPUTED, HELD}:
            raise ScheduleError(f"the row of {unit} must be a string of {COMPUTED!r} (computed) and {HELD!r} (held).")
        if len(row) != steps:
            raise ScheduleError(f"the row of {unit} has {len(row)} steps, but the schedule says {steps}.")
    if list(flops) != list(rows):
        raise ScheduleError('"flops" and "active" must list the same units in the same order.')
    for unit, cost in flops.items():
        if isinstance(cost, bool) or not isinstance(cost, int | float) or not cost > 0:
            raise ScheduleError(f"the cost of {unit} must be a positive number, not {cost!r}.")
    return Schedule(
        units=tuple(rows),
        active=np.array([[mark == COMPUTED for mark in row] for row in rows.values()]),
        flops=tuple(flops.values()),
        reuse=record["reuse"],
        hold=record["hold"],
        model=record["model"],
        fingerprint=record["fingerprint"],
        policy=record["policy"],
        rows=record["rows"],
        corrected=record["corrected"],
        version=record["tenuto_version"],
    )
