"""How much of a long measurement is done, and about how long the rest takes."""

import time
from collections.abc import Callable


class Progress:
    """Counts work in any unit that takes about the same time everywhere, such as evaluations of the network."""

    def __init__(self, total: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.done, self._clock, self._began = total, 0.0, clock, clock()

    def add(self, work: float) -> None:
        self.done += work

    def __str__(self) -> str:
        if not self.done:
            return "nothing is done yet"
        left = (self._clock() - self._began) / self.done * max(0.0, self.total - self.done)
        return f"{min(1.0, self.done / self.total):.0%} done, about {left / 60:.0f} minutes left"
