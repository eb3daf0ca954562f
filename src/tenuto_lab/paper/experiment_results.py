"""An experiment's result: the paper's figure, the measured figure, and whether the claim holds. Also reads it.

A row is decided by the paper's own metric: FID for pictures, right answers for text. How near the outputs are to the
full run's stands beside it, with a verdict of its own.
"""

from base64 import b64decode
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tenuto.errors import TenutoError, first_line
from tenuto.scheduling.units import Granularity
from tenuto_lab.judging.statistics import Interval
from tenuto_lab.judging.verdicts import VERDICTS, Evidence, Verdict, decided
from tenuto_lab.result_files import (
    MADE,
    Check,
    Misfit,
    both,
    by_name,
    fields,
    in_order,
    listed,
    number,
    one_of,
    optional,
    read_result,
    text,
    whole,
)


@dataclass(frozen=True)
class Nearness:
    """The same comparison by nearness to the full run: the second column."""

    unit: str  # dB, or the share of equal tokens
    measured: float
    interval: tuple[float, float]
    holds: Verdict | None = None
    evidence: Evidence | None = None


@dataclass(frozen=True)
class ClaimRow:
    """One figure. The paper's figure is for its own network and metric; `quantity` names the differences.

    A row with evidence is decided by `judged`, together with all other rows of its experiment. A row about something
    that is counted, not sampled, is decided when it is made.
    """

    quantity: str
    model: str
    paper: float | None
    measured: float | None  # None: not measured; the note says why
    interval: tuple[float, float] | None = None  # 95 %
    holds: Verdict | None = None  # None: the row tests no claim, or is not decided yet
    note: str = ""
    granularity: Granularity | None = None  # None: the row does not depend on it
    evidence: Evidence | None = None
    nearness: Nearness | None = None
    p: float | None = None  # of the evidence; `corrected`: for the number of comparisons
    corrected: float | None = None
    said: str = ""  # the paper's figure in its own unit, where `paper` is converted

    @classmethod
    def of(
        cls,
        quantity: str,
        model: str,
        paper: float | None,
        measured: Interval,
        evidence: Evidence | None = None,
        note: str = "",
        nearness: Nearness | None = None,
    ) -> "ClaimRow":
        value, low, high = measured
        return cls(quantity, model, paper, value, (low, high), None, note, None, evidence, nearness)

    def to_json(self) -> dict[str, Any]:
        def shorter(value: Any) -> Any:
            return float(f"{value:.6g}") if isinstance(value, float) else value

        found = {key: shorter(value) for key, value in asdict(self).items() if key not in ("evidence", "nearness")}
        found["interval"] = None if self.interval is None else [shorter(end) for end in self.interval]
        for key in ("note", "granularity", "p", "corrected", "said"):
            if not found[key] and found[key] != 0:
                del found[key]
        if (near := self.nearness) is not None:
            ends = [shorter(end) for end in near.interval]
            measured = {"unit": near.unit, "measured": shorter(near.measured), "interval": ends, "holds": near.holds}
            found["nearness"] = measured
        return found


def judged(rows: Sequence[ClaimRow]) -> list[ClaimRow]:
    """The rows with their verdicts. Holm's correction covers all comparisons of the experiment together."""
    made = list(rows)
    claims = [i for i, row in enumerate(made) if row.evidence is not None]
    found = decided([evidence for row in made if (evidence := row.evidence) is not None])
    for i, one in zip(claims, found, strict=True):
        made[i] = replace(made[i], holds=one.verdict, p=one.p, corrected=one.corrected)
    near = [(i, row.nearness) for i, row in enumerate(made) if row.nearness is not None and row.nearness.evidence]
    said = decided([one.evidence for _, one in near if one.evidence is not None])
    for (i, beside), decision in zip(near, said, strict=True):
        made[i] = replace(made[i], nearness=replace(beside, holds=decision.verdict))
    return made


@dataclass(frozen=True)
class Panel:
    """A part of a figure. The figure's kind says how to draw it."""

    title: str
    series: dict[str, Any]
    across: str = ""  # label of the horizontal axis; `up`: of the vertical one
    up: str = ""


@dataclass(frozen=True)
class Figure:
    kind: str  # lines, bars, scatter, map or pictures; see experiment_report
    panels: list[Panel]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class ExperimentResult:
    rows: list[ClaimRow]
    finding: str  # what the rows mean, beside the number of claims that hold
    figure: Figure | None = None
    limits: str = ""  # what cannot be concluded from this
    rests_on: str = ""  # what the result rests on, if not the samples of every seed


def spread(rows: Sequence[ClaimRow], containing: str) -> str:
    """The least and the greatest measured value of the rows whose quantity contains these words."""
    values = [row.measured for row in rows if containing in row.quantity and row.measured is not None]
    if not values:
        return "nothing measured"
    ends = [f"{min(values):.3g}", f"{max(values):.3g}"]
    return " to ".join(dict.fromkeys(ends))


# Reading

WHAT = "experiment's result"
PANELS, SERIES = 64, 64  # the most that a figure may have; a reader could not distinguish more


def read_experiment(path: Path) -> dict[str, Any]:
    """The file that `tenuto lab experiment` wrote, checked field by field."""
    record = read_result(path, WHAT, EXPERIMENT)
    if record["name"] != path.stem:  # tables and figures are written under this name
        raise TenutoError(f"{path} is no {WHAT}: name is {record['name'][:60]!r}, and the file is named otherwise.")
    return record


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Only the rows of a file. The other fields are not checked."""
    found: list[dict[str, Any]] = read_result(path, WHAT, fields({"rows": ROWS}, others=True))["rows"]
    return found


def picture_of(sheet: str) -> NDArray[np.uint8]:
    """The pixels [H, W] or [H, W, C] of a picture that is stored as base64 PNG."""
    with Image.open(BytesIO(b64decode(sheet, validate=True)), formats=["PNG"]) as picture:
        return np.asarray(picture.convert("L" if picture.mode in ("L", "1") else "RGB"))


def _check_figure(value: Any, where: str) -> None:
    one = fields({"kind": one_of(*SERIES_OF), "panels": listed(PANEL, 1, PANELS)})
    one(value, where)
    for i, panel in enumerate(value["panels"]):
        SERIES_OF[value["kind"]](panel["series"], f"{where}.panels[{i}].series")


def _check_bars(value: Any, where: str) -> None:
    lengths = {len(bars) for bars in value.values()}
    if len(lengths) > 1:
        raise Misfit(where, "should have as many bars of each kind")


def _check_map(value: Any, where: str) -> None:
    if len(value["lifetimes"]) != len(value["kinds"]):
        raise Misfit(where, "should have one kind for each lifetime")


def _check_pictures(value: Any, where: str) -> None:
    shapes = set()
    for name, sheet in value.items():
        try:
            shapes.add(picture_of(sheet).shape[1:])
        except Exception as error:  # a damaged picture may raise any error
            raise Misfit(f"{where}[{name[:60]!r}]", f"is no PNG picture ({first_line(error)})") from error
    if len(shapes) > 1:
        raise Misfit(where, "should have pictures of one width and of as many colours")


def _sheet(value: Any, where: str) -> None:
    text(value, where, most=50_000_000)


PANEL = fields({"title": text, "series": by_name(lambda value, where: None)}, {"across": text, "up": text})
POINTS = by_name(listed(in_order(number(), number())), 1, SERIES)
SERIES_OF: dict[str, Check] = {
    "lines": POINTS,
    "scatter": POINTS,
    "bars": both(by_name(listed(in_order(text, number()), 1), 1, SERIES), _check_bars),
    "map": both(
        fields({"lifetimes": listed(number(), 1), "kinds": listed(text), "steps": number(least=1, most=1e9)}),
        _check_map,
    ),
    "pictures": both(by_name(_sheet, 1, SERIES), _check_pictures),
}
ROWS = listed(
    fields(
        {
            "quantity": text,
            "model": text,
            "paper": optional(number()),
            "measured": optional(number()),
            "holds": optional(one_of(*VERDICTS)),
        },
        {
            "interval": optional(in_order(number(), number())),
            "note": text,
            "said": text,
            "granularity": one_of("branch", "block"),
            "p": number(0, 1),
            "corrected": number(0, 1),
            "nearness": fields(
                {
                    "unit": text,
                    "measured": number(),
                    "interval": in_order(number(), number()),
                    "holds": optional(one_of(*VERDICTS)),
                }
            ),
        },
    )
)
EXPERIMENT = fields(
    {
        "provenance": fields({**MADE, "date": text, "samples": whole(), "seeds": whole()}, others=True),
        "name": text,
        "title": text,
        "claim": text,
        "where": text,
        "finding": text,
        "rows": ROWS,
    },
    {"limits": text, "rests_on": text, "figure": optional(_check_figure)},
)
