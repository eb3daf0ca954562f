"""The rivals of our schedules, as they were published.

For pictures, `rival_points` draws with any of them by name, from the same noise, with N evaluations:

solvers        UniPC, DEIS, DPM-Solver++, DDIM and Euler with every choice of noise levels
whole_output   predict the network's output: ZEUS, FSampler, AB-Cache, Spectrum, HiCache, FoCa, DMD, TaylorSeer
               (formulas in `predictors` and `dmd`, evaluated steps in `placement`)
dynamic        decide while they run: TeaCache, SeaCache, MagCache (`token_caches`), EasyCache, FirstBlockCache, DBCache

The following use the seam for single units, so a frontier measures them like our schedules:

skipped        evaluates the network at every R-th step only and extrapolates its output in between
first_block    holds all blocks but the first while the first block's update hardly changes (ParaAttention)
taylor_seer    predicts every branch by a Taylor series of finite differences (Liu et al.)
smooth_cache   makes a schedule for each kind of layer from one calibration run (SmoothCache, Liu et al.)
block_caching  makes a schedule for each unit from how much the unit changes in a calibration run (Wimbauer et al.)
delta_dit      holds a range of blocks together: the last blocks early, the first blocks late (Δ-DiT, Chen et al.)
learning_to_cache   trains a router for each step, which says what the step computes (Ma et al.)
pro_cache      full steps at intervals that shrink, deep blocks in between (ProCache, Cao et al.)
deep_cache     caches the deep features of a UNet (Ma et al.)
activation_drift, oracle_replay   the paper's controls that look at the input; the oracle knows the outcome

Some rivals are only schedules. The others are executors without a schedule: they decide while they run, skip units in
Python, and count the units they compute. Layers that belong to no unit run at every evaluation of the network.
"""

from tenuto_lab.rivals.activation_drift import ActivationDrift, most_drifted
from tenuto_lab.rivals.block_caching import block_cache, block_cache_at, block_cache_row, changes
from tenuto_lab.rivals.by_name import NAMES, RivalPoint, best_points, rival_points
from tenuto_lab.rivals.common import Rival, schedule_for
from tenuto_lab.rivals.deep_cache import (
    DeepCache,
    deep_cache,
    deep_cache_schedule,
    has_long_skips,
    outer_live_schedule,
    shallow_units,
)
from tenuto_lab.rivals.delta_dit import blocks_of, delta_dit
from tenuto_lab.rivals.first_block import FirstBlock, first_block
from tenuto_lab.rivals.learning_to_cache import learning_to_cache
from tenuto_lab.rivals.oracle_replay import TOLERANCE, oracle_replay
from tenuto_lab.rivals.pro_cache import pro_cache
from tenuto_lab.rivals.skipped import SkippedEvaluations
from tenuto_lab.rivals.smooth_cache import Drifts, drifts, smooth_cache, smooth_cache_at, smooth_row
from tenuto_lab.rivals.taylor_seer import TaylorSeer

__all__ = [
    "NAMES",
    "TOLERANCE",
    "ActivationDrift",
    "DeepCache",
    "Drifts",
    "FirstBlock",
    "Rival",
    "RivalPoint",
    "SkippedEvaluations",
    "TaylorSeer",
    "best_points",
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
    "has_long_skips",
    "learning_to_cache",
    "most_drifted",
    "oracle_replay",
    "outer_live_schedule",
    "pro_cache",
    "rival_points",
    "schedule_for",
    "shallow_units",
    "smooth_cache",
    "smooth_cache_at",
    "smooth_row",
]
