"""The self-check: exact where nothing is held, and its errors and words are those of what was made."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tenuto
from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.quality import of_pictures, of_two_texts, psnr
from tenuto.runtime.executor import Executor
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.checking import SHARES, Check, Probing, check, safe_alternative
from tests.conftest import random_dit


@pytest.fixture
def model(checkpoint: Path) -> Model:
    return tenuto.load(str(checkpoint))


def test_nothing_held_is_exact(model: Model) -> None:
    result = check(model, tenuto.schedule(model, steps=10, budget=1.0), [0, 1])
    assert result.likeness == (np.inf, np.inf) and result.safe and not result.errors.any() and not result.worst_units()
    assert result.verdict == "the pictures are identical to those of the full run"


def test_errors_are_what_the_held_unit_was_off_by() -> None:
    network = random_dit()
    units = [f"blocks.{i}.{kind}" for i in range(3) for kind in ("attn", "mlp")]
    active = np.ones((6, 2), dtype=bool)
    active[2, 1] = False
    schedule = Schedule(tuple(units), active, (1.0,) * 6, "constant", "update", "toy", "sha256:toy")
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def spy(unit: str, h: Tensor, branch: Any, gate: Any = None) -> Tensor:
        update: Tensor = gate() * branch()
        seen.setdefault(unit, []).append((h, update))
        return h + update

    given = [(torch.randn(1, 1, 8, 8), torch.tensor([900 - s]), torch.tensor([2])) for s in range(2)]
    for inputs in given:
        network(*inputs, residual=spy)
    (_, old), (h, new) = seen["blocks.1.attn"]
    probing = Probing(network, schedule)
    generation = probing.start()
    for inputs in given:
        generation(*inputs)
    assert probing.errors[2, 1] == pytest.approx(float((old - new).norm() / (h + new).norm()), rel=1e-4)
    assert np.count_nonzero(probing.errors) == 1


def test_with_the_output_kept_errors_are_of_steps(model: Model) -> None:
    result = check(model, tenuto.schedule(model, steps=6, every=3), [0])
    assert result.errors.shape == (1, 6)
    assert {unit for unit, _, _ in result.worst_units(9)} == {"the output"}
    assert sorted(step for _, step, _ in result.worst_units(9)) == [2, 3, 5, 6]


def test_a_schedule_runs_under_the_probe_as_it_does_without(model: Model) -> None:
    for options in ({"evaluations": 3}, {"evaluations": 9}, {"policy": "lifetimes", "budget": 0.5}):
        schedule = tenuto.schedule(model, steps=10, **options)
        want = tenuto.generate(model, [0, 3], schedule=schedule)
        got = tenuto.generate(model, [0, 3], executor=Probing(model.network, schedule))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    with pytest.raises(UsageError, match="not both"):
        tenuto.generate(model, [0], schedule=schedule, executor=Executor(model.network, schedule))


def test_the_safe_schedule_nearest_to_what_was_asked_is_named(model: Model) -> None:
    asked: list[float] = []

    def look(one: Schedule) -> Check:
        asked.append(round(one.budget, 3))
        return Check(one, (35.0 if one.policy["evaluations"] >= 12 else 25.0,), False, np.zeros((1, one.steps)))

    for budget in (0.1, 0.3, 0.6):
        schedule = tenuto.schedule(model, steps=50, policy="lifetimes", budget=budget)
        asked.clear()
        better = safe_alternative(look, schedule)
        assert better is not None and better.safe
        assert asked == sorted(asked, key=lambda share: abs(share - schedule.budget))
        found = better.schedule.policy["evaluations"]
        assert found == {0.1: 12, 0.3: 17, 0.6: 25}[budget]
    assert len(asked) < 2 * len(SHARES)


def test_a_schedule_that_is_safe_by_a_margin_is_preferred(model: Model) -> None:
    schedule = tenuto.schedule(model, steps=50, policy="lifetimes", budget=0.1)

    def look(best: float) -> Check | None:
        def judged(one: Schedule) -> Check:
            count = one.policy["evaluations"]
            return Check(one, (30.5 if count == 10 else best if count > 10 else 20.0,), False, np.zeros((1, one.steps)))

        return safe_alternative(judged, schedule)

    clear, narrow = look(36.0), look(31.0)
    assert clear is not None and clear.clearly_safe and clear.schedule.policy["evaluations"] == 12
    assert narrow is not None and narrow.safe and not narrow.clearly_safe
    assert narrow.schedule.policy["evaluations"] == 10, "if none has a margin, the nearest safe one is named"


def test_a_schedule_is_not_named_in_its_own_place(model: Model) -> None:
    schedule = tenuto.schedule(model, steps=50, evaluations=12)
    seen: list[Schedule] = []

    def look(one: Schedule) -> Check:
        seen.append(one)
        return Check(one, (10.0,), False, np.zeros((1, one.steps)))

    assert safe_alternative(look, schedule) is None and schedule.active.tolist() not in [
        one.active.tolist() for one in seen if one.predict == schedule.predict
    ]


def test_texts_are_judged_step_by_step() -> None:
    model = tenuto.load("small-llada")
    options: dict[str, Any] = {"length": 8, "block_length": 4}
    asked = ["close: ([{ ->", "The old man"]
    everything = check(model, tenuto.schedule(model, steps=4, budget=1.0, blocks=2), asked, **options)
    assert everything.likeness == (1.0, 1.0) and everything.safe and "every token" in everything.verdict
    seen: list[int] = []
    some = check(model, tenuto.schedule(model, steps=4, blocks=2), asked, progress=seen.append, **options)
    assert all(0 <= share <= 1 for share in some.likeness) and some.text
    assert seen == [2] * 8, "each step is evaluated with the schedule and without"
    with pytest.raises(UsageError, match="the temperature must be 0"):
        check(model, tenuto.schedule(model, steps=4, blocks=2), asked, temperature=1.0, **options)


def test_the_words_say_what_the_figures_mean() -> None:
    assert of_pictures([np.inf]) == "the pictures are identical to those of the full run"
    assert of_pictures([35.0]) == "the pictures differ from those of the full run in ways that are hard to see: 35.0 dB"
    some = of_pictures([np.inf, 45.0, 41.0])
    assert some.endswith("full run: 43.0 dB on average, the worst 41.0 dB; 1 of 3 are identical")
    assert "little to do" in of_pictures([50.0, 9.0])
    assert of_two_texts([1, 2], [1, 2]) == "The text is identical to that of the full run."
    apart = of_two_texts([1, 2, 3, 4], [1, 9, 3, 8])
    assert apart.startswith(
        "The texts differ from token 2 on, and 50% of their 4 tokens are equal. Once a token differs"
    )


def test_nothing_asked_for_is_an_error(model: Model) -> None:
    with pytest.raises(UsageError, match="nothing to compare"):
        check(model, tenuto.schedule(model, steps=10), [])


@pytest.mark.parametrize("likeness", [(45.0, -math.inf), (-math.inf, 45.0), (-math.inf,)])
def test_a_picture_of_values_that_are_not_numbers_is_not_safe(likeness: tuple[float, ...]) -> None:
    broken, picture = torch.full((1, 1, 2, 2), math.nan), torch.zeros(1, 1, 2, 2)
    for one, other in ((broken, picture), (picture, broken), (broken, broken)):
        assert psnr(one, other).tolist() == [-math.inf]
    schedule = tenuto.schedule("tiny-dit", steps=20)
    found = Check(schedule, likeness, False, np.zeros((1, 20)))
    assert not found.safe and "little to do with" in found.verdict and "identical" not in found.verdict
