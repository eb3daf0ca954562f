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


class Doubling(nn.Module):
    def forward(self, x: Tensor, residual: Any = None) -> Tensor:
        return 2 * x


def ways_of(mode: Mode, gpu_seconds: float, monkeypatch: pytest.MonkeyPatch) -> Sequence[str]:
    """What happens in four evaluations, if Python takes one second for each and the GPU takes gpu_seconds."""
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None, elapsed_time=lambda _: 1000 * gpu_seconds)
    stream = SimpleNamespace(record_event=lambda: None)
    ticks = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    happened: list[str] = []
    graphs = SimpleNamespace(device=None, has=lambda *_: "recorded" in happened)
    graphs.replay = lambda *_: happened.append("replayed")
    monkeypatch.setattr(Stage, "_record", lambda *_: happened.append("recorded"))
    stage, executor = Stage(graphs, None, None, ()), Executor(Doubling(), schedule(), mode=mode)  # type: ignore[arg-type]
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


def test_no_graph_is_recorded_if_python_had_to_wait_for_a_full_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ways_of("auto", 1.6, monkeypatch) == ["evaluated"] * 4


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
