"""Whether a graph is recorded: only if the GPU would wait for Python, or if graphs were asked for."""

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tenuto.runtime.executor import Executor, Mode
from tenuto.runtime.private_torch import tree_flatten
from tenuto.runtime.stages import Stage
from tests.runtime.test_outputs import schedule


def ways_of(mode: Mode, gpu_seconds: float, monkeypatch: pytest.MonkeyPatch, queued: float = 0) -> Sequence[str]:
    """What happens in four evaluations, if Python takes one second for each and the GPU takes gpu_seconds.

    queued: seconds of work that an evaluation leaves in the queue, and for which the next one waits
    """
    now, left = [0.0], [0.0]

    def wait() -> None:
        now[0], left[0] = now[0] + left[0], 0.0

    def double(x: Tensor, residual: Any = None) -> Tensor:
        wait()
        now[0], left[0] = now[0] + 1, queued
        return 2 * x

    event = SimpleNamespace(record=lambda: None, synchronize=wait, elapsed_time=lambda _: 1000 * gpu_seconds)
    stream = SimpleNamespace(record_event=lambda: None)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    happened: list[str] = []
    graphs = SimpleNamespace(device=None, has=lambda *_: "recorded" in happened)
    graphs.replay = lambda *_: happened.append("replayed")
    monkeypatch.setattr(Stage, "_record", lambda *_: happened.append("recorded"))
    stage, executor = Stage(graphs, None, None, ()), Executor(double, schedule(), mode=mode)  # type: ignore[arg-type]
    leaves, spec = tree_flatten(((torch.ones(1),), {}))
    for step in range(4):
        output = stage.run(executor, step, leaves, spec, ())
        if output is not None:
            happened.append("evaluated")
            assert float(output) == 2
    return happened


def test_a_graph_is_recorded_if_the_gpu_waits_for_python(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ways_of("auto", 1.1, monkeypatch) == ["evaluated", "evaluated", "recorded", "replayed"]


def test_no_graph_takes_memory_if_the_gpu_is_busy_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ways_of("auto", 5.0, monkeypatch) == ["evaluated"] * 4


def test_waiting_for_a_full_queue_does_not_make_a_busy_gpu_seem_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ways_of("auto", 5.0, monkeypatch, queued=5.0) == ["evaluated"] * 4


def test_who_asks_for_graphs_gets_them_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ways_of("jagged", 5.0, monkeypatch) == ["recorded", "replayed", "replayed", "replayed"]


@pytest.mark.gpu
def test_on_a_gpu_a_large_network_runs_without_graphs_and_a_small_one_with_them() -> None:
    def graphs(width: int, rows: int) -> int:
        layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(20))).cuda().half()
        executor = Executor(lambda x, residual: layers(x), schedule(every=1), mode="auto")
        generation = executor.start()
        for _ in range(9):
            generation(torch.ones(rows, width, device="cuda", dtype=torch.half))
        return executor.report().graphs

    assert graphs(64, 1) == 1 and graphs(8192, 8192) == 0
