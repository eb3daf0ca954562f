"""From scores to schedules. Each policy is one function over scores; all give the one kind of schedule.

refresh    all units together every few steps, extrapolated in between: the default for pictures
rewrite    the same for text, and held units computed at the positions that were just written: the default for text
lifetimes  the paper's: computed until a unit's lifetime ends, then held for good
noise      refreshes placed by the sampler's noise levels
anchors    refresh, and more of it for the units that deserve it
allocated  each unit at its own period, by score and cost
"""

from tenuto.policies.allocation import Ranking, allocated, anchors, ranked
from tenuto.policies.lifetimes import (
    MIN_LIFETIME,
    TAU,
    lifetime_pattern,
    lifetimes,
    lifetimes_at,
    tau_for_budget,
    with_fewer_lifetimes,
)
from tenuto.policies.refreshing import BUDGET, by_noise, period_for_budget, refresh, refresh_pattern, rewrite

__all__ = [
    "BUDGET",
    "MIN_LIFETIME",
    "TAU",
    "Ranking",
    "allocated",
    "anchors",
    "by_noise",
    "lifetime_pattern",
    "lifetimes",
    "lifetimes_at",
    "period_for_budget",
    "ranked",
    "refresh",
    "refresh_pattern",
    "rewrite",
    "tau_for_budget",
    "with_fewer_lifetimes",
]
