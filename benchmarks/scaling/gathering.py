"""What three benchmarks measured, network by network: how near the default and the best solver come to a full run."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from benchmarks.scaling import ways
from benchmarks.transfer.measuring import LONG, OURS

Who = Literal["tenuto", "solver"]
Goal = Literal["full", "converged"]
GOALS: tuple[Goal, ...] = ("full", "converged")
STEPS = 50
SHARES = {0.34: (16, 17), 0.25: (12,), 0.2: (10,), 0.13: (6,)}  # of the work -> numbers of evaluations of 50
SOLVERS = ("DDIM", "DEIS", "DPM-Solver++", "UniPC")


class Interval(NamedTuple):
    dB: float
    low: float
    high: float
    way: str


Key = tuple[Who, float, Goal]  # the float is a share of the work


class Case(NamedTuple):
    """One network at one guidance."""

    network: str
    parameters: int
    guidance: float | None
    source: str
    near: Mapping[Key, Interval]


def nearest(found: Iterable[tuple[Key, Interval]]) -> dict[Key, Interval]:
    """The best way of each kind, with hindsight."""
    near: dict[Key, Interval] = {}
    for key, one in found:
        if key not in near or one.dB > near[key].dB:
            near[key] = one
    return near


def of_transfer(record: Mapping[str, Any]) -> Iterator[Case]:
    """Networks that others trained."""
    for name, found in record["networks"].items():
        made = found.get("provenance_of_tenuto", found["provenance"])["commit"]
        source = f"results/transfer, Tenuto at {made}"
        yield Case(name, found["network"]["parameters"], None, source, nearest(_transferred(found["rows"])))


def _transferred(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Key, Interval]]:
    shares = {count: share for share, counts in SHARES.items() for count in counts}
    for row in rows:
        if row["steps"] == STEPS and row.get("of_ours") in shares:
            for goal in GOALS:
                if (who := _who(row["way"], goal, OURS, LONG)) is not None:
                    dB, low, high = (row[f"{goal}_{end}"] for end in ("dB", "low", "high"))
                    yield (who, shares[row["of_ours"]], goal), Interval(dB, low, high, row["way"])


def of_strong_rivals(record: Mapping[str, Any], sizes: Mapping[str, int]) -> Iterator[Case]:
    """Our small networks, beside the strongest rivals. sizes: the parameters of each."""
    for title, evaluations in record["cases"].items():
        name, guidance = network_of(title)
        own = {**record, **record.get("measured", {}).get(title, {})}  # older files say it once for all cases
        source = f"results/strong_rivals, Tenuto at {own.get('provenance_of_tenuto', own['provenance'])['commit']}"
        yield Case(name, sizes[name], guidance, source, nearest(_beside_rivals(evaluations)))


def network_of(title: str) -> tuple[str, float]:
    """tiny-dit, guidance 1.5"""
    name, guidance = title.split(", guidance ")
    return name, float(guidance)


def _beside_rivals(evaluations: Mapping[str, Any]) -> Iterator[tuple[Key, Interval]]:
    for share, counts in SHARES.items():
        for way, goals in next((evaluations[str(count)] for count in counts if str(count) in evaluations), {}).items():
            for goal in GOALS:
                who = _who(way, goal, f"Tenuto, {STEPS} steps", "Tenuto, ")
                if who is not None:
                    dB, low, high = (goals[goal][end] for end in ("psnr", "low", "high"))
                    yield (who, share, goal), Interval(dB, low, high, way)


def of_scaling(record: Mapping[str, Any]) -> Iterator[Case]:
    """The family on Tiny-ImageNet: latent DiTs and a UNet. Networks whose training was cut short are left out."""
    for found in record["cases"].values():
        if found.get("early"):
            continue
        few = ", few settings of each solver" if found.get("few_settings") else ""
        source = f"results/scaling, at {found['provenance']['commit']}{few}"
        yield Case(found["network"], found["parameters"], found["guidance"], source, nearest(_scaled(found["rows"])))


def _scaled(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Key, Interval]]:
    for row in rows:
        for goal in GOALS:
            ours = _who(row["way"], goal, ways.OURS, ways.MANY)
            who: Who | None = "solver" if row["way"] in (ways.SOLVER, ways.FEWER) else ours
            if who is not None and goal in row:
                dB, low, high = (row[goal][end] for end in ("dB", "low", "high"))
                yield (who, row["budget"], goal), Interval(dB, low, high, row[goal]["setting"] or row["way"])


def _who(way: str, goal: Goal, within: str, longer: str) -> Who | None:
    """Tenuto holds within the full run's steps; towards the converged run it may hold within more steps as well."""
    if way == within or (goal == "converged" and way.startswith(longer)):
        return "tenuto"
    return "solver" if way.startswith(SOLVERS) else None
