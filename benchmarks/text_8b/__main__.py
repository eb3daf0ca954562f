"""Tokens a second of LLaDA-8B's shapes, beside eager inference, Fast-dLLM's loop and the time of reading the weights.

    python -m benchmarks.text_8b --device cuda                 # under five minutes on an H200; goes on where it stopped
    python -m benchmarks.text_8b --device cpu --small          # a dry run on a network of a few thousand weights

The weights are random, so the text means nothing, and the confidence of such a network says nothing. Therefore the
number of tokens that each evaluation writes is replayed: 2.7 on average, what Fast-dLLM reports on GSM8K and HumanEval
at a threshold of 0.9. The last evaluation of a block writes what is left of the block. Everything else is computed.
"""

import gc
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.places import results_of
from benchmarks.text_8b.limits import checked_kernels, limits
from benchmarks.text_8b.replaying import FULL, RATE, SMALL, made, prompts_of
from benchmarks.text_8b.report import RECORD, table
from benchmarks.text_8b.ways import BLOCK, POINTS, eager, ways
from scripts.command_line import run
from tenuto.files import write_json, write_text
from tenuto.models.llada import LLaDAConfig
from tenuto.provenance import provenance
from tenuto_lab.result_files import read_result

RESULTS = results_of("text_8b")


def measure(
    device: torch.device,
    config: LLaDAConfig,
    points: tuple[tuple[int, int, int], ...],
    out: Path,
    most: float,
    only: str | None = None,
) -> dict[str, Any]:
    """Every point that `out` does not hold yet, until `most` seconds are over. only: the one way to measure"""
    began = time.perf_counter()
    made_by = provenance(device, seed=0)
    record: dict[str, Any] = {"provenance": made_by, "rate": RATE, "block_length": BLOCK, "points": {}}
    record |= read_result(out, "table of tokens a second", RECORD) if out.exists() else {}
    later = record["provenance"]["commit"] != made_by["commit"]  # rows added to those of another run say so
    network = made(config, device)
    print(f"made after {time.perf_counter() - began:.0f} s", flush=True)
    if "limits" not in record:
        record["eager_before_joining"] = eager(network, prompts_of(1, points[0][1], config), points[0][2], device)
    network.fuse()
    if "limits" not in record:
        record["limits"] = limits(network, device)
        print(record["limits"], flush=True)
    if "kernels" not in record and device.type == "cuda":
        record["kernels"] = checked_kernels(network, device)
        print(record["kernels"], flush=True)
    for point, further in [(point, further) for further in (False, True) for point in points]:
        name = "x".join(map(str, point))
        done: dict[str, Any] = record["points"].setdefault(name, {})
        for way, work in ways(network, config, point, device, further).items():
            late = time.perf_counter() - began > most
            if way in done or late or only not in (None, way):
                continue
            try:
                done[way] = work()
            except torch.cuda.OutOfMemoryError:
                done[way] = {"failed": "there is not enough memory"}
            except Exception as error:  # one way that fails should not cost the others
                done[way] = {"failed": f"{type(error).__name__}: {error}"[:300]}
            if later:
                done[way]["made_by"] = made_by
            shown = {key: round(value, 2) if isinstance(value, float) else value for key, value in done[way].items()}
            shown = {key: value for key, value in shown.items() if key not in ("kernels", "made_by")}
            print(f"{time.perf_counter() - began:.0f} s  {name} {way}: {shown}", flush=True)
            write_json(out, record)
            gc.collect()  # what refers to itself would be freed later, and count as taken until then
            if device.type == "cuda":
                torch.cuda.empty_cache()
    record["seconds"] = time.perf_counter() - began
    write_json(out, record)
    return record


def main(
    device: Annotated[str, typer.Option(help="Where to compute.")] = "cuda",
    small: Annotated[bool, typer.Option(help="A network of a few thousand weights, to try the command out.")] = False,
    out: Annotated[Path, typer.Option(help="The JSON file; the table lies beside it.")] = RESULTS,
    most: Annotated[float, typer.Option(help="Begin nothing new after so many seconds.")] = 280.0,
    only: Annotated[str | None, typer.Option(help="The one way to measure.")] = None,
    prompt: Annotated[int | None, typer.Option(help="The one length of prompts to measure.")] = None,
) -> None:
    """Measure, and write the JSON file and the table beside it."""
    config, points = (SMALL, ((1, 64, 64), (2, 64, 64))) if small else (FULL, POINTS)
    points = tuple(point for point in points if prompt in (None, point[1]))
    record = measure(torch.device(device), config, points, out, most, only)
    write_text(out.with_suffix(".md"), table(record))
    print(table(record))


if __name__ == "__main__":
    run(main)
