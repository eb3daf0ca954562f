"""The benchmark on networks of others, on one made up here: it draws, counts, compares and reports as it says."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.kept import Kept
from benchmarks.networks_of_others.case import Case
from benchmarks.networks_of_others.levels import cosine_betas
from benchmarks.networks_of_others.solvers import SOLVERS
from benchmarks.transfer import __main__ as command
from benchmarks.transfer.measuring import FULL, LONG, OURS, Drawn, decibels, many_steps, measure, ours, solved
from benchmarks.transfer.report import tables
from tenuto.errors import UsageError
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


def test_every_way_evaluates_as_often_and_none_is_drawn_twice(case: Case) -> None:
    drawn = Drawn(case, samples=2, seeds=2)
    found = ours(drawn, 40, 10) | solved(drawn, 10)
    assert {OURS, LONG, *SOLVERS} == found.keys()
    assert {count for _, count in found.values()} == {10}
    assert solved(drawn, 10, ["UniPC 2"]).keys() == {"DDIM", "UniPC 2"}
    drawn.evaluated = 0
    again = ours(drawn, 40, 10) | solved(drawn, 10)
    assert all(torch.equal(again[way][0], made) for way, (made, _) in found.items()) and drawn.evaluated == 0


def test_many_steps_divide_the_levels() -> None:
    assert [many_steps(levels) for levels in (1000, 300, 200)] == [250, 300, 200]


def test_full_runs_and_rivals_are_kept_on_disk_and_ours_is_not(case: Case, tmp_path: Path) -> None:
    first, second = (Drawn(case, samples=2, seeds=2, kept=Kept(tmp_path)) for _ in range(2))
    full, rival = first.full(10), first.solved("UniPC 2", 6)
    first.evaluated = second.evaluated = 0
    assert torch.equal(second.full(10), full) and torch.equal(second.solved("UniPC 2", 6)[0], rival[0])
    assert second.evaluated == 0 and second.solved("UniPC 2", 6)[1] == 6
    assert second.ours(40, 8)[1] == 8


def test_what_samples_on_disk_are_found_by_is_the_same_in_every_process(case: Case, tmp_path: Path) -> None:
    asked = []

    class Spied(Kept):
        def find(self, key: Any) -> None:
            asked.append(json.dumps(key))

    Drawn(case, samples=1, seeds=1, kept=Spied(tmp_path)).solved("UniPC 2", 6)
    assert "solver_order" in asked[0] and "_use_default_values" not in asked[0]  # its order varies


def test_whether_the_longest_run_has_converged_need_not_be_seen(case: Case) -> None:
    quick = measure(case, [40], [10], samples=2, seeds=1, agreement=False)["network"]
    assert quick["agree"] is None and quick["converged"] is None


@pytest.mark.parametrize("change", ["weights", "noise", "conditions", "steps"])
def test_samples_on_disk_are_not_used_for_anything_else(case: Case, tmp_path: Path, change: str) -> None:
    Drawn(case, samples=2, seeds=1, kept=Kept(tmp_path)).full(10)
    if change == "weights":
        case.network.levels.mul_(0.99)
    if change == "conditions":
        case = replace(case, conditions=lambda n: (torch.zeros(n, 3),))
    drawn = Drawn(case, samples=2, seeds=2 if change == "noise" else 1, kept=Kept(tmp_path))
    drawn.full(9 if change == "steps" else 10)
    assert drawn.evaluated


def test_ours_alone_is_measured_beside_the_rivals_rows_of_before(case: Case, tmp_path: Path) -> None:
    asked = {"steps": [40], "evaluations": [10], "samples": 3, "seeds": 2, "kept": Kept(tmp_path)}
    before = measure(case, **asked)
    again = measure(case, **asked, before=json.loads(json.dumps(before)))
    assert [row["way"] for row in again["rows"]] == [row["way"] for row in before["rows"]]
    for row, old in zip(again["rows"], before["rows"], strict=True):
        assert row["converged_dB"] == pytest.approx(old["converged_dB"], abs=1e-3)
    for one, old in zip(again["comparisons"], before["comparisons"], strict=True):
        assert one["b"] == old["b"] and one["difference"] == pytest.approx(old["difference"], abs=1e-3)


def test_ours_alone_refuses_rivals_of_other_samples_or_at_other_points_before_it_draws(case: Case) -> None:
    before = measure(case, [40], [10], samples=2, seeds=1)
    case.network.register_forward_hook(lambda *_: pytest.fail("the network was evaluated"))
    with pytest.raises(UsageError, match=r"are of 2 samples, and 3 were asked for"):
        measure(case, [40], [10], samples=3, seeds=1, before=before)
    with pytest.raises(UsageError, match="at 12 evaluations"):
        measure(case, [40], [12], samples=2, seeds=1, before=before)
    old = {**before, "rows": [{key: row[key] for key in row if key != "each"} for row in before["rows"]]}
    with pytest.raises(UsageError, match="sample by sample"):
        measure(case, [40], [10], samples=2, seeds=1, before=old)
    older = {**before, "network": {**before["network"], "fingerprint": None}}
    with pytest.raises(UsageError, match="have no fingerprint of their samples"):
        measure(case, [40], [10], samples=2, seeds=1, before=older)


def test_ours_alone_refuses_rivals_of_samples_that_came_out_otherwise(case: Case) -> None:
    before = measure(case, [40], [10], samples=2, seeds=1)
    before["network"]["fingerprint"][0][0] += 1
    with pytest.raises(UsageError, match="on other samples"):
        measure(case, [40], [10], samples=2, seeds=1, before=before)


def test_samples_of_a_seed_do_not_depend_on_the_other_seeds(case: Case) -> None:
    one, two = (Drawn(case, samples=2, seeds=seeds).full(10) for seeds in (1, 2))
    torch.testing.assert_close(two[:2], one)


def test_rows_comparisons_and_tables_of_a_network(case: Case) -> None:
    found = measure(case, [40, 12], [20, 10, 6], samples=3, seeds=2)
    full = [row for row in found["rows"] if row["way"] == FULL]
    assert [row["evaluations"] for row in full] == [40, 12] and all(row["full_dB"] == HIGHEST for row in full)
    assert full[0]["converged_dB"] > full[1]["converged_dB"]
    points = {(row["steps"], row["of_ours"]) for row in found["rows"] if row["way"] == OURS}
    assert points == {(40, 20), (40, 10), (40, 6), (12, 6)}  # at most half of the steps
    assert len(found["comparisons"]) == len(points) * 2 * 2  # targets, rivals
    made = {"command": "python -m benchmarks.transfer", "commit": "abc", "torch": "2", "hardware": "a chip", "date": ""}
    record = {"networks": {"made up": {"provenance": made, "samples": 3, "seeds": 2, "chosen_by": False, **found}}}
    text = tables(record)
    assert "No constant of the default was chosen" in text and "at abc" in text and "60 and 120 steps agree" in text
    record["networks"]["made up"]["network"] |= {"agree": None, "converged": None}
    assert "it was not compared with one of 60" in tables(record)
    rows = [line for line in text.splitlines() if line.startswith(("| 40 |", "| 12 |"))]
    assert len(rows) == len(points)


def test_results_that_another_process_added_stay(tmp_path: Path) -> None:
    out, known = tmp_path / "transfer.json", command.read(command.RESULTS)
    one, two = (next(iter(known[kind].values())) for kind in ("networks", "writers"))
    assert command.read(out) == {"networks": {}, "writers": {}}
    command.add(out, "networks", "one", one)
    assert command.add(out, "writers", "two", two) == command.read(out)
    assert command.read(out) == {"networks": {"one": one}, "writers": {"two": two}}
