"""A loop of one's own: the denoiser is called, the scheduler is stepped, and nothing else is asked of the loop."""

import warnings
from typing import Any

import pytest
import torch
from diffusers import (
    DDIMInverseScheduler,
    DDIMScheduler,
    DDPMWuerstchenScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
)
from torch import Tensor, nn

import tenuto
from tenuto.errors import UsageError
from tests.helpers.denoisers import inputs, make
from tests.helpers.pipelines import BETAS, QUIET

pytestmark = QUIET


class Small(nn.Module):
    """A denoiser of a class that nobody knows."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.mix = nn.Conv2d(4, 4, 3, padding=1)
        self.calls = 0

    def forward(self, x: Tensor, t: Tensor, guided: bool = True) -> Tensor:
        self.calls += 1
        return torch.tanh(self.mix(x)) + (0.1 * x if guided else 0.0)


def ddim(steps: int = 24) -> Any:
    scheduler = DDIMScheduler(**BETAS, clip_sample=False)
    scheduler.set_timesteps(steps)
    return scheduler


@torch.no_grad()
def drawn(network: nn.Module, scheduler: Any, seed: int = 0, calls: int = 1, steps: int | None = None) -> Tensor:
    x = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(seed))
    for t in scheduler.timesteps[-steps:] if steps else scheduler.timesteps:
        outputs = [network(x, t, guided=i == 0) for i in range(calls)]
        x = scheduler.step(outputs[-1] + 2 * (outputs[0] - outputs[-1]), t, x).prev_sample
    return x


@pytest.mark.parametrize("kind", [DDIMScheduler, DPMSolverMultistepScheduler])
@pytest.mark.parametrize("calls", [1, 2])
def test_a_loop_evaluates_as_often_as_was_asked(kind: Any, calls: int) -> None:
    network, scheduler = Small(), kind(**BETAS, **({"clip_sample": False} if kind is DDIMScheduler else {}))
    scheduler.set_timesteps(24)
    full = drawn(network, scheduler, calls=calls)
    scheduler.set_timesteps(24)
    with tenuto.running(network, scheduler, budget=1.0):
        assert torch.equal(drawn(network, scheduler, calls=calls), full)
    scheduler.set_timesteps(24)
    network.calls = 0
    with tenuto.running(network, scheduler, evaluations=12) as run:
        held = drawn(network, scheduler, calls=calls)
        summary = tenuto.summary(run)
    assert network.calls == 12 * calls == summary.computed and summary.steps == 24
    assert 0 < float((held - full).abs().max()) < 0.1 * float(full.abs().max())
    assert "step" not in vars(scheduler)
    scheduler.set_timesteps(24)
    assert torch.equal(drawn(network, scheduler, calls=calls), full)


def test_one_generation_follows_another() -> None:
    """The next begins when all steps were taken, or when the scheduler was given new timesteps."""
    network, scheduler = Small(), ddim()
    with tenuto.running(network, scheduler, evaluations=8) as run:
        first = drawn(network, scheduler)
        assert not torch.equal(drawn(network, scheduler, seed=1), first)
        assert torch.equal(drawn(network, scheduler), first)
        scheduler.set_timesteps(24)
        with pytest.raises(ZeroDivisionError):
            halfway(network, scheduler)
        scheduler.set_timesteps(24)
        assert torch.equal(drawn(network, scheduler), first)
        network.calls = 0
        scheduler.set_timesteps(30)
        drawn(network, scheduler)
        assert network.calls == 8 and tenuto.summary(run).steps == 30


def halfway(network: nn.Module, scheduler: Any) -> None:
    x = torch.randn(1, 4, 8, 8)
    with torch.no_grad():
        for step, t in enumerate(scheduler.timesteps):
            x = scheduler.step(network(x, t), t, x).prev_sample
            if step == 7:
                raise ZeroDivisionError


def test_a_loop_may_take_the_last_steps_only() -> None:
    network, scheduler = Small(), ddim()
    full = drawn(network, scheduler, steps=12)
    network.calls = 0
    with tenuto.running(network, scheduler, steps=12, evaluations=5) as run:
        held = drawn(network, scheduler, steps=12)
        assert tenuto.summary(run).steps == 12
    assert network.calls == 5
    assert 0 < float((held - full).abs().max()) < 0.3 * float(full.abs().max())


def test_the_rest_after_a_second_network_takes_over_is_not_judged_by_itself() -> None:
    """Eight of 24 evaluations are no reason to warn, even if the steps that are left have four of them."""
    noisy, fine, scheduler, x = Small(0), Small(1), ddim(), torch.zeros(1, 4, 8, 8)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        with tenuto.running({"noisy": noisy, "fine": fine}, scheduler, evaluations=8) as run:
            for step, t in enumerate(scheduler.timesteps):
                x = scheduler.step((noisy if step < 13 else fine)(x, t), t, x).prev_sample
        assert tenuto.summary(run).computed_steps == 8


def test_several_networks_take_turns() -> None:
    """Two experts, one for the first steps: each is computed when it begins."""
    noisy, fine, scheduler = Small(0), Small(1), ddim()

    @torch.no_grad()
    def loop() -> Tensor:
        x = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
        for step, t in enumerate(scheduler.timesteps):
            x = scheduler.step((noisy if step < 9 else fine)(x, t), t, x).prev_sample
        return x

    full = loop()
    with tenuto.running({"noisy": noisy, "fine": fine}, scheduler, budget=1.0):
        assert torch.equal(loop(), full)
    with tenuto.running({"noisy": noisy, "fine": fine}, scheduler, every=4) as run:
        loop()
        summary = tenuto.summary(run)
    assert [step for step, one in enumerate(summary.per_step) if one.work == 1] == [0, 4, 8, 9, 13, 17, 21]
    assert summary.denoisers == {"noisy": "Small", "fine": "Small"}


def test_units_can_be_held_in_a_loop_of_ones_own() -> None:
    network, call = make("sd1"), inputs("sd1", batch=1)
    scheduler = ddim(12)

    @torch.no_grad()
    def loop() -> Tensor:
        x = call["sample"]
        for t in scheduler.timesteps:
            found = network(x, t, encoder_hidden_states=call["encoder_hidden_states"]).sample
            x = scheduler.step(found, t, x).prev_sample
        return x

    full = loop()
    with tenuto.running(network, scheduler, every=3, keep="branch") as run:
        assert not torch.equal(loop(), full)
        assert {one.computed for one in tenuto.summary(run).per_unit.values()} == {4}
    assert torch.equal(loop(), full)


def test_noise_is_noticed_there_too() -> None:
    network, scheduler = Small(), EulerAncestralDiscreteScheduler(**BETAS)
    scheduler.set_timesteps(12)
    with tenuto.running(network, scheduler), pytest.warns(UserWarning, match="adds random noise at every step"):
        drawn(network, scheduler)
    assert network.calls == 12


@pytest.mark.parametrize("asked", [{"budget": 0.25}, {"quality": 40}, {"evaluations": 12}])
def test_noise_that_the_loop_asks_for_is_noticed(asked: dict[str, Any]) -> None:
    """Euler adds noise where its step is told to churn, by name or by place."""
    network, scheduler = Small(), EulerDiscreteScheduler(**BETAS)

    @torch.no_grad()
    def churned(generator: torch.Generator) -> Tensor:
        scheduler.set_timesteps(24)
        x = torch.randn(1, 4, 8, 8, generator=generator) * scheduler.init_noise_sigma
        for t in scheduler.timesteps:
            output = network(scheduler.scale_model_input(x, t), t)
            x = scheduler.step(output, t, x, 8.0, generator=generator).prev_sample
        return x

    full = churned(torch.Generator().manual_seed(0))
    with tenuto.running(network, scheduler, **asked) as run:
        with pytest.warns(UserWarning, match="EulerDiscreteScheduler adds random noise at every step"):
            held = churned(torch.Generator().manual_seed(0))
        summary = tenuto.summary(run)
    assert not summary.corrected
    assert summary.computed == (12 if "evaluations" in asked else 24)
    assert torch.equal(held, full) or "evaluations" in asked


@pytest.mark.parametrize("kind", [DDIMScheduler, UniPCMultistepScheduler, DPMSolverMultistepScheduler])
def test_a_scheduler_without_timesteps_is_refused_before_the_loop(kind: Any) -> None:
    network, scheduler = Small(), kind(**BETAS)
    with tenuto.running(network, scheduler), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # no word about noise
        with pytest.raises(UsageError, match=f"Call the set_timesteps of {kind.__name__} before the loop"):
            drawn(network, scheduler)
        scheduler.set_timesteps(24)
        assert drawn(network, scheduler).isfinite().all()


@pytest.mark.parametrize("kind", [DDIMInverseScheduler, FlowMatchEulerDiscreteScheduler, DDPMWuerstchenScheduler])
def test_other_schedulers_without_timesteps_are_refused_with_the_same_sentence(kind: Any) -> None:
    """Flow matching fails only at the last of its thousand steps, Wuerstchen's has no list of timesteps at all."""
    network, scheduler = Small(), kind()
    with tenuto.running(network, scheduler), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # no word about noise
        with pytest.raises(UsageError, match=f"Call the set_timesteps of {kind.__name__} before the loop"):
            network(torch.zeros(1, 4, 8, 8), torch.tensor(0))


def test_a_scheduler_that_needs_no_timesteps_takes_all_of_its_own() -> None:
    network, scheduler = Small(), EulerDiscreteScheduler(**BETAS, num_train_timesteps=60)
    with tenuto.running(network, scheduler, budget=0.25) as run:
        assert drawn(network, scheduler).isfinite().all()
        assert (tenuto.summary(run).steps, tenuto.summary(run).computed) == (60, 15)


def test_a_loop_that_needs_derivatives_is_computed_in_full() -> None:
    """As in guidance by a gradient: a held output has none."""
    network, scheduler = Small(), ddim()

    def loop() -> Tensor:
        x = torch.randn(1, 4, 8, 8)
        for t in scheduler.timesteps:
            x = x.detach().requires_grad_()
            output = network(x, t)
            (slope,) = torch.autograd.grad(output.square().mean(), x)
            x = scheduler.step(output.detach(), t, (x - 0.1 * slope).detach()).prev_sample
        return x

    with tenuto.running(network, scheduler, evaluations=6), pytest.warns(UserWarning, match="need a gradient"):
        x = loop()
    assert network.calls == 24 and x.isfinite().all()


def test_a_loop_that_forgot_no_grad_is_computed_in_full_and_told() -> None:
    """From the second step on its sample needs a gradient, because the parameters do."""
    network, scheduler = Small(), ddim()

    def loop() -> Tensor:
        x = torch.ones(1, 4, 8, 8)
        for t in scheduler.timesteps:
            x = scheduler.step(network(x, t), t, x).prev_sample
        return x.detach()

    full = loop()
    with tenuto.running(network, scheduler, evaluations=6) as run:
        with pytest.warns(UserWarning, match=r"run the loop under torch.no_grad\(\)"):
            assert torch.equal(loop(), full)
        assert "need a gradient" in tenuto.summary(run).in_full_because


def test_a_loop_that_never_steps_its_scheduler_is_told_that_nothing_was_held() -> None:
    network, scheduler = Small(), ddim()
    with torch.no_grad(), tenuto.running(network, scheduler, evaluations=6) as run:
        for t in scheduler.timesteps:
            network(torch.zeros(1, 4, 8, 8), t)
        with pytest.warns(UserWarning, match="its network 24 times and never called the step of its DDIMScheduler"):
            run.close()


def test_nonsense_is_refused_and_leaves_nothing_behind() -> None:
    network, scheduler = Small(), ddim()
    for wrong, message in (
        ({"scheduler": network}, "A diffusers scheduler is needed, not a Small"),
        ({"budget": 0.0}, "above 0"),
        ({"evaluations": 3, "budget": 0.5}, "not two of them"),
        *(({"denoisers": one}, "Give the network") for one in (None, [], {}, "x")),
        ({"denoisers": {"unet": None}}, "loop's unet should be a torch module, not a NoneType"),
        *(({"steps": one}, "number of steps must be") for one in (0, -1, 2.5, "x", True)),
    ):
        given: dict[str, Any] = {"denoisers": network, "scheduler": scheduler, **wrong}
        with pytest.raises(UsageError, match=message):
            tenuto.running(**given).__enter__()
        assert "step" not in vars(scheduler) and "_compiled_call_impl" not in vars(network)
    with tenuto.running(network, scheduler, steps=25), pytest.raises(UsageError, match="has 24 timesteps"):
        drawn(network, scheduler)
    with pytest.raises(ZeroDivisionError), tenuto.running(network, scheduler):
        raise ZeroDivisionError
    assert "step" not in vars(scheduler) and "_compiled_call_impl" not in vars(network)


class Modular:
    """As a modular pipeline: parts by name, and no progress bar."""

    def __init__(self) -> None:
        self.transformer, self.scheduler, self.audio_scheduler = Small(), ddim(), ddim()

    @property
    def components(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("transformer", "scheduler", "audio_scheduler")}

    @torch.no_grad()
    def __call__(self) -> tuple[Tensor, Tensor]:
        """One evaluation gives the outputs of two schedulers."""
        x, y = (torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
        for scheduler in (self.scheduler, self.audio_scheduler):
            scheduler.set_timesteps(24)
        for t in self.scheduler.timesteps:
            one, other = self.transformer(torch.cat([x, y]), t).chunk(2)
            x = self.scheduler.step(one, t, x, return_dict=False)[0]
            y = self.audio_scheduler.step(other, t, y, return_dict=False)[0]
        return x, y


def test_every_scheduler_of_a_pipeline_without_a_progress_bar_is_held() -> None:
    pipe = Modular()
    full = pipe()
    tenuto.enable(pipe, evaluations=12)
    pipe.transformer.calls = 0
    for _ in range(2):
        held = pipe()
        assert len(vars(pipe)["_tenuto"].last.streams) == 2
        assert all(
            0 < float((one - two).abs().mean() / two.abs().mean()) < 0.2 for one, two in zip(held, full, strict=True)
        )
    assert pipe.transformer.calls == 24
    tenuto.disable(pipe)
    assert all(map(torch.equal, pipe(), full)) and "step" not in vars(pipe.audio_scheduler)


def test_a_quality_of_two_schedulers_is_that_of_the_worse() -> None:
    pipe, counts = Modular(), []
    full = pipe()
    for quality in (30, 70):
        with tenuto.accelerated(pipe, quality=quality):
            held, told = pipe(), tenuto.summary(pipe)
        assert not told.too_few
        assert all(
            float((one - two).abs().mean() / two.abs().mean()) < 0.05 for one, two in zip(held, full, strict=True)
        )
        counts.append(told.computed_steps)
    assert counts[0] < counts[1]


def test_a_pipeline_without_a_progress_bar_sees_that_its_weights_were_changed() -> None:
    pipe = Modular()
    tenuto.enable(pipe, evaluations=12, on_change="refuse")
    pipe()
    with torch.no_grad():
        pipe.transformer.mix.weight.mul_(2)
    with pytest.raises(tenuto.TenutoError, match="weights of the transformer were changed"):
        pipe()


def take_turns(network: nn.Module, scheduler: Any) -> None:
    x, y = torch.randn(2, 1, 4, 8, 8)
    for time in scheduler.timesteps:
        x = scheduler.step(network(x, time), time, x).prev_sample
        y = scheduler.step(network(y, time), time, y).prev_sample


@torch.no_grad()
def test_samples_in_turn_on_one_scheduler_are_told_what_helps() -> None:
    network, scheduler, remedy = Small(), ddim(), "put them into one batch, or draw one after the other"
    with tenuto.running(network, scheduler, evaluations=6), pytest.raises(UsageError, match=remedy):
        take_turns(network, scheduler)
    with tenuto.running(network, scheduler, evaluations=22), pytest.warns(UserWarning, match=remedy):
        take_turns(network, scheduler)
