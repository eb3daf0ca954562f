"""One row of the table: a pipeline drawn in one way."""

import statistics
import traceback
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.end_to_end.building import Built, Case, free
from benchmarks.end_to_end.recording import Generation, Recorder
from benchmarks.end_to_end.ways import SHARES, Plan, Way

GIB = 2.0**30
WARM_UP = 3  # steps of the first picture of a row, if that is enough to warm up


@dataclass
class Row:
    case: str
    way: str
    kind: str
    title: str = ""
    setting: str = ""
    steps: int = 0
    asked: int = 0  # evaluations
    evaluations: int | None = None  # steps at which the network was computed, counted
    calls: int | None = None  # how often the network was called in these steps
    computed_steps: list[int] | None = None
    seconds: float | None = None  # of one picture; the median
    spread: float | None = None  # (slowest − fastest) / median
    round_seconds: list[float] | None = None  # of each round, if rows were measured in rounds; the median
    repeats: int = 0
    first_seconds: float | None = None  # of the first picture, in which things are compiled; perhaps with few steps
    text_seconds: float | None = None
    loop_seconds: float | None = None
    vae_seconds: float | None = None
    denoiser_seconds: float | None = None  # within the loop; only where everything is computed
    speedup: float | None = None  # over untouched
    ideal_seconds: float | None = None  # share evaluated × the denoiser's seconds + the rest, of the same base
    ratio_to_ideal: float | None = None
    held_ms: float | None = None  # a held step, the median
    held_share: float | None = None  # of the seconds of an evaluated step of the same base
    peak_gib: float | None = None  # of tensors, the first picture included
    reserved_gib: float | None = None  # what the allocator took, the memory of graphs included
    graphs: int = 0
    note: str = ""
    why: str = ""  # it did not run, or not as asked


def warms_up_in_full(way: Way) -> bool:
    """Peers count steps from picture to picture. Tenuto's first row loads the kernels of held steps."""
    return way.kind == "peer" or (way.kind == "tenuto" and way.share == SHARES[0])


def measure(case: Case, way: Way, built: Built, plan: Plan, repeats: int, base: Row | None) -> Row:
    """base: the row in which everything is computed, compiled if this one is."""
    row = empty_row(case, way, built, plan)
    runs = drawn(row, way, built, plan, repeats)
    if runs:
        fill(row, runs)
        compare(row, row if row.kind == "base" else base)
    return row


def empty_row(case: Case, way: Way, built: Built, plan: Plan) -> Row:
    setting = f"{built.size}, {plan.steps} steps"
    return Row(case.name, way.name, way.kind, case.design.title, setting, plan.steps, plan.evaluations, note=way.note)


def drawn(row: Row, way: Way, built: Built, plan: Plan, repeats: int) -> list[Generation]:
    """Attach a way, draw pictures, and detach it. The row learns the rest; if the way fails, it learns why."""
    on_gpu = built.device.type == "cuda"
    free(built.device)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    recorder = Recorder(built, plan.steps)
    everything = way.kind == "base"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with way.attach(built, plan, recorder):
                few = None if warms_up_in_full(way) else WARM_UP
                first = recorder.generate(way.kind != "peer", False, few).seconds
                runs = [recorder.generate(way.kind != "peer", everything) for _ in range(repeats)]
        except Exception as error:  # a peer may fail in any way; the others are to be measured nonetheless
            row.why = reason(error)
            with suppress(Exception):
                free(built.device)
            return []
    if way.kind == "tenuto":
        spoken = [str(one.message) for one in said]
        slower = [one for one in spoken if "slower path" in one or "Everything is computed" in one]
        row.note = "; ".join(dict.fromkeys(slower))
    row.graphs = recorder.graphs
    if row.first_seconds is None:  # in later rounds, memory that other ways left behind would count
        row.first_seconds = first
        if on_gpu:
            row.peak_gib = torch.cuda.max_memory_allocated() / GIB
            row.reserved_gib = torch.cuda.max_memory_reserved() / GIB
    return runs


def fill(row: Row, runs: list[Generation]) -> None:
    """The medians of the generations that were timed, and what the last of them computed."""
    times = sorted(run.seconds for run in runs)
    row.seconds, row.repeats = statistics.median(times), len(times)
    row.spread = (times[-1] - times[0]) / row.seconds
    row.text_seconds = statistics.median(run.text for run in runs)
    row.loop_seconds = statistics.median(run.loop for run in runs)
    row.vae_seconds = statistics.median(run.rest for run in runs)
    last = runs[-1]
    row.computed_steps, row.evaluations, row.calls = list(last.computed), len(last.computed), last.calls
    if row.kind == "base":
        row.denoiser_seconds = statistics.median(run.denoiser for run in runs)
    held = [run.steps[step] for run in runs for step in range(row.steps) if step not in run.computed]
    if held:
        row.held_ms = 1e3 * statistics.median(held)
    if row.evaluations != row.asked:
        row.why = f"it was to compute {row.asked} steps and computed {row.evaluations}"


def compare(row: Row, base: Row | None) -> None:
    """The ideal: as many evaluations as this row has, at the price that one has in the base, and the base's rest."""
    if base is None or base.denoiser_seconds is None or base.seconds is None or not base.evaluations:
        return
    one = base.denoiser_seconds / base.evaluations
    if row.held_ms is not None:
        row.held_share = row.held_ms / (1e3 * one)
    if row.seconds is None or row.evaluations is None:
        return
    row.ideal_seconds = row.evaluations * one + base.seconds - base.denoiser_seconds
    row.ratio_to_ideal = row.seconds / row.ideal_seconds


def reason(error: Exception) -> str:
    """The first line of an error, and where it was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]} ({frame.name} in {Path(frame.filename).name})"
