"""The model problem: its denoiser is exact, and the engine is nearer than as many plain steps."""

import pytest
import torch

from benchmarks.model_problem.mixture import Mixture, World, nearness
from benchmarks.model_problem.running import SCHEDULERS, drawn


def test_without_noise_the_estimate_is_the_sample() -> None:
    mixture = Mixture(World(), guidance=1.0)
    torch.testing.assert_close(mixture.clean(mixture.noise, 1.0, 1e-4), mixture.noise, atol=1e-3, rtol=0)


def test_one_kind_without_variation_is_the_answer_whatever_the_sample_is() -> None:
    mixture = Mixture(World(within=0.0, classes=1, kinds=1), guidance=1.0)
    x = mixture.noise
    torch.testing.assert_close(mixture.clean(x, 0.6, 0.8), mixture.clean(2 * x, 0.1, 0.99))


def test_guidance_of_one_asks_for_the_class_alone_and_more_leads_further_from_the_others() -> None:
    plain, guided, empty = (Mixture(World(), scale) for scale in (1.0, 3.0, 0.0))
    x = plain.noise
    expected = empty.clean(x, 0.5, 0.87) + 3.0 * (plain.clean(x, 0.5, 0.87) - empty.clean(x, 0.5, 0.87))
    torch.testing.assert_close(guided.clean(x, 0.5, 0.87), expected)


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("guidance", [1.5, 5.0])
def test_twelve_evaluations_are_nearer_to_the_full_run_than_twelve_steps(name: str, guidance: float) -> None:
    mixture = Mixture(World(), guidance, samples=2)
    full = drawn(mixture, name, 50)
    assert torch.equal(full, drawn(mixture, name, 50, 50))
    held, fewer = drawn(mixture, name, 50, 12), drawn(mixture, name, 12)
    assert nearness(held, full) > nearness(fewer, full) + 2
