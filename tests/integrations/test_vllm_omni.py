"""The cache backend that docs/multi-gpu.md shows, run as vLLM-Omni calls it, on the CPU.

vLLM-Omni cannot be imported without a GPU build of vLLM. So its base class is read from an unpacked wheel that
TENUTO_VLLM_OMNI names, or is a stand-in with the same methods; and diffusers' pipeline gives the loop.
"""

import importlib.util
import os
import re
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import tenuto
from tests.helpers.pipelines import QUIET, draw, tiny

pytestmark = QUIET
PAGE = Path(__file__).parents[2] / "docs" / "multi-gpu.md"
WHEEL = os.environ.get("TENUTO_VLLM_OMNI")
BASE = "vllm_omni.diffusion.cache.base"


class StandIn(ABC):
    def __init__(self, config: Any) -> None:
        self.config, self.enabled = config, False

    @abstractmethod
    def enable(self, pipeline: Any) -> None: ...

    @abstractmethod
    def refresh(self, pipeline: Any, num_inference_steps: int, verbose: bool = True) -> None: ...

    def is_enabled(self) -> bool:
        return self.enabled


def base_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    if WHEEL is None:
        return StandIn
    data = ModuleType("vllm_omni.diffusion.data")  # importing the real one needs vLLM
    vars(data)["DiffusionCacheConfig"] = dict
    for name in ("vllm_omni", "vllm_omni.diffusion"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, data.__name__, data)
    spec = importlib.util.spec_from_file_location(BASE, Path(WHEEL) / (BASE.replace(".", "/") + ".py"))
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found.CacheBackend


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    base = ModuleType(BASE)
    vars(base)["CacheBackend"] = base_class(monkeypatch)
    monkeypatch.setitem(sys.modules, BASE, base)
    shown = next(block for block in re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.S) if "TenutoBackend" in block)
    names: dict[str, Any] = {}
    exec(shown, names)
    return names["TenutoBackend"]({})


def test_the_backend_on_the_page_saves_evaluations_request_after_request(backend: Any) -> None:
    pipe = tiny("flux")
    full = draw(pipe, "flux", steps=32)
    with tenuto.accelerated(pipe, 0.25):
        expected = {steps: draw(pipe, "flux", steps=steps) for steps in (24, 32)}
    calls: list[int] = []
    pipe.transformer.register_forward_hook(lambda *_: calls.append(0))
    backend.enable(pipe)
    assert backend.is_enabled()
    for steps, evaluations in ((32, 8), (24, 6), (32, 8)):
        backend.refresh(pipe, steps)
        calls.clear()
        assert torch.equal(draw(pipe, "flux", steps=steps), expected[steps])
        summary = tenuto.summary(backend.run)
        assert len(calls) == evaluations == summary.computed and summary.corrected
    backend.block.__exit__(None, None, None)
    assert torch.equal(draw(pipe, "flux", steps=32), full)


def test_a_request_that_was_broken_off_does_not_reach_the_next(backend: Any) -> None:
    pipe = tiny("flux")
    backend.enable(pipe)
    backend.refresh(pipe, 32)
    expected = draw(pipe, "flux", steps=32)
    backend.refresh(pipe, 32)

    def stop(_pipe: Any, step: int, _time: Any, values: dict[str, Any]) -> dict[str, Any]:
        if step == 9:
            raise InterruptedError
        return values

    with pytest.raises(InterruptedError):
        draw(pipe, "flux", steps=32, callback_on_step_end=stop)
    backend.refresh(pipe, 32)
    assert torch.equal(draw(pipe, "flux", steps=32), expected)
