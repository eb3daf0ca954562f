"""Whose memory grows in a soak on a GPU: each control does one part of what the soak does, in a process of its own.

    python -m tests.fuzz.controls --seconds 100 --out results/fuzz/controls.json

plain      the pipeline draws, and is never enabled: shapes, batches, steps and schedulers change
recording  torch alone records the pipeline's denoiser as a CUDA graph and drops the graph, again and again
replaying  Tenuto draws with the graphs that it recorded once
enabling   Tenuto is enabled, draws one picture and is disabled, so graphs are recorded for every picture
"""

import argparse
import json
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tenuto.files import write_json
from tenuto.provenance import provenance
from tests.fuzz.memory import Sample, growth, sample
from tests.helpers.pipelines import denoiser_in, draw, tiny

SAMPLES = 8  # looks at the memory in each control


def plain(device: str) -> Callable[[], object]:
    from tests.fuzz.soak import generation

    pipe, rng = tiny("sd1").to(device), random.Random(0)
    return lambda: generation(rng, pipe)


def recording(device: str) -> Callable[[], object]:
    network = denoiser_in(tiny("sd1")).to(device)
    given = torch.randn(2, 4, 8, 8).to(device), torch.tensor(500).to(device), torch.randn(2, 5, 16).to(device)
    if device == "cpu":
        return lambda: network(*given)
    stream = torch.cuda.Stream()

    def once() -> None:
        with torch.inference_mode(), torch.cuda.stream(stream):
            network(*given)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                network(*given)
            graph.replay()

    return once


def replaying(device: str) -> Callable[[], object]:
    import tenuto

    pipe = tiny("sd1").to(device)
    tenuto.enable(pipe, budget=0.5)
    return lambda: draw(pipe, "sd1")


def enabling(device: str) -> Callable[[], object]:
    import tenuto

    pipe = tiny("sd1").to(device)

    def once() -> None:
        with tenuto.accelerated(pipe, budget=0.5):
            draw(pipe, "sd1")

    return once


CONTROLS = {one.__name__: one for one in (plain, recording, replaying, enabling)}


def control(name: str, device: str, seconds: float) -> dict[str, Any]:
    """One control for some seconds, in this process."""
    once, samples, count, begun = CONTROLS[name](device), list[Sample](), 0, time.perf_counter()
    for part in range(SAMPLES):
        while time.perf_counter() - begun < seconds * (part + 1) / SAMPLES:
            once()
            count += 1
        samples.append({"rounds": count, **sample(device)})
    grew = growth(samples)
    return {"rounds": count, "kib_a_round": kib_a_round(grew), "growth": grew, "memory": samples}


def kib_a_round(grew: Sample) -> float:
    """By how much native code's memory grew in each round."""
    return round(1024 * grew.get("malloc_mib", 0.0) / grew["rounds"], 1) if grew.get("rounds") else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=100, help="for all controls together")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", choices=list(CONTROLS), help="run one control here, and print its result")
    parser.add_argument("--out", type=Path, help="a JSON file for the result")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.only:
        print(json.dumps(control(asked.only, asked.device, asked.seconds)))
        return
    found: dict[str, Any] = {"provenance": provenance(asked.device), "controls": {}}
    for name in CONTROLS:
        own = ["--only", name, "--seconds", str(asked.seconds / len(CONTROLS)), "--device", asked.device]
        done = subprocess.run([sys.executable, "-m", "tests.fuzz.controls", *own], capture_output=True, text=True)
        if done.returncode:
            found["controls"][name] = {"failed": done.stderr.strip().splitlines()[-1:]}
        else:
            found["controls"][name] = json.loads(done.stdout.splitlines()[-1])
        print(name, {key: value for key, value in found["controls"][name].items() if key != "memory"}, flush=True)
        if asked.out is not None:
            write_json(asked.out, found)


if __name__ == "__main__":
    main()
