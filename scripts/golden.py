"""Fingerprints of what the shipped models give: taken before a change that should change nothing, compared after it.

    python -m scripts.golden before.json          # on the code as it was
    python -m scripts.golden after.json           # on the code as it is, on the same machine
    python -m scripts.golden after.json --compare before.json

Scores, schedules, pictures and texts of every shipped model, each as a hash of its exact bits.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tenuto
from tenuto.scheduling.schedule import Schedule

PICTURES: dict[str, dict[str, Any]] = {
    "tiny-dit": {"classes": [0, 3, 7]},
    "tiny-uvit": {"classes": [1, 5]},
    "tiny-sdxl": {"captions": ["a red car", "a horse"]},
}
PICTURE_SCHEDULES: dict[str, dict[str, Any]] = {
    "default": {},
    "an eighth": {"budget": 0.13},
    "branches": {"keep": "branch", "budget": 0.3},
    "updates": {"keep": "update", "predict": "constant", "every": 3},
    "lifetimes": {"policy": "lifetimes", "budget": 0.5},
    "lifetimes, linear": {"policy": "lifetimes", "predict": "linear"},
}
TEXT_SCHEDULES: dict[str, dict[str, Any]] = {
    "default": {},
    "blocks": {"blocks": 4},
    "half": {"budget": 0.5},
    "lifetimes": {"policy": "lifetimes", "budget": 0.5},
}
PROMPTS = [
    "sort: 42 48 7 25 53 40 ->",
    "close: {<>{<<{<()[[]<{ ->",
]
STEPS, TEXT_STEPS, LENGTH = 12, 32, 64


def digest(value: Any) -> str:
    content = value.contiguous().numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def of_schedule(one: Schedule) -> str:
    marks = np.packbits(one.active).tobytes()
    return digest((one.units, marks, one.flops, one.predict, one.keep, one.rows, one.blocks, one.corrected))


def fingerprints() -> Iterator[tuple[str, str]]:
    for name, wanted in PICTURES.items():
        model = tenuto.load(name)
        scores = tenuto.score(model)
        yield f"{name}: scores", digest([(unit.name, unit.flops, unit.raw, unit.score) for unit in scores.units])
        yield f"{name}: full", digest(tenuto.generate(model, steps=STEPS, **wanted))
        for kind, options in PICTURE_SCHEDULES.items():
            made = tenuto.schedule(scores, STEPS, **options)
            yield f"{name}: {kind}, schedule", of_schedule(made)
            yield f"{name}: {kind}, pictures", digest(tenuto.generate(model, schedule=made, **wanted))
    model = tenuto.load("small-llada")
    scores = tenuto.score(model)
    yield "small-llada: scores", digest([(unit.name, unit.flops, unit.raw, unit.score) for unit in scores.units])
    for kind, options in TEXT_SCHEDULES.items():
        made = tenuto.schedule(scores, TEXT_STEPS, **options)
        yield f"small-llada: {kind}, schedule", of_schedule(made)
        texts = tenuto.generate_text(
            model, PROMPTS, schedule=made, length=LENGTH, steps=TEXT_STEPS, block_length=LENGTH // made.blocks
        )
        yield f"small-llada: {kind}, texts", digest(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="where the fingerprints are written")
    parser.add_argument("--compare", type=Path, help="fingerprints of before; ends with 1 if any differs")
    asked = parser.parse_args()
    torch.set_num_threads(1)  # sums in another order differ in rounding
    found = {}
    for name, value in fingerprints():
        found[name] = value
        print(f"{value}  {name}", flush=True)
    asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if asked.compare is not None:
        before = json.loads(asked.compare.read_text(encoding="utf-8"))
        differ = [name for name in before if before[name] != found.get(name)]
        print(f"{len(differ)} of {len(before)} differ" + "".join(f"\n  {name}" for name in differ))
        sys.exit(bool(differ))


if __name__ == "__main__":
    main()
