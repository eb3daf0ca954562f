"""A diffusers denoiser at the seam.

    attachment = attach(pipe.unet)
    with attachment.using(residual):
        pipe.unet(…)
    attachment.detach()

Only instances change. Each block gets its own `forward`, which computes what its class computes but sends every
residual addition through the seam. `detach` removes this `forward`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch
from diffusers import Transformer2DModel
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.resnet import ResnetBlock2D
from torch import Tensor, nn

from tenuto.errors import TenutoError, UsageError
from tenuto.models.architecture import ConfigError
from tenuto.models.diffusers.private_diffusers import FORWARD_BEHIND_HOOK
from tenuto.runtime.residual import Branch, Residual, SeamForward, plain
from tenuto.scheduling.units import Unit
from tenuto_lab.seam import transformer_blocks
from tenuto_lab.seam.blocks import DENOISERS, sites_of, unknown_units
from tenuto_lab.seam.sites import Forward, Site

KNOWN_BLOCKS = (BasicTransformerBlock, ResnetBlock2D, Transformer2DModel, *transformer_blocks.BLOCKS)


class Borrowed(SeamForward):
    """A forward at the seam that stays with its block: a copy of the block has the forward of its class."""

    method = "forward"

    def __reduce__(self) -> Any:
        return getattr, (self.args[0], self.method)


class Attachment:
    """A denoiser at the seam, from `attach` to `detach`; outside `using`, it runs as it did before."""

    def __init__(self, module: nn.Module, sites: tuple[Site, ...], copied: bool) -> None:
        self.module = module
        self.units = tuple(unit for site in sites for unit in site.units)
        self._residuals: dict[int, Residual] = {}  # by thread: two threads may use different residuals at once
        kind = SeamForward if copied else Borrowed
        # Partials, not closures, so that a copy of an attached module runs its own blocks, not the original's.
        self._forwards = [(site, kind(site.forward, site.block, site.name, self._seam)) for site in sites]
        for site, forward in self._forwards:
            vars(forward)["method"] = site.method
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
        """call(…), while the module's residual additions go through `residual`."""
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


def attach(module: nn.Module, copied: bool = False) -> Attachment:
    """Bring a denoiser's blocks to the seam; this changes nothing that the denoiser computes.

    copied: whether copies of the module, and what is unpickled of it, are at the seam as well
    """
    sites = sites_of(module)
    for site in sites:
        if _slot(site) in vars(site.block) and not _of_its_class(site):
            raise UsageError(
                f"The {site.method} of {site.path} is replaced already, by an earlier attach or by another library's "
                "hook. Detach that first."
            )
        if type(site.block).forward not in [block.forward for block in KNOWN_BLOCKS]:
            raise TenutoError(
                f"{site.path} is a {type(site.block).__name__} with a forward of its own, not diffusers' block."
            )
    return Attachment(module, sites, copied)


def _slot(site: Site) -> str:
    """The attribute with the block's real forward: behind accelerate's hook if the block has one."""
    behind = site.method == "forward" and FORWARD_BEHIND_HOOK in vars(site.block)
    return FORWARD_BEHIND_HOOK if behind else site.method


def _of_its_class(site: Site) -> bool:
    """Whether nothing replaces the block's forward, except perhaps accelerate's hook."""
    found = vars(site.block)[_slot(site)]
    return getattr(found, "__func__", None) is getattr(type(site.block), site.method)


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
        kind = "DiTTransformer2DModel"  # the first published DiT pipelines use the other name
    kinds: dict[str, Any] = {denoiser.__name__: denoiser for denoiser in DENOISERS}
    if kind not in kinds:
        raise TenutoError(unknown_units(kind))
    try:
        network: nn.Module = kinds[kind].from_config(dict(config))
        return network
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, RuntimeError) as error:
        raise ConfigError(f"diffusers can make no {kind} of it ({error})") from error


def units_in(denoiser: nn.Module) -> tuple[Unit, ...]:
    """The units of a live denoiser, in the order they run."""
    return tuple(unit for site in sites_of(denoiser) for unit in site.units)
