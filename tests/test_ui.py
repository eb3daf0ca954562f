"""The page, clicked through in a real browser; and what it is made of, without one."""

import json
import shutil
import socket
from pathlib import Path

import pytest
import torch
from conftest import random_dit, write_checkpoint

import tenuto
from tenuto.errors import TenutoError, UsageError
from tenuto.report.claims import claims_table
from tenuto.report.texts import DIFFERS, marked, share_alike

ROOT = Path(__file__).parent.parent
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# gradio, of pandas
pytestmark = pytest.mark.filterwarnings("ignore::Warning:gradio.queueing")
QUIET = "--no-sandbox --headless --disable-gpu --disable-quic --no-first-run --disable-background-networking"
FLAGS = f"{QUIET} --disable-component-update --disable-sync".split()


def test_tokens_that_differ_are_marked():
    def decode(tokens):
        return "".join(map(chr, tokens))

    assert marked(b"abXd", b"abcd", decode) == [("ab", None), ("X", DIFFERS), ("d", None)]
    assert share_alike(b"abXd", b"abcd") == 0.75
    assert marked(b"ab", b"ab", decode) == [("ab", None)]


def test_experiments_are_one_table(tmp_path):
    assert claims_table(tmp_path / "absent") is None
    row = {"quantity": "speed-up", "model": "tiny-dit", "paper": 3.0, "measured": 3.271, "interval": [3, 3.5]}
    (tmp_path / "a.json").write_text(json.dumps({"provenance": {}, "rows": [{**row, "holds": True}]}))
    assert claims_table(tmp_path).rows == [["a", "tiny-dit", "speed-up", "3", "3.27", "3 to 3.5", "yes"]]
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(TenutoError, match="b.json is no experiment's result"):
        claims_table(tmp_path)


def test_both_are_drawn_from_the_same_noise_and_counted(checkpoint):
    from tenuto.ui.compare import compare_pictures

    model = tenuto.load(checkpoint)
    seen = []
    nothing_held = tenuto.schedule(model, steps=3, budget=1.0)
    both = compare_pictures(model, nothing_held, ["0", "3"], seed=1, advance=lambda *told: seen.append(told))
    assert both.decibels.tolist() == [float("inf")] * 2 and both.full.tobytes() == both.scheduled.tobytes()
    assert seen[-1] == ("Under the schedule", 6, 6) and both.speedup > 0
    held = compare_pictures(model, tenuto.schedule(model, steps=6, every=3), [0])
    assert torch.isfinite(held.decibels).all()


def test_texts_are_written_twice_and_compared():
    from tenuto.ui.compare import compare_texts

    model = tenuto.load("tiny-llada")
    nothing_held = tenuto.schedule(model, steps=4, budget=1.0, blocks=2)
    both = compare_texts(model, nothing_held, "close: ([{ ->", length=8, blocks=2)
    assert both.alike == 1 and both.full == both.scheduled and all(mark is None for _, mark in both.full)
    with pytest.raises(UsageError, match="8 tokens cannot be written in 3 blocks"):
        compare_texts(model, nothing_held, "close: ([{ ->", length=8, blocks=3)


def test_a_port_that_is_taken_is_said_to_be(monkeypatch, capsys):
    import sys

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
def page(tmp_path, monkeypatch):
    """The page as a browser shows it; `asked` has every address that it, or its server, asked for."""
    pytest.importorskip("gradio")
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    from tenuto.ui.app import build, launch

    results = tmp_path / "results"
    results.mkdir()
    shutil.copy(ROOT / "results" / "frontier.json", results)
    model = write_checkpoint(tmp_path / "dit", random_dit())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    asked, look_up = [], socket.getaddrinfo

    def noted(host, *arguments, **options):
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
            shown.on("request", lambda request: asked.append(request.url))
            shown.goto(url)
            yield shown
            browser.close()
    finally:
        served.close(verbose=False)


def test_the_page_does_what_it_says(page):
    def choose(model):
        page.locator("#model input").fill(str(model))
        page.locator("#model input").press("Enter")

    def number(name, value):
        box = page.locator(f"#{name} input[type=number]")
        box.fill(str(value))
        box.press("Enter")

    # the schedule, by a budget and by a speed-up
    page.wait_for_selector("#map svg")
    assert page.locator("#map svg text", has_text="blocks.2.mlp").count() == 1
    number("steps", 12)
    page.wait_for_selector("#facts td:text-is('12')")
    page.get_by_label("speed-up").check()
    number("speedup", 2)
    page.wait_for_selector("#facts td:has-text('58.3% of unit-steps')")
    page.get_by_role("button", name="How sensitive").click()
    page.wait_for_selector("#scores svg")

    # pictures, with it and without
    page.get_by_role("tab", name="Side by side").click()
    page.locator("#generate").click()
    page.wait_for_selector("#told .figures >> text=PSNR to the full run")
    page.locator(".sheet img:visible").nth(2).wait_for()

    # what was measured, and what was not
    page.get_by_role("tab", name="Frontier").click()
    page.wait_for_selector("#frontier img")
    page.get_by_role("tab", name="Experiments").click()
    page.wait_for_selector("text=No experiment has been run yet")

    # a model that is not there, and one that writes
    choose("nonsense")
    page.wait_for_selector("text=There is no model 'nonsense'")
    choose("tiny-llada")
    page.wait_for_selector("#length:visible")
    page.get_by_role("tab", name="Schedule").click()
    page.wait_for_selector("#facts td:text-is('tiny-llada')")
    for name, value in (("steps", 4), ("blocks", 2), ("length", 16)):
        number(name, value)
    page.wait_for_selector("#facts td:has-text('blocks 2')")
    page.get_by_role("tab", name="Side by side").click()
    page.locator("#generate").click()
    page.wait_for_selector("#told .figures >> text=of the tokens are the same")

    elsewhere = [url for url in page.asked if not url.startswith(("http://127.0.0.1:", "data:", "blob:"))]
    assert not elsewhere, "nothing is asked of other machines"
