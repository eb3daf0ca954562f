"""From scores to schedules. Each policy is one function over scores; all give the one kind of schedule.

refresh    all units together every few steps, extrapolated in between: the default for pictures
rewrite    the same for text, and held units computed at the positions that were just written: the default for text
lifetimes  the paper's: computed until a unit's lifetime ends, then held for good
noise      refreshes placed by the sampler's noise levels
anchors    refresh, and more of it for the units that deserve it
allocated  each unit at its own period, by score and cost

To compare rankings, `ranked_lifetimes` gives the lifetimes out in another order, and `both` joins two schedules.
"""

from tenuto.policies.allocation import Ranking, allocated, anchors, ranked
from tenuto.policies.composition import both
from tenuto.policies.lifetimes import (
    MIN_LIFETIME,
    TAU,
    lifetime_pattern,
    lifetimes,
    lifetimes_at,
    tau_for_budget,
    with_fewer_lifetimes,
)
from tenuto.policies.rankings import STATISTICS, Statistic, lifetimes_by, ranked_lifetimes, statistic_of
from tenuto.policies.refreshing import BUDGET, by_noise, period_for_budget, refresh, refresh_pattern, rewrite

__all__ = [
    "BUDGET",
    "MIN_LIFETIME",
    "STATISTICS",
    "TAU",
    "Ranking",
    "Statistic",
    "allocated",
    "anchors",
    "both",
    "by_noise",
    "lifetime_pattern",
    "lifetimes",
    "lifetimes_at",
    "lifetimes_by",
    "period_for_budget",
    "ranked",
    "ranked_lifetimes",
    "refresh",
    "refresh_pattern",
    "rewrite",
    "statistic_of",
    "tau_for_budget",
    "with_fewer_lifetimes",
]
