"""The benchmarks of text, on networks made here: what is replayed, counted and chosen is what they say."""

from typing import Any

import torch

from benchmarks import text_8b, text_frontier
from tenuto.sampling.masked import MaskedSampling, write_tokens


def test_what_an_evaluation_writes_is_replayed() -> None:
    cpu = torch.device("cpu")
    assert int(text_8b.Replay(cpu, 2.7).counts[:10].sum()) == 27
    masked = torch.tensor([[True, True, False, True]])
    chosen = text_8b.Replay(cpu, 2.0)(torch.tensor([[0.1, 0.3, 0.9, 0.2]]), masked)
    assert chosen.tolist() == [[False, True, False, True]]
    network = text_8b.made(text_8b.SMALL, cpu)
    sampling = MaskedSampling(64, 64, 32, stop_at_eos=False, parallel=0.9)
    with text_8b.replayed(cpu):
        steps = list(write_tokens(network, text_8b.prompts_of(2, 8, text_8b.SMALL), sampling=sampling))
    assert [len(step.of(0)) for step in steps[:4]] == [3, 2, 3, 3] and len(steps) == 24


def test_a_run_goes_on_where_it_stopped_and_its_table_has_every_way(tmp_path: Any) -> None:
    out, points = tmp_path / "text.json", ((1, 8, 32),)
    ways = ["eager", "tenuto, not compiled"]
    for way in ways:
        record = text_8b.measure(torch.device("cpu"), text_8b.SMALL, points, out, 60.0, way)
    assert list(record["points"]["1x8x32"]) == ways
    assert record["points"]["1x8x32"]["tenuto, not compiled"]["evaluations"] == 12
    table = text_8b.table(record)
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
    assert "| ours: careful | 50.0% | 2.0× | 50.0%, 20.0, 20.0 |" in table
    gained, half = text_frontier.paired(record, "bold", "all")["story-2"]
    assert gained == -1 / 8 and 0.2 < half < 0.25


def test_levels_that_can_tell_are_chosen_of_every_task_first() -> None:
    def one(task: str, level: int, accuracy: float) -> dict[str, Any]:
        able = "can tell" if 0.6 <= accuracy <= 0.95 else "cannot tell"
        return {"task": task, "level": level, "full": {"accuracy": accuracy}, "verdict": able}

    tasks = {"a": one("a", 1, 0.99), "b": one("a", 2, 0.9), "c": one("a", 3, 0.78), "d": one("b", 1, 0.7)}
    assert text_frontier.telling({"tasks": tasks}) == [("a", 2), ("a", 3), ("b", 1)]
    assert text_frontier.telling({"tasks": {"a": tasks["a"]}}) == [("a", 1)]
