"""Thousands of generations in one process: shapes, schedules, schedulers, adapters, faults and interrupts at random.

    python -m tests.fuzz.soak --generations 2000 --seed 0
    python -m tests.fuzz.soak --generations 2000 --device cuda --seconds 900 --out results/fuzz/soak_gpu.json

The promise: memory stays flat (the host's and the device's), no picture is stale (each that is looked at is that of a
fresh pipeline, on a CPU to the last bit), and nothing of ours is left on a pipeline that was disabled.

A pipeline stays enabled for up to 20 generations, during which everything else changes. The result is written about
every 20 generations, so a soak that is ended early leaves a valid one. If memory grows, `tests.fuzz.controls` tells
whose memory it is.
"""

import argparse
import random
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable
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
from peft import LoraConfig
from torch import Tensor

import tenuto
from tenuto.files import write_json
from tenuto.provenance import provenance
from tests.fuzz.memory import Recorded, Sample, growth, sample
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
    {"quality": 35},
    {"every": 4, "keep": "branch"},
    {"every": 3, "keep": "update", "predict": "constant"},
)
STEPS, SEEDS, SIDES, BATCHES = (7, 8, 12), 3, (8, 16), (1, 2)
LONGEST = 20  # generations between `enable` and `disable`
LOOKED_AT = 5  # every fifth picture is compared with a fresh pipeline's
SAMPLED_AT = 20  # generations between two looks at the memory
ADAPTER = LoraConfig(r=2, init_lora_weights=False, target_modules=["to_q", "to_out.0"])
TOLERANCE = {"cpu": 0.0, "cuda": 1e-4}  # a graph's matrices may be multiplied in another order


class Fault(Exception):
    """Raised in the middle of a generation."""


class Adapted:
    """The adapter and the weights of a denoiser, changed at random in the same way on every pipeline."""

    def __init__(self, pipes: tuple[DiffusionPipeline, ...]) -> None:
        self.networks = [denoiser_in(pipe) for pipe in pipes]
        self.states = 0
        self.loaded = self.fused = False

    def change(self, rng: random.Random) -> None:
        """Load an adapter, fuse it, or remove it; or scale weights in place, as training does."""
        self.states += 1
        if rng.random() < 0.3:
            factor = rng.choice((0.9, 1 / 0.9))
            with torch.no_grad():
                for network in self.networks:
                    network.conv_out.weight.mul_(factor)
            return
        seed = rng.randrange(2**31)
        for network in self.networks:
            if not self.loaded:
                torch.manual_seed(seed)
                network.add_adapter(ADAPTER, "style")
            elif not self.fused:
                network.fuse_lora()
            else:
                network.unfuse_lora()
                network.unload_lora()
        self.loaded, self.fused = not self.fused, self.loaded and not self.fused


def attributes(pipe: DiffusionPipeline) -> set[tuple[str, str, int]]:
    """Everything that hangs on the pipeline, its scheduler and the denoiser's modules: names, and numbers of hooks."""
    named = {"pipe": pipe, **dict(denoiser_in(pipe).named_modules())}
    found = {(path, key, _hooks(value)) for path, part in named.items() for key, value in vars(part).items()}
    return found | {("scheduler", key, 0) for key in ("step",) if key in vars(pipe.scheduler)}


def _hooks(value: Any) -> int:
    return len(value) if isinstance(value, OrderedDict) else 0


def interrupting(step: int, error: type[BaseException]) -> dict[str, Any]:
    def fail(pipe: Any, at: int, t: Any, given: dict[str, Any]) -> dict[str, Any]:
        if at == step:
            raise error
        return given

    return {"callback_on_step_end": fail}


def soak(
    generations: int,
    seed: int,
    device: str = "cpu",
    seconds: float = float("inf"),
    note: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:
    """seconds  stop after so many; the result says how many generations there were
    note     called with the result so far, at every look at the memory
    """
    rng, begun = random.Random(seed), time.perf_counter()
    pipe, fresh, plain = (tiny("sd1").to(device) for _ in range(3))  # plain: never enabled
    adapted, recorded = Adapted((pipe, fresh, plain)), Recorded()
    draw(plain, "sd1")  # which notes this and that on the pipeline
    counts = dict.fromkeys(("generations", "enabled", "adapter_states", "faults", "compared", "stale", "leaked"), 0)
    worst, sampled, samples = 0.0, 0, list[Sample]()

    def result() -> dict[str, Any]:
        spent = round(time.perf_counter() - begun, 1)
        return {
            "device": device,
            "asked": generations,
            **counts,
            "largest_difference": worst,
            "seconds": spent,
            "graphs_recorded": recorded.count,
            "growth": growth(samples),
            "memory": samples,
        }

    def on() -> bool:
        return counts["generations"] < generations and time.perf_counter() - begun < seconds

    try:
        while on():
            if rng.random() < 0.3:
                adapted.change(rng)
            request = rng.choice(REQUESTS)
            tenuto.enable(pipe, **request)
            counts["enabled"] += 1
            try:
                for _ in range(rng.randint(1, LONGEST)):
                    if rng.random() < 0.05:
                        adapted.change(rng)
                    counts["faults"] += _fault(rng, pipe)
                    difference = _generate(rng, pipe, fresh, request, counts["generations"] % LOOKED_AT == 0)
                    if difference is not None:
                        counts["compared"] += 1
                        counts["stale"] += difference > TOLERANCE[device]
                        worst = max(worst, difference)
                    counts["generations"] += 1
                    if not on():
                        break
            finally:
                tenuto.disable(pipe)
            counts["leaked"] += len(attributes(pipe) ^ attributes(plain))
            counts["adapter_states"] = adapted.states
            if not on() or counts["generations"] >= sampled + SAMPLED_AT:
                sampled = counts["generations"]
                samples.append({"generations": counts["generations"], "graphs": recorded.count, **sample(device)})
                note(result())
    finally:
        recorded.undo()
    return result()


def _fault(rng: random.Random, pipe: DiffusionPipeline) -> bool:
    """Now and then, a generation that ends in an exception or an interrupt."""
    if rng.random() >= 0.2:
        return False
    steps, error = rng.choice(STEPS), rng.choice((Fault, KeyboardInterrupt))
    with suppress(Fault, KeyboardInterrupt):
        draw(pipe, "sd1", steps=steps, **interrupting(rng.randrange(steps), error))
    return True


def _generate(
    rng: random.Random, pipe: DiffusionPipeline, fresh: DiffusionPipeline, request: dict[str, Any], compare: bool
) -> float | None:
    """One generation; if asked to compare, the largest difference to the picture of a pipeline enabled for it alone."""
    state = rng.getstate()
    got = generation(rng, pipe)
    if not compare:
        return None
    again = random.Random()
    again.setstate(state)
    with tenuto.accelerated(fresh, **request):
        return float((generation(again, fresh) - got).abs().max())


def generation(rng: random.Random, pipe: DiffusionPipeline) -> Tensor:
    """A picture by a scheduler, of a size and from a seed chosen at random."""
    kind, config = rng.choice(SCHEDULERS)
    side = rng.choice(SIDES)
    asked = {"steps": rng.choice(STEPS), "seed": rng.randrange(SEEDS), "batch": rng.choice(BATCHES)}
    pipe.scheduler = kind(**BETAS, **config)
    return draw(pipe, "sd1", **asked, height=side, width=side)


def line(found: dict[str, Any]) -> str:
    grew = found["growth"]
    return (
        f"soak: {found['generations']} generations, {found['enabled']} times enabled, {found['faults']} faults, "
        f"{found['stale']} of {found['compared']} pictures stale, {found['leaked']} leaks, memory grew by "
        f"{grew.get('resident_mib', 0.0)} MiB"
        + (f", the device's by {grew['device_mib']} MiB" if "device_mib" in grew else "")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generations", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=list(TOLERANCE), default="cpu")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, help="a JSON file for the result")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    record: dict[str, Any] = {"provenance": provenance(asked.device, seed=asked.seed)}

    def note(found: dict[str, Any]) -> None:
        record["soak"] = found
        print(f"{found['seconds']:.0f} s: {line(found)}; {found['memory'][-1]}", flush=True)
        if asked.out is not None:
            write_json(asked.out, record)

    soak(asked.generations, asked.seed, asked.device, asked.seconds, note)


if __name__ == "__main__":
    main()
