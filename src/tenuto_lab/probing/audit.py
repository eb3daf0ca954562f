"""The paper's audit of what the score leaves out: how far a unit's input drifts, and how far its change is amplified.

For every unit ℓ and every step s of the window W, on full trajectories and with r(s) the last refresh of the probe:

    D̂_{ℓ,s} = ‖u_{ℓ,s} − u_{ℓ,r}‖ / ((s − r) V_max + 1e-8)        u = (h_{ℓ−1}, c), the unit's input
    δ_{ℓ,s} = F_ℓ(u_{ℓ,s}) − F_ℓ(u_{ℓ,r})
    P̂_{ℓ,s} = ‖J_G δ‖ / (‖δ‖ + 1e-8)                              G from behind the unit to the network's output
    Q_ℓ     = Σ_{s ∈ W} β_s P̂_{ℓ,s} D̂_{ℓ,s} (s − r)               B_ℓ = Λ̂_ℓ Q_ℓ

No unit is held: each is probed with all others computed, so nothing here depends on a schedule. Every row of a batch
is a trajectory of its own (with guidance, the conditional and the unconditional half are two), and Q is their mean.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from tenuto.models.architecture import NoiseLevels
from tenuto.runtime.compilation import computed
from tenuto.runtime.residual import Branch, plain
from tenuto.scoring.scores import Scores
from tenuto_lab.probing.sensitivity import Correlation, spearman
from tenuto_lab.probing.trajectory import Network, RecordedEvaluation, Sample, Trajectory, record

WINDOW = 0.6  # of the steps come before the window: it is 61 to 100 of 100
EVERY = 5  # the probe's refreshes
TINY = 1e-8

Conditioning = Callable[..., Tensor]  # of what the network is given: c_s, [row, …]


@dataclass(frozen=True, eq=False)
class Audit:
    units: tuple[str, ...]
    score: NDArray[np.float64]  # Λ̂
    q: NDArray[np.float64]  # [unit]
    amplification: NDArray[np.float64]  # [unit]: P̂, the mean over steps and trajectories
    drift: NDArray[np.float64]  # [unit]: D̂, likewise
    drift_r2: NDArray[np.float64]  # [unit]: of drift = D · age, a line through the origin
    window: tuple[int, int]  # first and last step, counted from 1
    trajectories: int

    @property
    def b(self) -> NDArray[np.float64]:
        """B^emp: the score times what it leaves out. `lifetimes_by` of ranked_lifetimes orders units by it."""
        return self.score * self.q

    @property
    def score_and_b(self) -> Correlation:
        """Partly a matter of course, because the score is a factor of B."""
        return spearman(self.score, self.b)

    @property
    def score_and_q(self) -> Correlation:
        return spearman(self.score, self.q)

    @property
    def cv(self) -> float:
        """The coefficient of variation of Q over the units."""
        return float(self.q.std() / self.q.mean())

    @property
    def median_drift_r2(self) -> float:
        return float(np.median(self.drift_r2))


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
    """Probe every unit along the full trajectories that `sample` generates with the executor it is given.

    betas         β_s of each step, as in z_{t−1} = α_t z_t − β_t ε: `ddim_betas`; by default all are one
    conditioning  c_s of what the network is given: `conditioning_of`; by default drift is that of the stream alone
    window        share of the steps that come before the window
    every         steps from one refresh of the probe to the next; the first is the window's first step
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
        for probe in probes:
            if (step - first) % every == 0:
                probe.refresh(step)
            else:
                measured.append(probe.measure(step))
        progress(step + 1)
    return _collected(names, scores, measured, beta, (first + 1, steps), sum(probe.rows for probe in probes))


@dataclass(frozen=True, eq=False)
class _AuditedStep:
    """One step of one batch."""

    step: int
    age: int  # s − r
    drift: NDArray[np.float64]  # D̂, [unit, row]
    amplification: NDArray[np.float64]  # P̂, [unit, row]


def _collected(
    names: tuple[str, ...],
    scores: Scores,
    measured: Sequence[_AuditedStep],
    beta: NDArray[np.float64],
    window: tuple[int, int],
    rows: int,
) -> Audit:
    """One row a unit."""
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
        drift_r2=np.array([line_r2(ages, row) for row in drift * ages]),
        window=window,
        trajectories=rows,
    )


def line_r2(ages: NDArray[Any], drifts: NDArray[np.float64]) -> float:
    """How much of the drifts' variance a line through the origin explains; negative if less than their mean does."""
    slope = float(ages @ drifts) / float(ages @ ages)
    spread = float(((drifts - drifts.mean()) ** 2).sum())
    return 1 - float(((drifts - slope * ages) ** 2).sum()) / spread if spread else float("nan")


class _Probe:
    """One recorded batch of trajectories: what the units were given and gave at the last refresh."""

    def __init__(
        self, network: Network, trajectory: Trajectory, names: Sequence[str], conditioning: Conditioning | None
    ) -> None:
        self._network, self._trajectory, self._names = network, trajectory, names
        self._conditioning = conditioning
        states = [self._state(one) for one in trajectory]
        moves = [_norms(now - then) for then, now in pairwise(states)]
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
            apart = _norms(now.inputs[name] - self._then.inputs[name]).square()
            if now.condition is not None and self._then.condition is not None:
                apart = apart + _norms(now.condition - self._then.condition).square()
            change = now.updates[name] - self._then.updates[name]  # δ
            drift.append(apart.sqrt() / (age * self._fastest + TINY))
            upstream = {other: now.streams[other] for other in self._names[:i]}
            reached = _norms(directional(self._network, evaluation, name, change, upstream))
            amplification.append(reached / (_norms(change) + TINY))
        return _AuditedStep(step, age, torch.stack(drift).cpu().numpy(), torch.stack(amplification).cpu().numpy())

    @torch.no_grad()
    def _seen(self, evaluation: RecordedEvaluation) -> "_Noting":
        seen = _Noting()
        evaluation.again(self._network, seen)
        if self._conditioning is not None:
            seen.condition = self._conditioning(*evaluation.inputs, **evaluation.named)
        return seen

    def _state(self, evaluation: RecordedEvaluation) -> Tensor:
        """z_s, or where that is tokens their embedding: the stream that the first unit is given."""
        state = evaluation.state
        return state if state.is_floating_point() else self._seen(evaluation).inputs[self._names[0]]


class _Noting:
    """The residual of full inference. It notes the input and the update of every unit."""

    def __init__(self) -> None:
        self.inputs: dict[str, Tensor] = {}
        self.updates: dict[str, Tensor] = {}
        self.streams: dict[str, Tensor] = {}  # behind each unit
        self.condition: Tensor | None = None

    def __call__(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        self.inputs[unit] = h
        self.streams[unit], self.updates[unit] = computed(h, branch, gate, "update")
        return self.streams[unit]


def directional(
    network: Network,
    evaluation: RecordedEvaluation,
    unit: str,
    direction: Tensor,
    upstream: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """J_G · direction: how the output changes as the stream behind a unit moves, by forward differentiation.

    upstream  the stream behind units that come before it, if it is known: they are not computed again then
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


def _norms(x: Tensor) -> Tensor:
    """Of each row, in float64."""
    return torch.linalg.vector_norm(x.double().flatten(1), dim=1)


# ------------------------------------------------------------------------------------------ what a model knows itself


def ddim_betas(noise: NoiseLevels, steps: int) -> list[float]:
    """β_s of DDIM's steps, from z' = √(ᾱ'/ᾱ) z − (√(ᾱ'/ᾱ) √(1 − ᾱ) − √(1 − ᾱ')) ε."""
    from tenuto.sampling.pictures import Sampling, make_solver

    solver = make_solver(noise, Sampling(steps=steps))
    levels = solver.alphas_cumprod.double()
    betas = []
    for t in solver.timesteps.tolist():
        before = t - noise.timesteps // steps
        now, then = levels[t], levels[before] if before >= 0 else solver.final_alpha_cumprod.double()
        betas.append(float((then / now).sqrt() * (1 - now).sqrt() - (1 - then).sqrt()))
    return betas


def conditioning_of(model: Model) -> Conditioning | None:
    """c_s of a network whose blocks are told the timestep: its embedding. None where the stream carries all there is.

    What does not change along a trajectory (class, caption) does not drift, and is left out.
    """
    network: Any = model.network
    if model.architecture.name == "dit":
        return lambda x, t, *others, **named: network.t_embedder(t)
    if model.architecture.name == "unet":
        unet = network.denoiser
        return lambda x, t, *others, **named: unet.time_embedding(unet.time_proj(t).to(x.dtype))
    if model.architecture.name in ("llada", "uvit"):  # no timestep at all, and one that is a token of the stream
        return None
    raise UsageError(f"How {model.architecture.name} is told the timestep is not known here; give `conditioning`.")
