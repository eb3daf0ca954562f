"""`tenuto show`: a score file or a schedule, as a table, a page or a picture."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tenuto.cli.app import AsJson, app

if TYPE_CHECKING:
    from rich.text import Text

    from tenuto.scheduling.schedule import Schedule

SHADES = " ░▒▓█"


@app.command(epilog="Example: tenuto show schedule.json --html page.html")
def show(
    file: Annotated[Path, typer.Argument(help="A score file or a schedule.")],
    html: Annotated[Path | None, typer.Option(help="Write a self-contained page here.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write a picture here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Look at a score file or a schedule: as a table in the terminal, as a page, or as a picture."""
    from tenuto.cli.console import print_json, say
    from tenuto.errors import TenutoError
    from tenuto.extras import needs
    from tenuto.files import check_writable, read_json
    from tenuto.laboratory import offered
    from tenuto.scheduling import schedule as schedules

    if png:
        needs("--png", "plots")
    for written in (html, png):
        if written:
            check_writable(written, reads=[file])
    record = read_json(file, "score file or schedule")
    kind = record.get("format")
    if kind in (schedules.FORMAT, schedules.FIRST_FORMAT):
        schedule = schedules.from_json(record, str(file))
        _draw_schedule(schedule, file, html, png)
        if not as_json:
            print_schedule(schedule)
    elif kind in offered("scores_formats"):
        offered("show_scores")(record, file, html, png, as_json)
    else:
        hint = " It looks like a frontier: `tenuto lab show` draws those." if "cases" in record else ""
        raise TenutoError(
            f"{file} is neither a score file ({offered('scores_formats')[0]}) nor a schedule ({schedules.FORMAT}): "
            f"its format is {kind!r}.{hint}"
        )
    if as_json:
        print_json(record)
    for written in (html, png):
        if written:
            say(f"Wrote {written}")


def _draw_schedule(schedule: "Schedule", file: Path, html: Path | None, png: Path | None) -> None:
    if png:
        from tenuto.showing.maps import save_schedule_png

        save_schedule_png(schedule, png)
    if html:
        from tenuto.showing.facts import schedule_facts
        from tenuto.showing.page import write_page

        facts = schedule_facts(schedule)
        write_page(html, title=f"Schedule for {schedule.model}", lead=str(file), facts=facts, schedule=schedule)


def print_schedule(schedule: "Schedule") -> None:
    from rich.table import Table

    from tenuto.cli.console import out, quoted
    from tenuto.showing.facts import schedule_facts

    facts = Table.grid(padding=(0, 1))
    facts.add_column(style="dim", justify="right", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in schedule_facts(schedule).items():
        facts.add_row(name, quoted(value))
    out.print(facts)
    out.print(terminal_map(schedule, out.width))


def terminal_map(schedule: "Schedule", width: int) -> "Text":
    """One line for each unit, or one line for the network if all units are treated alike, and a line of explanation.

    If the steps do not fit the width, several steps share a cell. The shade of a cell tells how many of its steps are
    computed.
    """
    from math import ceil

    from rich.text import Text

    from tenuto.showing.maps import bands, word_between

    lines = bands(schedule)
    label = max(len(line.name) for line in lines)
    per_cell = ceil(schedule.steps / max(20, width - label - 2))
    text = Text(no_wrap=True)
    for line in lines:
        text.append(f"{line.name:>{label}} ", style="dim")
        for start in range(0, schedule.steps, per_cell):
            share = float(line.active[start : start + per_cell].mean())
            text.append("·" if share == 0 else SHADES[ceil(share * 4)], style="dim" if share == 0 else "cyan")
        text.append("\n")
    cells = f", {per_cell} steps a cell" if per_cell > 1 else ""
    explained = f"steps 1 to {schedule.steps}{cells}; █ computed, · {word_between(schedule)}"
    text.append(f"{' ' * label} {explained}", style="dim")
    return text
