"""Outputs held at the scheduler's step: exact where they can be, corrected by integrating again, nothing left behind.

Which quantity is predicted, in which variable and by which constants is tuned by experiments. What is promised here
holds for all of them.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DEISMultistepScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    HeunDiscreteScheduler,
    IPNDMScheduler,
    PNDMScheduler,
    UniPCMultistepScheduler,
)
from torch import Tensor

from tenuto.errors import ScheduleError
from tenuto.runtime import prediction
from tenuto.runtime.levels import Levels, Nature, nature_of
from tenuto.runtime.stepping import Stepping, numbers_of, restore, sample_in, snapshot
from tenuto.scheduling.placement import places_of

CLIPPED: dict[str, tuple[Any, dict[str, Any]]] = {
    "DDIM, clipped": (
        DDIMScheduler,
        {"clip_sample": True, "beta_schedule": "squaredcos_cap_v2", "timestep_spacing": "trailing"},
    ),
    "DPM-Solver++, clipped": (
        DPMSolverMultistepScheduler,
        {"algorithm_type": "dpmsolver++", "thresholding": True, "beta_schedule": "squaredcos_cap_v2"},
    ),
}
SOLVERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "DDIM": (DDIMScheduler, {"clip_sample": False}),
    "DDIM, velocity": (DDIMScheduler, {"clip_sample": False, "prediction_type": "v_prediction"}),
    "Euler": (EulerDiscreteScheduler, {}),
    "flow": (FlowMatchEulerDiscreteScheduler, {"shift": 3.0}),
    "DPM-Solver++": (DPMSolverMultistepScheduler, {"algorithm_type": "dpmsolver++", "solver_order": 2}),
    "UniPC": (UniPCMultistepScheduler, {}),
    "DEIS": (DEISMultistepScheduler, {}),
    "PNDM": (PNDMScheduler, {"skip_prk_steps": True}),
    "Heun": (HeunDiscreteScheduler, {}),
}
STEPS = 32  # about, because Heun and PNDM take more
Network = Callable[[int, Tensor], Tensor]
every_solver = pytest.mark.parametrize("solver", SOLVERS)


def made(solver: str, steps: int = STEPS) -> Any:
    kind, config = {**SOLVERS, **CLIPPED}[solver]
    scheduler = kind(**config)
    scheduler.set_timesteps(steps // 2 if kind is HeunDiscreteScheduler else steps)
    return scheduler


def levels_for(solver: str) -> Levels:
    levels = nature_of(made(solver)).levels
    assert levels is not None
    return levels


def alternating(steps: int) -> list[bool]:
    """Three steps at the beginning and then every other step is computed, and the last one."""
    return [step < 3 or step % 2 == 0 or step == steps - 1 for step in range(steps)]


def noise(shape: Sequence[int] = (2, 1, 4, 4), seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@dataclass
class Run:
    """A run of a network through a scheduler, some of whose outputs are held."""

    solver: str
    computed: Sequence[bool] | None = None
    corrected: bool = True
    order: int = 2
    ahead: int = 0
    nature: Nature | None = None
    between: Callable[[int, Tensor], Tensor] = lambda step, sample: sample  # what the loop does after each step
    scheduler: Any = None
    given: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # to the scheduler, last at each step
    evaluated: list[int] = field(default_factory=list)
    taken: int = 0

    def __post_init__(self) -> None:
        self.scheduler = made(self.solver)
        nature = self.nature or nature_of(self.scheduler)
        self.computed = self.computed or alternating(len(self.scheduler.timesteps))
        self.stepping = Stepping(self.scheduler, nature, self.computed, self.order, self.corrected, ahead=self.ahead)

    def start(self) -> Tensor:
        return noise() * float(getattr(self.scheduler, "init_noise_sigma", 1.0))

    def __call__(self, network: Network, start: Tensor | None = None) -> Tensor:
        assert self.computed is not None
        sample = self.start() if start is None else start
        for step, time in enumerate(self.scheduler.timesteps):
            if hasattr(self.scheduler, "scale_model_input"):
                self.scheduler.scale_model_input(sample, time)

            def take(output: Tensor, sample: Tensor, step: int = step, time: Any = time) -> Any:
                self.given[step] = output.clone(), sample.clone()
                self.taken += 1
                return self.scheduler.step(output, time, sample, return_dict=False)

            if self.computed[step]:
                self.evaluated.append(step)
                output = network(step or self.ahead, self.stepping.asked_with(step, sample))
                result = self.stepping.refresh(step, take, output, sample)
            else:
                result = self.stepping.hold(step, take, sample)
            sample = self.between(step, result[0])
        return sample


def full(solver: str, network: Network, between: Callable[[int, Tensor], Tensor] = lambda step, x: x) -> Tensor:
    """Without any of this."""
    scheduler = made(solver)
    sample = noise() * float(getattr(scheduler, "init_noise_sigma", 1.0))
    for step, time in enumerate(scheduler.timesteps):
        if hasattr(scheduler, "scale_model_input"):
            scheduler.scale_model_input(sample, time)
        sample = between(step, scheduler.step(network(step, sample), time, sample, return_dict=False)[0])
    return sample


def sure(levels: Levels, picture: Tensor) -> Network:
    """A network that always sees the same picture."""

    def network(step: int, sample: Tensor) -> Tensor:
        p, q = levels.estimated[step]
        return (picture - p * sample) / q

    return network


def gaussian(levels: Levels) -> Network:
    """The exact denoiser of pictures whose pixels are drawn from normal distributions."""
    mean, width = noise(seed=1) * 0.5, noise(seed=2).abs() + 0.1

    def network(step: int, sample: Tensor) -> Tensor:
        (a, s), (p, q) = levels.mixed[step], levels.estimated[step]
        gain = a * width**2 / (a**2 * width**2 + s**2)
        return (mean + gain * (sample - a * mean) - p * sample) / q

    return network


def off(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


# ----------------------------------------------------------------------------------------------------------- exactness


@every_solver
def test_nothing_held_is_the_same_to_the_bit(solver: str) -> None:
    network = gaussian(levels_for(solver))
    run = Run(solver, [True] * len(made(solver).timesteps))
    assert torch.equal(run(network), full(solver, network))
    assert run.taken == len(run.scheduler.timesteps) and not run.stepping.knows  # nor was anything kept for it


@every_solver
@pytest.mark.parametrize("every", [2, 3, 5])
def test_a_network_that_is_sure_of_its_picture_is_followed_exactly(solver: str, every: int) -> None:
    """Its clean estimate and its noise stay the same from step to step, so that each of them is predicted exactly."""
    levels = levels_for(solver)
    network = sure(levels, noise(seed=3) * 0.4)
    run = Run(solver, [step % every == 0 for step in range(len(levels))])
    a, s = levels.mixed[0]
    start = a * noise(seed=3) * 0.4 + s * noise(seed=4)
    reference = Run(solver, [True] * len(levels))(network, start)
    assert off(run(network, start), reference) < 2e-3
    assert len(run.evaluated) == -(-len(levels) // every)


@every_solver
@pytest.mark.parametrize("corrected", [False, True])
def test_a_polynomial_is_followed_exactly(solver: str, corrected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the degree that is predicted, in the quantity and in the variable that are predicted: one of these."""
    unbounded(monkeypatch)
    levels, start = levels_for(solver), noise(seed=5)  # where the parabola begins
    found = {}
    for quantity in ("clean", "noise"):
        for variable in ("step", "progress"):
            network = polynomial(levels, quantity, variable)
            held, plain = Run(solver, corrected=corrected), Run(solver, [True] * len(levels))
            found[quantity, variable] = off(held(network, start), plain(network, start))
    assert min(found.values()) < 1e-3, found


def unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let predictions have their full degree, however far they extrapolate."""
    monkeypatch.setattr(prediction, "STEADY_OUTPUT", float("inf"))


def polynomial(levels: Levels, quantity: str, variable: str) -> Network:
    """A network whose clean estimate or noise is a parabola, whatever the sample is."""
    numbers = numbers_of(levels, len(levels))
    at = torch.tensor(numbers if variable == "step" else places_of(len(levels), levels.log_snr), dtype=torch.float64)
    at = (at - at[0]) / (at[-1] - at[0])
    one, two, three = (noise(seed=seed).double() for seed in (5, 6, 7))

    def network(step: int, sample: Tensor) -> Tensor:
        (a, s), (p, q) = levels.mixed[step], levels.estimated[step]
        value = (one + two * at[step] + three * at[step] ** 2).float()
        clean = value if quantity == "clean" else (sample - s * value) / (a or 1.0)  # without signal, all is noise
        return (clean - p * sample) / q

    return network


def test_outputs_of_unknown_levels_are_predicted_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    unbounded(monkeypatch)
    unknown = Nature(None, why_unknown="nobody knows them")
    one, two, three = (noise(seed=seed) for seed in (5, 6, 7))
    network: Network = lambda step, sample: one + two * step / STEPS + three * (step / STEPS) ** 2  # noqa: E731
    run = Run("Euler", nature=unknown)
    assert off(run(network), full("Euler", network)) < 1e-3
    assert not run.stepping.corrects and run.stepping.uncorrected_because == "nobody knows them"
    assert run.taken == STEPS  # no step is taken twice


def test_a_scheduler_whose_levels_are_unknown_is_served() -> None:
    scheduler = IPNDMScheduler()
    scheduler.set_timesteps(12)
    nature = Nature(None, why_unknown="the noise levels of IPNDMScheduler are not known")
    stepping = Stepping(scheduler, nature, [step % 3 == 0 for step in range(12)], 2, True)
    sample = noise()
    for step, time in enumerate(scheduler.timesteps):

        def take(output: Tensor, sample: Tensor, time: Any = time) -> Any:
            return scheduler.step(output, time, sample, return_dict=False)

        sample = (
            stepping.refresh(step, take, 0.1 * sample, sample)[0]
            if step % 3 == 0
            else stepping.hold(step, take, sample)[0]
        )
    assert sample.isfinite().all() and "IPNDMScheduler" in stepping.uncorrected_because


# -------------------------------------------------------------------------------------------------- asking ahead

BEGIN_IN_NOISE = ["DDIM", "DDIM, velocity", "Euler", "flow", "DPM-Solver++", "UniPC", "DEIS"]


@pytest.mark.parametrize("solver", BEGIN_IN_NOISE)
def test_who_is_sure_of_the_picture_may_be_asked_ahead(solver: str) -> None:
    """The answer about a later level becomes the output of the first step."""
    levels = levels_for(solver)
    network = sure(levels, noise(seed=3) * 0.4)
    computed = [step % 6 == 0 for step in range(len(levels))]
    near = Run(solver, computed, ahead=3)(network)
    assert off(near, full(solver, network)) < 5e-3


def test_what_is_asked_ahead_is_asked_with_a_sample_of_that_size() -> None:
    run = Run("Euler", ahead=4)
    (_, most), (_, less) = (levels_for("Euler").mixed[step] for step in (0, 4))
    sample = run.start()
    torch.testing.assert_close(run.stepping.asked_with(0, sample), sample * less / most)
    assert run.stepping.asked_with(5, sample) is sample
    assert Run("Euler").stepping.asked_with(0, sample) is sample


def test_a_run_that_begins_in_noise_alone_hardly_extrapolates_until_there_is_signal() -> None:
    run, plain = Run("DDIM", ahead=3), Run("DDIM")
    bounds = [run.stepping._steady_at(step) for step in range(STEPS)]
    assert bounds == sorted(bounds) and bounds[4] < 1.2
    assert bounds[-1] == plain.stepping._steady_at(4) == plain.stepping._steady_at(STEPS - 1)


# ---------------------------------------------------------------------------------------------------------- correction


@every_solver
def test_a_corrected_run_is_a_run_of_the_scheduler_with_the_corrected_outputs(solver: str) -> None:
    """To the bit: the sample, and all that the scheduler remembers, at every refresh and at the end."""
    network = gaussian(levels_for(solver))
    run = Run(solver)
    last = run(network)
    corrects = run.stepping.corrects
    assert corrects or solver == "Heun"  # whose two stages a step may be better left alone
    assert run.taken > len(run.scheduler.timesteps) if corrects else run.taken == len(run.scheduler.timesteps)
    fresh = made(solver)
    sample = run.start()
    for step, time in enumerate(fresh.timesteps):
        if hasattr(fresh, "scale_model_input"):
            fresh.scale_model_input(sample, time)
        output, before = run.given[step]
        assert torch.equal(before, sample), step
        sample = fresh.step(output, time, sample, return_dict=False)[0]
    assert torch.equal(last, sample)
    assert same(vars(run.scheduler), vars(fresh))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool((one == other).all()) if hasattr(one, "all") else bool(one == other)


@every_solver
def test_correction_brings_the_result_nearer_to_the_full_run(solver: str) -> None:
    network = gaussian(levels_for(solver))
    expected = full(solver, network)
    run = Run(solver)
    near, far = (off(one(network), expected) for one in (run, Run(solver, corrected=False)))
    assert far < 0.3
    assert near < far if run.stepping.corrects else near == far and run.stepping.uncorrected_because, (near, far)


@every_solver
def test_the_refreshed_output_belongs_to_the_corrected_sample(solver: str) -> None:
    """A network that is sure of its picture gives, for the corrected sample, the output that it was corrected to."""
    levels = levels_for(solver)
    picture = noise(seed=3) * 0.4
    network = sure(levels, picture)
    run = Run(solver)
    run(network)
    for step in run.evaluated:
        output, sample = run.given[step]
        torch.testing.assert_close(output, network(step, sample), atol=5e-3, rtol=5e-3)


def test_without_correction_each_step_is_taken_once() -> None:
    run = Run("DPM-Solver++", corrected=False)
    run(gaussian(levels_for("DPM-Solver++")))
    assert run.taken == STEPS and not run.stepping.corrects and not run.stepping.uncorrected_because


# ------------------------------------------------------------------------------------------- what the loop does itself


@every_solver
def test_what_the_loop_changes_between_steps_stays_changed(solver: str) -> None:
    """Inpainting: half of the sample is overwritten after every step. The other half is as if it were alone."""
    levels = levels_for(solver)
    network, mask = gaussian(levels), torch.zeros(4, 4).index_fill(1, torch.tensor([0, 1]), 1.0).bool()

    def overwritten(step: int, sample: Tensor) -> Tensor:
        a, s = levels.mixed[min(step + 1, len(levels) - 1)]
        return torch.where(mask, a * 0.3 + s * noise(seed=9), sample)

    run, alone = Run(solver, between=overwritten), Run(solver)
    painted, plain = run(network), alone(network)
    free = ~mask.expand_as(plain)
    torch.testing.assert_close(painted[free], plain[free], atol=1e-3, rtol=1e-3)
    a, s = levels.mixed[-1]
    torch.testing.assert_close(painted[~free], (a * 0.3 + s * noise(seed=9))[~free])
    for step in run.evaluated[1:]:  # where a refresh is corrected, the overwritten half moves by the correction only
        _, sample = run.given[step]
        a, s = levels.mixed[step]
        size = (a**2 + s**2) ** 0.5
        assert off(sample[~free] / size, (a * 0.3 + s * noise(seed=9))[~free] / size) < 0.5, step


@pytest.mark.parametrize("in_place", [False, True])
def test_a_sample_written_to_in_place_is_noticed(in_place: bool) -> None:
    """A callback may add to the latents. What it added once must reach the result, whichever way it was added."""
    network = sure(levels_for("DDIM"), noise(seed=3) * 0.4)

    def pushed(step: int, sample: Tensor) -> Tensor:
        if step != 21:  # which is held: the next refresh corrects it
            return sample
        return sample.add_(1.0) if in_place else sample + 1.0

    run = Run("DDIM", between=pushed)
    assert not run.computed[21] and run.computed[22]  # type: ignore[index]
    run(network)
    expected = Run("DDIM", [True] * STEPS, between=pushed)
    expected(network)
    torch.testing.assert_close(run.given[22][1], expected.given[22][1], atol=1e-3, rtol=0)


@every_solver
def test_the_loop_may_write_into_the_outputs_it_made(solver: str) -> None:
    levels = levels_for(solver)
    network = gaussian(levels)
    shared = torch.empty_like(noise())

    def reusing(step: int, sample: Tensor) -> Tensor:
        return shared.copy_(network(step, sample))

    # A multistep solver keeps the outputs it is given, if it does not convert them; without us it would be the same.
    if solver in ("PNDM", "Heun"):
        return
    assert torch.equal(Run(solver)(reusing), Run(solver)(network))


# ---------------------------------------------------------------------------------------------------------- the rest


@pytest.mark.parametrize("solver", ["DDIM", "Euler", "DPM-Solver++", "flow"])
def test_bfloat16_outputs_stay_bfloat16_and_are_predicted_in_float32(solver: str) -> None:
    network = gaussian(levels_for(solver))
    run = Run(solver)
    result = run(lambda step, sample: network(step, sample.float()).bfloat16(), run.start())
    assert {output.dtype for output, _ in run.given.values()} == {torch.bfloat16}
    assert result.isfinite().all()
    assert off(result, full(solver, network)) < 0.2
    assert all(value.dtype == torch.float32 for _, value in run.stepping._kept)


def test_bfloat16_samples_are_served() -> None:
    network = gaussian(levels_for("flow"))
    run = Run("flow")
    result = run(lambda step, sample: network(step, sample.float()).bfloat16(), run.start().bfloat16())
    assert result.isfinite().all() and off(result.float(), full("flow", network)) < 0.3


def test_outputs_of_another_shape_than_the_sample_are_predicted_as_they_are() -> None:
    """A learned variance, which the scheduler cuts off by itself."""
    network = gaussian(levels_for("DDIM"))
    run = Run("DDIM")
    take = run.scheduler.step
    run.scheduler.step = lambda output, *rest, **named: take(output.chunk(2, dim=1)[0], *rest, **named)
    result = run(lambda step, sample: torch.cat([network(step, sample), sample], dim=1))
    assert off(result, full("DDIM", network)) < 0.5
    assert "the output is [2, 2, 4, 4] and the sample [2, 1, 4, 4]" in run.stepping.uncorrected_because


def test_no_more_is_kept_than_the_degree_needs_and_nothing_after_the_end() -> None:
    for order in (0, 1, 2, 3):
        run = Run("DDIM", order=order)
        run(gaussian(levels_for("DDIM")))
        assert run.stepping.most_bytes <= (order + 2) * run.start().nbytes
        assert run.stepping.most_bytes >= (order + 1) * run.start().nbytes
        assert run.stepping.knows
        run.stepping.forget()
        assert not run.stepping.knows and not run.stepping._state and run.stepping._after is None


def test_a_step_must_return_a_sample() -> None:
    assert sample_in((noise(), None)) is not None
    assert torch.equal(sample_in(DDIMScheduler().set_timesteps(4) or (noise(),)), noise())
    with pytest.raises(ScheduleError, match="returns a dict without a sample"):
        sample_in({"sample": noise()})


@every_solver
def test_a_snapshot_brings_a_scheduler_back_to_where_it_was(solver: str) -> None:
    scheduler = made(solver)
    samples, network = [noise()], gaussian(levels_for(solver))
    states = []
    for step, time in enumerate(scheduler.timesteps):
        states.append(snapshot(scheduler))
        samples.append(scheduler.step(network(step, samples[-1]), time, samples[-1], return_dict=False)[0])
    before = copy.deepcopy(vars(scheduler))
    for begin in (9, 4, 9):  # a snapshot serves more than once
        restore(scheduler, states[begin])
        sample = samples[begin]
        for step in range(begin, len(scheduler.timesteps)):
            sample = scheduler.step(network(step, sample), scheduler.timesteps[step], sample, return_dict=False)[0]
        assert torch.equal(sample, samples[-1])
        assert same(vars(scheduler), before)
    scheduler.surplus = 1
    restore(scheduler, states[0])
    assert not hasattr(scheduler, "surplus")


@pytest.mark.parametrize("solver", CLIPPED)
def test_an_estimate_is_kept_as_the_scheduler_clips_it(solver: str) -> None:
    """Almost without signal, a small error of the network is an estimate far outside of any picture."""
    levels = levels_for(solver)
    picture = noise(seed=1).clamp(-0.9, 0.9)

    def network(step: int, sample: Tensor) -> Tensor:
        p, q = levels.estimated[step]
        return (picture - p * sample) / q + 0.05 * noise(seed=2)  # an error of the output

    steps = len(made(solver).timesteps)
    assert (levels.estimated[0][1] * 0.05 * noise(seed=2)).abs().max() > 10  # of the first estimate
    run = Run(solver, [step % 4 == 0 or step == steps - 1 for step in range(steps)])
    near = (run(network) - full(solver, network)).abs().max()
    assert near < 0.05
    assert max(kept.abs().max() for _, kept in run.stepping._kept) <= 1


def test_what_a_scheduler_does_not_clip_is_kept_as_it_is() -> None:
    levels = levels_for("DDIM")
    run = Run("DDIM")
    run(sure(levels, noise(seed=1) * 5))
    assert max(kept.abs().max() for _, kept in run.stepping._kept) > 5
