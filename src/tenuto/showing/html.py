"""Small pieces of HTML with everything in them escaped: facts, figures, tables, maps and notices."""

from collections.abc import Mapping, Sequence

from tenuto.scheduling.schedule import Schedule
from tenuto.showing.escaping import in_html
from tenuto.showing.maps import legend, schedule_svg


def facts_html(facts: Mapping[str, object]) -> str:
    """A name and a value on each line."""
    rows = "".join(f"<tr><td>{in_html(name)}</td><td>{in_html(value)}</td></tr>" for name, value in facts.items())
    return f'<table class="facts">{rows}</table>'


def figures_html(figures: Sequence[tuple[str, str]]) -> str:
    """(value, what it is), shown large."""
    cards = "".join(f"<div><b>{in_html(value)}</b><span>{in_html(name)}</span></div>" for value, name in figures)
    return f'<div class="figures">{cards}</div>'


def table_html(head: Sequence[str], rows: Sequence[Sequence[object]], title: str = "", text: str = "") -> str:
    """A table that wraps its cells; it scrolls by itself where the page is too narrow."""
    top = "".join(f"<th>{in_html(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{in_html(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    heading = f"<h3>{in_html(title)}</h3>" if title else ""
    lead = f"<p>{in_html(text)}</p>" if text else ""
    return f'{heading}{lead}<div class="wide"><table class="rows"><tr>{top}</tr>{body}</table></div>'


def map_html(schedule: Schedule) -> str:
    """A schedule's map and its key."""
    return f"<p>One column for each step.{key_html(legend(schedule))}</p>{schedule_svg(schedule)}"


def notice_html(sentence: object, kind: str = "notice") -> str:
    """A sentence that asks for attention."""
    return f'<p class="{kind}">{in_html(sentence)}</p>'


def key_html(entries: Sequence[tuple[str, str]]) -> str:
    marks = "".join(f'<i style="background:{colour}"></i>{in_html(name)}' for name, colour in entries)
    return f'<span class="key">{marks}</span>'
