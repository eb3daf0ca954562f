"""What is computed at which step, what is kept in between and how it is predicted, and where that decision came from.

A schedule is plain data: a small JSON file that can be read, compared, shared, and refused when it does not fit.
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tenuto import __version__
from tenuto.errors import ScheduleError, TenutoError
from tenuto.files import check_fields, read_json, write_json
from tenuto.scheduling.units import MOST_FLOPS

FORMAT = "tenuto.schedule/2"
FIRST_FORMAT = "tenuto.schedule/1"
COMPUTED, HELD = "#", "."

# What is kept. Of each unit: its update after the timestep's gate (the paper), or its branch before the gate; the gate
# is then computed at every step. If all units are computed together: the network's output alone, so that steps in
# between do not evaluate the network; or, for text, the KV cache of every attention, so that steps in between evaluate
# the network at some positions only.
Keep = Literal["update", "branch", "output", "keys"]
# How a kept value is predicted: as it was, or extrapolated by a polynomial of this degree through its last refreshes.
Predict = Literal["constant", "linear", "quadratic", "cubic"]
# For text: the positions at which held units are computed nevertheless. None; those written since the last step that
# computed every unit; those of the block that is being written; or all that are to be written.
Rows = Literal["none", "written", "block", "generated"]


@dataclass(frozen=True, eq=False)
class Schedule:
    units: tuple[str, ...]
    active: NDArray[np.bool_]  # [unit, step]; steps are network evaluations, noisiest first
    flops: tuple[float, ...]  # of one evaluation of each unit
    predict: Predict
    keep: Keep
    model: str
    fingerprint: str | None  # of the weights whose scores decided; None: no weight was read, and any weights fit
    policy: dict[str, Any] = field(default_factory=dict)  # the policy's name and the parameters that made this schedule
    rows: Rows = "none"
    corrected: bool = False  # whether a computed output corrects those extrapolated since the last one
    ahead: bool = False  # whether the first evaluation asks about a later noise level (tenuto.scheduling.placement)
    blocks: int = 1  # for text: how many blocks it is written in; each begins with a full step
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
                f"The first step must compute every unit, because nothing is kept yet; {unit} is held there."
            )
        if self.predict not in get_args(Predict):
            raise ScheduleError(f"predict is one of {', '.join(get_args(Predict))}, not {self.predict!r}.")
        if self.keep not in get_args(Keep):
            raise ScheduleError(f"keep is one of {', '.join(get_args(Keep))}, not {self.keep!r}.")
        if self.keep in ("output", "keys") and not (self.active == self.active[0]).all():
            raise ScheduleError(f"If the {self.keep} is kept, every step must compute all units or none.")
        if self.corrected and self.keep != "output":
            raise ScheduleError(f"Only outputs are corrected, and this schedule keeps {self.keep!r}.")
        if self.ahead and not self.corrected:
            raise ScheduleError("The first evaluation asks ahead only where outputs are corrected.")
        if self.keep == "output" and self.rows != "none":
            raise ScheduleError("If the output is kept, held steps compute no rows: rows must be 'none'.")
        if self.keep == "keys" and self.rows not in ("block", "generated"):
            raise ScheduleError("If keys are kept, every step must compute the block or all of the text (rows).")
        if self.rows not in get_args(Rows):
            raise ScheduleError(f"Rows are one of {', '.join(get_args(Rows))}, not {self.rows!r}.")
        if self.rows != "none" and self.predict != "constant":
            raise ScheduleError(
                "If rows are computed, the other positions are held as they were: predict must be 'constant'."
            )
        if self.blocks < 1 or self.steps % self.blocks:
            raise ScheduleError(f"{self.steps} steps cannot be shared equally among {self.blocks} blocks.")
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
        """Degree of the polynomial that extrapolates kept values."""
        return get_args(Predict).index(self.predict)

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
        """[unit, step]: whether what is computed there is ever read again, and so worth keeping."""
        read = np.zeros_like(self.active)
        for row, marks in zip(self.active, read, strict=True):
            refreshes = np.flatnonzero(row)
            for step in np.flatnonzero(~row):
                marks[refreshes[refreshes < step][-(self.order + 1) :]] = True
        return read

    def check_fits(
        self, units: Sequence[str], model: str, fingerprints: Callable[[], Collection[str]], remedy: str | None = None
    ) -> None:
        """Refuse to run on a model that this schedule was not made for.

        fingerprints  those of the model's weights; called only if the schedule has one, because it reads all weights
        remedy        how to make a schedule that fits
        """
        remedy = remedy or f"tenuto schedule {model} --steps {self.steps}"
        if tuple(units) != self.units:
            mine, theirs = set(self.units), set(units)
            difference = sorted(mine ^ theirs)[:3]
            detail = f"they differ in {', '.join(difference)}, …" if difference else "in another order"
            raise ScheduleError(
                f"The schedule was made for {self.model} ({len(self.units)} units), not for {model} "
                f"({len(units)} units; {detail}). Make one with: {remedy}"
            )
        if self.fingerprint is not None and self.fingerprint not in (known := fingerprints()):
            raise ScheduleError(
                f"The schedule was made from other weights than those of {model} (its fingerprint is "
                f"{self.fingerprint[:19]}…, the model's {min(known)[:19]}…). "
                f"Make one with: {remedy}"
            )

    def part(self, first: int, steps: int) -> "Schedule":
        """A schedule of some steps, for a loop that leaves out the others. Its first step computes everything."""
        active = self.active[:, first : first + steps].copy()
        active[:, 0] = True
        return replace(self, active=active, blocks=1, ahead=self.ahead and first == 0)

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
        "predict": schedule.predict,
        "keep": schedule.keep,
        "rows": schedule.rows,
        "blocks": schedule.blocks,
        "corrected": schedule.corrected,
        **({"ahead": True} if schedule.ahead else {}),
        "flops": dict(zip(schedule.units, schedule.flops, strict=True)),
        "active": {
            unit: "".join(COMPUTED if on else HELD for on in row)
            for unit, row in zip(schedule.units, schedule.active, strict=True)
        },
    }


def identity(schedule: Schedule | None) -> dict[str, Any] | None:
    """What to record of a schedule next to its results: a digest of the whole schedule, its policy and its work."""
    if schedule is None:
        return None
    digest = hashlib.sha256(json.dumps(to_json(schedule), sort_keys=True).encode()).hexdigest()
    shares = {"work": schedule.budget, "flop_work": schedule.flop_budget}
    return {"fingerprint": f"sha256:{digest}", "policy": schedule.policy, **shares}


def load_schedule(path: str | Path) -> Schedule:
    """Read a schedule file strictly."""
    return from_json(read_json(Path(path), "schedule"), str(path))


def opened(schedule: Schedule | str | Path | None) -> Schedule | None:
    """A schedule, which may be given by its file."""
    return load_schedule(schedule) if isinstance(schedule, str | Path) else schedule


def from_json(record: dict[str, Any], where: str) -> Schedule:
    try:
        return _from_json(record, where)
    except ScheduleError as error:
        raise ScheduleError(f"{where}: {error}") from error
    except TenutoError as error:
        raise ScheduleError(str(error)) from error


def _of_second_format(record: dict[str, Any], where: str) -> dict[str, Any]:
    """Convert a record of the first format to the second, with a warning."""
    sentence = f"{where} is a schedule of the first format. It is read; save it again to bring it up to date."
    warnings.warn(sentence, stacklevel=2)
    record = {"rows": "none", "corrected": False, **record}  # the first format had neither
    policy = record.get("policy")
    blocks = policy.get("blocks", 1) if isinstance(policy, dict) else 1
    predict = {"hold": "constant"}.get(str(record.get("reuse")), record.get("reuse"))
    kept = {key: value for key, value in record.items() if key not in ("reuse", "hold")}
    return {**kept, "format": FORMAT, "predict": predict, "keep": record.get("hold"), "blocks": blocks}


def _from_json(record: dict[str, Any], where: str) -> Schedule:
    if record.get("format") == FIRST_FORMAT:
        record = _of_second_format(record, where)
    if record.get("format") != FORMAT:
        raise ScheduleError(
            f"this is no schedule of the format {FORMAT!r} but {record.get('format')!r}; make one with: tenuto schedule"
        )
    record = {"ahead": False, **record}
    kinds: dict[str, type | tuple[type, ...]] = dict.fromkeys(
        ("format", "tenuto_version", "model", "predict", "keep", "rows"), str
    )
    kinds |= {"fingerprint": (str, type(None)), "blocks": int, "corrected": bool, "policy": dict, "steps": int}
    kinds |= {"ahead": bool}
    kinds |= {"flops": dict, "active": dict}
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
        if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 < cost <= MOST_FLOPS:
            raise ScheduleError(f"the cost of {unit} must be a positive number up to {MOST_FLOPS:g}, not {cost!r}.")
    return Schedule(
        units=tuple(rows),
        active=np.array([[mark == COMPUTED for mark in row] for row in rows.values()]),
        flops=tuple(flops.values()),
        predict=record["predict"],
        keep=record["keep"],
        model=record["model"],
        fingerprint=record["fingerprint"],
        policy=record["policy"],
        rows=record["rows"],
        blocks=record["blocks"],
        corrected=record["corrected"],
        ahead=record["ahead"],
        version=record["tenuto_version"],
    )
