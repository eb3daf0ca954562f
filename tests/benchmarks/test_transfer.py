"""The benchmark on other people's denoisers, on one made up here: it draws, counts and compares as it says."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks import transfer
from benchmarks.published import Denoiser, Levels, discrete
from benchmarks.transfer import OURS, RIVALS
from tenuto.runtime import prediction as extrapolation
from tenuto.scheduling.refresh import refresh
from tenuto_lab.frontier.measurements import HIGHEST


class Gaussian(nn.Module):
    """The best denoiser of samples around a center: its noise is known in closed form."""

    def __init__(self) -> None:
        super().__init__()
        self.width = nn.Parameter(torch.tensor(0.5))
        self.calls = 0

    def forward(self, x: Tensor, t: Tensor, center: Tensor) -> Tensor:
        self.calls += type(x) is Tensor  # and not one without values
        alpha, sigma = torch.cos(t)[:, None], torch.sin(t)[:, None]
        return sigma * (x - alpha * center) / ((alpha * self.width) ** 2 + sigma**2)


def levels(steps: int) -> Levels:
    t = torch.linspace(1.5, 0.01, steps)
    return Levels(t, torch.cos(t), torch.sin(t))


@pytest.fixture
def denoiser() -> Denoiser:
    module = Gaussian().requires_grad_(False)
    center = torch.tensor([1.0, -1.0, 0.5])
    return Denoiser(
        "made up",
        "a Gaussian",
        "none",
        module,
        module,
        (3,),
        levels,
        lambda samples: (center.expand(samples, 3),),
        many=(60, 120),
    )


def full(denoiser: Denoiser, steps: int) -> Tensor:
    x = torch.stack([torch.randn(3, generator=torch.Generator().manual_seed(i)) for i in range(4)])
    times, alpha, sigma = levels(steps)
    for i in range(steps):
        noise = denoiser.network(x, times[i].expand(4), *denoiser.conditions(4))
        clean = (x - sigma[i] * noise) / alpha[i]
        x = clean if i + 1 == steps else alpha[i + 1] * clean + sigma[i + 1] * noise
    return x


def calls_of(denoiser: Denoiser) -> int:
    assert isinstance(denoiser.module, Gaussian)
    return denoiser.module.calls


def test_decibels_are_of_the_peak_over_the_distance_sample_by_sample() -> None:
    reference = torch.zeros(2, 1, 5)
    found = transfer.decibels(torch.stack([reference[0] + 0.1, reference[1] + 1]), reference, peak=2.0)
    assert found.tolist() == pytest.approx([20 * math.log10(20), 20 * math.log10(2)])


def test_decibels_of_equal_samples_are_the_highest_there_are() -> None:
    samples = torch.randn(3, 2)
    assert transfer.decibels(samples, samples, 1.0).tolist() == [HIGHEST] * 3
    with pytest.raises(ValueError, match="cannot be compared"):
        transfer.decibels(samples, samples[:2], 1.0)


def test_with_the_whole_budget_the_output_is_that_of_the_full_run(denoiser: Denoiser) -> None:
    schedule = refresh(transfer.one_unit("made up", denoiser.module), 20, budget=1.0)
    drawn = transfer.draw(denoiser, schedule, seeds=[0], samples=4)
    assert calls_of(denoiser) == 20
    torch.testing.assert_close(drawn, full(denoiser, 20))


def test_at_a_quarter_the_network_is_evaluated_as_often_as_the_row_says(denoiser: Denoiser) -> None:
    scores = transfer.one_unit("made up", denoiser.module)
    for way, (schedule, _) in transfer.schedules(transfer.first_tried(scores, 20, 0.25), scores, math.inf).items():
        before = calls_of(denoiser)
        transfer.draw(denoiser, schedule, seeds=[0], samples=4)
        assert calls_of(denoiser) - before == transfer.evaluations(schedule) == 5, way


def test_what_was_first_tried_stays_what_it_was(denoiser: Denoiser) -> None:
    scores = transfer.one_unit("made up", denoiser.module)
    many, few = (transfer.first_tried(scores, steps, 0.25) for steps in (50, 20))
    assert (many.predict, np.flatnonzero(many.active[0]).tolist()) == ("cubic", [*range(0, 50, 5), 47, 48, 49])
    assert (few.predict, np.flatnonzero(few.active[0]).tolist()) == ("quadratic", [0, 4, 8, 12, 16])


def test_what_was_first_tried_magnified_without_bounds_and_nothing_else_does() -> None:
    nodes, at = [0, 2, 5, 10], 14
    with transfer.magnified_by(math.inf):
        assert extrapolation.polynomial_weights(nodes, at) == extrapolation.lagrange(nodes, at)
    assert extrapolation.polynomial_weights(nodes, at) != extrapolation.lagrange(nodes, at)


def test_a_sample_depends_on_its_own_noise_alone(denoiser: Denoiser) -> None:
    schedule = refresh(transfer.one_unit("made up", denoiser.module), 20, budget=0.25)
    alone, together = (transfer.draw(denoiser, schedule, seeds, samples=4) for seeds in ([1], [0, 1]))
    torch.testing.assert_close(alone, together[4:])
    torch.testing.assert_close(alone[:2], transfer.draw(denoiser, schedule, [1], samples=2))


def test_what_is_clamped_stays_within_its_bounds(denoiser: Denoiser) -> None:
    bounded = Denoiser(**{**vars(denoiser), "clamp": lambda clean: clean.clamp(-0.2, 0.2)})
    schedule = refresh(transfer.one_unit("made up", denoiser.module), 20, budget=0.25)
    assert transfer.draw(bounded, schedule, seeds=[0], samples=4).abs().max() <= 0.2 + 1e-6


def test_levels_of_a_discrete_process_are_its_own_and_both_ends_are_among_them() -> None:
    alpha_bar = torch.linspace(0.99, 0.01, 200)
    times, alpha, sigma = discrete(alpha_bar, 20)
    assert [times[0].item(), times[-1].item(), len(set(times.tolist()))] == [199, 0, 20]
    torch.testing.assert_close(alpha.square(), alpha_bar[times])
    torch.testing.assert_close(alpha.square() + sigma.square(), torch.ones(20))


def test_a_network_is_measured_and_told_of(denoiser: Denoiser) -> None:
    found = transfer.measure(denoiser, [20, 12], [0.5, 0.25], samples=3, seeds=2)
    assert [row["dB"] for row in found["rows"] if row["way"] == "full"] == [HIGHEST] * 2
    assert {row["way"] for row in found["rows"]} == {"full", OURS, *RIVALS}
    assert len(found["comparisons"]) == 2 * 2 * 2 * len(RIVALS)
    made = {"command": "python -m benchmarks.transfer", "commit": "abc", "torch": "2", "hardware": "a chip", "date": ""}
    record = {
        "provenance": made,
        "packages": {"none": {"version": "1", "licence": "MIT"}},
        "samples": 3,
        "seeds": 2,
        "networks": {"made up": found["network"]},
        "rows": found["rows"],
        "comparisons": found["comparisons"],
    }
    text = transfer.tables(record)
    assert "2 seeds of 3 samples" in text
    assert "| 20 | 0.5 |" in text and "| 12 | 0.25 |" in text
    assert found["network"]["many"]["steps"] == [60, 120]
