"""A schedule is plain data: it comes back from its file as it went, and a file that is wrong is refused."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tenuto.errors import ScheduleError, TenutoError
from tenuto.scheduling.schedule import Schedule, from_json, load_schedule, to_json


def make(active, **changes) -> Schedule:
    active = np.array(active, dtype=bool)
    units = tuple(f"blocks.{i}.attn" for i in range(len(active)))
    fields = {
        "predict": "linear",
        "keep": "branch",
        "model": "toy",
        "fingerprint": "sha256:abc",
        "policy": {"name": "x"},
    }
    return Schedule(units, active, tuple(1.0 + i for i in range(len(active))), **{**fields, **changes})


MAPS = hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9)).map(
    lambda a: np.concatenate([np.ones((len(a), 1), bool), a], axis=1)
)


@settings(deadline=None)
@given(MAPS, st.sampled_from(["constant", "linear", "quadratic", "cubic"]), st.sampled_from(["update", "branch"]))
def test_round_trip(active, predict, keep):
    schedule = make(active, predict=predict, keep=keep)
    assert from_json(json.loads(json.dumps(to_json(schedule))), "file") == schedule


def test_the_file_shows_the_map(tmp_path):
    make([[1, 0, 0, 1], [1, 1, 1, 1]]).save(tmp_path / "s.json")
    record = json.loads((tmp_path / "s.json").read_text())
    assert record["active"] == {"blocks.0.attn": "#..#", "blocks.1.attn": "####"}
    assert record["format"] == "tenuto.schedule/2"
    assert load_schedule(tmp_path / "s.json").lifetimes == (4, 4)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda r: r.update(extra=1), "unknown field.*'extra'"),
        (lambda r: r.pop("keep"), "lacks.*'keep'"),
        (lambda r: r.update(format="tenuto.schedule/9"), "make one with: tenuto schedule"),
        (lambda r: r.update(steps=5), "has 4 steps, but the schedule says 5"),
        (lambda r: r.update(steps="4"), "'steps' should be int"),
        (lambda r: r.update(steps=True), "'steps' should be int"),
        (lambda r: r["active"].update({"blocks.0.attn": ".#.#"}), "first step must compute every unit.*blocks.0.attn"),
        (lambda r: r["active"].update({"blocks.0.attn": "#x.#"}), "string of"),
        (lambda r: r["active"].pop("blocks.0.attn"), "same units"),
        (lambda r: r["flops"].update({"blocks.0.attn": -1}), "positive number"),
        (lambda r: r.update(predict="wild"), "predict is one of"),
        (lambda r: r.update(keep="everything"), "keep is one of"),
        (lambda r: r.update(active={}, flops={}), "no units"),
        (lambda r: r["flops"].update({"blocks.0.attn": float("inf")}), "positive number"),
        (lambda r: r["flops"].update({"blocks.0.attn": 1e308}), "up to 1e\\+30"),
        (lambda r: r.update(blocks=3), "4 steps cannot be shared equally among 3 blocks"),
    ],
)
def test_a_damaged_file_is_refused_with_its_reason(tmp_path, damage, message):
    record = to_json(make([[1, 0, 0, 1], [1, 1, 1, 1]]))
    damage(record)
    (tmp_path / "bad.json").write_text(json.dumps(record))
    with pytest.raises(ScheduleError, match=message) as error:
        load_schedule(tmp_path / "bad.json")
    assert "bad.json" in str(error.value)


def test_files_of_the_first_format_are_read_and_say_so(tmp_path):
    """Their words were hold and reuse, blocks stood among the policy's parameters, and the oldest lack two fields."""
    made = make([[1, 0, 0, 1]], keep="output", predict="constant")
    record = to_json(made)
    for name in ("rows", "corrected", "blocks"):
        del record[name]
    record["reuse"], record["hold"] = "hold", record.pop("keep")
    del record["predict"]
    record |= {"format": "tenuto.schedule/1", "policy": {"name": "x", "blocks": 2}}
    (tmp_path / "before.json").write_text(json.dumps(record))
    with pytest.warns(UserWarning, match="before.json is a schedule of the first format"):
        read = load_schedule(tmp_path / "before.json")
    assert (read.keep, read.predict, read.blocks, read.rows, read.corrected) == ("output", "constant", 2, "none", False)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '{"format": "tenuto.schedule/1", "steps": 4'])
def test_a_file_that_is_no_json_object_is_refused(tmp_path, text):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(TenutoError, match=r"bad\.json is not a schedule"):
        load_schedule(tmp_path / "bad.json")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TenutoError, match="nowhere.json: No such file"):
        load_schedule(tmp_path / "nowhere.json")


def test_other_weights_are_refused():
    with pytest.raises(ScheduleError, match="other weights.*tenuto schedule toy --steps 1"):
        make([[1]]).check_fits(["blocks.0.attn"], "toy", lambda: {"sha256:def"})
    make([[1]]).check_fits(["blocks.0.attn"], "toy", lambda: {"sha256:def", "sha256:abc"})


def test_another_model_is_refused():
    with pytest.raises(ScheduleError, match=r"not for other \(2 units; they differ in mid"):
        make([[1]]).check_fits(["blocks.0.attn", "mid"], "other", lambda: {"sha256:abc"})


def test_patterns_counts_different_columns():
    assert make([[1, 0, 1, 0], [1, 0, 1, 1]]).patterns == 3


def test_only_what_is_read_again_is_kept():
    keep = make([[1, 1, 0, 1, 1]], predict="constant")
    assert keep.read_later.tolist() == [[False, True, False, False, False]]
    linear = make([[1, 1, 1, 0, 1, 0, 1]], predict="linear")
    assert linear.read_later.tolist() == [[False, True, True, False, True, False, False]]


def test_a_saved_file_is_whole_or_absent(tmp_path, monkeypatch):
    target = tmp_path / "s.json"
    make([[1, 0]]).save(target)
    before = target.read_text()

    def full_disk(self, *args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full_disk)
    with pytest.raises(TenutoError, match=r"Cannot write .*s\.json: No space left"):
        make([[1, 1]]).save(target)
    assert target.read_text() == before
    assert list(tmp_path.iterdir()) == [target]


def test_a_schedule_that_no_weights_decided_fits_all_of_them():
    schedule = make([[1]], fingerprint=None)
    schedule.check_fits(["blocks.0.attn"], "toy", lambda: pytest.fail("the weights were read"))
    assert from_json(json.loads(json.dumps(to_json(schedule))), "file").fingerprint is None


def test_a_part_begins_with_everything_computed():
    schedule = make([[1, 0, 0, 1, 0, 0]])
    assert schedule.part(2, 4).active.tolist() == [[True, True, False, False]]
