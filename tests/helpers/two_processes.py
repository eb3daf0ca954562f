"""What tests/pipelines/test_several_processes.py runs in each of two processes, under torchrun and gloo.

A small Flux pipeline draws alone, and then with its transformer shared between the two processes in several ways.
Process 0 prints one line of JSON.
"""

import json
import warnings
from collections.abc import Callable
from typing import Any

import diffusers
import torch
import torch.distributed as dist
from diffusers import DiffusionPipeline, FlowMatchEulerDiscreteScheduler
from torch import nn

import tenuto
from tests.helpers.every_denoiser import Loop
from tests.helpers.pipelines import draw, tiny

STEPS, MARK = 12, "@@"


def alone(transformer: nn.Module) -> nn.Module:
    return transformer


def context_parallel(transformer: Any) -> nn.Module:
    """diffusers' own: each process has half of the tokens, and all weights."""
    from diffusers import ContextParallelConfig

    transformer.enable_parallelism(config=ContextParallelConfig(ulysses_degree=2))
    return transformer


def tensor_parallel(transformer: Any) -> nn.Module:
    """torch's own: each process has half of each feed-forward matrix. (diffusers' own refuses the CPU.)"""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"net.0.proj": ColwiseParallel(), "net.2": RowwiseParallel()}
    mesh = init_device_mesh("cpu", (2,))
    for block in transformer.transformer_blocks:
        parallelize_module(block.ff, mesh, dict(plan))
    return transformer


def sharded(transformer: Any) -> nn.Module:
    """FSDP 2: each process keeps half of the weights."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for block in [*transformer.transformer_blocks, *transformer.single_transformer_blocks]:
        fully_shard(block, mesh=mesh)
    return fully_shard(transformer, mesh=mesh)


def dispatched(transformer: Any) -> nn.Module:
    """accelerate's device_map: hooks on every module."""
    from accelerate import dispatch_model  # type: ignore[import-untyped]

    return dispatch_model(transformer, {"": "cpu"}, force_hooks=True)


WAYS: dict[str, Callable[[Any], nn.Module]] = {
    way.__name__: way for way in (alone, dispatched, context_parallel, tensor_parallel, sharded)
}
if not hasattr(diffusers, "ContextParallelConfig"):  # it came with 0.36
    del WAYS["context_parallel"]


def picture(pipe: DiffusionPipeline, seed: int = 0, steps: int = STEPS) -> tuple[torch.Tensor, list[int]]:
    """(the picture, the steps at which the transformer was evaluated)."""
    step, evaluated = [0], []
    handle = pipe.transformer.register_forward_hook(lambda *_: evaluated.append(step[0]))

    def after(_: Any, index: int, __: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        step[0] = index + 1
        return kwargs

    words = torch.randn(1, 6, 12, generator=torch.Generator().manual_seed(5))
    result = draw(pipe, "flux", steps, seed, callback_on_step_end=after, prompt_embeds=words)
    handle.remove()
    return result, evaluated


def tried(way: Callable[[Any], nn.Module]) -> dict[str, Any]:
    pipe = tiny("flux")
    pipe.transformer = way(pipe.transformer)
    full, every = picture(pipe)
    tenuto.enable(pipe, budget=0.4)
    held, evaluated = picture(pipe)
    again, _ = picture(pipe)
    tenuto.disable(pipe)
    after, _ = picture(pipe)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (evaluated, held.flatten().tolist()))
    return {
        "full": full.flatten().tolist(),
        "full_steps": every,
        "held": [values for _, values in everyone],
        "steps": [steps for steps, _ in everyone],
        "again_same": torch.equal(held, again),
        "after_same": torch.equal(after, full),
    }


def in_a_loop() -> dict[str, Any]:
    """A loop of one's own around a network in torch's DistributedDataParallel: how often each process evaluates it."""
    loop = Loop("FluxTransformer2DModel", FlowMatchEulerDiscreteScheduler(), STEPS)
    with tenuto.running(loop.network, loop.scheduler, evaluations=5):
        alone = loop.run()
    wrapped = nn.parallel.DistributedDataParallel(loop.network.requires_grad_(True))
    with tenuto.running(wrapped, loop.scheduler, evaluations=5):
        held = loop.run(wrapped)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (loop.calls, torch.equal(held, alone)))
    return {"calls": [calls for calls, _ in everyone], "same": [same for _, same in everyone]}


def with_a_quality() -> dict[str, Any]:
    """Each process has another network, and they choose the same steps: alone, they would choose others."""
    told = {}
    for name, group in (("agreed", dist.group.WORLD), ("alone", None)):
        pipe = tiny("flux")
        scaled = {key: (0.3 + 0.7 * dist.get_rank()) * one for key, one in pipe.transformer.state_dict().items()}
        pipe.transformer.load_state_dict(scaled)
        tenuto.enable(pipe, quality=60, group=group)
        _, evaluated = picture(pipe, seed=dist.get_rank(), steps=40)
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, evaluated)
        told[name] = everyone
    return told


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    # diffusers asks how many accelerators there are, and divides by their number
    torch.accelerator.device_count = lambda: 1  # type: ignore[assignment]
    dist.init_process_group("gloo")
    told = {}
    for name, way in WAYS.items():
        try:
            with torch.no_grad():
                told[name] = tried(way)
        except Exception as error:
            told[name] = {"error": f"{type(error).__name__}: {error}"}
    with torch.no_grad():
        told["loop"] = in_a_loop()
        told["quality"] = with_a_quality()
    if dist.get_rank() == 0:
        print(MARK + json.dumps(told), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
