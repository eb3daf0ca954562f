"""The benchmarks of text, on networks made here: what is replayed, counted and chosen is what they say."""

from typing import Any

import pytest
import torch

import tenuto
from benchmarks import text_frontier, text_ways
from benchmarks.text_8b import replaying, report
from benchmarks.text_8b.__main__ import measure
from tenuto.errors import UsageError
from tenuto.files import write_json
from tenuto.models import load
from tenuto.sampling.masked import MaskedSampling, write_tokens


def test_what_an_evaluation_writes_is_replayed() -> None:
    cpu = torch.device("cpu")
    assert int(replaying.Replay(cpu, 2.7).counts[:10].sum()) == 27
    masked = torch.tensor([[True, True, False, True]])
    chosen = replaying.Replay(cpu, 2.0)(torch.tensor([[0.1, 0.3, 0.9, 0.2]]), masked)
    assert chosen.tolist() == [[False, True, False, True]]
    network = replaying.made(replaying.SMALL, cpu)
    sampling = MaskedSampling(64, 64, 32, stop_at_eos=False, parallel=0.9)
    with replaying.replayed(cpu):
        steps = list(write_tokens(network, replaying.prompts_of(2, 8, replaying.SMALL), sampling=sampling))
    assert [len(step.of(0)) for step in steps[:4]] == [3, 2, 3, 3] and len(steps) == 24


def test_a_run_goes_on_where_it_stopped_and_its_table_has_every_way(tmp_path: Any) -> None:
    out, points = tmp_path / "text.json", ((1, 8, 32),)
    ways = ["eager", "tenuto, not compiled"]
    for way in ways:
        record = measure(torch.device("cpu"), replaying.SMALL, points, out, 60.0, way)
    assert list(record["points"]["1x8x32"]) == ways
    assert record["points"]["1x8x32"]["tenuto, not compiled"]["evaluations"] == 12
    table = report.table(record)
    assert "| 1 | 8 | 32 | eager |" in table and "**0.00 ms**" in table


def levels(right: str, work: float) -> dict[str, Any]:
    return {"story-2": {"right": right, "evaluations": [work, work], "work": [work, work]}}


def test_each_method_chooses_on_one_half_and_is_shown_on_the_other() -> None:
    record = {
        "provenance": dict.fromkeys(("command", "commit", "torch", "hardware", "date"), "…"),
        "parameters": 1e6,
        "levels": [("story", 2)],
        "problems": 8,
        "ways": {
            "all": {"method": text_frontier.FULL, "levels": levels("11110000", 40.0)},
            "careful": {"method": "ours", "levels": levels("11110000", 20.0)},
            "bold": {"method": "ours", "levels": levels("01110000", 4.0)},  # wrong in the first half
            "lucky": {"method": "rival", "levels": levels("10100000", 10.0)},  # right in the first half alone
        },
    }
    chosen = {one["method"]: one for one in text_frontier.choices(record)}
    assert chosen["ours"]["name"] == "careful" and chosen["ours"]["fewer"] == 2.0
    assert chosen["rival"]["name"] == "lucky" and chosen["rival"]["difference"] == -0.5
    table = text_frontier.table(record)
    assert "| ours | careful | 50.0% | +0.0 (+0.0 to +0.0)" in table
    assert "story 2 (50.0%, cannot tell: too hard)" in table
    assert "| ours: careful | 50.0% | 2.0× | 50.0%, 20.0, 20.0 |" in table
    assert "| ours: bold | -12.5 ± 22.9, 10.0× |" in table
    again = text_frontier.joined([{**record, "parts": [record["provenance"]] * 2}])
    assert len(again["parts"]) == 2
    gained, half = text_frontier.paired(record, "bold", "all")["story-2"]
    assert gained == -1 / 8 and 0.2 < half < 0.25


def test_ways_are_chosen_on_some_tasks_and_shown_on_the_others() -> None:
    def on(sort: str, story: str, work: float) -> dict[str, Any]:
        taken = {"evaluations": [work, work], "work": [work, work]}
        return {"sort-4": {"right": sort, **taken}, "story-2": {"right": story, **taken}}

    record = {
        "provenance": dict.fromkeys(("command", "commit", "torch", "hardware", "date"), "…"),
        "parameters": 1e6,
        "levels": [("sort", 4), ("story", 2)],
        "choosing": ["sort"],
        "problems": 4,
        "ways": {
            "all": {"method": text_frontier.FULL, "levels": on("1110", "1110", 16.0)},
            "bold": {"method": "ours", "levels": on("1100", "1110", 2.0)},  # wrong where it is chosen
            "careful": {"method": "ours", "levels": on("1110", "1000", 4.0)},
        },
    }
    chosen = {one["method"]: one for one in text_frontier.choices(record)}["ours"]
    assert chosen["name"] == "careful" and chosen["accuracy"] == 0.25 and chosen["worst_level"] == -0.5
    assert "chosen on sort-4 (" in text_frontier.table(record)
    assert "the figures are those of story-2." in text_frontier.table(record)


def test_a_gain_in_one_task_is_no_excuse_for_a_loss_in_another() -> None:
    def on(sort: str, code: str, work: float) -> dict[str, Any]:
        taken = {"evaluations": [work, work], "work": [work, work]}
        return {
            "sort-4": {"right": sort, **taken},
            "code-1": {"right": code, **taken},
            "story-2": {"right": "1111", **taken},
        }

    record = {
        "levels": [("sort", 4), ("code", 1), ("story", 2)],
        "choosing": ["sort", "code"],
        "ways": {
            "all": {"method": text_frontier.FULL, "levels": on("1100", "1110", 16.0)},
            "bold": {"method": "ours", "levels": on("1111", "1100", 2.0)},  # better on average
            "careful": {"method": "ours", "levels": on("1100", "1110", 4.0)},
        },
    }
    assert {one["method"]: one["name"] for one in text_frontier.choices(record)}["ours"] == "careful"


def test_levels_that_can_tell_are_chosen_of_every_task_first() -> None:
    def one(task: str, level: int, accuracy: float) -> dict[str, Any]:
        able = "can tell" if 0.6 <= accuracy <= 0.95 else "cannot tell"
        return {"task": task, "level": level, "full": {"accuracy": accuracy}, "verdict": able}

    tasks = {"a": one("a", 1, 0.99), "b": one("a", 2, 0.9), "c": one("a", 3, 0.78), "d": one("b", 1, 0.7)}
    assert text_frontier.telling({"tasks": tasks}) == [("a", 2), ("a", 3), ("b", 1)]
    assert text_frontier.telling({"tasks": tasks}, most=2) == [("a", 3), ("b", 1)]
    assert text_frontier.telling({"tasks": {"a": tasks["a"]}}) == [("a", 1)]
    assert text_frontier.named_levels(["sort-4", "code-1"]) == [("code", 1), ("sort", 4)]
    for wrong in ("sort", "verbs-1", "sort-0"):
        with pytest.raises(UsageError, match=f"{wrong} is no level"):
            text_frontier.named_levels([wrong])


def test_every_cache_and_every_order_of_layers_is_compared() -> None:
    """Published caches with parallel decoding and alone, lifetimes by branch and by block, layers by five orders."""
    every = text_ways.ways(load("small-llada"))
    names = [f"{way.method}: {way.name}" for way in every]
    assert len({way.name for way in every}) == len(every)  # by which the record knows them
    for method in ("Fast-dLLM, dual cache", "Fast-dLLM, prefix cache", "dKV-Cache", "dLLM-Cache", "Elastic", "ours"):
        assert any(name.startswith(method) and "parallel 0.9" in name for name in names)
        assert any(name.startswith(method) and ", alone:" in name for name in names)
    for budget in ("50%", "75%", "90%"):
        for by in ("branch", "block"):
            assert any(f"lifetimes by {by}, {budget}" in name for name in names)
    for what in ("3 of 12 branches", "6 of 12 branches", "2 of 6 layers", "3 of 6 layers"):
        assert sum(f"without {what}" in name for name in names) == 2 + text_ways.ORDERS


def test_full_evaluations_come_early_and_then_ever_more_rarely() -> None:
    found = {name: [step for step in range(40) if full(step)] for name, full in text_ways.RARELY.items()}
    assert list(found.values()) == [
        [0, 1, 2, 3, 4, 8, 16, 32],
        [0, 1, 2, 4, 8, 16, 32],
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 32],
    ]


def test_units_are_left_out_by_score_reversed_and_at_random() -> None:
    found = text_ways.selections(tenuto.score("small-llada"))
    low, high = found["3 of 12 branches of lowest score"], found["3 of 12 branches of highest score"]
    assert len(low) == len(high) == 3 and not low & high
    layers = found["2 of 6 layers of lowest score"]
    assert len(layers) == 4 and len({name.rsplit(".", 1)[0] for name in layers}) == 2
    assert len({held for name, held in found.items() if "3 of 12 branches of random" in name}) == text_ways.ORDERS


def test_lifetimes_are_run_as_the_schedule_says() -> None:
    model = load("small-llada")
    scores = tenuto.score(model)
    prompt = [2, 300, 301, 302]
    for by in ("branch", "block"):
        way = text_ways.by_lifetimes(scores, 0.5, by)
        tokens, steps, work = way.write(model, [prompt], 16)
        assert len(tokens[0]) == 16 and steps == [16.0] and 0.4 * 16 < work[0] < 0.6 * 16


def test_ways_are_measured_in_the_order_of_their_names_and_0_9_is_not_0_95() -> None:
    every = [
        text_ways.Way("ours", "early; parallel 0.95", lambda *_: ([], [], [])),
        text_ways.Way("ours", "early; parallel 0.9", lambda *_: ([], [], [])),
        text_ways.Way("full", "everything", lambda *_: ([], [], [])),
    ]
    found = text_frontier.wanted(every, ["full", "ours: early; parallel 0.9", "everything"])
    assert [way.name for way in found] == ["everything", "early; parallel 0.9"]
    assert text_frontier.wanted(every, None) == every


def test_a_frontier_goes_on_where_it_stopped_and_only_with_the_same_problems(tmp_path: Any) -> None:
    out = tmp_path / "frontier.json"
    made = {**dict.fromkeys(("command", "commit", "torch", "hardware", "date"), "…"), "seed": 2}
    new = {"provenance": made, "parameters": 10, "levels": [("story", 2)], "problems": 4, "ways": {}}
    assert text_frontier.begun(out, new) == new
    write_json(out, {**new, "ways": {"all": {"method": text_frontier.FULL, "levels": levels("1100", 40.0)}}})
    later = text_frontier.begun(out, new)
    assert list(later["ways"]) == ["all"] and later["parts"] == [made, made]
    for key, other in (("problems", 8), ("provenance", {**made, "seed": 3})):
        with pytest.raises(UsageError, match="cannot be gone on with"):
            text_frontier.begun(out, {**new, key: other})
