"""Mutated files: every reader either reads one or refuses it in a sentence.

python -m tests.fuzz.files --count 2000 --seed 0
"""

import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import tenuto
from tenuto.errors import TenutoError
from tenuto.models import open_model
from tenuto.scheduling.schedule import load_schedule
from tenuto_lab.frontier.frontier_report import frontier_tables, page_tables
from tenuto_lab.frontier.known import read_frontier
from tenuto_lab.paper.experiment_report import experiment_table
from tenuto_lab.paper.experiment_results import read_experiment
from tenuto_lab.paper.results_page import results_page
from tenuto_lab.scoring.scores import load_scores
from tests.conftest import random_dit, write_checkpoint
from tests.fuzz.asking import ask
from tests.lab.paper.test_report_reader import experiment, frontier

JUNK: tuple[Any, ...] = (
    None, -1, 0, 1.5, float("inf"), 10**30, "", "\x1b[2J", "[/bold]", "x" * 4000, [], {}, [[]], True, "../up", "\ud800",
)  # fmt: skip


def mutated(value: Any, rng: random.Random) -> Any:
    """The value with something in it dropped, doubled or replaced."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        if rng.random() < 0.3:
            return {name: one for name, one in value.items() if name != key}
        if rng.random() < 0.1:
            return {**value, str(rng.choice(JUNK)): value[key]}
        return {**value, key: mutated(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        i = rng.randrange(len(value))
        return [*value[:i], mutated(value[i], rng), *value[i + 1 :]]
    return rng.choice(JUNK)


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Bytes cut short, or some of them changed."""
    if rng.random() < 0.3:
        return content[: rng.randrange(len(content))]
    changed = bytearray(content)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(min(len(changed), 4000))] = rng.randrange(256)
    return bytes(changed)


def show_experiment(folder: str, name: str) -> None:
    record = read_experiment(Path(folder) / f"{name}.json")
    experiment_table(record)
    results_page([record], ".")


def show_frontier(folder: str, name: str) -> None:
    record = read_frontier(Path(folder) / f"{name}.json")
    frontier_tables(record)
    page_tables(record)


SHOWN = {"experiment": show_experiment, "frontier": show_frontier}  # result files, without their drawings


def fuzz(count: int, seed: int) -> dict[str, Any]:
    rng, outcomes, bare = random.Random(seed), Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        model = write_checkpoint(Path(folder) / "model", random_dit(), shards=2)
        scores = tenuto.score(model)
        scores.save(Path(folder) / "scores.json")
        tenuto.schedule(scores, 12, policy="lifetimes").save(Path(folder) / "schedule.json")
        readers: dict[str, tuple[Path, Callable[[], object]]] = {
            "schedule": (Path(folder) / "schedule.json", lambda: load_schedule(Path(folder) / "schedule.json")),
            "scores": (Path(folder) / "scores.json", lambda: load_scores(Path(folder) / "scores.json")),
            "config": (model / "config.json", lambda: open_model(str(model))),
            "index": (model / "model.safetensors.index.json", lambda: open_model(str(model))),
            "weights": (model / "model-00001-of-00002.safetensors", lambda: tenuto.score(model)),
        }
        readers |= {name: (Path(folder) / f"{name}.json", partial(show, folder, name)) for name, show in SHOWN.items()}
        for name, record in {"experiment": experiment("bars"), "frontier": frontier()}.items():
            readers[name][0].write_text(json.dumps(record))
        originals = {name: path.read_bytes() for name, (path, _) in readers.items()}
        for i in range(count):
            name = rng.choice(list(readers))
            path, read = readers[name]
            if name == "weights" or rng.random() < 0.2:
                path.write_bytes(damaged(originals[name], rng))
            else:
                record = json.loads(originals[name])
                for _ in range(rng.randint(1, 3)):
                    record = mutated(record, rng)
                path.write_text(json.dumps(record), encoding="utf-8", errors="surrogatepass")
            try:
                read()
                outcomes["read"] += 1
            except TenutoError:
                outcomes["refused"] += 1
            except Exception as error:  # which is what must not happen
                bare[f"{name}: {type(error).__name__}"] += 1
                if bare.total() <= 5:
                    print(f"seed {seed}, file {i}, {name}: {type(error).__name__}: {str(error)[:200]}")
            path.write_bytes(originals[name])
    return {"files": count, **outcomes, "bare_exceptions": dict(bare)}


def line(found: dict[str, Any]) -> str:
    return (
        f"files: {found['files']} mutated, {found.get('read', 0)} read, {found.get('refused', 0)} refused, "
        f"{sum(found['bare_exceptions'].values())} bare exceptions"
    )


if __name__ == "__main__":
    ask(str(__doc__), fuzz, line, count=1000)
