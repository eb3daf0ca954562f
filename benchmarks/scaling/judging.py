"""Fréchet distances and class accuracies of settings whose nearness is measured already, by many pictures.

The pictures are drawn in parts, by every way before the next part begins. So a run that ends early has as many pictures
of each way, and they are of the same classes and the same noise.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from benchmarks.fingerprints import digest
from benchmarks.kept import Kept
from benchmarks.scaling.drawing import Network, Requests
from benchmarks.scaling.measuring import RESAMPLES, Say
from benchmarks.scaling.ways import FEWER, OURS, SOLVER, STEPS, Way, rivals
from tenuto.errors import UsageError
from tenuto.provenance import commit
from tenuto_lab.judging.judges import PictureJudge, picture_judge
from tenuto_lab.judging.statistics import Distance, mean_interval, share_interval

PART = 60  # pictures drawn at once
JUDGED = (OURS, SOLVER)
FULL = "full"
Key = str | tuple[float, str]  # "full", or a share of the work and a way


class Seen:
    """What the judge saw in the pictures of one way: features, and whether each shows the class asked for."""

    def __init__(self, judge: PictureJudge) -> None:
        self.judge = judge
        self.parts: list[Tensor] = []  # [pictures, features and 1]

    def look(self, pictures: Tensor, labels: Tensor) -> Tensor:
        right = self.judge.agrees(pictures, labels.cpu())
        return torch.cat([self.judge.features(pictures), right[:, None]], dim=1).cpu()

    @property
    def distance(self) -> Distance:
        assert self.judge.statistics is not None
        return Distance.of(torch.cat(self.parts)[:, :-1], self.judge.statistics.to("cpu"), RESAMPLES)

    @property
    def right(self) -> Tensor:
        return torch.cat(self.parts)[:, -1].double()


def judged(
    network: Network,
    case: Mapping[str, Any],
    samples: int,
    budgets: Sequence[float],
    names: Sequence[str] = JUDGED,
    seconds: float | None = None,
    say: Say = lambda text: None,
    kept: Kept | None = None,
) -> Iterator[dict[str, Any]]:
    """The case with accuracies of these ways, and with distances if there are enough pictures, after each part of them.

    seconds  begin no part after so long
    kept     where parts are kept, so that a run that was stopped goes on where it was
    """
    judge = picture_judge(network.model, network.model.device)
    if judge is None or judge.statistics is None:
        raise UsageError(f"There is no judge of the pictures of {network.path}.")
    ways: dict[Key, Way] = {FULL: Way(FULL, "", lambda asked: asked.drawn(STEPS))}
    ways |= _ways(network, case, budgets, names)
    seen = {key: Seen(judge) for key in ways}
    same = _same(network, judge)
    if same["commit"].endswith("changes"):
        kept = None  # two states of the code would have the same name
    began = time.monotonic()
    for first in range(0, samples, PART):
        if first and seconds is not None and time.monotonic() - began > seconds:
            break
        asked = Requests(network, case["guidance"], min(PART, samples - first), first)
        for key, one in seen.items():
            way = ways[key]
            depends = {**same, "guidance": asked.guidance, "first": first, "samples": asked.samples}
            depends |= {"way": [str(key), way.setting]}
            found = kept.find(depends) if kept else None
            if found is None:
                found = one.look(asked.shown(way.draw(asked)).nan_to_num(0), asked.labels), 0
                if kept:
                    kept.keep(depends, *found)
            one.parts.append(found[0])
        drawn = first + asked.samples
        say(f"{network.name}: {drawn} pictures by each of {len(seen)} ways, {time.monotonic() - began:.0f} s")
        yield _with(case, seen, drawn)


def _same(network: Network, judge: PictureJudge) -> dict[str, Any]:
    """What all pictures and what is seen in them depend on."""
    modules = network.model.network, network.autoencoder, judge.module
    weights = [digest(*module.state_dict().values()) for module in modules]
    return {"weights": weights, "commit": commit(), "torch": version("torch"), "device": str(network.model.device)}


def _ways(
    network: Network, case: Mapping[str, Any], budgets: Sequence[float], names: Sequence[str]
) -> Iterator[tuple[Key, Way]]:
    """Each way at its nearest setting: solvers aim at the converged run, all others at the full one."""
    for row in case["rows"]:
        budget, name = row["budget"], row["way"]
        if budget not in budgets or name not in names:
            continue
        if name == OURS:
            yield (budget, name), Way(name, "", lambda asked, budget=budget: asked.held(STEPS, budget)[0])
            continue
        setting = row["converged" if name in (FEWER, SOLVER) else "full"]["setting"]
        known = rivals(network.prediction == "flow", row["evaluations"])
        yield (budget, name), next(way for way in known if (way.name, way.setting) == (name, setting))


def _with(case: Mapping[str, Any], seen: Mapping[Key, Seen], drawn: int) -> dict[str, Any]:
    right = {key: one.right for key, one in seen.items()}
    enough = drawn >= seen[FULL].judge.least
    distances = {key: one.distance for key, one in seen.items()} if enough else {}

    def known(key: Key) -> dict[str, Any]:
        found: dict[str, Any] = {"accuracy": float(right[key].mean())}
        if enough:
            found["distance"] = list(distances[key].interval)
        if key == FULL:
            return {**found, "accuracy_interval": list(share_interval(right[key]))}
        if enough:
            found["distance_beyond_full"] = list(distances[key].beyond(distances[FULL]))
        found["accuracy_beyond_full"] = list(mean_interval(right[key] - right[FULL]))
        return {**found, "judged_setting": _setting(case, key)}

    rows = [{**row, **(known(key) if (key := (row["budget"], row["way"])) in seen else {})} for row in case["rows"]]
    return {**case, "judged": drawn, "full": {**case["full"], **known(FULL)}, "rows": rows}


def _setting(case: Mapping[str, Any], key: Key) -> str:
    row = next(row for row in case["rows"] if (row["budget"], row["way"]) == key)
    return str(row["converged" if row["way"] in (FEWER, SOLVER) else "full"]["setting"])
