"""The benchmark on networks of others, on one made up here: it draws, counts, compares and reports as it says."""

import pytest
import torch
from torch import Tensor, nn

from benchmarks.networks_of_others.case import Case
from benchmarks.networks_of_others.levels import cosine_betas
from benchmarks.networks_of_others.solvers import SOLVERS
from benchmarks.transfer.measuring import FULL, LONG, OURS, Drawn, decibels, measure, ways
from benchmarks.transfer.report import tables
from tenuto_lab.frontier.measurements import HIGHEST


class Gaussian(nn.Module):
    """The best denoiser of samples around a center: its noise is known in closed form."""

    def __init__(self, betas: tuple[float, ...]) -> None:
        super().__init__()
        self.levels = nn.Parameter(torch.cumprod(1 - torch.tensor(betas), dim=0), requires_grad=False)

    def forward(self, x: Tensor, timesteps: Tensor, center: Tensor) -> Tensor:
        below, above = self.levels[timesteps.floor().long()], self.levels[timesteps.ceil().long()]
        at = torch.lerp(below, above, timesteps.float() % 1)[:, None]
        return (1 - at).sqrt() * (x - at.sqrt() * center) / (at * 0.25 + 1 - at)


@pytest.fixture
def case() -> Case:
    betas = cosine_betas(120)
    center = torch.tensor([1.0, -1.0, 0.5])
    return Case(
        "made up", "a Gaussian", "none", Gaussian(betas), (3,), betas, conditions=lambda n: (center.expand(n, 3),)
    )


def test_decibels_are_of_the_peak_over_the_distance_sample_by_sample() -> None:
    reference = torch.zeros(2, 1, 5)
    found = decibels(torch.stack([reference[0] + 0.1, reference[1] + 1]), reference, peak=2.0)
    torch.testing.assert_close(found, torch.tensor([26.0206, 6.0206], dtype=torch.float64))
    assert decibels(reference, reference, 1.0).tolist() == [HIGHEST] * 2
    assert decibels(reference * torch.nan, reference, 1.0).tolist() == [-HIGHEST] * 2
    with pytest.raises(ValueError, match="cannot be compared"):
        decibels(reference, reference[:1], 1.0)


def test_every_way_evaluates_about_as_often_and_none_is_drawn_twice(case: Case) -> None:
    drawn = Drawn(case, samples=2, seeds=2)
    found = ways(drawn, 40, 0.25)
    assert {OURS, LONG, *SOLVERS} == found.keys()
    ours = found[OURS][1]
    assert all(count == ours for way, (_, count) in found.items() if way != LONG)
    assert abs(found[LONG][1] - ours) <= 3
    drawn.evaluated = 0
    assert torch.equal(ways(drawn, 40, 0.25)[OURS][0], found[OURS][0]) and drawn.evaluated == 0


def test_samples_of_a_seed_do_not_depend_on_the_other_seeds(case: Case) -> None:
    one, two = (Drawn(case, samples=2, seeds=seeds).full(10) for seeds in (1, 2))
    torch.testing.assert_close(two[:2], one)


<<<<<<< HEAD
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
=======
def test_rows_comparisons_and_tables_of_a_network(case: Case) -> None:
    found = measure(case, [40, 12], [0.5, 0.25], samples=3, seeds=2)
    full = [row for row in found["rows"] if row["way"] == FULL]
    assert [row["evaluations"] for row in full] == [40, 12] and all(row["full_dB"] == HIGHEST for row in full)
    assert full[0]["converged_dB"] > full[1]["converged_dB"]
    points = {(row["steps"], row["of_ours"]) for row in found["rows"] if row["way"] == OURS}
    assert {steps for steps, _ in points} == {40, 12}
    assert len(found["comparisons"]) == len(points) * 2 * 2  # targets, rivals
>>>>>>> nets
    made = {"command": "python -m benchmarks.transfer", "commit": "abc", "torch": "2", "hardware": "a chip", "date": ""}
    record = {"networks": {"made up": {"provenance": made, "samples": 3, "seeds": 2, "chosen_by": False, **found}}}
    text = tables(record)
    assert "No constant of the default was chosen" in text and "at abc" in text and "60 and 120 steps agree" in text
    rows = [line for line in text.splitlines() if line.startswith(("| 40 |", "| 12 |"))]
    assert len(rows) == len(points)
