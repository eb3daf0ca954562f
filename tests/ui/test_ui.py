"""The page, clicked through in a real browser; and what it is made of, without one."""

import json
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch

import tenuto
from tenuto.errors import TenutoError, UsageError
from tenuto.showing.texts import DIFFERS, marked
from tenuto_lab.paper.claims import claims_table
from tests.conftest import random_dit, write_checkpoint

ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# gradio, of pandas
pytestmark = pytest.mark.filterwarnings("ignore::Warning:gradio.queueing")
QUIET = "--no-sandbox --headless --disable-gpu --disable-quic --no-first-run --disable-background-networking"
FLAGS = f"{QUIET} --disable-component-update --disable-sync".split()


def test_tokens_that_differ_are_marked() -> None:
    def decode(tokens: Any) -> str:
        return "".join(map(chr, tokens))

    assert marked(b"abXd", b"abcd", decode) == [("ab", None), ("X", DIFFERS), ("d", None)]
    assert marked(b"ab", b"ab", decode) == [("ab", None)]


def test_experiments_are_one_table(tmp_path: Path) -> None:
    assert claims_table(tmp_path / "absent") is None
    row = {"quantity": "speed-up", "model": "tiny-dit", "paper": 3.0, "measured": 3.271, "interval": [3, 3.5]}
    (tmp_path / "a.json").write_text(json.dumps({"provenance": {}, "rows": [{**row, "holds": "yes"}]}))
    table = claims_table(tmp_path)
    assert table is not None
    assert table.rows == [["a", "tiny-dit", "speed-up", "3", "3.27", "3 to 3.5", "yes", "", ""]]
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(TenutoError, match="b.json is no experiment's result"):
        claims_table(tmp_path)


def test_both_are_drawn_from_the_same_noise_and_counted(checkpoint: Path) -> None:
    from tenuto.ui.compare import compare_pictures

    model = tenuto.load(checkpoint)
    seen: list[Any] = []
    nothing_held = tenuto.schedule(model, steps=3, budget=1.0)
    both = compare_pictures(model, nothing_held, ["0", "3"], seed=1, advance=lambda *told: seen.append(told))
    assert both.decibels.tolist() == [float("inf")] * 2 and both.full.tobytes() == both.scheduled.tobytes()
    assert both.verdict == "The pictures are identical to those of the full run."
    assert {("Everything computed", 6, 6), ("Under the schedule", 6, 6)} < set(seen) and both.speedup > 0
    held = compare_pictures(model, tenuto.schedule(model, steps=6, every=3), [0])
    assert torch.isfinite(held.decibels).all() and "those of the full run: " in held.verdict


def test_pictures_are_timed_in_turns_and_a_speed_up_that_cannot_be_is_doubted(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenuto.ui import compare

    model, order = tenuto.load(checkpoint), []
    schedule = tenuto.schedule(model, steps=6, every=3)
    real = compare.in_turns

    def busy(runs: Any, rounds: int) -> Any:
        def noted(i: int, run: Any) -> Any:
            return lambda turn: order.append(i) or run(turn)

        found = real([noted(i, run) for i, run in enumerate(runs)], rounds)
        found[0].seconds[:] = [one * 1000 for one in found[0].seconds]
        return found

    monkeypatch.setattr(compare, "in_turns", busy)
    both = compare.compare_pictures(model, schedule, [0, 1, 2], seed=5)
    assert order == [0, 1, 1, 0, 0, 1] and "this machine was busy with other work" in both.verdict
    alone = tenuto.generate(model, [0, 1, 2], seed=5, steps=6)
    assert both.full.tobytes() == compare.grid(alone, compare.COLUMNS, compare.SIDE // alone.shape[-1]).tobytes()


def test_texts_are_written_twice_and_compared() -> None:
    from tenuto.ui.compare import compare_texts

    model = tenuto.load("small-llada")
    nothing_held = tenuto.schedule(model, steps=4, budget=1.0, blocks=2)
    both = compare_texts(model, nothing_held, "close: ([{ ->", length=8)
    assert both.verdict == "The text is identical to that of the full run."
    assert both.full == both.scheduled and all(mark is None for _, mark in both.full)
    with pytest.raises(UsageError, match="9 tokens cannot be written in 2 blocks"):
        compare_texts(model, nothing_held, "close: ([{ ->", length=9)


def test_a_tab_whose_packages_are_missing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gradio")
    from tenuto.ui import app

    tabs = {
        "lost": EntryPoint("lost", "tenuto_absent:tab", app.TABS),
        "found": EntryPoint("found", "os:getcwd", app.TABS),
    }
    monkeypatch.setattr(app, "offers", lambda group: tuple(tabs))
    monkeypatch.setattr(app, "offered", lambda name, group: tabs[name].load())
    assert [name for name, _ in app._other_tabs()] == ["Found"]


def test_the_page_does_not_import_the_laboratory() -> None:
    for path in (ROOT / "src" / "tenuto" / "ui").glob("*.py"):
        assert "tenuto_lab" not in path.read_text()


def test_a_damaged_file_of_results_takes_its_own_tab_down_only(tmp_path: Path, checkpoint: Path) -> None:
    pytest.importorskip("gradio")
    from tenuto.ui.app import build

    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "<b>.json").write_text("{}")
    page = build(str(checkpoint), results=tmp_path)
    said = [block.value for block in page.blocks.values() if "no experiment" in str(getattr(block, "value", ""))]
    assert len(said) == 1 and "&lt;b&gt;.json" in said[0]


def test_an_emptied_field_gets_a_sentence() -> None:
    pytest.importorskip("gradio")
    from tenuto.ui.app import Machine, given

    for value in (None, True, "3", float("nan")):
        with pytest.raises(UsageError, match="The field “Steps” needs a number"):
            given(value, "Steps")
    with pytest.raises(UsageError, match="The field “Model” is empty"):
        Machine("cpu").schedule("", "budget", 0.25, 12, 3, 50, 1)


def test_the_page_takes_the_seeds_that_the_command_line_takes() -> None:
    pytest.importorskip("gradio")
    from tenuto.ui.app import _seed

    assert _seed(3.0) == 3 and _seed(2**53) == 2**53
    for value, said in ((-1, "between 0 and"), (2**54, "between 0 and"), (1.5, "a whole number"), (None, "is empty")):
        with pytest.raises(UsageError, match=f"The field “Seed”.*{said}"):
            _seed(value)


def test_each_aim_decides_by_its_own_field(checkpoint: Path) -> None:
    pytest.importorskip("gradio")
    from tenuto.ui.app import FIELDS, Machine, _aims

    def evaluated(aim: str) -> int:
        return int(Machine("cpu").schedule(str(checkpoint), aim, 0.5, 12, 2.5, 50, 1).full_steps.sum())

    assert {aim: evaluated(aim) for aim in FIELDS} == {"budget": 25, "evaluations": 12, "speed-up": 20}
    assert "evaluations" not in _aims("prompt")


def test_a_port_that_is_taken_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tenuto.cli import main

    pytest.importorskip("gradio")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(sys, "argv", ["tenuto", "ui", "--port", str(taken.getsockname()[1])])
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code == 1 and "Take another --port" in capsys.readouterr().err


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The page as a browser shows it; `asked` has every address that it, or its server, asked for."""
    pytest.importorskip("gradio")
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    from tenuto.ui.app import build, launch

    results = tmp_path / "results"
    (results / "frontier").mkdir(parents=True)
    shutil.copy(ROOT / "results" / "frontier" / "frontier.json", results / "frontier")
    (results / "experiments").mkdir()
    row = {"quantity": "a quantity with a long name " * 5, "model": "tiny-dit", "paper": 3.0, "measured": 3.271}
    rows = [{**row, "interval": [3, 3.5], "holds": "yes"}]
    (results / "experiments" / "a.json").write_text(json.dumps({"provenance": {}, "rows": rows}))
    model = write_checkpoint(tmp_path / "dit", random_dit())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    asked: list[str] = []
    look_up = socket.getaddrinfo

    def noted(host: str, *arguments: Any, **options: Any) -> Any:
        asked.append(f"http://{host}:")
        return look_up(host, *arguments, **options)

    monkeypatch.setattr("socket.getaddrinfo", noted)
    served = build(str(model), results=results)
    _, url, _ = launch(served, "127.0.0.1", port, prevent_thread_lock=True, quiet=True)
    try:
        with playwright.sync_playwright() as browsers:
            browser = browsers.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            shown = browser.new_page(viewport={"width": 1300, "height": 1000})
            shown.asked = asked
            shown.set_default_timeout(120_000)
            shown.on("request", lambda request: asked.append(request.url))
            shown.goto(url)
            yield shown
            browser.close()
    finally:
        served.close(verbose=False)


def test_the_page_does_what_it_says(page: Any) -> None:
    def choose(model: str) -> None:
        page.locator("#model input").fill(model)
        page.locator("#model input").press("Enter")

    def number(name: str, value: object) -> None:
        box = page.locator(f"#{name} input[type=number]")
        box.fill(str(value))
        box.press("Enter")

    # the schedule, by a budget and by a speed-up: one row where all units are computed together
    page.wait_for_selector("#map svg")
    assert page.locator("#map svg text", has_text="network").count() == 1
    assert page.locator("#map svg text", has_text="blocks").count() == 0
    number("steps", 12)
    page.wait_for_selector("#facts td:text-is('12')")
    page.get_by_label("speed-up").check()
    number("speedup", 2)
    page.wait_for_selector("#facts td:has-text('at 6 of 12 steps')")

    # scores, only for who looks
    assert page.locator("#scores svg").count() == 0
    page.get_by_role("button", name="How sensitive").click()
    page.wait_for_selector("#scores svg")

    # pictures, with the schedule and without, and a verdict
    page.locator("#generate").click()
    page.wait_for_selector("#told .verdict >> text=those of the full run")
    page.locator(".sheet img:visible").nth(2).wait_for()

    # an emptied field, and a model that is not there: a sentence, and nothing old
    number("steps", "")
    page.wait_for_selector("#facts >> text=The field “Steps” needs a number, and it is empty.")
    number("steps", 12)
    page.wait_for_selector("#map svg")
    choose("nonsense")
    page.wait_for_selector("#facts >> text=There is no model 'nonsense'")
    page.wait_for_selector("#told .verdict", state="detached")
    assert page.locator("#map svg").count() == 0 and page.locator("#download").is_disabled()
    assert page.locator(".sheet img:visible").count() == 0

    # a model that writes
    choose("small-llada")
    page.wait_for_selector("#length:visible")
    page.wait_for_selector("#facts td:text-is('small-llada')")
    for name, value in (("steps", 4), ("blocks", 2), ("length", 16)):
        number(name, value)
    page.wait_for_selector("#facts td:has-text('2 of 4 steps compute everything')")
    page.locator("#generate").click()
    page.wait_for_selector("#told .verdict >> text=of the full run")

    # what was measured: all columns within the window
    page.get_by_role("tab", name="Frontier").click()
    page.wait_for_selector("#frontier img")
    page.get_by_role("tab", name="Experiments").click()
    last = page.locator("#experiments th", has_text=re.compile("^holds$"))
    last.wait_for()
    box = last.bounding_box()
    assert box["x"] + box["width"] <= 1300
    assert not page.locator("#model").is_visible(), "the controls belong to the other tab"

    elsewhere = [url for url in page.asked if not url.startswith(("http://127.0.0.1:", "data:", "blob:"))]
    assert not elsewhere, "nothing is asked of other machines"
