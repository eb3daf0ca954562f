"""Thousands of generations in one process: shapes, schedules, schedulers, adapters, faults and interrupts at random.

    python -m tests.fuzz.soak --generations 2000 --seed 0
    python -m tests.fuzz.soak --generations 2000 --device cuda --out results/fuzz/soak_gpu.json

The promise: memory stays flat (the host's and the device's), no picture is stale (each that is looked at has the bits
of a fresh pipeline's), and nothing of ours is left on a pipeline that was disabled.
"""

import argparse
import gc
import random
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    DDIMScheduler,
    DiffusionPipeline,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    UniPCMultistepScheduler,
)

import tenuto
from tenuto.files import write_json
from tenuto.provenance import provenance
from tests.helpers.pipelines import BETAS, denoiser_in, draw, tiny

SCHEDULERS: tuple[tuple[Any, dict[str, Any]], ...] = (
    (DDIMScheduler, {"clip_sample": False}),
    (EulerDiscreteScheduler, {}),
    (DPMSolverMultistepScheduler, {}),
    (UniPCMultistepScheduler, {}),
    (EulerAncestralDiscreteScheduler, {}),
)
REQUESTS: tuple[dict[str, Any], ...] = (
    {"budget": 0.25},
    {"budget": 0.5},
    {"budget": 1.0},
    {"speedup": 3},
    {"every": 4, "keep": "branch"},
    {"every": 3, "keep": "update", "predict": "constant"},
)
STEPS, SEEDS, LOOKED_AT = (7, 8, 12), 3, 5  # every fifth picture is compared with a fresh pipeline's


class Fault(Exception):
    """Raised in the middle of a generation."""


def resident() -> float:
    """Memory of this process, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def attributes(pipe: DiffusionPipeline) -> set[tuple[str, str]]:
    """Everything that hangs on the denoiser's modules and on the pipeline, by name."""
    named = {"pipe": pipe, **dict(denoiser_in(pipe).named_modules())}
    return {(path, key) for path, part in named.items() for key in vars(part)}


def interrupting(step: int, error: type[BaseException]) -> dict[str, Any]:
    def fail(pipe: Any, at: int, t: Any, given: dict[str, Any]) -> dict[str, Any]:
        if at == step:
            raise error
        return given

    return {"callback_on_step_end": fail}


def soak(generations: int, seed: int, device: str = "cpu", seconds: float = float("inf")) -> dict[str, Any]:
    """seconds: stop after so many, and say how many generations there were"""
    rng, begun = random.Random(seed), time.perf_counter()
    pipe, plain, changed = tiny("sd1").to(device), tiny("sd1").to(device), 1.0
    draw(pipe, "sd1")  # which notes this and that on the pipeline, plain as it is
    clean = attributes(pipe)
    stale = leaked = faults = compared = 0
    memory: list[float] = []
    on_device: list[float] = []
    done = 0
    for i in range(generations):
        if time.perf_counter() - begun > seconds:
            break
        done += 1
        kind, config = rng.choice(SCHEDULERS)
        request, steps, picture = rng.choice(REQUESTS), rng.choice(STEPS), rng.randrange(SEEDS)
        pipe.scheduler = kind(**BETAS, **config)
        if rng.random() < 0.05:  # an adapter that is fused, or weights that are loaded anew
            factor = rng.choice((0.9, 1 / 0.9))
            changed *= factor
            with torch.no_grad():
                for one in (pipe, plain):
                    denoiser_in(one).conv_out.weight.mul_(factor)
        tenuto.enable(pipe, **request)
        try:
            if rng.random() < 0.2:
                faults += 1
                error = rng.choice((Fault, KeyboardInterrupt))
                with suppress(Fault, KeyboardInterrupt):
                    draw(pipe, "sd1", steps=steps, seed=picture, **interrupting(rng.randrange(steps), error))
            got = draw(pipe, "sd1", steps=steps, seed=picture)
            if i % LOOKED_AT == 0:
                compared += 1
                plain.scheduler = kind(**BETAS, **config)
                with tenuto.accelerated(plain, **request):
                    stale += not torch.equal(draw(plain, "sd1", steps=steps, seed=picture), got)
        finally:
            tenuto.disable(pipe)
        leaked += attributes(pipe) != clean
        if i % 50 == 49 or i + 1 == generations:
            gc.collect()
            memory.append(round(resident(), 1))
            if device != "cpu":
                torch.cuda.empty_cache()
                on_device.append(round(torch.cuda.memory_reserved() / 2**20, 1))
    return {
        "device": device,
        "generations": done,
        "faults": faults,
        "compared": compared,
        "stale": int(stale),
        "leaked": int(leaked),
        "memory_mib": memory,
        "growth_mib": grown(memory),
        "device_mib": on_device,
        "device_growth_mib": grown(on_device),
        "seconds": round(time.perf_counter() - begun, 1),
    }


def grown(memory: list[float]) -> float:
    """By how much memory grew after the first quarter, in which everything is used for the first time."""
    settled = memory[len(memory) // 4 :] or memory
    return round(settled[-1] - settled[0], 1) if settled else 0.0


def line(found: dict[str, Any]) -> str:
    return (
        f"soak: {found['generations']} generations, {found['faults']} faults, {found['stale']} of {found['compared']} "
        f"pictures stale, {found['leaked']} leaks, memory grew by {found['growth_mib']} MiB"
        + (f", the device's by {found['device_growth_mib']} MiB" if found["device_mib"] else "")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generations", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, help="a JSON file for the result")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    found = soak(asked.generations, asked.seed, asked.device, asked.seconds)
    print(line(found))
    if asked.out is not None:
        write_json(asked.out, {"provenance": provenance(asked.device, seed=asked.seed), "soak": found})


if __name__ == "__main__":
    main()
