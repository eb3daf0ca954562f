"""What `tenuto generate` made and how, in generation.json; and the folder, into which one process at a time writes."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenuto.scheduling.schedule import Schedule

LOCK = ".tenuto-generate.lock"


@dataclass
class Record:
    """What was made and how: written to generation.json after every batch, so that Ctrl-C keeps finished work."""

    folder: Path | None
    as_json: bool
    facts: dict[str, Any]
    schedule_path: Path | None
    schedule: "Schedule | None"
    steps: int = 0
    told: list[tuple[int, float | None]] = field(default_factory=list)  # evaluations, and dB to the full run, estimated
    made: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)

    def take(self, folder: Path | None, steps: int | None, default: int, **facts: Any) -> None:
        """What is known only once the kind of the model is known."""
        self.folder = folder
        self.steps = steps or (default if self.schedule is None else self.schedule.steps)
        self.facts |= facts
        self.started = time.perf_counter()

    @property
    def run(self) -> "Schedule | None":
        """The schedule as far as it was run: parallel decoding may end before its last step."""
        if self.schedule is None or self.steps >= self.schedule.steps:
            return self.schedule
        return self.schedule.part(0, self.steps)

    @property
    def is_checked(self) -> bool:
        from tenuto.scheduling.rewrite import checks

        return self.schedule is not None and checks(self.schedule)

    def write(self, **made: Any) -> dict[str, Any]:
        from tenuto.files import write_json
        from tenuto.provenance import provenance

        self.made |= made
        run = self.run
        work = sum(count for count, _ in self.told) / (len(self.told) * self.steps) if self.told else 1.0
        facts = provenance(
            **self.facts,
            schedule=str(self.schedule_path) if self.schedule_path else None,
            # Unknown if a cache is checked: texts that fail a check compute more than the schedule says.
            work=None if self.is_checked else run.budget if run else work,
            # Unknown for text: the positions of a block, which are computed in between, are not counted.
            flop_work=work if run is None else run.flop_budget if run.rows == "none" else None,
            steps=self.steps,
            seconds=round(time.perf_counter() - self.started, 3),
            **self.made,
        )
        if self.folder is not None:
            write_json(self.folder / "generation.json", facts)
        return facts

    def finish(self, what: str, tell: Callable[[str], object]) -> None:
        """Say what was made, or print it as JSON."""
        from tenuto.cli.console import counted, print_json
        from tenuto.showing.facts import share

        facts = self.write()
        if self.as_json:
            print_json(facts)
        else:
            work = "" if self.run is None or self.is_checked else f", {share(self.run)}"
            if self.told and self.schedule is None:
                estimate = min((one for _, one in self.told if one is not None), default=None)
                near = "" if estimate is None else f"; about {estimate:.0f} dB to the full run, estimated"
                work = f", {facts['work']:.0%} of them computed{near}"
            tell(f"{what} ({facts['seconds']:.1f} s, {counted(self.steps, 'step')}{work})")


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """A folder that this process alone generates into. A folder that stays empty is removed again.

    Two processes that number their pictures alike would overwrite each other's pictures, and the record of one would
    name seeds that the pictures of the other were not drawn from.
    """
    from tenuto.errors import TenutoError
    from tenuto.files import locked

    lock, made = folder / LOCK, not folder.exists()
    with locked(lock, wait=False) as mine:
        if not mine:
            raise TenutoError(
                f"Another `tenuto generate` writes into {folder}. Wait for it, or name another directory."
            )
        try:
            yield
        finally:
            with suppress(OSError):
                lock.unlink()
                if made:
                    folder.rmdir()  # fails, as it should, where something was made
