"""One generation of a pipeline: which of its steps evaluate the denoisers, and what the denoisers return at the others.

In each step the loop calls the denoisers, and then calls the scheduler's `step` with the guided output. Outputs are
held and predicted at this second call (tenuto.runtime.stepping). At a held step a denoiser is not evaluated. Its call
returns the output of its last evaluation, which has the right shape and is not used.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tenuto.deciding import FEW_STEPS
from tenuto.errors import UsageError
from tenuto.pipelines.call import Call
from tenuto.pipelines.denoiser import Denoiser
from tenuto.pipelines.evaluations import Evaluation, moment
from tenuto.pipelines.lanes import Key, Lane, shape_of
from tenuto.pipelines.request import Request
from tenuto.pipelines.streams import Streams
from tenuto.pipelines.timesteps import place_of, timesteps_of
from tenuto.pipelines.wrapping import scheduler_inside
from tenuto.runtime.levels import Nature, nature_of
from tenuto.runtime.pacing import Pace
from tenuto.runtime.stepping import Stepping
from tenuto.scheduling.schedule import Schedule

OTHER_TIMESTEPS = (
    "Call set_timesteps before every generation, with the timesteps that the loop takes; or pass steps=… to "
    "tenuto.running, if the loop takes some of them only."
)
IN_TURN = "If the loop draws several samples in turn, put them into one batch, or draw one after the other."


class Loop:
    """One generation, from the beginning of the loop to the end."""

    def __init__(self, scheduler: Any, steps: int, first: int, warn: Callable[[str], None]) -> None:
        """first: how many timesteps of the scheduler the loop leaves out before it begins"""
        self.scheduler = scheduler
        self.timesteps = getattr(scheduler, "timesteps", None)
        self.steps = steps
        self.first = first
        self.end_of_last: int | None = None  # the timestep where the last loop ended, if it had the same timesteps
        self.in_full = ""  # why everything is computed, if it is
        self.told_to_go_on = False  # whether the loop says when a step is over, callbacks included
        self.untold = 0  # the number of steps at the beginning for which it does not say this
        self.outside = False  # whether callbacks run: after the scheduler's step, before the loop's next step
        self.step = 0
        self.lanes: dict[Key, Lane] = {}
        self.evaluations: list[Evaluation] = []
        self.schedule: Schedule | None = None  # of outputs, from step `begun` on
        self.begun = 0
        self.computed: list[bool] = []  # [step from `begun` on]: whether it evaluates the denoisers
        self.pace: Pace | None = None  # if it is decided on the way
        self.streams = Streams()
        self.followed: list[Schedule] = []  # the schedules so far: another one follows if the rest is planned anew
        self._natures: dict[int, Nature] = {}
        self._shapes: dict[int, tuple[int, ...]] = {}  # of the samples, by scheduler
        self._stepped: set[int] = set()  # the schedulers that took the current step
        self._calls: Counter[str] = Counter()  # of each denoiser in this step
        self._placeholders = 0  # how many were returned in this step
        self._derived = False  # whether an evaluation of this step was computed because it needs a gradient
        self._planned: Denoiser | None = None  # the denoiser whose request was planned last
        self._counted = False  # whether a number of evaluations was asked for
        self._warn = warn

    @property
    def nature(self) -> Nature:
        """What is known of the scheduler before the loop runs."""
        return self._nature_of(self.scheduler)

    def _nature_of(self, scheduler: Any) -> Nature:
        if id(scheduler) not in self._natures:
            self._natures[id(scheduler)] = nature_of(scheduler_inside(scheduler), self.first, self.steps)
        return self._natures[id(scheduler)]

    @property
    def taken(self) -> int:
        """How many steps were taken so far."""
        return self.step + bool(self._stepped)

    @property
    def finished(self) -> bool:
        return self.taken >= self.steps

    def plan(self, denoiser: Denoiser) -> None:
        """Decide which of the steps from now on are computed. What was kept belongs to other networks or settings."""
        self._planned = denoiser
        left, levels = self.steps - self.step, self.nature.levels
        log_snr = None if levels is None else levels.after(self.step).log_snr
        self.schedule = denoiser.schedule_for(left, self.first + self.step, log_snr, self.spent)
        self.followed += self.schedules
        self.begun = self.step
        self.computed = [True] * left if self.schedule is None else self.schedule.full_steps.tolist()
        self._counted = denoiser.request.evaluations is not None
        self.streams.end()
        self._plan_quality(denoiser.request)

    def _plan_quality(self, request: Request) -> None:
        """If a quality was asked for, the evaluated steps are decided on the way."""
        nature, self.pace = self.nature, None
        if request.quality is None or self.schedule is None or self.in_full:
            return
        if not nature.finite:
            return self.refuse_values()
        if nature.adds_noise:
            return self.refuse_noise(self.scheduler)
        if nature.levels is None:
            return self.compute_in_full(f"the quality cannot be measured, because {nature.why_unknown}")
        most = None if request.evaluations is None else max(1, request.evaluations - self.spent)
        self.begun, self.computed = 0, [True] * self.steps  # distances are shares of the whole run, also for the rest
        self.pace = Pace(request.quality, nature.levels, most, request.group)

    @property
    def spent(self) -> int:
        """How many steps before the current one evaluated everything."""
        done = [one for one in self.evaluations if one.computed and (one.units is None or one.units.all())]
        return len({one.step for one in done if one.step < self.step})

    def computes(self) -> bool:
        """Whether the current step evaluates the denoisers."""
        place = self.step - self.begun
        return bool(self.in_full) or self.schedule is None or place >= len(self.computed) or self.computed[place]

    def go_on(self) -> None:
        """The loop goes on with its next step: callbacks are over."""
        self.outside = False

    def stepped_by(self, scheduler: Any) -> bool:
        """Whether this scheduler took the current step already; a second one may follow."""
        return id(scheduler) in self._stepped

    def mark_step(self, scheduler: Any) -> None:
        """The scheduler takes the current step, and callbacks may follow."""
        self._stepped.add(id(scheduler))
        self.outside = self.told_to_go_on and self.step + 1 > self.untold

    def went_on(self) -> None:
        """The loop's next step began unannounced, so its evaluation looked like a callback's: plan the rest anew."""
        self.told_to_go_on = self.outside = False
        self._advance()
        self.schedule = None
        self.lanes.clear()
        self.streams.end()

    def pass_over(self, why: str) -> None:
        """The loop evaluated for its next step what is not enabled."""
        if self.holds and not self.in_full:
            self.compute_in_full(why)
        self._advance()

    def _advance(self) -> None:
        self.step += 1
        self._calls.clear()
        self._stepped.clear()
        self._placeholders = 0
        self._derived = False

    def evaluate(self, denoiser: Denoiser, full: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """One call of a denoiser; `full` is the original call."""
        if self._stepped:
            self._advance()
        tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
        if self.step >= self.steps:
            return full(*args, **kwargs)  # not of this loop
        if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
            self._derived = True
            return full(*args, **kwargs)
        key = denoiser.name, self._calls[denoiser.name]
        self._calls[denoiser.name] += 1
        sample = tensors[0] if tensors else None
        device = None if sample is None else sample.device
        began = moment(device)
        held = self._held(denoiser, key, sample)
        try:
            output = self._run(denoiser, key, sample, full, args, kwargs) if held is None else held.last
        except BaseException:
            self.lanes.pop(key, None)  # the step is half done: the next call begins a new lane
            raise
        done = Evaluation(self.step, denoiser.name, self._units_computed(key), held is None, began, moment(device))
        self.evaluations.append(done)
        return output

    def _units_computed(self, key: Key) -> Any:
        """[unit]: whether the current call computed the unit; None if no single units are held."""
        return None

    def _held(self, denoiser: Denoiser, key: Key, sample: Tensor | None) -> Lane | None:
        """The lane whose last output is returned instead of an evaluation; None if the step is computed.

        A call that has no counterpart at the last refresh (another expert takes over, guidance ends) is computed, and
        the steps that are left are planned anew.
        """
        if self.schedule is None and not self.in_full and not self.lanes:
            self.plan(denoiser)
            if self.holds and not self.nature.finite:
                self.refuse_values()
            elif self.holds and self.nature.adds_noise:
                self.take_noise(self.scheduler)
            elif self.holds and self.nature.levels is None:
                self._tell_unknown()
            if self.schedule is not None and not self.in_full and not self.spent:
                denoiser.advise(self.schedule)
        if self.computes():
            return None
        shape = shape_of(sample)
        own = [lane for lane in (self.lanes.get(key),) if lane is not None and lane.shape == shape]
        others = [lane for other, lane in self.lanes.items() if other[0] == key[0]] if self._placeholders else []
        found = next((fitted for one in (*own, *others) if (fitted := one.fitted(shape)) is not None), None)
        if found is not None:
            self._placeholders += 1
            self.lanes.setdefault(key, found)
            return found
        if self._placeholders:
            self.compute_in_full(f"the loop calls its {denoiser.name} in another way from step to step")
            return None
        self.plan(denoiser)
        return None

    def _run(
        self, denoiser: Denoiser, key: Key, sample: Tensor | None, full: Any, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        lane, shape = self.lanes.get(key), shape_of(sample)
        if lane is None or lane.shape != shape:
            generation = None if self.in_full else denoiser.evaluator()
            lane = Lane(self.step, shape, generation)
        if lane.generation is None or self.in_full:
            output = full(*args, **kwargs)
        else:
            output = lane.generation.evaluate_at(0, *args, **kwargs)
        self.lanes[key] = replace(lane, last=output)
        return output

    def take_step(self, scheduler: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The scheduler's step. It ends the step of the loop."""
        again = self.stepped_by(scheduler)
        self.mark_step(scheduler)
        if self._derived and not self._calls and not self.in_full and (self.holds or self.schedule is None):
            why = "the loop's evaluations need a gradient, and a held output has none"
            self.compute_in_full(why, "If no gradient is needed, run the loop under torch.no_grad().")
        if self.in_full or not self.holds or self.step >= self.steps:  # a loop may take more steps than it announced
            return original(*args, **kwargs)
        if again:
            self.compute_in_full(f"the loop steps its {type(scheduler).__name__} more than once for one evaluation")
            return original(*args, **kwargs)
        call = Call.of(original, args, kwargs)
        if call is None:
            self.compute_in_full(f"the step of {type(scheduler).__name__} takes neither output nor sample by name")
            return original(*args, **kwargs)
        if call.adds_noise:
            self.take_noise(scheduler)
            if self.in_full:
                return original(*args, **kwargs)
        self._check_timestep(scheduler, call.given.get("timestep"))
        return call.take(call.output, call.sample) if self.in_full else self._take(scheduler, call)

    def _check_timestep(self, scheduler: Any, timestep: Any) -> None:
        """Noise levels belong to timesteps: check that the loop takes those that were planned, one after the other.

        The first step shows where a loop begins that takes some of the timesteps only. It is always evaluated, so the
        steps after it are planned anew if another beginning was assumed.
        """
        if scheduler is not self.scheduler or scheduler.timesteps is not self.timesteps:
            return
        expected = self.first + self.step
        place = place_of(timestep, scheduler, expected)
        if place is None:
            return
        if self.step == 0:
            self._check_end_of_last(place)
        if place == expected:
            return
        if self.step == 0 and self._planned is not None:
            self.first, self.steps = place, min(self.steps, timesteps_of(scheduler) - place)
            self._natures.clear()
            return self.plan(self._planned)
        taken = (
            f"timestep number {place + 1} of its {type(scheduler).__name__} where number {expected + 1} should follow"
        )
        again = place == expected - 1  # as with several samples in turn
        remedy = IN_TURN if again else OTHER_TIMESTEPS
        if self.computes():
            return self.compute_in_full(f"the loop takes {taken}", IN_TURN if again else "")
        raise UsageError(f"The loop takes {taken}, and the network was not evaluated for it. {remedy}")

    def _check_end_of_last(self, place: int) -> None:
        """Refuse a loop that goes on where all of its steps were thought to be taken."""
        if place == self.end_of_last:
            raise UsageError(
                f"The loop goes on after the {self.steps} steps that tenuto.running was told of: its scheduler has "
                f"{timesteps_of(self.scheduler)} timesteps. Leave steps out if the loop takes all of them."
            )

    def _take(self, scheduler: Any, call: Call) -> Any:
        stream, shape = self.streams.of(scheduler), tuple(call.sample.shape)
        if stream is not None and shape != self._shapes.get(id(scheduler)) and self.computes() and self._planned:
            self.plan(self._planned)  # what was kept of another size predicts nothing here
            stream = None
        self._shapes[id(scheduler)] = shape
        if not self.holds:
            return call.take(call.output, call.sample)
        assert self.schedule is not None
        place = self.step - self.begun
        if stream is None:
            stream = self._stream(scheduler, call)
            self.streams.begin(scheduler, stream)
            if self.pace is not None and not stream.corrects:
                self.compute_in_full(f"the quality cannot be measured, because {stream.uncorrected_because}")
                return call.take(call.output, call.sample)
        if self.computes():
            return stream.refresh(place, call.take, call.output, call.sample)
        if stream.knows:
            return stream.hold(place, call.without_tensors.take, call.sample)
        self.compute_in_full(f"a second {type(scheduler).__name__} begins in the middle of the loop")
        return call.take(call.output, call.sample)

    def _stream(self, scheduler: Any, call: Call) -> Stepping:
        assert self.schedule is not None
        nature = self._nature_of(scheduler)
        if nature.levels is not None:
            levels = nature.levels.after(self.begun)
            nature = replace(nature, levels=levels.of_clean() if call.gives_clean else levels)
        schedule, inside = self.schedule, scheduler_inside(scheduler)
        stream = Stepping(inside, nature, self.computed, schedule.order, schedule.corrected, self.pace)
        if call.threads_state and not stream.uncorrected_because:
            stream.uncorrected_because = f"{type(scheduler).__name__} hands state from step to step through the loop"
        if call.adds_noise:
            stream.uncorrected_because = f"{type(scheduler).__name__} adds random noise"
        return stream

    @property
    def holds(self) -> bool:
        """Whether any step holds something, or may."""
        return self.pace is not None or any(not one.active.all() for one in self.schedules)

    @property
    def schedules(self) -> list[Schedule]:
        """The schedules that the loop follows."""
        return [] if self.schedule is None else [self.schedule]

    def compute_in_full(self, why: str, advice: str = "") -> None:
        """From now on nothing is held."""
        self.in_full = why
        self.lanes.clear()
        self.streams.end()
        some = any(not one.computed for one in self.evaluations)
        then = "All remaining steps are computed." if some else "Everything is computed, and nothing is gained."
        self._warn(f"{why[0].upper()}{why[1:]}. {then} {advice}".strip())

    def refuse_values(self) -> None:
        """Hold nothing: what comes of this scheduler is no picture."""
        self.compute_in_full(self.nature.why_unknown, "Check its settings and its timesteps.")

    def refuse_noise(self, scheduler: Any) -> None:
        """Hold nothing: outputs change with the scheduler's random noise, so predictions would be far off."""
        noise = f"{type(scheduler).__name__} adds random noise at every step"
        other = "Choose a scheduler without randomness (DDIM, Euler, DPM-Solver++, UniPC)"
        if not self._counted:
            why = f"{noise}, so the network's output cannot be predicted"
            or_count = ", or say how many evaluations it is to have: half of the steps, say"
            return self.compute_in_full(why, f"{other}{or_count if self._can_take_noise(scheduler) else ''}.")
        few = f"and in {self.steps} steps the clean picture changes too much to be predicted"
        why = few if self.steps <= FEW_STEPS else f"and {self._nature_of(scheduler).why_unknown}"
        self.compute_in_full(f"{noise}, {why}", f"{other}.")

    def _can_take_noise(self, scheduler: Any) -> bool:
        """Whether something is held under a scheduler that adds noise, if a number of evaluations is asked for."""
        return self.steps > FEW_STEPS and self._nature_of(scheduler).levels is not None

    def take_noise(self, scheduler: Any) -> None:
        """A scheduler adds noise. Hold something only if a number of evaluations was asked for, and say what it costs.

        The clean estimate changes less than the output, and the sample already contains the new noise. In few steps
        (LCM, TCD) the estimate changes too much.
        """
        if not self._counted or not self._can_take_noise(scheduler):
            return self.refuse_noise(scheduler)
        self._warn(
            f"{type(scheduler).__name__} adds random noise at every step. The clean picture is predicted all the same, "
            "but it cannot be corrected, and the result is less near to the full run than with other schedulers."
        )

    def _tell_unknown(self) -> None:
        """Predictions are worse without noise levels: nobody should find that out from the pictures."""
        why = self.nature.why_unknown
        self._warn(
            f"{why[0].upper()}{why[1:]}, so predictions are less accurate and cannot be corrected. See with "
            "tenuto.compare what this costs, or choose another scheduler (DDIM, Euler, DPM-Solver++, UniPC)."
        )

    def forget(self) -> None:
        """Free what is held."""
        for key, lane in self.lanes.items():
            self.lanes[key] = replace(lane, generation=None, last=None)
        self.streams.forget()
