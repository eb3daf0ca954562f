"""The paper's audit of what the score leaves out: the drift of a unit's input, and the amplification of its change.

For every unit ℓ and every step s of the window W, on full trajectories, where r(s) is the probe's last refresh:

    D̂_{ℓ,s} = ‖u_{ℓ,s} − u_{ℓ,r}‖ / ((s − r) V_max + 1e-8)        u = (h_{ℓ−1}, c), the unit's input
    δ_{ℓ,s} = F_ℓ(u_{ℓ,s}) − F_ℓ(u_{ℓ,r})
    P̂_{ℓ,s} = ‖J_G δ‖ / (‖δ‖ + 1e-8)                              G from behind the unit to the network's output
    Q_ℓ     = Σ_{s ∈ W} β_s P̂_{ℓ,s} D̂_{ℓ,s} (s − r)               B_ℓ = Λ̂_ℓ Q_ℓ

No unit is held: each is probed with all others computed, so nothing here depends on a schedule. Every row of a batch
is a trajectory of its own (with guidance, the conditional and the unconditional half are two), and Q is their mean.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.autograd.forward_ad as forward_ad
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.runtime.compilation import computed
from tenuto.runtime.residual import Branch, plain
from tenuto_lab.probing.audit_inputs import Conditioning
from tenuto_lab.probing.audit_results import Audit, line_r2, moments
from tenuto_lab.probing.trajectory import Network, RecordedEvaluation, Sample, Trajectory, record
from tenuto_lab.scoring.scores import Scores

WINDOW = 0.6  # share of the steps before the window: of 100 steps, the window is 61 to 100
EVERY = 5  # steps between the probe's refreshes
TINY = 1e-8


def audit(
    model: Model,
    scores: Scores,
    sample: Sample,
    *,
    betas: Sequence[float] | None = None,
    conditioning: Conditioning | None = None,
    window: float = WINDOW,
    every: int = EVERY,
    progress: Callable[[int], object] = lambda step: None,
) -> Audit:
    """Probe every unit along the full trajectories that `sample` generates.

    betas         β_s of each step, as in z_{t−1} = α_t z_t − β_t ε: `ddim_betas`; by default all are one
    conditioning  computes c_s from the network's inputs: `conditioning_of`; by default only the stream's drift counts
    window        share of the steps before the window
    every         steps between the probe's refreshes; the first refresh is the window's first step
    progress      called with each step of the window, counted from 1, when it is done
    """
    names = tuple(unit.name for unit in model.units)
    if names != tuple(unit.name for unit in scores.units):
        raise UsageError(f"The scores are of other units than those of {model.name}.")
    trajectories = record(model.network, sample)
    steps = len(trajectories[0])
    first = round(window * steps)
    if not 0 <= window < 1 or every < 2 or steps - first < 2:
        raise UsageError(
            f"A window of {steps - first} of {steps} steps, refreshed every {every}, leaves nothing to probe: it needs "
            "two steps and a period of two at least."
        )
    beta = np.ones(steps) if betas is None else np.asarray(betas, dtype=np.float64)
    if beta.shape != (steps,):
        raise UsageError(f"There must be a β for each of the {steps} steps, not {len(beta)}.")
    probes = [_Probe(model.network, one, names, conditioning) for one in trajectories]
    measured: list[_AuditedStep] = []
    for step in range(first, steps):
        for batch, probe in enumerate(probes):
            if (step - first) % every == 0:
                probe.refresh(step)
            else:
                measured.append(replace(probe.measure(step), batch=batch))
        progress(step + 1)
    return _collected(names, scores, measured, beta, (first + 1, steps), sum(probe.rows for probe in probes))


@dataclass(frozen=True, eq=False)
class _AuditedStep:
    """One step of one batch."""

    step: int
    age: int  # s − r
    drift: NDArray[np.float64]  # D̂, [unit, row]
    amplification: NDArray[np.float64]  # P̂, [unit, row]
    batch: int = 0


def _collected(
    names: tuple[str, ...],
    scores: Scores,
    measured: Sequence[_AuditedStep],
    beta: NDArray[np.float64],
    window: tuple[int, int],
    rows: int,
) -> Audit:
    """Joins the measurements of all steps and batches."""
    drift, amplification = (
        np.concatenate(parts, axis=1)
        for parts in ([one.drift for one in measured], [one.amplification for one in measured])
    )
    ages, factors = (
        np.concatenate([np.full(one.drift.shape[1], value) for one, value in zip(measured, values, strict=True)])
        for values in ([one.age for one in measured], [beta[one.step] for one in measured])
    )
    return Audit(
        units=names,
        score=np.array([unit.score for unit in scores.units]),
        q=(factors * amplification * drift * ages).sum(axis=1) / rows,
        amplification=amplification.mean(axis=1),
        drift=drift.mean(axis=1),
        moments=np.array([moments(ages, row) for row in drift * ages]),
        drift_r2_each=np.concatenate(
            [_lines(measured, batch) for batch in sorted({one.batch for one in measured})], axis=1
        ),
        window=window,
        trajectories=rows,
    )


def _lines(measured: Sequence[_AuditedStep], batch: int) -> NDArray[np.float64]:
    """[unit, row]: R² of one line for each trajectory of a batch."""
    some = [one for one in measured if one.batch == batch]
    ages = np.array([one.age for one in some])
    drifts = np.stack([one.drift * one.age for one in some], axis=-1)  # [unit, row, step]
    return np.array([[line_r2(ages, row) for row in rows] for rows in drifts])


class _Probe:
    """One recorded batch of trajectories, with the inputs and updates of all units at the last refresh."""

    def __init__(
        self, network: Network, trajectory: Trajectory, names: Sequence[str], conditioning: Conditioning | None
    ) -> None:
        self._network, self._trajectory, self._names = network, trajectory, names
        self._conditioning = conditioning
        states = [self._state(one) for one in trajectory]
        moves = [norms(now - then) for then, now in pairwise(states)]
        self._fastest = torch.stack(moves).amax(dim=0)  # V_max, [row]
        self.rows = len(self._fastest)

    def refresh(self, step: int) -> None:
        self._refreshed = step
        self._then = self._seen(self._trajectory[step])

    def measure(self, step: int) -> _AuditedStep:
        evaluation, age = self._trajectory[step], step - self._refreshed
        now = self._seen(evaluation)
        drift, amplification = [], []
        for i, name in enumerate(self._names):
            apart = norms(now.inputs[name] - self._then.inputs[name]).square()
            if now.condition is not None and self._then.condition is not None:
                apart = apart + norms(now.condition - self._then.condition).square()
            change = now.updates[name] - self._then.updates[name]  # δ
            drift.append(apart.sqrt() / (age * self._fastest + TINY))
            upstream = {other: now.streams[other] for other in self._names[:i]}
            reached = norms(directional(self._network, evaluation, name, change, upstream))
            amplification.append(reached / (norms(change) + TINY))
        return _AuditedStep(step, age, torch.stack(drift).cpu().numpy(), torch.stack(amplification).cpu().numpy())

    @torch.no_grad()
    def _seen(self, evaluation: RecordedEvaluation) -> "Noting":
        seen = Noting()
        with branch_inputs(self._network, self._names, seen.inputs):
            evaluation.again(self._network, seen)
        if self._conditioning is not None:
            seen.condition = self._conditioning(*evaluation.inputs, **evaluation.named)
        return seen

    def _state(self, evaluation: RecordedEvaluation) -> Tensor:
        """z_s. If z_s is tokens, their embedding: the stream that enters the first unit."""
        state = evaluation.state
        return state if state.is_floating_point() else self._seen(evaluation).inputs[self._names[0]]


class Noting:
    """The residual of full inference. It records the input and the update of every unit."""

    def __init__(self) -> None:
        self.inputs: dict[str, Tensor] = {}
        self.updates: dict[str, Tensor] = {}
        self.streams: dict[str, Tensor] = {}  # behind each unit
        self.condition: Tensor | None = None

    def __call__(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        self.inputs.setdefault(unit, h)
        self.streams[unit], self.updates[unit] = computed(h, branch, gate, "update")
        return self.streams[unit]


@contextmanager
def branch_inputs(network: Network, names: Sequence[str], found: dict[str, Tensor]) -> Iterator[None]:
    """Notes what the branch of each convolutional unit reads, where that is not the stream it is added to.

    A UNet's residual block reads its input, and adds its update to a shortcut convolution of that input.
    """
    denoiser = getattr(network, "denoiser", None)
    modules = {} if denoiser is None else dict(denoiser.named_modules())
    hooks = []
    for name in names:
        if getattr(modules.get(name), "conv_shortcut", None) is not None:

            def note(module: object, given: tuple[Any, ...], name: str = name) -> None:
                found[name] = given[0]

            hooks.append(modules[name].register_forward_pre_hook(note))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def directional(
    network: Network,
    evaluation: RecordedEvaluation,
    unit: str,
    direction: Tensor,
    upstream: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """J_G · direction: how the output changes when the stream behind a unit moves, by forward differentiation.

    upstream  known streams behind earlier units; these units are not computed again
    """
    moved, known = unit, upstream or {}

    def residual(unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        if unit in known:
            return known[unit]
        after = plain(unit, h, branch, gate)
        return forward_ad.make_dual(after, direction.to(after.dtype)) if unit == moved else after

    # Fused attention has no forward derivative.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), forward_ad.dual_level():
        output, tangent = forward_ad.unpack_dual(evaluation.again(network, residual))
        return torch.zeros_like(output) if tangent is None else tangent


def norms(x: Tensor) -> Tensor:
    """The norm of each row, in float64."""
    return torch.linalg.vector_norm(x.double().flatten(1), dim=1)
