"""Nothing that comes from a file is taken for anything but text: in HTML, in Markdown, in pictures."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tenuto.scheduling.schedule import Schedule
from tenuto.showing.escaping import in_html, in_markdown, one_line
from tenuto.showing.facts import schedule_facts
from tenuto.showing.html import facts_html, figures_html, map_html, notice_html, table_html
from tenuto.showing.maps import save_schedule_png
from tenuto.showing.page import Table, write_page
from tenuto_lab.hub import card
from tenuto_lab.judging.error_map import save_errors_png

ATTACKS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a\n```\n# heading\n<b>",
    "| a | b |\n|---|---|",
    "\\| x",
    "`x` ``y``",
    "[x](javascript:alert(1)) ![i](http://x/y.png)",
    "http://evil.example www.evil.example a@evil.example",
    "\x1b]52;c;ZXZpbA==\x07\x1b[2J",
    "---\nlicense: other\n---",
    "{{ 7 * 7 }} {% raw %}",
    "$\\frac{1}{$ $x_$",
    "a\u202eb\u2028c\ud800d\x00",
    "*a* _b_ ~~c~~ ^d^ &lt; &#60; :smile:",
)
texts = st.text(st.characters(codec=None), max_size=40) | st.sampled_from(ATTACKS)


def every_attack(test: Any) -> Any:
    for attack in ATTACKS:
        test = example(attack)(test)
    return test


class Seen(HTMLParser):
    """The tags and the text of a piece of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def schedule(name: str, together: bool = False) -> Schedule:
    """Of two units; everything that is text says `name`."""
    active = np.array([[True, False, True], [True, not together, True]])
    keep: Any = "output" if together else "update"
    policy = {"name": name, name or "empty": 3}
    units = (f"{name}1", f"{name}2")
    return Schedule(units, active, (1.0, 2.0), "constant", keep, name, f"sha256:{name}", policy, version=name)


def rendered(markdown: str) -> str:
    from markdown_it import MarkdownIt

    return str(MarkdownIt("gfm-like", {"linkify": False}).render(markdown))


@given(texts)
@every_attack
def test_html_shows_the_text_and_nothing_else(text: str) -> None:
    seen = Seen(f'<p title="{in_html(text)}">{in_html(text)}</p>')
    assert seen.tags == [("p", ("title",))] and seen.text == one_line(text)


@given(texts)
@every_attack
def test_a_line_is_printable_and_one(text: str) -> None:
    shown = one_line(text)
    assert shown.isprintable() and len(shown) == len(text)
    shown.encode()  # no lone surrogate is left


@given(texts)
@every_attack
def test_markdown_shows_the_text_in_a_cell_and_nothing_else(text: str) -> None:
    seen = Seen(rendered(f"| | |\n| --- | --- |\n| a | {in_markdown(text)} |\n| b | c |\n"))
    assert [tag for tag, _ in seen.tags] == ["table", "thead", "tr", "th", "th", "tbody", *["tr", "td", "td"] * 2]
    assert " ".join(seen.text.split()) == " ".join(["a", *one_line(text).split(), "b", "c"])


@given(texts)
@every_attack
@settings(max_examples=40)
def test_a_card_keeps_its_form_whatever_the_file_says(text: str) -> None:
    import yaml  # type: ignore[import-untyped]

    honest, hostile = (card("me/some", {"schedule.json": schedule(name)}) for name in ("name", text))
    matter = hostile.split("---\n", 2)[1]
    assert set(yaml.safe_load(matter)) <= {"library_name", "tags", "base_model"}
    tags = [[tag for tag, _ in Seen(rendered(one.split("---\n", 2)[2])).tags] for one in (honest, hostile)]
    assert tags[0] == tags[1] and "script" not in tags[1] and "a" not in tags[1]


@given(texts)
@every_attack
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_page_keeps_its_form_whatever_the_file_says(tmp_path: Path, text: str) -> None:
    def tags(name: str) -> list[tuple[str, tuple[str, ...]]]:
        made, path = schedule(name), tmp_path / "page.html"
        tables = [Table(name, [name], [[name]], text="lead")]
        write_page(
            path, title=name, lead=name, facts={name: name}, figures=[(name, name)], tables=tables, schedule=made
        )
        parts = facts_html(schedule_facts(made)) + map_html(made) + notice_html(name)
        parts += figures_html([(name, name)]) + table_html([name], [[name]], "title", "text")
        return Seen(path.read_text(encoding="utf-8")).tags + Seen(parts).tags

    assert tags(text) == tags("name")


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("attack", ATTACKS)
def test_pictures_are_drawn_whatever_the_file_says(attack: str, tmp_path: Path) -> None:
    for together in (False, True):
        made = schedule(attack, together)
        save_schedule_png(made, tmp_path / "map.png")
        save_errors_png(made, np.zeros((1 if together else 2, 3)), tmp_path / "errors.png")
        assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
