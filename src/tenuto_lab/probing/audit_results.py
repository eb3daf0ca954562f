"""What an audit found for every unit; parts of an audit make up the whole, and can be stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tenuto_lab.probing.sensitivity import Correlation, spearman


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


def moments(ages: NDArray[Any], drifts: NDArray[np.float64]) -> list[float]:
    return [len(ages), *(float(one) for one in (ages @ ages, ages @ drifts, drifts.sum(), drifts @ drifts))]


def line_r2(ages: NDArray[Any], drifts: NDArray[np.float64]) -> float:
    """R² of a line through the origin; negative if the line fits worse than the mean of the drifts."""
    slope = float(ages @ drifts) / float(ages @ ages)
    spread = float(((drifts - drifts.mean()) ** 2).sum())
    return 1 - float(((drifts - slope * ages) ** 2).sum()) / spread if spread else float("nan")
