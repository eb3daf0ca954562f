"""Our executor beside its peers: one process, one network, one machine, every fourth step computed.

    python -m benchmarks.peers --packages DIR         # all of it, on one GPU; DIR holds cache_dit and DeepCache

A row says of a peer whether it attaches, how much it computes, how fast it is, and whether an evaluation that reuses
can be recorded in a CUDA graph. A peer that fails keeps its row, with the reason. Weights are random: every peer is
told when to compute, so none decides by what the network puts out. Results are written after each row; what the file
holds of networks that are not measured stays.
"""

import copy
import gc
import re
import statistics
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import torch
import typer
from diffusers import hooks
from diffusers.hooks.hooks import CacheContext, HookRegistry, _set_cache_context
from torch import nn

import tenuto
from benchmarks.ladder import TINY
from benchmarks.places import results_of, use_packages
from tenuto.files import read_json, write_json, write_text
from tenuto.models.diffusers.attachment import build, units_in
from tenuto.models.diffusers.sites import TEXT_TOKENS
from tenuto.models.dit_diffusers import CLASS as DIT
from tenuto.models.dit_diffusers import XL_2
from tenuto.models.unet import SDXL_BASE
from tenuto.provenance import provenance
from tenuto.runtime.executor import Mode
from tenuto.scheduling.schedule import Keep
from tenuto_lab.speed.ladder import Inputs, refreshed, seconds_of
from tenuto_lab.speed.ladder_report import peers_tables

RESULTS = results_of("peers")
EVERY = 4  # steps of which one is computed
VARIANTS = 3  # different inputs, taken in turns
# One module in every residual branch. Not the branch's own: a hook there is called even if its forward is replaced.
BRANCHES = re.compile(r"(attn\d\.to_q|ff\.net\.0|resnets\.\d+\.conv1)$")


@dataclass(frozen=True)
class Case:
    """A network at one batch size and shape."""

    network: str
    setting: str
    module: nn.Module  # never run: each peer is given a copy
    steps: int
    inputs: Callable[[int], Inputs]  # of a step
    device: torch.device


@dataclass(frozen=True)
class Run:
    """A network with a peer attached."""

    call: Callable[..., Any]
    start: Callable[[], object] = lambda: None  # begins a generation
    before: Callable[[int], object] = lambda step: None  # an evaluation
    graphs: Callable[[], int] | None = None  # how many it recorded, where it does so by itself

    def evaluate(self, case: Case, step: int) -> None:
        self.before(step)
        inputs, named = case.inputs(step)
        self.call(*inputs, **named, return_dict=False)

    def generate(self, case: Case) -> None:
        self.start()
        for step in range(case.steps):
            self.evaluate(case, step)


@dataclass(frozen=True)
class Peer:
    name: str
    attach: Callable[[Any, Case, ExitStack], Run]
    share: float | None = None  # of the branches that it computes, where calls cannot be counted
    compiles: bool = False


@dataclass
class Row:
    peer: str
    network: str
    setting: str
    ms_per_evaluation: float | None = None
    ms_per_generation: float | None = None
    spread: float | None = None  # (slowest − fastest) / median of the generations measured
    speedup_over_eager: float | None = None
    computed_share: float | None = None  # of the residual branches of a generation
    hooks_attached: int | None = None  # modules whose forward was replaced
    capturable: bool | None = None  # None: not tried
    why: str = ""  # it did not run, or cannot be captured


# Peers


def plain(module: Any, case: Case, stack: ExitStack) -> Run:
    return Run(module)


def whole(module: Any, case: Case, stack: ExitStack, mode: str) -> Run:
    return Run(torch.compile(module, dynamic=False, mode=mode))


def hooked(apply: Callable[[Any], object], module: Any, case: Case, stack: ExitStack, every: int = 0) -> Run:
    """diffusers' hooks, with the cache context that a CacheMixin sets; their state is reset every so many steps."""
    apply(module)
    registry = HookRegistry.check_if_exists_or_initialize(module)

    def before(step: int) -> None:
        if every and step % every == 0:
            registry.reset_stateful_hooks()
        _set_cache_context(module, CacheContext("all"))

    return Run(module, registry.reset_stateful_hooks, before)


def first_block(module: Any) -> None:
    hooks.apply_first_block_cache(module, hooks.FirstBlockCacheConfig(threshold=1e9))


def taylorseer(module: Any, names: list[str] | None = None) -> None:
    every: dict[str, Any] = {"cache_interval": EVERY, "disable_cache_before_step": 1, "max_order": 1}
    hooks.apply_taylorseer_cache(module, hooks.TaylorSeerCacheConfig(**every, cache_identifiers=names))


def magcache(steps: int, module: Any) -> None:
    every: dict[str, Any] = {"max_skip_steps": EVERY - 1, "retention_ratio": 0.0, "num_inference_steps": steps}
    hooks.apply_mag_cache(module, hooks.MagCacheConfig(**every, mag_ratios=torch.ones(steps)))


def dbcache(module: Any, case: Case, stack: ExitStack) -> Run:
    import cache_dit  # type: ignore[import-not-found,import-untyped,unused-ignore]

    config = cache_dit.DBCacheConfig(
        Fn_compute_blocks=1,
        Bn_compute_blocks=0,
        residual_diff_threshold=1e9,
        max_warmup_steps=1,
        max_continuous_cached_steps=EVERY - 1,
        num_inference_steps=case.steps,
    )
    cache_dit.enable_cache(module, cache_config=config)
    return Run(module, partial(cache_dit.refresh_context, module))


def deepcache(module: Any, case: Case, stack: ExitStack) -> Run:
    from DeepCache.extension.deepcache import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
        DeepCacheSDHelper,
    )

    # It looks up each step's timestep in the scheduler's, which pipelines keep on the device.
    timesteps = torch.stack([case.inputs(step)[0][1] for step in range(case.steps)])
    helper = DeepCacheSDHelper(SimpleNamespace(unet=module, scheduler=SimpleNamespace(timesteps=timesteps)))
    helper.set_params(cache_interval=EVERY, cache_branch_id=0)
    helper.enable()
    return Run(module)


def ours(mode: Mode, compiled: bool, keep: Keep, module: Any, case: Case, stack: ExitStack) -> Run:
    schedule = refreshed(units_in(module), case.steps, EVERY, keep=keep)
    run = stack.enter_context(tenuto.accelerated(module, schedule=schedule, mode=mode, compiled=compiled))
    return Run(module, run.start, graphs=None if mode == "skip" else lambda: run.executor.report().graphs)


def our_peers(case: Case, *holds: Keep) -> Iterator[Peer]:
    budget = refreshed(units_in(case.module), case.steps, EVERY).budget
    ways: tuple[tuple[Mode, bool], ...] = (("skip", False), ("jagged", False), ("jagged", True))
    for keep in holds:
        for mode, compiled in ways:
            name = f"tenuto {mode}{' + compiled' * compiled}, {keep} held"
            yield Peer(name, partial(ours, mode, compiled, keep), None if mode == "skip" else budget, compiled)


def compiled_whole(*modes: str) -> Iterator[Peer]:
    """Everything computed, the network compiled as a whole; after the others, since tuning takes minutes."""
    for mode in modes:
        name = "torch.compile" if mode == "default" else f"torch.compile, {mode}"
        yield Peer(name, partial(whole, mode=mode), share=1.0, compiles=True)


def dit_peers(case: Case) -> Iterator[Peer]:
    named = [r"transformer_blocks\.\d+\.(attn1|ff)"]
    yield Peer("eager", plain)
    yield Peer("diffusers FirstBlockCache", partial(hooked, first_block, every=EVERY))
    yield Peer("diffusers TaylorSeer, default", partial(hooked, taylorseer))
    yield Peer("diffusers TaylorSeer, attn1 and ff", partial(hooked, partial(taylorseer, names=named)))
    yield Peer("diffusers MagCache", partial(hooked, partial(magcache, case.steps)))
    yield Peer("cache-dit DBCache", dbcache)
    yield from our_peers(case, "branch", "update", "output")
    yield from compiled_whole("default", "max-autotune")
    yield Peer("eager, again", plain)  # tells whether the machine was the same all along


def sdxl_peers(case: Case) -> Iterator[Peer]:
    yield Peer("eager", plain)
    yield Peer("DeepCache", deepcache)
    yield from our_peers(case, "branch", "output")
    yield from compiled_whole("default")  # max-autotune takes longer than all the rest
    yield Peer("eager, again", plain)  # tells whether the machine was the same all along


# Networks


def random_module(config: Mapping[str, Any], device: torch.device, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    with device:
        return build(config).to(dtype).eval().requires_grad_(False)


def dit(device: torch.device, dtype: torch.dtype, tiny: bool) -> Case:
    small = {"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 8} if tiny else {}
    module = random_module({"_class_name": DIT, **XL_2, **small}, device, dtype)
    images, steps = 1 if tiny else 16, 40
    batch, size = 2 * images, XL_2["sample_size"]
    x = torch.randn(VARIANTS, batch, XL_2["in_channels"], size, size, device=device).to(dtype)
    t = torch.arange(steps, 0, -1, device=device)[:, None].expand(steps, batch).contiguous()
    y = torch.randint(1000, (batch,), device=device)

    def inputs(step: int) -> Inputs:
        return (x[step % VARIANTS],), {"timestep": t[step], "class_labels": y}

    return Case(
        "tiny DiT" if tiny else "DiT-XL/2", f"{images} with guidance, {steps} steps", module, steps, inputs, device
    )


def sdxl(device: torch.device, dtype: torch.dtype, tiny: bool) -> Case:
    config = {**SDXL_BASE, **(TINY["sdxl"] if tiny else {})}
    module = random_module(config, device, dtype).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batch, steps, size = 2, 20, config["sample_size"]

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device).to(dtype)

    x = [noise(batch, 4, size, size).contiguous(memory_format=torch.channels_last) for _ in range(VARIANTS)]
    t = torch.arange(steps, 0, -1, device=device) * (1000 // steps) - 1
    text = noise(batch, TEXT_TOKENS, config["cross_attention_dim"])
    added = {"text_embeds": noise(batch, 1280), "time_ids": torch.ones(batch, 6, device=device, dtype=dtype)}

    def inputs(step: int) -> Inputs:
        return (x[step % VARIANTS], t[step], text), {"added_cond_kwargs": added}

    setting = f"1 with guidance, {8 * size}x{8 * size}, {steps} steps"
    return Case("tiny UNet" if tiny else "SDXL UNet", setting, module, steps, inputs, device)


NETWORKS = {"dit": (dit, dit_peers), "sdxl": (sdxl, sdxl_peers)}


# Measuring


@torch.inference_mode()
def measure(peer: Peer, case: Case, repeats: int) -> Row:
    row = Row(peer.name, case.network, case.setting)
    module = copy.deepcopy(case.module)
    with ExitStack() as stack:
        try:
            run = peer.attach(module, case, stack)
            row.hooks_attached = sum("forward" in vars(part) for part in module.modules())
            run.generate(case)
            times = sorted(seconds_of(lambda: run.generate(case), case.device) for _ in range(repeats))
            share = computed_share(run, case, module) if peer.share is None else peer.share
        except Exception as error:  # a peer may fail in any way; the others are to be measured nonetheless
            row.why = reason(error)
            return row
        median = statistics.median(times)
        row.ms_per_generation, row.ms_per_evaluation = 1e3 * median, 1e3 * median / case.steps
        row.spread, row.computed_share = (times[-1] - times[0]) / median, share
        if case.device.type == "cuda":
            row.why = not_capturable(run, case)
            row.capturable = not row.why
    return row


def computed_share(run: Run, case: Case, module: nn.Module) -> float:
    branches = [part for name, part in module.named_modules() if BRANCHES.search(name)]
    calls: list[nn.Module] = []
    handles = [part.register_forward_pre_hook(lambda part, args: calls.append(part)) for part in branches]
    run.generate(case)
    for handle in handles:
        handle.remove()
    return len(calls) / (len(branches) * case.steps)


def not_capturable(run: Run, case: Case) -> str:
    """Why an evaluation that reuses, the second of a generation, cannot be recorded in a CUDA graph; "" if it can."""
    if run.graphs is not None:
        return "" if run.graphs() > 0 else "no graph was recorded"
    stream = torch.cuda.Stream(case.device)
    stream.wait_stream(torch.cuda.current_stream(case.device))

    def reach() -> None:
        run.start()
        run.evaluate(case, 0)

    try:
        with torch.cuda.stream(stream):
            reach()
            # What waits for the device cannot be recorded. Asking first spares the process most failed recordings,
            # which can leave generators and the allocator in disorder.
            torch.cuda.set_sync_debug_mode("error")
            try:
                run.evaluate(case, 1)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            reach()
        torch.cuda.synchronize(case.device)
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
            run.evaluate(case, 1)
    except Exception as error:  # one that ends a recording may come on top of what spoiled it
        return reason(error.__context__ if isinstance(error.__context__, Exception) else error)
    return ""


def reason(error: Exception) -> str:
    """The first line of an error, and where it was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]} ({frame.name} in {Path(frame.filename).name})"


def main(
    out: Annotated[Path, typer.Option(help="The file to write, and to go on from.")] = RESULTS,
    packages: Annotated[Path | None, typer.Option(help="Directory with the packages cache_dit and DeepCache.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Networks: dit, sdxl.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Generations timed; the median counts.")] = 3,
    compile: Annotated[bool, typer.Option(help="Whether to make the compiled rows.")] = True,
    tiny: Annotated[bool, typer.Option(help="Small networks: to try the script, not to measure.")] = False,
    draw_only: Annotated[bool, typer.Option("--draw-only", help="Measure nothing; draw what the file holds.")] = False,
    device: Annotated[str, typer.Option(help="Where to run.")] = "cuda" if torch.cuda.is_available() else "cpu",
) -> None:
    """Time our executor beside its peers on diffusers' DiT and SDXL UNet."""
    if draw_only:
        write_text(out.with_suffix(".md"), peers_tables(read_json(out, "peers")))
        return
    if packages is not None:
        use_packages(packages)
    where = torch.device(device)
    dtype = torch.bfloat16 if where.type == "cuda" else torch.float32
    others = {name: version(name) for name in ("cache-dit", "DeepCache") if find_spec(name.replace("-", "_"))}
    origin = provenance(device, seed=0, peers=others)
    known: dict[str, Any] = {"provenance": {}, "enable_cache": {}, "rows": []}
    if out.exists():
        known = read_json(out, "peers")
    for name, (make, peers_of) in NETWORKS.items():
        if only and name not in only:
            continue
        case = make(where, dtype, tiny)
        known["enable_cache"][type(case.module).__name__] = hasattr(case.module, "enable_cache")
        known["provenance"][case.network] = origin
        known["rows"] = [row for row in known["rows"] if row["network"] != case.network]
        base: float | None = None
        for peer in peers_of(case):
            if peer.compiles and not compile:
                continue
            row = measure(peer, case, repeats)
            base = base or row.ms_per_evaluation  # eager is the first
            if base and row.ms_per_evaluation:
                row.speedup_over_eager = base / row.ms_per_evaluation
            values = asdict(row).items()
            known["rows"].append({key: round(v, 6) if isinstance(v, float) else v for key, v in values})
            write_json(out, known)
            write_text(out.with_suffix(".md"), peers_tables(known))
            print(line(row), flush=True)
            torch._dynamo.reset()
            gc.collect()
            if where.type == "cuda":
                torch.cuda.empty_cache()


def line(row: Row) -> str:
    start = f"{row.network}  {row.peer:40}"
    if row.ms_per_evaluation is None or row.computed_share is None:
        return f"{start} does not run: {row.why}"
    captures = {None: "", True: "  capturable", False: f"  not capturable: {row.why}"}[row.capturable]
    speed = f"{row.ms_per_evaluation:8.3f} ms  x{row.speedup_over_eager or 1:.2f}"
    return f"{start} {speed}  {row.computed_share:6.1%} computed  {row.hooks_attached} hooks{captures}"


if __name__ == "__main__":
    typer.run(main)
