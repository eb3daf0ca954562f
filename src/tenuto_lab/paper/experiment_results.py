"""What an experiment finds: the paper's figure beside the measured one, and whether the claim holds."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tenuto_lab.judging.statistics import Interval


@dataclass(frozen=True)
class ClaimRow:
    """One figure. The paper's is of its own network and yardstick: `quantity` says where they differ."""

    quantity: str
    model: str
    paper: float | None
    measured: float | None  # None: it was not measured, and the note says why
    interval: tuple[float, float] | None = None  # 95 %
    holds: bool | None = None  # None: the row claims nothing by itself
    note: str = ""

    @classmethod
    def of(
        cls,
        quantity: str,
        model: str,
        paper: float | None,
        measured: Interval,
        holds: bool | None = None,
        note: str = "",
    ) -> "ClaimRow":
        value, low, high = measured
        return cls(quantity, model, paper, value, (low, high), holds, note)

    def to_json(self) -> dict[str, Any]:
        def shorter(value: Any) -> Any:
            return float(f"{value:.6g}") if isinstance(value, float) else value

        found = asdict(self)
        if self.interval is not None:
            found["interval"] = [shorter(end) for end in self.interval]
        return {key: shorter(value) for key, value in found.items() if not (key == "note" and not value)}


@dataclass(frozen=True)
class Panel:
    """A part of a figure: what to draw is said by the figure's kind."""

    title: str
    series: dict[str, Any]
    across: str = ""  # what the axes are
    up: str = ""


@dataclass(frozen=True)
class Figure:
    kind: str  # lines, scatter, map or pictures; see experiment_report
    panels: list[Panel]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class ExperimentResult:
    rows: list[ClaimRow]
    finding: str  # what to make of the rows, beside how many of the paper's claims hold
    figure: Figure | None = None
    limits: str = ""  # what cannot be concluded from this
    rests_on: str = ""  # how many of what, where it is not the samples of every seed


def spread(rows: Sequence[ClaimRow], containing: str) -> str:
    """The least and the greatest measured value of the rows whose quantity contains some words."""
    values = [row.measured for row in rows if containing in row.quantity and row.measured is not None]
    if not values:
        return "nothing measured"
    ends = [f"{min(values):.3g}", f"{max(values):.3g}"]
    return " to ".join(dict.fromkeys(ends))
