"""Parallel decoding with a cache that is checked: which rows may still use it."""

from typing import NamedTuple

import torch
from torch import Tensor

from tenuto.runtime.executor import Executor
from tenuto.scheduling.rewrite import checks

CHANGE = 0.02  # of the probabilities, which the cache may make at most, on average over the masks of a block


class Said(NamedTuple):
    """What an evaluation says of a block, [B, P] each."""

    places: Tensor  # in the answer
    masked: Tensor  # bool: which of them may be written; what is said of the others does not count
    guesses: Tensor  # the predicted tokens
    likely: Tensor  # their probabilities
    chosen: Tensor  # bool: which of them are written


class Trust:
    """Which rows still use the cache.

    At each full step but the first, the step that the cache would allow is made first, and nothing of it is kept. The
    two are compared at all masks of the block that both computed. If the probabilities of the predicted tokens differ
    by more than CHANGE on average, the row uses the cache no more: all further steps compute all of its positions. So
    each row decides for itself, and does not depend on the others of its batch.
    """

    def __init__(self, executor: Executor, rows: int, device: torch.device) -> None:
        schedule = executor.schedule
        self._full = executor.full_steps if schedule is not None and checks(schedule) else []
        self.rows = torch.ones(rows, dtype=torch.bool, device=device)
        self.broken = self.all_broken = False  # for some rows, or for all that go on: as far as the host knows

    @property
    def block_step(self) -> int:
        """A step that computes a block."""
        return self._full.index(False)

    def can_be_tested(self, step: int) -> bool:
        """Whether a full step tests the cache: it has seen a full step, rows use it, and there is a further block."""
        return step > 0 and not self.all_broken and False in self._full[step:]

    def test(self, cached: Said, full: Said, needed: Tensor) -> None:
        """Compare what the cache would have said with what the full step has said.

        needed   [B]: 0 if a row had ended
        """
        going = needed > 0
        self.rows &= ~(going & (change(cached, full) > CHANGE))
        found = torch.stack([(going & ~self.rows).any(), (going & self.rows).any()]).tolist()
        self.broken, self.all_broken = found[0], not found[1]


def change(cached: Said, full: Said) -> Tensor:
    """[B]: how far the probabilities of the predicted tokens are apart, on average over the masks that both computed.

    If the two evaluations predict different tokens at a mask, each gives the other's token a probability of at most
    min(p, 1 − p), where p is the probability of its own. So their distance is at least the one that is used here.
    """
    # The host looks at masks only, so the two may have looked at different places.
    same_place = cached.places[:, :, None] == full.places[:, None, :]
    both = same_place & cached.masked[:, :, None] & full.masked[:, None, :]
    same = cached.guesses[:, :, None] == full.guesses[:, None, :]
    p, q = cached.likely.float()[:, :, None], full.likely.float()[:, None, :]
    apart = torch.maximum(
        p - torch.where(same, q, torch.minimum(q, 1 - q)), q - torch.where(same, p, torch.minimum(p, 1 - p))
    )
    return torch.where(both, apart, 0.0).sum((1, 2)) / both.sum((1, 2)).clamp(min=1)
