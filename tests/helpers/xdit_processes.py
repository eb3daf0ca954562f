"""What tests/integrations/test_xdit.py runs in each of two processes, under torchrun and gloo.

xfuser refuses to start without a GPU and imports triton. So three of its functions, which ask for a device, are
answered here for the CPU, and triton is an empty module. Everything else is xfuser's released code. The last process
prints one line of JSON.
"""

import importlib
import json
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
import torch.distributed as dist

import tenuto
from tests.helpers.pipelines import prompt, tiny

MARK = "@@"
REFUSAL = """raise NotImplementedError(
            "No Accelerators(AMD/NV/MTT GPU, AMD MI instinct accelerators) available"
        )"""
NO_GPU = "if not (torch.cuda.is_available() or _is_npu()):"


class Nothing(types.ModuleType):
    """A module whose every name is something that does nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


def load_xfuser(folder: Path) -> Any:
    """The package from an unpacked wheel."""
    for name in ("triton", "triton.language"):
        sys.modules[name] = Nothing(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None)
    vars(sys.modules["triton"])["jit"] = lambda kernel=None, **_: kernel or (lambda one: one)
    vars(sys.modules["triton"])["autotune"] = vars(sys.modules["triton"])["heuristics"] = lambda *_, **__: (
        lambda one: one
    )
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
    package = sys.modules["xfuser"] = types.ModuleType("xfuser")
    package.__path__, package.__package__ = [str(folder / "xfuser")], "xfuser"
    package.__spec__ = ModuleSpec("xfuser", None, is_package=True)
    source = (folder / "xfuser" / "envs.py").read_text(encoding="utf-8").replace(NO_GPU, "if False:")
    for answer in ('return "0.0"', 'return "gloo"'):
        source = source.replace(REFUSAL, answer, 1)
    envs = sys.modules["xfuser.envs"] = types.ModuleType("xfuser.envs")
    envs.__package__ = "xfuser"
    exec(compile(source, str(folder / "xfuser" / "envs.py"), "exec"), vars(envs))
    exec((folder / "xfuser" / "__init__.py").read_text(encoding="utf-8"), vars(package))
    groups = importlib.import_module("yunchang.globals").PROCESS_GROUP
    vars(importlib.import_module("xfuser.model_executor.layers.usp"))["PROCESS_GROUP"] = groups
    return package


def main() -> None:
    torch.set_num_threads(1)
    xfuser = load_xfuser(Path(sys.argv[1]))
    dist.init_process_group("gloo")
    rank, processes = dist.get_rank(), dist.get_world_size()
    distributed = importlib.import_module("xfuser.core.distributed")
    distributed.init_distributed_environment(rank=rank, world_size=processes)
    config, _ = xfuser.xFuserArgs(model="flux", ulysses_degree=processes).create_config()
    pipe = xfuser.xFuserFluxPipeline(tiny("flux"), config)

    def drawn() -> Any:
        generator = torch.Generator().manual_seed(0)
        result = pipe(**prompt("flux"), num_inference_steps=16, generator=generator, output_type="latent")
        return None if result is None else result.images  # the last process has the picture

    full = drawn()
    tenuto.enable(pipe, budget=0.25)
    held, summary = drawn(), tenuto.summary(pipe)
    again = drawn()
    tenuto.disable(pipe)
    after = drawn()
    mine = [step for step, one in enumerate(summary.per_step) if one.work == 1]
    steps: list[Any] = [None] * processes
    dist.all_gather_object(steps, mine)
    if full is not None:
        same = {"again": torch.equal(again, held), "after": torch.equal(after, full)}
        told = {"steps": steps, "corrected": summary.corrected, "differs": not torch.equal(held, full), **same}
        print(MARK + json.dumps(told), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
