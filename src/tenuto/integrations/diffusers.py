"""diffusers' denoisers, brought to the seam: UNets of the Stable Diffusion and SDXL kind, and DiT.

    attachment = attach(pipe.unet)
    with attachment.using(residual):
        pipe.unet(…)
    attachment.detach()

    with scheduled(pipe, schedule):       # the same, driven by a schedule: each call of the denoiser is one step
        pipe("a red car", num_inference_steps=schedule.steps)

Only instances are touched: a block gets a `forward` of its own that does what its class does, with each residual
addition going through the seam, and loses it again on `detach`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import update_wrapper
from threading import get_ident
from typing import Any

import torch
from diffusers import DiffusionPipeline, Transformer2DModel
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.resnet import ResnetBlock2D
from torch import Tensor, nn

from tenuto.checkpoint import fingerprint_of
from tenuto.errors import ScheduleError, TenutoError, UsageError
from tenuto.executor import Executor, Mode
from tenuto.integrations import transformer_blocks
from tenuto.integrations.blocks import DENOISERS, sites_of
from tenuto.integrations.live_weights import LiveTensors
from tenuto.integrations.sites import Forward, Site
from tenuto.models.architecture import ConfigError
from tenuto.residual import Branch, Residual, SeamForward, plain
from tenuto.samplers.course import Course, course_of
from tenuto.schedules import Schedule
from tenuto.units import Unit

COMPILED = "_compiled_call_impl"  # where torch keeps a module's compiled call, and calls it
KNOWN_BLOCKS = (BasicTransformerBlock, ResnetBlock2D, Transformer2DModel, *transformer_blocks.BLOCKS)


class Attachment:
    """A denoiser at the seam, from `attach` to `detach`; it runs as ever unless told to use another residual."""

    def __init__(self, module: nn.Module, sites: tuple[Site, ...]) -> None:
        self.module = module
        self.units = tuple(unit for site in sites for unit in site.units)
        self._residuals: dict[int, Residual] = {}  # by thread: two may run the module at once, each its own way
        # Partials rather than closures: a copy of an attached module then runs its own blocks, not the original's.
        self._forwards = [(site, SeamForward(site.forward, site.block, site.name, self._seam)) for site in sites]
        for site, forward in self._forwards:
            vars(site.block)[_slot(site)] = forward

    def _seam(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        return self._residuals.get(get_ident(), plain)(unit, h, branch, gate)

    @contextmanager
    def using(self, residual: Residual) -> Iterator[None]:
        """Within the block, residual additions of the module go through `residual`."""
        if not self._forwards:
            raise UsageError(f"This {type(self.module).__name__} was detached; attach it again to use a residual.")
        me = get_ident()
        before = self._residuals.get(me)
        self._residuals[me] = residual
        try:
            yield
        finally:
            if before is None:
                del self._residuals[me]
            else:
                self._residuals[me] = before

    def run(self, call: Forward, residual: Residual, *args: Any, **kwargs: Any) -> Any:
        """call(…), the module's residual additions going through `residual`."""
        with self.using(residual):
            return call(*args, **kwargs)

    def detach(self) -> None:
        """Leave the module as it was found."""
        if not self._forwards:
            raise UsageError(f"This {type(self.module).__name__} was detached before.")
        for site, forward in self._forwards:
            if vars(site.block).get(_slot(site)) is not forward:
                raise UsageError(
                    f"The {site.method} of {site.path} was replaced after it was attached, and cannot be restored "
                    "before that replacement is taken away."
                )
        for site, _ in self._forwards:
            if (slot := _slot(site)) == site.method:
                del vars(site.block)[slot]
            else:
                vars(site.block)[slot] = getattr(type(site.block), site.method).__get__(site.block)
        self._forwards = []


def attach(module: nn.Module) -> Attachment:
    """Bring a denoiser's blocks to the seam; nothing it computes changes by that."""
    sites = sites_of(module)
    for site in sites:
        if _slot(site) in vars(site.block) and not _hooked(site):
            raise UsageError(
                f"The {site.method} of {site.path} is replaced already, by an earlier attach or by another library's "
                "hook. Detach that first."
            )
        if type(site.block).forward not in [block.forward for block in KNOWN_BLOCKS]:
            raise TenutoError(
                f"{site.path} is a {type(site.block).__name__} with a forward of its own, not diffusers' block."
            )
    return Attachment(module, sites)


def _slot(site: Site) -> str:
    """Where a block keeps the forward that runs: behind accelerate's hook, where it has one."""
    behind = site.method == "forward" and "_old_forward" in vars(site.block)
    return "_old_forward" if behind else site.method


def _hooked(site: Site) -> bool:
    """Whether all that replaces the block's forward is accelerate's hook."""
    behind = vars(site.block).get("_old_forward")
    return site.method == "forward" and getattr(behind, "__func__", None) is type(site.block).forward


def units_of(config: Mapping[str, Any]) -> tuple[Unit, ...]:
    """The units of the denoiser that a diffusers config describes, in the order they run; no weights are needed.

    Costs are for the config's own sample size and, in cross-attention, for 77 text tokens.
    """
    with torch.device("meta"):
        return tuple(unit for site in sites_of(build(config)) for unit in site.units)


def build(config: Mapping[str, Any]) -> nn.Module:
    """The denoiser that a diffusers config describes, on the current default device."""
    kind = config.get("_class_name", "UNet2DConditionModel")
    if kind == "Transformer2DModel" and config.get("norm_type") == "ada_norm_zero":
        kind = "DiTTransformer2DModel"  # how the first published DiT pipelines call it
    kinds: dict[str, Any] = {denoiser.__name__: denoiser for denoiser in DENOISERS}
    if kind not in kinds:
        raise TenutoError(f"A {kind} cannot be brought to the seam; one of these can: {', '.join(kinds)}.")
    try:
        network: nn.Module = kinds[kind].from_config(dict(config))
        return network
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, RuntimeError) as error:
        raise ConfigError(f"diffusers can make no {kind} of it ({error})") from error


class Scheduled:
    """A denoiser that runs under a schedule, one step for each of its calls; made by `scheduled`."""

    def __init__(self, attachment: Attachment, schedule: Schedule, mode: Mode, compiled: bool) -> None:
        self.attachment = attachment
        self.schedule = schedule
        self.executor = Executor(self._network, schedule, mode=mode, compiled=compiled, module=attachment.module)
        self._forward: Forward
        self.start()

    def start(self, course: Course | None = None) -> None:
        """Begin a new generation, with nothing held. Pipelines do so by themselves.

        course  of the sampler (tenuto.samplers.course), where it has one
        """
        self._generation = self.executor.start(course)
        self._shape: tuple[int, ...] | None = None

    @property
    def step(self) -> int:
        """How many steps of the current generation were taken."""
        return self._generation.step

    def evaluate(self, forward: Forward, *args: Any, **kwargs: Any) -> Any:
        """One step."""
        self._check_shape(args[0] if args else kwargs.get("sample", kwargs.get("hidden_states")))
        self._forward = forward
        try:
            return self._generation(*args, **kwargs)
        except BaseException:
            if self._generation.broken:
                self.start()  # half a step was taken: nothing of this generation may reach the next
            raise

    def _network(self, *args: Any, residual: Residual, **kwargs: Any) -> Any:
        return self.attachment.run(self._forward, residual, *args, **kwargs)

    def _check_shape(self, sample: Any) -> None:
        if not isinstance(sample, Tensor):
            return
        if self._shape is not None and self.step > 0 and tuple(sample.shape) != self._shape:
            raise ScheduleError(
                f"The denoiser's input changed from {list(self._shape)} to {list(sample.shape)} in the middle of a "
                "generation, and what is held no longer fits it. Begin a new generation when shapes change."
            )
        self._shape = tuple(sample.shape)


@contextmanager
def scheduled(
    target: Any,
    schedule: Schedule,
    *,
    mode: Mode = "auto",
    compiled: bool = False,
    check_steps: bool = True,
    check_weights: bool = False,
) -> Iterator[Scheduled]:
    """Within the block, a pipeline's denoiser, or a bare denoiser, runs under a schedule.

    target         a diffusers pipeline: a generation begins whenever it sets its scheduler's timesteps; or a denoiser:
                   `start()` of what this yields begins the next generation
    mode           how it is run: auto, eager, skip, padded or jagged (see tenuto.executor)
    compiled       compile the branches, each kind once
    check_steps    refuse a scheduler with another number of timesteps than the schedule has. Turn it off for pipelines
                   that leave some of the timesteps out (image-to-image, denoising_end)
    check_weights  refuse weights other than those the schedule was made from. Off by default: it reads them all, and
                   weights rounded to a lower precision than they are stored in count as others
    """
    pipeline = target if isinstance(target, DiffusionPipeline) else None
    denoiser = denoiser_of(target)
    if is_compiled(target if pipeline is None else getattr(pipeline, names_in(pipeline)[0])):
        raise UsageError(
            f"This {type(denoiser).__name__} was compiled by torch.compile, which cannot be scheduled unit by unit. "
            "Schedule it uncompiled and with compiled=True, or use tenuto.enable, which holds its output."
        )
    attachment = attach(denoiser)
    try:
        _check_fits(schedule, attachment, check_weights)
        run = Scheduled(attachment, schedule, mode, compiled)
        with ExitStack() as stack:
            watched: list[Any] = []  # the schedulers, for a pipeline may be given another one meanwhile

            def watch() -> None:
                if pipeline is None or any(pipeline.scheduler is known for known in watched):
                    return
                scheduler = pipeline.scheduler
                watched.append(scheduler)
                run.start(course_for([schedule], scheduler, schedule.steps))

                def set_timesteps(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
                    result = original(*args, **kwargs)
                    run.start(course_for([schedule], scheduler, schedule.steps))
                    if check_steps:
                        _check_steps(schedule, len(scheduler.timesteps))
                    return result

                stack.enter_context(wrapped(scheduler, "set_timesteps", set_timesteps))

            def forward(original: Forward, *args: Any, **kwargs: Any) -> Any:
                watch()
                return run.evaluate(original, *args, **kwargs)

            watch()
            stack.callback(run.executor.release)
            stack.enter_context(through(denoiser, forward))
            yield run
    finally:
        attachment.detach()


def course_for(schedules: Iterable[Schedule | None], scheduler: Any, steps: int) -> Course | None:
    """Of so many steps: the last ones, where a pipeline leaves some out. None if no schedule has a use for it."""
    asked = any(one is not None and one.corrected and not one.active.all() for one in schedules)
    if not asked or scheduler.timesteps is None or len(scheduler.timesteps) < steps:
        return None
    return course_of(scheduler, scheduler.timesteps[-steps:])


def denoiser_of(target: Any) -> nn.Module:
    """A pipeline's denoiser, or the denoiser itself, without what torch.compile wraps it in."""
    if isinstance(target, nn.Module):
        return uncompiled(target)
    if isinstance(target, DiffusionPipeline):
        return uncompiled(getattr(target, names_in(target)[0]))
    raise UsageError(f"A model, its name or path, or a diffusers pipeline is needed, not a {type(target).__name__}.")


def names_in(pipeline: DiffusionPipeline) -> list[str]:
    """What a pipeline calls its denoisers; most have one."""
    names = [name for name in ("unet", "transformer", "transformer_2") if getattr(pipeline, name, None) is not None]
    if not names:
        raise TenutoError(f"A {type(pipeline).__name__} has neither a unet nor a transformer to schedule.")
    return names


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile has a hand in it: whole, in place, or block by block."""
    return uncompiled(module) is not module or any(_compiled_in_place(part) for part in module.modules())


def _compiled_in_place(module: nn.Module) -> bool:
    call = getattr(module, COMPILED, None)
    if isinstance(call, Replacement):
        call = call.original
    return call is not None and getattr(call, "__func__", None) is not nn.Module._call_impl


def uncompiled(module: nn.Module) -> nn.Module:
    """The module that torch.compile(module) wrapped, or the module."""
    inner = getattr(module, "_orig_mod", module)
    assert isinstance(inner, nn.Module)
    return inner


def units_in(denoiser: nn.Module) -> tuple[Unit, ...]:
    """The units of a live denoiser, in the order they run."""
    return tuple(unit for site in sites_of(denoiser) for unit in site.units)


def _check_fits(schedule: Schedule, attachment: Attachment, check_weights: bool) -> None:
    fingerprints = {schedule.fingerprint}
    if check_weights:
        keys = [key for unit in attachment.units for key in unit.tensors()]
        fingerprints = {fingerprint_of(LiveTensors(attachment.module, keys), keys)}
    name = type(attachment.module).__name__
    schedule.check_fits(
        [unit.name for unit in attachment.units],
        fingerprints,
        f"this {name}",
        remedy=f"tenuto.schedule(pipe, steps={schedule.steps})",
    )


def _check_steps(schedule: Schedule, steps: int) -> None:
    if steps != schedule.steps:
        raise ScheduleError(
            f"The schedule has {schedule.steps} steps, but the pipeline's scheduler was set to {steps} timesteps. "
            f"Generate with {schedule.steps}, or make a schedule for {steps}."
        )


class Replacement:
    """owner.name(…), as long as it is wrapper(owner.name, …). A copy of the owner gets its own method back."""

    def __init__(self, owner: Any, name: str, original: Callable[..., Any], wrapper: Callable[..., Any]) -> None:
        update_wrapper(self, original)  # diffusers asks for a method's arguments before it calls it
        self.original = original
        self._owner, self._name, self._wrapper = owner, name, wrapper

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapper(self.original, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        twin = memo.get(id(self._owner))
        return self if twin is None else getattr(type(twin), self._name).__get__(twin)


@contextmanager
def wrapped(owner: Any, name: str, wrapper: Callable[..., Any], original: Any = None) -> Iterator[None]:
    """Within the block, owner.name(…) is wrapper(owner.name, …); afterwards the instance is as it was.

    original  what is wrapped, where it is not owner.name
    """
    missing = object()
    before = vars(owner).get(name, missing)
    replacement = Replacement(owner, name, getattr(owner, name) if original is None else original, wrapper)
    vars(owner)[name] = replacement
    try:
        yield
    finally:
        if vars(owner).get(name) is replacement:  # else whoever came later has the last word
            if before is missing:
                del vars(owner)[name]
            else:
                vars(owner)[name] = before


def through(module: nn.Module, wrapper: Callable[..., Any]) -> AbstractContextManager[None]:
    """Within the block, module(…) is wrapper(module, …), whatever others do to its forward meanwhile.

    A module's call goes through what `module.compile()` set, where it did. That place is taken, and not the forward's,
    which accelerate's hooks take and give back after every generation.
    """
    return wrapped(module, COMPILED, wrapper, original=getattr(module, COMPILED) or module._call_impl)
