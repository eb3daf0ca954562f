"""One self-contained HTML page: pictures, tables, the map and the scores, with nothing to fetch and no script."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from tenuto.files import write_text
from tenuto.scheduling.schedule import Schedule
from tenuto.showing.escaping import one_line
from tenuto.showing.images import png_bytes
from tenuto.showing.maps import legend, schedule_svg


@dataclass(frozen=True)
class Table:
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: str = ""
    prose: bool = False  # True: cells are words, so none is aligned to the right
    words: int = 1  # so many columns on the left hold words; the others are aligned to the right
    image: Image.Image | None = None  # stands between text and table


def write_page(
    path: Path,
    *,
    title: str,
    lead: str,
    facts: Mapping[str, Any],
    opening: Sequence[Table] = (),
    figures: Sequence[tuple[str, str]] = (),
    pictures: Sequence[tuple[str, Image.Image]] = (),
    drawings: Sequence[tuple[str, Image.Image]] = (),
    tables: Sequence[Table] = (),
    schedule: Schedule | None = None,
    bars: str = "",
    kinds: Sequence[tuple[str, str]] = (),
) -> None:
    """A page of whatever is given.

    opening   tables that come first
    figures   (value, what it is), shown large
    pictures  (caption, image), of the same noise with a schedule and without
    drawings  (title, image), as wide as the page
    facts     how all of it was made
    bars      an SVG of the units' scores; `kinds` are the words and colours of its key
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("tenuto", "showing"), autoescape=True, undefined=StrictUndefined, finalize=_printable
    )
    page = environment.get_template("page.html.jinja").render(
        title=title,
        lead=lead,
        opening=opening,
        figures=figures,
        pictures=[(caption, _data_uri(image)) for caption, image in pictures],
        drawings=[(title, _data_uri(image)) for title, image in drawings],
        tables=tables,
        map=schedule_svg(schedule) if schedule else "",
        key=legend(schedule) if schedule else [],
        bars=bars,
        kinds=kinds,
        facts=list(facts.items()),
        data_uri=_data_uri,
    )
    write_text(path, page)


def _printable(value: Any) -> Any:
    """Replace the control characters in a value of the template. Jinja itself escapes tags."""
    return value if hasattr(value, "__html__") else one_line(value)


def _data_uri(image: Image.Image) -> str:
    return f"data:image/png;base64,{b64encode(png_bytes(image)).decode()}"
