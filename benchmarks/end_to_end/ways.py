"""What is done to a pipeline before it draws: nothing, torch.compile, Tenuto, or one of its peers.

A peer is made to evaluate the network as often as Tenuto does: by its own settings, and where these allow it at the
very steps where Tenuto evaluates. So time and memory are compared, not the peers' rules for when to evaluate.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import hooks
from diffusers.hooks.hooks import CacheContext, HookRegistry, _set_cache_context
from torch import nn

import tenuto
from benchmarks.end_to_end.building import Built
from benchmarks.end_to_end.recording import Recorder
from tenuto.runtime.executor import Mode

FAR = 1e9  # a threshold that nothing exceeds


@dataclass(frozen=True)
class Plan:
    """One generation: its steps, and at which of them the network is to be evaluated."""

    steps: int
    at: tuple[int, ...]
    tiny: bool = False

    @property
    def evaluations(self) -> int:
        return len(self.at)


Attach = Callable[[Built, Plan, Recorder], AbstractContextManager[None]]


@dataclass(frozen=True)
class Way:
    name: str
    attach: Attach
    share: float = 1.0  # of the steps that evaluate the network
    kind: str = "tenuto"  # or base (everything is computed), or peer
    compiled: bool = False
    note: str = ""  # what the reader of its row must know
    turn: int = 0  # of TURNS; rows of turn 0 are measured for all pipelines before those of turn 1 are

    def evaluations(self, steps: int) -> int:
        return max(1, math.ceil(self.share * steps - 0.5))


@contextmanager
def untouched(built: Built, plan: Plan, recorder: Recorder) -> Iterator[None]:
    yield


@contextmanager
def compiled(built: Built, plan: Plan, recorder: Recorder) -> Iterator[None]:
    """The repeated blocks, each kind once. They stay compiled: compiled ways are the last ones of a pipeline."""
    if not getattr(built, "_compiled", False):
        blocks = getattr(built.denoiser, "_repeated_blocks", None) or ["JointTransformerBlock"]
        for part in [part for part in built.denoiser.modules() if type(part).__name__ in blocks]:
            part.compile(dynamic=False, backend="eager" if plan.tiny else "inductor")
        vars(built)["_compiled"] = True
    yield


def with_tenuto(mode: Mode = "auto", on_compiled: bool = False) -> Attach:
    @contextmanager
    def attach(built: Built, plan: Plan, recorder: Recorder) -> Iterator[None]:
        before = compiled if on_compiled else untouched
        ours: dict[str, Any] = {"evaluations": plan.evaluations, "mode": mode}
        with before(built, plan, recorder), tenuto.accelerated(built.pipe, **ours):
            yield
            recorder.graphs = tenuto.summary(built.pipe).graphs

    return attach


# diffusers' caches


@contextmanager
def restored(network: nn.Module) -> Iterator[None]:
    """Afterwards no module of the network has a forward or hooks that it did not have before.

    What peers leave behind would make torch.compile take equal blocks for different ones.
    """
    names = ("forward", "_diffusers_hook")
    before = {part: {name: vars(part)[name] for name in names if name in vars(part)} for part in network.modules()}
    try:
        yield
    finally:
        for part, had in before.items():
            for name in names:
                vars(part).pop(name, None)
            vars(part).update(had)


@contextmanager
def cached(built: Built, config: Any, apply: Callable[..., None], recorder: Recorder) -> Iterator[None]:
    """Networks without `enable_cache` are served, too: what it would do is done here."""
    network, ready = built.denoiser, hasattr(built.denoiser, "enable_cache")
    with restored(network):
        registry = HookRegistry.check_if_exists_or_initialize(network)

        def ahead(*_: Any) -> None:
            if recorder.step == 0:
                registry.reset_stateful_hooks()
            _set_cache_context(network, CacheContext("all"))

        handle = None if ready else network.register_forward_pre_hook(ahead)
        try:
            if ready:
                network.enable_cache(config)
            else:
                apply(network, config)
                registry.invalidate_child_registries_cache()
            if not any(one.hooks for one in registries(network)):
                raise ValueError(f"it finds nothing to hook in a {type(network).__name__}")
            yield
        finally:
            if ready and network.is_cache_enabled:
                network.disable_cache()
            if handle is not None:
                handle.remove()


def registries(network: nn.Module) -> list[HookRegistry]:
    found = [getattr(part, "_diffusers_hook", None) for part in network.modules()]
    return [one for one in found if one is not None]


@contextmanager
def first_block(built: Built, plan: Plan, recorder: Recorder) -> Iterator[None]:
    """The first block is computed at every step. Its threshold is lowered at the steps that are to be computed."""
    with cached(built, hooks.FirstBlockCacheConfig(threshold=FAR), hooks.apply_first_block_cache, recorder):
        found = [one.get_hook("fbc_leader_block_hook") for one in registries(built.denoiser)]
        leaders = [hook for hook in found if hook is not None]

        def decide(*_: Any) -> None:
            for leader in leaders:
                leader.threshold = -1.0 if recorder.step in plan.at else FAR

        handle = built.denoiser.register_forward_pre_hook(decide)
        try:
            yield
        finally:
            handle.remove()


@contextmanager
def magcache(built: Built, plan: Plan, recorder: Recorder) -> Iterator[None]:
    """It computes a step whose magnitude ratio is far from one, so the ratios say which steps are computed."""
    ratios = torch.ones(plan.steps)
    ratios[list(plan.at)] = 10.0
    settings: dict[str, Any] = {"max_skip_steps": plan.steps, "retention_ratio": 0.0, "mag_ratios": ratios}
    config = hooks.MagCacheConfig(**settings, num_inference_steps=plan.steps)
    with cached(built, config, hooks.apply_mag_cache, recorder):
        yield


def taylorseer(lite: bool) -> Attach:
    """lite: it holds the last projection's output and skips the blocks; otherwise it holds the attentions only."""

    @contextmanager
    def attach(built: Built, plan: Plan, recorder: Recorder) -> Iterator[None]:
        interval, before = intervals(plan.steps, plan.evaluations)
        settings: dict[str, Any] = {"cache_interval": interval, "disable_cache_before_step": before}
        config = hooks.TaylorSeerCacheConfig(**settings, max_order=1, use_lite_mode=lite)
        with cached(built, config, hooks.apply_taylorseer_cache, recorder):
            yield

    return attach


def intervals(steps: int, evaluations: int) -> tuple[int, int]:
    """TaylorSeer's interval, and its number of steps computed at the beginning, for this number of evaluations."""
    for before in range(1, steps + 1):
        for interval in range(2, steps + 1):
            computed = [step < before or (step - before - 1) % interval == 0 for step in range(steps)]
            if sum(computed) == evaluations:
                return interval, before
    raise ValueError(f"TaylorSeer has no settings for {evaluations} evaluations of {steps} steps")


# cache-dit


def dbcache(predicting: bool) -> Attach:
    """predicting: with its TaylorSeer of first order."""

    @contextmanager
    def attach(built: Built, plan: Plan, recorder: Recorder) -> Iterator[None]:
        import cache_dit  # type: ignore[import-not-found,import-untyped,unused-ignore]

        config = cache_dit.DBCacheConfig(
            Fn_compute_blocks=1,
            Bn_compute_blocks=0,
            residual_diff_threshold=FAR,
            max_warmup_steps=1,
            num_inference_steps=plan.steps,
            steps_computation_mask=[int(step in plan.at) for step in range(plan.steps)],
            steps_computation_policy="static",
        )
        predictor = cache_dit.TaylorSeerCalibratorConfig(taylorseer_order=1) if predicting else None
        with restored(built.denoiser):
            cache_dit.enable_cache(built.pipe, cache_config=config, calibrator_config=predictor)
            try:
                yield
            finally:
                cache_dit.disable_cache(built.pipe)

    return attach


# DeepCache


@contextmanager
def deepcache(built: Built, plan: Plan, recorder: Recorder) -> Iterator[None]:
    """Its own code with the branch that holds most. Its interval is one at the steps that are to be computed."""
    from DeepCache import DeepCacheSDHelper  # type: ignore[import-not-found,import-untyped,unused-ignore]

    if not hasattr(built.pipe, "unet"):
        raise ValueError("it serves UNets only")
    helper = DeepCacheSDHelper(pipe=built.pipe)
    helper.set_params(cache_interval=1, cache_branch_id=0)

    def decide(*_: Any) -> None:
        helper.params["cache_interval"] = 1 if recorder.step in plan.at else int(FAR)

    handle = built.denoiser.register_forward_pre_hook(decide)
    with restored(built.denoiser):
        helper.enable()
        try:
            yield
        finally:
            helper.disable()
            handle.remove()


TURNS = 3
SHARES = (0.25, 0.34, 0.15)  # the one that peers are compared with first
BASE = Way("untouched", untouched, kind="base")
COMPILED = Way("compiled", compiled, kind="base", compiled=True, turn=1)
ATTENTION_ONLY = "at a held step only the attentions are left out"
SPARED = "at a held step the first block is computed"
OUTERMOST = "at a held step the outermost layers are computed"
PEERS: Sequence[tuple[str, Attach, str]] = (
    ("diffusers MagCache", magcache, ""),
    ("diffusers TaylorSeer, lite", taylorseer(lite=True), ""),
    ("diffusers FirstBlockCache", first_block, SPARED),
    ("cache-dit DBCache", dbcache(predicting=False), SPARED),
    ("cache-dit DBCache, TaylorSeer", dbcache(predicting=True), SPARED),
    ("DeepCache", deepcache, OUTERMOST),
    ("diffusers TaylorSeer", taylorseer(lite=False), ATTENTION_ONLY),
)


def ways(peers: Sequence[float], with_compiled: bool) -> list[Way]:
    """In the order in which they are measured. peers: the shares at which the peers are measured, too.

    Graphs come late, because recording one leaves memory behind that would count in the rows after it. Compiled ways
    are the last ones, because what was compiled stays compiled.
    """
    found = [BASE, *(Way(f"Tenuto {share:.0%}", with_tenuto(), share) for share in SHARES)]
    for share in peers:
        for name, attach, note in PEERS:
            turn = 2 if note == ATTENTION_ONLY else 0
            found.append(Way(f"{name} {share:.0%}", attach, share, "peer", note=note, turn=turn))
    if peers:
        found += [
            Way("untouched, again", untouched, kind="base", turn=2),  # was the machine the same all along?
            Way("Tenuto 25%, with graphs", with_tenuto("jagged"), 0.25, turn=1),
        ]
    if with_compiled:
        ours = with_tenuto(on_compiled=True)
        found += [COMPILED, *(Way(f"Tenuto {one:.0%}, compiled", ours, one, compiled=True, turn=1) for one in SHARES)]
    return found
