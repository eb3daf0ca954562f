"""One generation of a pipeline whose single units are held.

Every call of a denoiser belongs to a lane (with the prompt, without it), and each lane keeps its own units. The
scheduler is given the denoiser's outputs as they are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tenuto.pipelines.call import Call
from tenuto.pipelines.denoiser import Denoiser
from tenuto.pipelines.lanes import Key, Lane, shape_of
from tenuto.pipelines.loop import Loop
from tenuto.pipelines.timesteps import place_of
from tenuto.scheduling.schedule import Schedule


@dataclass(frozen=True)
class UnitLane(Lane):
    schedule: Schedule | None = None  # of the steps from `start` on; None: computed in full

    def goes_on(self, step: int, shape: tuple[int, ...] | None) -> bool:
        if shape != self.shape:
            return False
        if self.generation is None or self.schedule is None:
            return True
        return self.start + self.generation.step == step < self.start + self.schedule.steps


class UnitLoop(Loop):
    lanes: dict[Key, UnitLane]  # type: ignore[assignment]

    def __init__(self, scheduler: Any, steps: int, first: int, warn: Callable[[str], None]) -> None:
        super().__init__(scheduler, steps, first, warn)
        if self.nature.adds_noise:
            self.refuse_noise(scheduler)

    @property
    def schedules(self) -> list[Schedule]:
        return [lane.schedule for lane in self.lanes.values() if lane.schedule is not None]

    def take_step(self, scheduler: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.mark_step(scheduler)
        call = Call.of(original, args, kwargs) if self.step == 0 and self.holds else None
        place = None if call is None else place_of(call.given.get("timestep"), scheduler, self.first)
        if place is not None:
            self._check_end_of_last(place)
            self.first = place
        return original(*args, **kwargs)

    def _held(self, denoiser: Denoiser, key: Key, sample: Tensor | None) -> None:
        """Every call runs the network, which skips the units that are held."""

    def _run(
        self, denoiser: Denoiser, key: Key, sample: Tensor | None, full: Any, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """If the call does not continue its lane, a new lane begins for the remaining steps."""
        lane, shape = self.lanes.get(key), shape_of(sample)
        if lane is None or not lane.goes_on(self.step, shape):
            left = self.steps - self.step
            schedule = None if self.in_full else denoiser.schedule_for(left, self.first + self.step, None, self.spent)
            self.followed += [] if schedule is None else [schedule]
            if schedule is not None and not self.spent:
                denoiser.advise(schedule)
            generation = None if schedule is None else denoiser.start(schedule, key[1])
            lane = self.lanes[key] = UnitLane(self.step, shape, generation, schedule=schedule)
        return (full if lane.generation is None else lane.generation)(*args, **kwargs)

    def _units_computed(self, key: Key) -> Any:
        lane = self.lanes[key]
        return None if lane.schedule is None else lane.schedule.active[:, self.step - lane.start]
