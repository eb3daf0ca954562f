"""How long it takes, and how much memory, to score a checkpoint of LLaDA-8B's exact layout (random weights).

    python -m benchmarks.score_8b --out DIR --device cuda     # writes the 16 GB once, then scores them

The weights are random, so the scores mean nothing; the layout, the reading and the arithmetic are the real ones.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from safetensors.torch import save_file

from benchmarks.places import results_of
from scripts.command_line import run
from tenuto.files import write_json
from tenuto.models.llada import LLaDA, LLaDAConfig
from tenuto.provenance import provenance
from tenuto_lab.result_files import read_result, shaped

SHARDS = 6  # as published
RESULTS = results_of("score_8b")
INDEX = shaped({"metadata": {"total_size": int}})
RECORD = shaped({"runs": [{"layers": int, "bytes": int, "seconds": float, "peak_resident_bytes": int}]})


def write_checkpoint(directory: Path, layers: int) -> int:
    """config.json, an index and shards in which a layer's tensors lie together; returns the bytes written."""
    config = LLaDAConfig(n_layers=layers)
    with torch.device("meta"):
        shapes = {key: tuple(value.shape) for key, value in LLaDA(config).state_dict().items()}
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(1 << 26, generator=generator).bfloat16()  # reused from a moving place: the generator is slow
    keys, places, total = list(shapes), {}, 0
    for shard in range(SHARDS):
        name = f"model-{shard + 1:05d}-of-{SHARDS:05d}.safetensors"
        part = {}
        for i, key in enumerate(keys[shard * len(keys) // SHARDS : (shard + 1) * len(keys) // SHARDS]):
            count = torch.Size(shapes[key]).numel()
            shift = (7919 * (i + 1)) % noise.numel()
            part[key] = noise.roll(shift).repeat(-(-count // noise.numel()))[:count].reshape(shapes[key])
        save_file(part, directory / name)
        places.update(dict.fromkeys(part, name))
        total += sum(value.nbytes for value in part.values())
        print(f"wrote {name}", flush=True)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "config.json").write_text(json.dumps({"model_type": "llada", "n_layers": layers}))
    return total


def measure(directory: Path, device: str, threads: int) -> dict[str, Any]:
    """`tenuto score` as a user runs it, in a process of its own, whose peak memory is its own too."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)} if threads else dict(os.environ)
    command = [sys.executable, "-c", "from tenuto.cli import main; main()", "score", str(directory)]
    started = time.perf_counter()
    process = subprocess.Popen([*command, "--device", device, "--json"], env=environment, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        peak = max(peak, peak_resident_bytes(process.pid))
        time.sleep(0.1)
    seconds = time.perf_counter() - started
    if process.returncode:
        raise SystemExit(process.returncode)
    return {"device": device, "threads": threads or None, "seconds": seconds, "peak_resident_bytes": peak}


def peak_resident_bytes(process: int) -> int:
    """Of a running process. (What `getrusage` says of a child is at least what its parent took when it was started.)"""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    except OSError:  # it has just ended
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def main(
    out: Annotated[Path, typer.Option(help="Where the checkpoint is written, or was written before.")],
    device: Annotated[str, typer.Option(help="Where to compute: cpu or cuda.")] = "cpu",
    threads: Annotated[int, typer.Option(help="CPU threads; 0 leaves it to torch.")] = 0,
    layers: Annotated[int, typer.Option(help="Fewer than LLaDA-8B's 32 for a shorter run.")] = 32,
) -> None:
    """Write the checkpoint if it is not there, score it, and note the time and the peak memory."""
    index = out / "model.safetensors.index.json"
    total = (
        read_result(index, "index", INDEX)["metadata"]["total_size"]
        if index.exists()
        else write_checkpoint(out, layers)
    )
    record = {"provenance": provenance(seed=0), "layers": layers, "bytes": total, **measure(out, device, threads)}
    kept = read_result(RESULTS, "record of scores", RECORD)["runs"] if RESULTS.exists() else []
    write_json(RESULTS, {"runs": [*kept, record]})
    memory = record["peak_resident_bytes"] / 2**30
    print(
        f"{layers} layers, {total / 1e9:.1f} GB on {device}: {record['seconds']:.1f} s, peak {memory:.2f} GiB resident"
    )


if __name__ == "__main__":
    run(main)
