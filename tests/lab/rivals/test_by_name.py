"""Every rival by name, from noise to samples, on small networks."""

from pathlib import Path
from typing import Any

import pytest
import torch

import tenuto
from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto_lab.rivals import NAMES, RivalPoint, best_points, rival_points
from tenuto_lab.rivals.by_name import DYNAMIC, SOLVERS, WHOLE_OUTPUT

pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")  # diffusers' DEIS
STEPS, EVALUATIONS = 10, 5


@pytest.fixture
def model(checkpoint: Path) -> Model:
    return tenuto.load(str(checkpoint))


@pytest.fixture
def noise() -> Any:
    return torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", NAMES)
def test_every_rival_draws_with_n_evaluations(name: str, model: Model, noise: Any) -> None:
    points = list(rival_points(model, [0, 3], noise, STEPS, EVALUATIONS, [name]))
    drawn = [point for point in points if isinstance(point.x, torch.Tensor)]
    assert drawn and len({point.setting for point in drawn}) == len(drawn)
    for point in points:
        assert point.name == name
        if isinstance(point.x, str):
            assert point.x.endswith(".") or "evaluations" in point.x
            continue
        assert point.x.shape == noise.shape and point.x.dtype == torch.float32 and point.seconds > 0
        if name in DYNAMIC:
            assert abs(point.evaluations - EVALUATIONS) <= 2
        else:
            assert point.evaluations == EVALUATIONS


def test_points_do_not_depend_on_those_before(model: Model, noise: Any) -> None:
    alone, together = (
        [point for point in rival_points(model, [0, 3], noise, STEPS, EVALUATIONS, names) if point.name == "ZEUS"]
        for names in (["ZEUS"], ["DDIM", "FoCa", "TeaCache", "ZEUS"])
    )
    assert all(torch.equal(a.x, b.x) for a, b in zip(alone, together, strict=True))  # type: ignore[arg-type]


def test_guidance_is_applied(model: Model, noise: Any) -> None:
    a, b = (next(rival_points(model, [0, 3], noise, STEPS, 5, ["UniPC 2"], guidance=w)) for w in (1.0, 4.0))
    assert isinstance(a.x, torch.Tensor) and isinstance(b.x, torch.Tensor)
    assert a.evaluations == b.evaluations == 5 and not torch.allclose(a.x, b.x)


def test_the_best_setting_of_each_rival_is_found_and_reasons_stay() -> None:
    points = [
        RivalPoint("a", "1", 5, torch.tensor([1.0])),
        RivalPoint("a", "2", 5, torch.tensor([3.0])),
        RivalPoint("a", "3", 5, torch.tensor([float("nan")])),
        RivalPoint("b", "", 0, "it cannot run"),
    ]
    found = best_points(points, lambda x: float(x[0]))
    assert found["a"][1].setting == "2" and found["a"][0] == 3
    assert found["b"][1].x == "it cannot run" and found["b"][0] == float("-inf")


def test_all_names_are_known_and_others_are_refused(model: Model, noise: Any) -> None:
    assert (*SOLVERS, *WHOLE_OUTPUT, *DYNAMIC) == NAMES and len(set(NAMES)) == len(NAMES) == 22
    for nonsense, message in (
        ({"names": ["Zeus"]}, "no rival 'Zeus'"),
        ({"conditions": [0]}, "1 requests for 2"),
        ({"N": 11}, "Between 1 and 10"),
    ):
        options: dict[str, Any] = {"conditions": [0, 3], "T": 10, "N": 5, **nonsense}
        with pytest.raises(UsageError, match=message):
            next(rival_points(model, noise=noise, **options))
