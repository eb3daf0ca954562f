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
from tenuto.models.architecture import NoiseLevels
from tenuto.runtime.compilation import computed
from tenuto.runtime.residual import Branch, plain
from tenuto.scoring.scores import Scores
from tenuto_lab.probing.sensitivity import Correlation, spearman
from tenuto_lab.probing.trajectory import Network, RecordedEvaluation, Sample, Trajectory, record

WINDOW = 0.6  # share of the steps before the window: of 100 steps, the window is 61 to 100
EVERY = 5  # steps between the probe's refreshes
TINY = 1e-8

Conditioning = Callable[..., Tensor]  # the network's inputs -> c_s, [row, …]


@dataclass(frozen=True, eq=False)
class Audit:
    units: tuple[str, ...]
    score: NDArray[np.float64]  # Λ̂
    q: NDArray[np.float64]  # [unit]
    amplification: NDArray[np.float64]  # [unit]: P̂, mean over steps and trajectories
    drift: NDArray[np.float64]  # [unit]: D̂, mean over steps and trajectories
    moments: NDArray[np.float64]  # [unit, 5]: of ages a and drifts d = D̂ · a: n, Σ a², Σ a d, Σ d, Σ d²
    drift_r2_each: NDArray[np.float64]  # [unit, trajectory]: the same, a line for each trajectory
    window: tuple[int, int]  # first and last step, counted from 1
    trajectories: int

    @property
    def b(self) -> NDArray[np.float64]:
        """B^emp: the score times Q, the factor it leaves out. ranked_lifetimes.lifetimes_by can order units by B."""
        return self.score * self.q

    @property
    def score_and_b(self) -> Correlation:
        """The correlation of the score and B. Some correlation is certain, because the score is a factor of B."""
        return spearman(self.score, self.b)

    @property
    def score_and_q(self) -> Correlation:
        return spearman(self.score, self.q)

    @property
    def cv(self) -> float:
        """The coefficient of variation of Q over the units."""
        return float(self.q.std() / self.q.mean())

    @property
    def drift_r2(self) -> NDArray[np.float64]:
        """[unit]: R² of the fit drift = D · age, one line through the origin for all trajectories together."""
        n, aa, ad, d, dd = self.moments.T
        spread = dd - d**2 / n
        found: NDArray[np.float64] = 1 - (dd - ad**2 / aa) / np.where(spread > 0, spread, np.nan)
        return found

    @property
    def median_drift_r2(self) -> float:
        return float(np.median(self.drift_r2))

    @property
    def median_drift_r2_each(self) -> float:
        return float(np.nanmedian(self.drift_r2_each))


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
        moments=np.array([_moments(ages, row) for row in drift * ages]),
        drift_r2_each=np.concatenate(
            [_lines(measured, batch) for batch in sorted({one.batch for one in measured})], axis=1
        ),
        window=window,
        trajectories=rows,
    )


def joined(parts: Sequence[Audit]) -> Audit:
    """The audit of several sets of trajectories of one model as one audit."""
    shares = np.array([part.trajectories for part in parts]) / sum(part.trajectories for part in parts)
    means = {
        name: np.einsum("p,pu->u", shares, np.stack([getattr(part, name) for part in parts]))
        for name in ("q", "amplification", "drift")
    }
    return replace(
        parts[0],
        **means,
        moments=np.sum([part.moments for part in parts], axis=0),
        drift_r2_each=np.concatenate([part.drift_r2_each for part in parts], axis=1),
        trajectories=sum(part.trajectories for part in parts),
    )


ARRAYS = ("score", "q", "amplification", "drift", "moments", "drift_r2_each")


def to_json(found: Audit) -> dict[str, Any]:
    """An audit as plain numbers, for a journal; NaN becomes null."""
    arrays = {name: getattr(found, name) for name in ARRAYS}
    numbers = {name: _without_nan(one.tolist()) for name, one in arrays.items()}
    return {"units": list(found.units), "window": list(found.window), "trajectories": found.trajectories, **numbers}


def _without_nan(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nan(one) for one in value]
    return None if np.isnan(value) else value


def from_json(noted: Mapping[str, Any]) -> Audit:
    arrays = {name: np.array(noted[name], dtype=np.float64) for name in ARRAYS}
    first, last = noted["window"]
    return Audit(tuple(noted["units"]), window=(first, last), trajectories=noted["trajectories"], **arrays)


def _moments(ages: NDArray[Any], drifts: NDArray[np.float64]) -> list[float]:
    return [len(ages), *(float(one) for one in (ages @ ages, ages @ drifts, drifts.sum(), drifts @ drifts))]


def _lines(measured: Sequence[_AuditedStep], batch: int) -> NDArray[np.float64]:
    """[unit, row]: R² of one line for each trajectory of a batch."""
    some = [one for one in measured if one.batch == batch]
    ages = np.array([one.age for one in some])
    drifts = np.stack([one.drift * one.age for one in some], axis=-1)  # [unit, row, step]
    return np.array([[line_r2(ages, row) for row in rows] for rows in drifts])


def line_r2(ages: NDArray[Any], drifts: NDArray[np.float64]) -> float:
    """R² of a line through the origin; negative if the line fits worse than the mean of the drifts."""
    slope = float(ages @ drifts) / float(ages @ ages)
    spread = float(((drifts - drifts.mean()) ** 2).sum())
    return 1 - float(((drifts - slope * ages) ** 2).sum()) / spread if spread else float("nan")


class _Probe:
    """One recorded batch of trajectories, with the inputs and updates of all units at the last refresh."""

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
        with branch_inputs(self._network, self._names, seen.inputs):
            evaluation.again(self._network, seen)
        if self._conditioning is not None:
            seen.condition = self._conditioning(*evaluation.inputs, **evaluation.named)
        return seen

    def _state(self, evaluation: RecordedEvaluation) -> Tensor:
        """z_s. If z_s is tokens, their embedding: the stream that enters the first unit."""
        state = evaluation.state
        return state if state.is_floating_point() else self._seen(evaluation).inputs[self._names[0]]


class _Noting:
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


def _norms(x: Tensor) -> Tensor:
    """The norm of each row, in float64."""
    return torch.linalg.vector_norm(x.double().flatten(1), dim=1)


# ------------------------------------------------------------------------------------------ what a model itself says


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
    """c_s: the timestep's embedding, if the network's blocks receive it. None if the stream carries all conditioning.

    Class and caption are left out: they do not change along a trajectory, so they do not drift.
    """
    network: Any = model.network
    if model.architecture.name == "dit":
        return lambda x, t, *others, **named: network.t_embedder(t)
    if model.architecture.name == "unet":
        unet = network.denoiser
        return lambda x, t, *others, **named: unet.time_embedding(unet.time_proj(t).to(x.dtype))
    if model.architecture.name in ("llada", "uvit"):  # llada has no timestep; uvit's is a token of the stream
        return None
    raise UsageError(f"How {model.architecture.name} is told the timestep is not known here; give `conditioning`.")
