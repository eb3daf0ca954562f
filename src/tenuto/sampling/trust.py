"""Parallel decoding with a cache that is checked: which rows may still use it."""

import torch
from torch import Tensor

from tenuto.runtime.executor import Executor
from tenuto.scheduling.rewrite import checks


class Trust:
    """Which rows still use the cache.

    At each full step but the first, the step that the cache would allow is made first, and nothing of it is kept. A row
    for which that step would write a token that the full step does not write uses the cache no more: all further steps
    compute all of its positions. So each row decides for itself, and does not depend on the others of its batch.
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

    def test(self, tokens: Tensor, places: Tensor, guesses: Tensor, chosen: Tensor, needed: Tensor) -> None:
        """Compare what the cache would have written with what the full step has written.

        tokens   [B, length], as the full step left them
        places   [B, P]; guesses and chosen: what the cache would have written there
        needed   [B]: 0 if a row had ended
        """
        going = needed > 0
        other = chosen & (tokens.gather(1, places) != guesses)
        self.rows &= ~(going & other.any(1))
        found = torch.stack([(going & ~self.rows).any(), (going & self.rows).any()]).tolist()
        self.broken, self.all_broken = found[0], not found[1]
