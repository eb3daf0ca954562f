"""The scaling benchmark on an untrained network: every way draws, with as many evaluations as it says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.scaling import across, measuring
from benchmarks.scaling.drawing import Network, Requests, opened
from benchmarks.scaling.figure import draw
from benchmarks.scaling.gathering import GOALS, SHARES, Case, Interval, of_transfer
from benchmarks.scaling.measuring import Near, measure
from benchmarks.scaling.report import (
    _difference,
    _effects,
    _guidances,
    _resolutions,
    effects,
    of_one_kind,
    tables,
)
from benchmarks.scaling.ways import OURS, PREDICTOR, STEPS, WAYS, Way, _predicted, rivals
from tenuto.models.dit import DiT
from tenuto_lab.judging.least_squares import rank_correlation
from tenuto_lab.rivals.whole_output import methods
from training import family, objectives
from training.autoencoder import Autoencoder, AutoencoderConfig
from training.loop import Settings, Trained

CPU = torch.device("cpu")
NARROW = AutoencoderConfig(block_out_channels=(8, 8, 8), norm_num_groups=4)
MADE = {"command": "none", "commit": "none", "torch": "none", "hardware": "none", "date": "today"}


@pytest.fixture(scope="module", params=["noise", "flow"])
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Network:
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    vae = folder / "vae"
    family.write_json(vae / "config.json", NARROW.to_json())
    layout = "diffusion_pytorch_model{suffix}.safetensors"
    family.save_weights(vae, Autoencoder(NARROW).state_dict(), layout, torch.float32)
    config = family.SIZES["tiny"].config(4, 16, 3)
    made = DiT(config)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    goal = objectives.objective(request.param, CPU)
    family.save(folder, Trained(made.state_dict()), config, "abc", goal, Settings(1.0), vae, 1, {"held_out_loss": 1.0})
    return opened(folder, CPU)


def test_every_rival_evaluates_so_often_and_ours_too(network: Network) -> None:
    asked = Requests(network, 2.0, 1)
    counted = 0

    def count(*_: object) -> None:
        nonlocal counted
        counted += 1

    handle = network.model.network.register_forward_hook(count)
    for way in list(rivals(network.prediction == "flow", 6))[::5]:
        counted = 0
        if way.draw(asked) is not None:
            assert counted == 6, way
    counted = 0
    assert asked.held(STEPS, 0.2)[1] == counted == 10
    handle.remove()


def test_a_predictor_that_evaluates_every_step_gives_the_full_run(network: Network) -> None:
    asked = Requests(network, 2.0, 2)
    drawn = _predicted(asked, methods()["TaylorSeer (output)"][0], STEPS)
    torch.testing.assert_close(drawn, asked.drawn(STEPS), atol=1e-4, rtol=1e-4)


def test_every_way_has_a_row_and_the_tables_name_it(
    network: Network, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measuring, "CONVERGED", 100)
    monkeypatch.setattr(
        measuring,
        "rivals",
        lambda flow, n, few: [next(one for one in rivals(flow, n) if one.name == way) for way in WAYS[2:5]],
    )
    *_, last = measure(network, 3.0, 2, 0, [0.34, 0.2])
    assert last["complete"]
    found = {**last, "provenance": MADE}
    assert {row["way"] for row in found["rows"]} == set(WAYS)
    assert all(row["full"]["low"] <= row["full"]["dB"] <= row["full"]["high"] for row in found["rows"])
    one = {**found, "prediction": "noise", "trained_samples": 1000}
    larger = {**one, "network": "larger", "parameters": 10 * found["parameters"]}
    longer = {**one, "network": "longer", "trained_samples": 2000}
    record = {"cases": {"one": one, "two": larger, "three": longer}}
    text = tables(record)
    assert all(way in text for way in WAYS)
    cases = list(record["cases"].values())
    told = effects(cases, OURS, 0.2, "full")
    assert told is not None and not told.free  # a plane goes through any three points
    assert [one.value for one in (told.size, told.training, told.miss)] == pytest.approx([0, 0, 0], abs=1e-9)
    assert effects(cases[:2], OURS, 0.2, "full") is None
    draw(record, tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").stat().st_size > 0
    alone = {"cases": {"one": one}}
    assert "2 samples" in tables(alone) and "only if three networks or more are measured" in tables(alone)
    draw(alone, tmp_path / "alone.png")
    assert not (tmp_path / "alone.png").exists(), "one network shows no change"


def case_of(parameters: int, samples: int, dB: float, half: float, each: list[float] | None = None) -> dict[str, Any]:
    near = {"dB": dB, "low": dB - half, "high": dB + half, "setting": "", **({} if each is None else {"each": each})}
    row = {"way": OURS, "budget": 0.25, "full": near, "converged": near}
    about = {
        "prediction": "noise",
        "parameters": parameters,
        "trained_samples": samples,
        "network": f"{parameters}, {samples}",
    }
    return {**about, "guidance": 3.0, "rows": [row]}


def test_a_change_with_size_has_an_interval_and_the_plane_says_how_far_it_misses() -> None:
    line = [case_of(10**7, 10**6, 40, 1), case_of(10**8, 10**6, 42, 1), case_of(10**7, 10**7, 43, 1)]
    exact = effects(line, OURS, 0.25, "full")
    assert exact is not None
    assert (exact.size.value, exact.training.value, exact.miss.value) == pytest.approx((2, 3, 0), abs=1e-6)
    assert exact.size.half == pytest.approx(2**0.5), "a difference of two independent points, each ± 1"
    assert exact.size.sign == 1 and str(exact.size) == "+2.0 ± 1.4"
    off = effects([*line, case_of(10**8, 10**7, 46, 1)], OURS, 0.25, "full")
    assert off is not None and abs(off.miss.value) == pytest.approx(0.25) and off.miss.sign == 0
    worse = effects([*line, case_of(10**8, 10**7, 65, 1)], OURS, 0.25, "full")
    assert worse is not None and worse.miss.sign != 0


def test_networks_that_drew_the_same_samples_are_compared_sample_by_sample() -> None:
    spread = [30.0, 50.0, 40.0]
    each = [case_of(10**7, 10**6, 40, 10, spread), case_of(10**7, 10**7, 41, 10, [one + 1 for one in spread])]
    found = effects([*each, case_of(10**8, 10**6, 42, 10, [one + 2 for one in spread])], OURS, 0.25, "full")
    assert found is not None and found.size.half == pytest.approx(0, abs=1e-6) and found.size.sign == 1


def test_the_page_says_how_many_changes_are_told_from_zero() -> None:
    cases = [case_of(10**7, 10**6, 40, 1), case_of(10**8, 10**6, 50, 1), case_of(10**7, 10**7, 40, 1)]
    (*_, said) = _effects(cases)
    assert "In 0 of the 0 fits to more than three networks" in said
    assert "of 1 changes with size 0 lie below zero, 1 above" in said and "3 networks were measured" in said


def test_resolution_and_guidance_are_compared_in_tables_of_their_own_and_stay_out_of_the_plane() -> None:
    one = {**case_of(10**7, 10**6, 40, 3), "network": "base", "side": 64}
    reduced = {**case_of(10**7, 10**6, 44, 4), "network": "base-32", "side": 32}
    strong = {**one, "guidance": 5.0, "rows": case_of(10**7, 10**6, 37.5, 4)["rows"]}
    assert not of_one_kind(reduced) and of_one_kind(one)
    ((title, before, after),) = _resolutions([one, reduced, strong])
    assert title == "base, guidance 3, 32² to 64² pixels" and (before, after) == (reduced, one)
    assert str(_difference(before, after, OURS, 0.25, "full")) == "-4.0 ± 5.0"
    ((title, before, after),) = _guidances([strong, one, reduced])
    assert title == "base, guidance 3 to 5" and _difference(before, after, OURS, 0.25, "full") == (-2.5, 5.0)


def test_the_best_setting_is_chosen_for_each_goal_by_itself() -> None:
    zero = torch.zeros(2, 1, 2, 2)
    near = Near({"full": zero, "converged": zero + 0.5})
    for setting, value in (("a", 0.1), ("b", 0.45), ("c", torch.nan)):
        near.take(Way(PREDICTOR, setting, None), zero + value)
    row = near.row(PREDICTOR)
    assert (row["full"]["setting"], row["converged"]["setting"]) == ("a", "b")
    assert near.aimed(PREDICTOR).setting == "a"


def measured(network: str, parameters: int, dB: float, solver: float, guidance: float | None = None) -> Case:
    near = {
        (who, share, goal): Interval(found, found - 1, found + 1, "UniPC 2")
        for who, found in (("tenuto", dB), ("solver", solver))
        for share in SHARES
        for goal in GOALS
    }
    return Case(network, parameters, guidance, "a file", near)  # type: ignore[arg-type]


def test_networks_of_several_sizes_are_counted_and_compared_with_size_once_each(tmp_path: Path) -> None:
    cases = [measured(f"n{i}", 10**i, 30 + i, 32.5) for i in range(5, 9)]
    found = across.trend(cases, 0.25, "full", ahead=False)
    assert found is not None and found.networks == 4 and found.rho == pytest.approx(1)
    twice = [*cases, measured("n5", 10**5, 99, 0, guidance=5.0)]
    assert across.trend(twice, 0.25, "full", ahead=False) == across.trend(cases, 0.25, "full", ahead=False)
    assert across.trend(cases[:3], 0.25, "full", ahead=True) is None, "three networks tell nothing"
    said = across.page(cases)
    assert "ahead of the best solver in 32 of 32" in said and "ρ must be 0.95 at least" in said
    across.draw(cases, tmp_path / "across.png")
    assert (tmp_path / "across.png").stat().st_size > 1000


def test_what_is_said_of_chance_is_computed_from_the_table() -> None:
    mixed, alternating = [30, 31, 33, 32, 34, 35, 36, 37], [1, 2, 2, 1, 1, 2, 2, 1]
    cases = [
        measured(f"n{i}", 10 + i, dB, dB - lead) for i, (dB, lead) in enumerate(zip(mixed, alternating, strict=True))
    ]
    said = across.finding(cases)
    assert "Of 16 rank correlations with size, 8 have p < 0.05: Tenuto's dB to the full run at 34% (ρ = +0.98)" in said
    assert "ρ must be 0.71 at least" in said
    rho, p = rank_correlation(np.arange(8.0), np.array([1, 3, 0, 4, 2, 7, 5, 6.0]))
    assert (p < across.SURE) == (rho > across.told_from(8))


def test_tenuto_may_hold_within_more_steps_only_towards_the_converged_run() -> None:
    row = {"steps": 50, "of_ours": 12, "full_low": 0.0, "full_high": 99.0, "converged_low": 0.0, "converged_high": 99.0}
    rows = [
        {**row, "way": "tenuto", "full_dB": 50.0, "converged_dB": 40.0},
        {**row, "way": "tenuto, many steps", "full_dB": 60.0, "converged_dB": 45.0},
        {**row, "way": "UniPC 2", "full_dB": 30.0, "converged_dB": 42.0},
        {**row, "way": "DEIS 2", "full_dB": 35.0, "converged_dB": 41.0},
        {**row, "way": "tenuto", "of_ours": 25, "full_dB": 70.0, "converged_dB": 70.0},
    ]
    network = {"provenance": {"commit": "abc"}, "network": {"parameters": 7}, "rows": rows}
    (case,) = of_transfer({"networks": {"faces": network}})
    assert {key: (one.dB, one.way) for key, one in case.near.items()} == {
        ("tenuto", 0.25, "full"): (50.0, "tenuto"),
        ("tenuto", 0.25, "converged"): (45.0, "tenuto, many steps"),
        ("solver", 0.25, "full"): (35.0, "DEIS 2"),
        ("solver", 0.25, "converged"): (42.0, "UniPC 2"),
    }
