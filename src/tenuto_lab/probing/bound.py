"""What Lemma 2 and Theorem 1 bound, and what really happens: how loose they are, and whether they order the units.

Lemma 2, of a branch behind its norm, from the spectral norms of its weights and the shape of its input (n tokens of
width d, heads of width d_h):

    L_MHA ≤ ‖W_O‖ ‖W_V‖ (A⋆ + 2 B S⋆ ‖W_Q‖ ‖W_K‖ / √d_h)       A⋆ = √n, B = √(n d), S⋆ = 1/2
    L_FFN ≤ κ ‖W_2‖ ‖W_1‖                                        κ = 1.13, the steepest slope of GELU

Theorem 1, of a unit that is frozen alone behind step r, on one trajectory:

    ‖ẑ_0 − z_0‖ ≤ C_T Σ_{s > r} β_s P̂_{ℓ,s} L_N L_ℓ ‖u_{ℓ,s} − u_{ℓ,r}‖

with the measured movement of the unit's input, the measured directional amplification P̂, and the norm's own slope
L_N = max|γ| / σ at the tokens' standard deviation (RMSNorm: root mean square), where γ is the norm's learnt scale. So
only the weight-only factor L_ℓ is a bound; all else is as it was.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto_lab.probing.audit import Noting, directional, norms
from tenuto_lab.probing.sensitivity import Correlation, freeze_errors, spearman
from tenuto_lab.probing.trajectory import Sample, Trajectory, record
from tenuto_lab.scoring.scores import Scores, UnitScore

SLOPE = 1.13  # κ: the largest derivative of GELU; SiLU's is 1.10
SOFTMAX = 0.5  # S⋆: the largest norm of softmax's Jacobian
DIRECT = ("dit", "uvit", "llada")  # families with pre-norm attention and MLP branches, which the argument covers
# The norm in front of a branch, beside its unit's module. DiT's have no scale of their own.
NORMS = {"uvit": {"attention": "norm1", "mlp": "norm2"}, "llada": {"attention": "attn_norm", "mlp": "ff_norm"}}
RMS = ("llada",)  # families whose norms divide by the root mean square


@dataclass(frozen=True, eq=False)
class Slopes:
    """Lemma 2 against the truth."""

    units: tuple[str, ...]
    lipschitz: NDArray[np.float64]  # [unit]: Lemma 2, of the branch with its norm
    measured: NDArray[np.float64]  # [unit]: the largest ‖δ_branch‖ / ‖δ_input‖ seen along the trajectories

    @property
    def lemma_looseness(self) -> float:
        """How many times as large as the measured slope Lemma 2's is, median over the units."""
        return float(np.median(self.lipschitz / self.measured))

    @property
    def too_steep(self) -> int:
        """Units whose measured slope is larger than Lemma 2's bound."""
        return int((self.measured > self.lipschitz).sum())


@dataclass(frozen=True, eq=False)
class Bound(Slopes):
    """Theorem 1 as well."""

    bounded: NDArray[np.float64]  # [unit]: Theorem 1, mean over the trajectories
    errors: NDArray[np.float64]  # [unit]: ‖ẑ_0 − z_0‖ of the unit frozen alone, mean over the trajectories

    @property
    def theorem_looseness(self) -> float:
        return float(np.median(self.bounded / self.errors))

    @property
    def broken(self) -> int:
        """Units whose true error is larger than the bound."""
        return int((self.errors > self.bounded).sum())

    @property
    def order(self) -> Correlation:
        """The rank correlation of Theorem 1's bound and the true error over the units."""
        return spearman(self.bounded, self.errors)


def bound(
    model: Model,
    scores: Scores,
    sample: Sample,
    betas: Sequence[float],
    alphas: Sequence[float],
    *,
    last: int,
) -> Bound:
    """Both bounds and the true error, of each unit frozen alone behind step `last`, counted from 1.

    betas, alphas  of each step, as in z_{t−1} = α_t z_t − β_t ε: `ddim_betas` and `ddim_alphas`
    """
    names, trajectories = _covered(model, sample, last)
    steps = len(trajectories[0])
    if len(betas) != steps or len(alphas) != steps:
        raise UsageError(f"Each of the {steps} steps has an α and a β.")
    later = [math.prod(max(1.0, alpha) for alpha in alphas[s + 1 :]) for s in range(steps)]  # C_T behind each step
    slopes, bounded, lemma = (np.zeros(len(names)) for _ in range(3))
    rows = 0
    for trajectory in trajectories:
        then = _noted(model, trajectory[last - 1])
        count = len(then.inputs[names[0]])
        sums = torch.zeros(len(names), count, dtype=torch.float64)
        for s in range(last, steps):
            now = _noted(model, trajectory[s])
            for i, name in enumerate(names):
                change, moved, steepest = _moved(now, then, name)
                slopes[i] = max(slopes[i], steepest)
                reached = norms(directional(model.network, trajectory[s], name, change, _before(now.streams, names, i)))
                amplified = reached.cpu() / (norms(change).cpu() + 1e-12)
                length = branch_bound(scores.units[i], now.inputs[name], *_norm(model, scores.units[i]))
                lemma[i] = max(lemma[i], length)
                sums[i] += later[s] * abs(betas[s]) * amplified * length * moved
        bounded += sums.sum(1).numpy()
        rows += count
    errors = _true_errors(model, names, last, sample, trajectories)
    return Bound(names, lemma, slopes, bounded / rows, errors)


def slopes(model: Model, scores: Scores, sample: Sample, *, last: int) -> Slopes:
    """Lemma 2 and the slopes that were measured, between step `last`, counted from 1, and each later step.

    This needs no steps of DDIM, so it serves language models, too.
    """
    names, trajectories = _covered(model, sample, last)
    measured, lemma = (np.zeros(len(names)) for _ in range(2))
    for trajectory in trajectories:
        then = _noted(model, trajectory[last - 1])
        for evaluation in trajectory[last:]:
            now = _noted(model, evaluation)
            for i, name in enumerate(names):
                measured[i] = max(measured[i], _moved(now, then, name)[2])
                length = branch_bound(scores.units[i], now.inputs[name], *_norm(model, scores.units[i]))
                lemma[i] = max(lemma[i], length)
    return Slopes(names, lemma, measured)


def _covered(model: Model, sample: Sample, last: int) -> tuple[tuple[str, ...], list[Trajectory]]:
    """The names of the units, and the trajectories, if the argument covers this model."""
    if model.architecture.name not in DIRECT:
        raise UsageError(f"The argument covers {', '.join(DIRECT)}, and {model.name} is a {model.architecture.name}.")
    trajectories = record(model.network, sample)
    if not 1 <= last < len(trajectories[0]):
        raise UsageError(f"A unit is frozen behind one of the steps 1 to {len(trajectories[0]) - 1}.")
    return tuple(unit.name for unit in model.units), trajectories


def _moved(now: Noting, then: Noting, name: str) -> tuple[Tensor, Tensor, float]:
    """How the update of a unit changed, how far its input moved in each row, and the steepest slope of the rows."""
    change, moved = now.updates[name] - then.updates[name], norms(now.inputs[name] - then.inputs[name]).cpu()
    return change, moved, float((norms(change).cpu() / (moved + 1e-12)).max())


def _norm(model: Model, unit: UnitScore) -> tuple[float, bool]:
    """max|γ| of the norm in front of a branch, and whether it divides by the root mean square."""
    family = model.architecture.name
    if family not in NORMS:
        return 1.0, family in RMS
    block, kind = unit.name.rpartition(".")[0], NORMS[family][unit.kind]
    (weight,) = [
        weight for key, weight in model.network.named_parameters() if f".{key}".endswith(f".{block}.{kind}.weight")
    ]
    return float(weight.abs().max()), family in RMS


def branch_bound(unit: UnitScore, x: Tensor, gain: float = 1.0, rms: bool = False) -> float:
    """Lemma 2 for one branch behind its norm, at inputs x [rows, tokens, width].

    gain  max|γ|, the norm's largest scale; rms: whether the norm divides by the root mean square
    """
    spectral = {role: one.spectral_norm for part in unit.components for role, one in part.spectra.items()}
    spreads = x.double().square().mean(dim=-1).sqrt() if rms else x.double().std(dim=-1)
    spread = float(spreads.min().clamp(min=1e-6))
    n, d = x.shape[-2], x.shape[-1]
    if unit.kind == "mlp":
        inner = SLOPE * spectral["w2"] * spectral["w1"]
    else:
        head = unit.components[0].component.head_dim or 1
        scores = 2 * math.sqrt(n * d) * SOFTMAX * spectral["q"] * spectral["k"] / math.sqrt(head)
        inner = spectral["o"] * spectral["v"] * (math.sqrt(n) + scores)
    return inner * gain / spread


def ddim_alphas(levels: Sequence[float]) -> list[float]:
    """α_s of DDIM's steps, √(ᾱ'/ᾱ), from ᾱ before each step and after the last one."""
    return [math.sqrt(then / now) for now, then in pairwise(levels)]


@torch.no_grad()
def _noted(model: Model, evaluation: object) -> Noting:
    seen = Noting()
    evaluation.again(model.network, seen)  # type: ignore[attr-defined]
    return seen


def _before(streams: dict[str, Tensor], names: Sequence[str], place: int) -> dict[str, Tensor]:
    return {name: streams[name] for name in names[:place]}


def _true_errors(
    model: Model,
    names: Sequence[str],
    last: int,
    sample: Sample,
    trajectories: Sequence[Trajectory],
) -> NDArray[np.float64]:
    """‖ẑ_0 − z_0‖ of a sample, from the relative errors of whole batches."""
    from tenuto.runtime.executor import Executor

    full = sample(Executor(model.network, mode="eager"))
    if not isinstance(full, Tensor):
        raise UsageError("To measure samples, `sample` must give what it generated, as a tensor.")
    found = freeze_errors(model, [last] * len(names), sample, of="sample").errors
    return found * float(torch.linalg.vector_norm(full.double())) / math.sqrt(len(full))
