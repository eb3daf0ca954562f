"""A denoiser of an enabled pipeline whose inside matters: single units are held, or its branches are compiled.

The product finds this by its entry points (tenuto.laboratory). Units are listed only if single units are held. Blocks
use the seam only if units are held or compiled.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import nn

from tenuto.errors import UsageError
from tenuto.models.checkpoint import fingerprint_of
from tenuto.models.diffusers.denoisers import denoiser_of
from tenuto.pipelines.denoiser import Denoiser
from tenuto.pipelines.request import Request
from tenuto.runtime.private_torch import inner_module
from tenuto.runtime.residual import Residual
from tenuto.scheduling.schedule import Schedule
from tenuto.scheduling.units import WHOLE, Subject, Unit, Unscored
from tenuto_lab.scoring.scores import Scores, score_tensors
from tenuto_lab.seam.attachment import Attachment, attach, units_in
from tenuto_lab.seam.blocks import DENOISERS
from tenuto_lab.seam.live_tensors import LiveTensors


def known_units(target: Any) -> tuple[Unit, ...]:
    """The units of a denoiser, or of a pipeline's denoiser; none if its class is not one of those with a seam."""
    denoiser = denoiser_of(target)
    return units_in(denoiser) if has_seam(denoiser) else ()


def has_seam(denoiser: nn.Module) -> bool:
    return isinstance(inner_module(denoiser), tuple(DENOISERS))


def score_denoiser(target: Any, **options: Any) -> Scores:
    """The scores of a denoiser, or of a pipeline's denoiser, with the weights it has now."""
    denoiser = denoiser_of(target)
    name, units = type(denoiser).__name__, units_in(denoiser)
    tensors = LiveTensors(denoiser, [key for unit in units for key in unit.tensors()])
    return score_tensors(tensors, units, model=name, architecture=name, **options)


class UnitDenoiser(Denoiser):
    def __init__(
        self, outer: nn.Module, name: str, request: Request, warn: Callable[[str], None], shared: bool = False
    ) -> None:
        self.units = units_in(inner_module(outer)) if request.holds_units else ()
        self.attachment: Attachment | None = None
        super().__init__(outer, name, request, warn, shared)

    @classmethod
    def serves(cls, network: nn.Module, request: Request) -> bool:
        return has_seam(network) or not request.holds_units

    def _decide(self) -> None:
        request = self.request
        if request.given is not None:
            self._check_fits(request.given)
        if self._foreign and request.holds_units:
            raise UsageError(
                f"The {self.name} {self._foreign}, so only its output can be held, not each unit. Undo that, or leave "
                "keep and policy out."
            )
        super()._decide()

    def _subject(self) -> Subject:
        if self.request.ranked:
            return score_denoiser(self.module)
        return Unscored(self.kind, self.kind, self.units or (WHOLE,))

    def _check_fits(self, given: Schedule) -> None:
        """Refuse a schedule of another model. A schedule that names no units fits every model."""
        if given.keep == "output" and (given.units == (WHOLE.name,) or not has_seam(self.module)):
            return
        units = self.units or units_in(self.module)
        keys = [key for unit in units for key in unit.tensors()]

        def fingerprints() -> set[str]:
            if not self.request.check_weights:
                return {str(given.fingerprint)}
            return {fingerprint_of(LiveTensors(self.module, keys), keys)}

        remedy = f"tenuto.schedule(pipe, steps={given.steps})"
        given.check_fits([unit.name for unit in units], f"this {self.kind}", fingerprints, remedy)

    def enter(self, stack: ExitStack, evaluate: Callable[..., Any]) -> None:
        seam = has_seam(self.module) and self._foreign is None
        if self.request.holds_units or (seam and self.request.compiled):
            self.attachment = attach(self.module)
            stack.callback(self.attachment.detach)
        super().enter(stack, evaluate)

    def _network(self, *args: Any, residual: Residual, **kwargs: Any) -> Any:
        if self.attachment is None:
            return super()._network(*args, residual=residual, **kwargs)
        return self.attachment.run(self._call, residual, *args, **kwargs)
