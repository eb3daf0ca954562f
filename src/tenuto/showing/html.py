"""Small pieces of HTML with everything in them escaped: facts, figures, tables, maps and notices."""

from collections.abc import Mapping, Sequence

from tenuto.scheduling.schedule import Schedule
from tenuto.scoring.scores import Scores
from tenuto.showing.escaping import in_html
from tenuto.showing.maps import KIND_COLOURS, legend, schedule_svg, scores_svg


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
    return f"<p>One column for each step.{_key(legend(schedule))}</p>{schedule_svg(schedule)}"


def scores_html(scores: Scores) -> str:
    """A bar for each unit's score, and the key of the kinds."""
    kinds = dict.fromkeys(unit.kind for unit in scores.units)
    key = _key([(kind.replace("_", "-"), KIND_COLOURS[kind]) for kind in kinds])
    return f"<p>The SCR/Frobenius score of each unit, within the model.{key}</p>{scores_svg(scores)}"


def notice_html(sentence: object, kind: str = "notice") -> str:
    """A sentence that asks for attention."""
    return f'<p class="{kind}">{in_html(sentence)}</p>'


def _key(entries: Sequence[tuple[str, str]]) -> str:
    marks = "".join(f'<i style="background:{colour}"></i>{in_html(name)}' for name, colour in entries)
    return f'<span class="key">{marks}</span>'
