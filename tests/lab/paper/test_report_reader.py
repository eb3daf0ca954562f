"""Result files are read strictly: whatever a file holds, it is shown, or refused in a sentence that names the field."""

import copy
import json
import warnings
from base64 import b64encode
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, seed, settings
from hypothesis import strategies as st
from PIL import Image

from tenuto.errors import TenutoError
from tenuto_lab.frontier.frontier_report import frontier_image, frontier_tables, models_of, page_tables
from tenuto_lab.frontier.known import read_frontier
from tenuto_lab.paper.claims import claims_table
from tenuto_lab.paper.experiment_figures import draw
from tenuto_lab.paper.experiment_report import experiment_table
from tenuto_lab.paper.experiment_results import read_experiment
from tenuto_lab.paper.results_page import results_page

RESULTS = Path(__file__).parents[3] / "results"
MADE = {"command": "x", "commit": "y", "torch": "2", "hardware": "z", "date": "now"}


def sheet() -> str:
    file = BytesIO()
    Image.new("L", (6, 4)).save(file, format="PNG")
    return b64encode(file.getvalue()).decode()


SERIES: dict[str, Any] = {
    "lines": {"a": [[0.1, 1.0], [0.5, 2.0]]},
    "bars": {"a": [["one", 1.0], ["two", 2.0]], "b": [["one", 2.0], ["two", 1.0]]},
    "scatter": {"attention": [[0.1, 1.0]]},
    "map": {"lifetimes": [3, 4], "kinds": ["attention", "mlp"], "steps": 5},
    "pictures": {"full": sheet(), "held": sheet()},
}


def experiment(kind: str) -> dict[str, Any]:
    row = {"quantity": "q", "model": "m", "paper": 1.0, "measured": 2.0, "interval": [1.0, 3.0], "holds": "yes"}
    near = {"unit": "dB", "measured": 1.0, "interval": [0.0, 2.0], "holds": "no"}
    return {
        "provenance": {**MADE, "samples": 1, "seeds": 1},
        "name": "one",
        "title": "One",
        "claim": "c",
        "where": "w",
        "finding": "It is 3 times. More.",
        "limits": "",
        "rests_on": "",
        "rows": [
            {**row, "nearness": near, "p": 0.01, "corrected": 0.02, "granularity": "block"},
            {**row, "paper": None, "holds": None, "interval": None, "note": "n"},
        ],
        "figure": {"kind": kind, "panels": [{"title": "t", "series": SERIES[kind], "across": "x", "up": "y"}]},
    }


def frontier() -> dict[str, Any]:
    row = {"model": "m", "base_steps": 50, "steps": 50, "setting": "ddim", "seed": 0, "samples": 8, "full_seconds": 1.0}
    row |= {"psnr": 40.0, "psnr_low": 39.0, "psnr_high": 41.0, "fid": 9.0, "fid_delta": 0.1}
    row |= {"fid_delta_low": 0.0, "fid_delta_high": 0.2, "lpips": 0.1, "cache_bytes": 5}
    ways = [("full", "full", 1.0), ("tenuto", "ours", 0.5), ("tenuto", "ours", 0.25), ("fewer", "rival", 0.5)]
    rows = [
        {**row, "case": "m:50", "policy": policy, "kind": kind, "budget": b, "work": b, "flop_work": b, "seconds": b}
        for policy, kind, b in ways
    ]
    compared = {"case": "m:50", "model": "m", "base_steps": 50, "a": "tenuto", "b": "fewer", "measure": "psnr"}
    compared |= {"difference": 1.0, "low": 0.5, "high": 1.5, "p": 0.01}
    case = {**MADE, "converged": {"250 and 500 steps": 59.1}, "ours": {"command": "c", "commit": "d"}}
    return {"cases": {"m:50": case}, "rows": rows, "comparisons": [compared]}


def test_problems_that_full_inference_always_solves_cannot_tell_ways_apart() -> None:
    for right, told in ((1.0, True), (0.8, False), (0.3, True)):
        record = frontier()
        for row in record["rows"]:
            row["needle"] = right
        assert (f"Cannot tell ways apart: needle {right:.1%} right" in frontier_tables(record)) == told


def show_experiment(path: Path) -> None:
    """Everything that a result file is used for."""
    claims_table(path.parent)
    record = read_experiment(path)
    experiment_table(record)
    results_page([record], ".")
    if record.get("figure"):
        draw(record, path.with_suffix(".png"))


def show_frontier(path: Path) -> None:
    record = read_frontier(path)
    frontier_tables(record)
    page_tables(record)
    for model in models_of(record):
        frontier_image(record, model)


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


OTHER_VALUES = st.one_of(
    st.sampled_from(
        [None, True, 0, -1, 0.0, -2.5, 1e300, 10**400, float("nan"), float("inf"), "", "$\\bad$ $", "\ud800", "../x"]
    ),
    st.sampled_from([[], {}, [None], {"": None}, [[]], [1, 2], ["a", 1], deep(50)]),
    st.text(max_size=5),
    st.integers(),
    st.floats(),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for name, one in inner for place in places(one, (*path, name)))]


@st.composite
def mutated(draw: Any, records: list[dict[str, Any]]) -> Any:
    """A record with one to three of its places dropped, replaced, doubled or renamed."""
    record = copy.deepcopy(draw(st.sampled_from(records)))
    for _ in range(draw(st.integers(1, 3))):
        if not (known := [place for place in places(record) if place]):
            break
        *above, name = draw(st.sampled_from(known))
        parent = record
        for step in above:
            parent = parent[step]
        change = draw(st.sampled_from(["drop", "replace", "replace", "double", "rename", "nest"]))
        if change == "drop":
            del parent[name]
        elif change == "replace":
            parent[name] = copy.deepcopy(draw(OTHER_VALUES))
        elif change == "nest":
            parent[name] = {"x": [parent[name]]}
        elif isinstance(parent, list):
            parent.append(copy.deepcopy(parent[name]))
        else:
            parent[draw(st.text(max_size=4))] = copy.deepcopy(parent[name]) if change == "double" else parent.pop(name)
    return record


def ends_well(show: Any, path: Path, record: Any) -> None:
    path.write_text(json.dumps(record))
    said = f"{path}."
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # matplotlib's, of letters that it cannot draw
        try:
            show(path)
        except TenutoError as error:
            said = str(error)
    assert str(path) in said and said.endswith(".")


SOME = settings(max_examples=120, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@seed(23)
@SOME
@given(mutated([experiment(kind) for kind in SERIES]))
@example({**experiment("lines"), "provenance": {}})
def test_a_mutated_experiment_is_shown_or_refused_in_a_sentence(tmp_path_factory: Any, record: Any) -> None:
    ends_well(show_experiment, tmp_path_factory.mktemp("one") / "one.json", record)


@seed(23)
@SOME
@given(mutated([frontier()]))
def test_a_mutated_frontier_is_shown_or_refused_in_a_sentence(tmp_path_factory: Any, record: Any) -> None:
    ends_well(show_frontier, tmp_path_factory.mktemp("one") / "frontier.json", record)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"provenance": {}}, "provenance lacks 'command'"),
        ({"rows": [3]}, r"rows\[0\] should be an object, not a number"),
        ({"title": None}, "title should be text, not null"),
        ({"name": "../elsewhere"}, "the file is named otherwise"),
        ({"extra": 1}, "has a field 'extra', which is not known"),
        ({"figure": {"kind": "cake", "panels": []}}, "figure.kind should be one of lines"),
        ({"figure": {"kind": "pictures", "panels": [{"title": "", "series": {"a": "no"}}]}}, "is no PNG picture"),
    ],
)
def test_the_field_that_does_not_fit_is_named(tmp_path: Path, change: Any, sentence: str) -> None:
    (tmp_path / "one.json").write_text(json.dumps({**experiment("lines"), **change}))
    with pytest.raises(TenutoError, match=f"one.json is no experiment's result: .*{sentence}"):
        read_experiment(tmp_path / "one.json")


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("seconds", 0, r"rows\[1\].seconds should be a number from"),
        ("case", "other", r"rows\[1\].case is none of the cases"),
        ("kind", "best", r"rows\[1\].kind should be one of full"),
        ("psnr_low", None, r"rows\[1\].psnr_low should be a number, not null"),
    ],
)
def test_a_row_of_a_frontier_that_does_not_fit_is_named(tmp_path: Path, name: str, value: Any, sentence: str) -> None:
    record = frontier()
    record["rows"][1][name] = value
    (tmp_path / "f.json").write_text(json.dumps(record))
    with pytest.raises(TenutoError, match=f"f.json is no frontier: {sentence}"):
        read_frontier(tmp_path / "f.json")


def test_whole_files_are_shown(tmp_path: Path) -> None:
    for kind in SERIES:
        (tmp_path / "one.json").write_text(json.dumps(experiment(kind)))
        show_experiment(tmp_path / "one.json")
    (tmp_path / "frontier.json").write_text(json.dumps(frontier()))
    show_frontier(tmp_path / "frontier.json")


def test_every_stored_result_is_read() -> None:
    stored = [*(RESULTS / "experiments").glob("*.json"), *(RESULTS / "frontier").glob("*.json")]
    if not stored:
        pytest.skip("there are no stored results here")
    for path in stored:
        (read_frontier if path.parent.name == "frontier" else read_experiment)(path)
