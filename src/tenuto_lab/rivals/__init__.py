"""The rivals of our schedules, as they were published. They use the same seam, so one frontier measures them all.

skipped        the network evaluated at every R-th step only, its output extrapolated in between
first_block    all blocks but the first held while the first one's update hardly changes (ParaAttention)
taylor_seer    every branch predicted by a Taylor series of finite differences (Liu et al.)
smooth_cache   a schedule from one calibrating run, each kind of layer by itself (SmoothCache, Liu et al.)
block_caching  the same for each unit, by how much it changes (Wimbauer et al.)
delta_dit      a range of blocks held together, the rear ones early and the front ones late (Δ-DiT, Chen et al.)
deep_cache     a UNet's deep features held as they are (Ma et al.)
input_aware    the paper's controls that look at the input: by drift, and in hindsight

Some rivals are only schedules. The others are executors without a schedule: they decide while they run, skip units in
Python, and count what they compute. What belongs to no unit is computed at every evaluation of the network.
"""

from tenuto_lab.rivals.block_caching import block_cache, block_cache_at, block_cache_row, changes
from tenuto_lab.rivals.common import Rival, schedule_for
from tenuto_lab.rivals.deep_cache import DeepCache, deep_cache, deep_cache_schedule, shallow_units
from tenuto_lab.rivals.delta_dit import blocks_of, delta_dit
from tenuto_lab.rivals.first_block import FirstBlock, first_block
from tenuto_lab.rivals.input_aware import TOLERANCE, ActivationDrift, most_drifted, oracle_replay
from tenuto_lab.rivals.skipped import SkippedEvaluations
from tenuto_lab.rivals.smooth_cache import Drifts, drifts, smooth_cache, smooth_cache_at, smooth_row
from tenuto_lab.rivals.taylor_seer import TaylorSeer

__all__ = [
    "TOLERANCE",
    "ActivationDrift",
    "DeepCache",
    "Drifts",
    "FirstBlock",
    "Rival",
    "SkippedEvaluations",
    "TaylorSeer",
    "block_cache",
    "block_cache_at",
    "block_cache_row",
    "blocks_of",
    "changes",
    "deep_cache",
    "deep_cache_schedule",
    "delta_dit",
    "drifts",
    "first_block",
    "most_drifted",
    "oracle_replay",
    "schedule_for",
    "shallow_units",
    "smooth_cache",
    "smooth_cache_at",
    "smooth_row",
]
