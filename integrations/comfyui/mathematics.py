"""Noise levels, placement and prediction: all of it is Tenuto's, brought to what ComfyUI calls sigmas."""

from collections.abc import Sequence

from tenuto.runtime.levels import Levels
from tenuto.runtime.pacing import Account, Pace, check_quality
from tenuto.runtime.prediction import polynomial_weights, steady_for
from tenuto.runtime.stepping import taken_for_picture
from tenuto.scheduling.making import check_budget
from tenuto.scheduling.placement import placed
from tenuto.scheduling.placement import places_of as places_of_levels
from tenuto.scheduling.refresh import evaluations_for

ORDER = 2  # the degree of Tenuto's polynomials: quadratic, through the last three computed values

__all__ = [
    "ORDER",
    "Account",
    "Pace",
    "check_budget",
    "check_quality",
    "evaluations_for",
    "levels_of",
    "places_of",
    "polynomial_weights",
    "spread",
    "steady_for",
    "taken_for_picture",
]


def levels_of(sigmas: Sequence[float], flow: bool) -> Levels:
    """The levels of ComfyUI's models, which predict the clean sample. Samples are clean + σ · noise.

    flow  samples are (1 − σ) · clean + σ · noise instead
    """
    mixed = tuple((1 - sigma if flow else 1.0, sigma) for sigma in sigmas)
    return Levels(mixed, tuple((0.0, 1.0) for _ in sigmas))


def places_of(sigmas: Sequence[float], flow: bool) -> list[float]:
    """The variable of the polynomials: Tenuto's, over the different noise levels, from the highest on.

    Two-stage samplers evaluate several times at one level, or go back to one.
    """
    different = sorted(set(sigmas), reverse=True)
    places = places_of_levels(len(different), levels_of(different, flow).log_snr).tolist()
    at = dict(zip(different, places, strict=True))
    return [at[sigma] for sigma in sigmas]


def spread(levels: Levels, among: Sequence[int], evaluations: int) -> list[int]:
    """Which of some evaluations to compute, placed by their noise levels."""
    log_snr = levels.log_snr
    chosen = placed(len(among), evaluations, [log_snr[place] for place in among])
    return [place for place, computed in zip(among, chosen, strict=True) if computed]
