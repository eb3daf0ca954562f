"""What the laboratory adds to the page of `tenuto ui`: what was measured. The page finds these by entry points."""

from collections.abc import Sequence
from pathlib import Path

import gradio as gr
import matplotlib  # noqa: F401  without it nothing can be drawn, and the page leaves these tabs out

from tenuto.showing.escaping import one_line
from tenuto.showing.html import notice_html, table_html
from tenuto_lab.frontier.frontier_report import frontier_image, models_of, page_tables
from tenuto_lab.frontier.known import FRONTIER, known_frontier
from tenuto_lab.paper.claims import claims_table
from tenuto_lab.paper.experiment_report import HEAD

HOLDS = HEAD.index("holds")


def frontier_tab(results: Path) -> None:
    """Quality against work and time, as `python -m benchmarks.frontier` measured it."""
    record = known_frontier(results)
    if record is None:
        gr.HTML(
            notice_html(
                f"Nothing has been measured yet: there is no {results / FRONTIER}. `tenuto lab frontier tiny-dit "
                f"-o {results / FRONTIER}` measures it, which takes some minutes."
            )
        )
        return
    models = models_of(record)
    if not models:
        gr.HTML(notice_html(f"{results / FRONTIER} has no rows: nothing was measured."))
        return
    chosen = gr.Dropdown(
        [(one_line(model), model) for model in models], value=models[0], label="Model", elem_id="frontier-model"
    )
    image = gr.Image(
        frontier_image(record, models[0]),
        show_label=False,
        interactive=False,
        format="png",
        buttons=["fullscreen"],
        elem_id="frontier",
    )
    with gr.Accordion("Every row", open=False):
        for table in page_tables(record):
            gr.HTML(table_html(table.head, table.rows, table.title, table.text))
    chosen.change(lambda model: frontier_image(record, model), chosen, image)


def experiments_tab(results: Path) -> None:
    """What the experiments found, beside what the paper says."""
    folder = results / "experiments"
    table = claims_table(folder)
    if table is None:
        gr.HTML(notice_html(f"No experiment has been run yet: there is nothing in {folder}."))
        return
    rows: dict[str, list[Sequence[str]]] = {}
    for row in table.rows:
        rows.setdefault(row[0], []).append(row[1:])

    def shown(experiment: str) -> str:
        return table_html(table.head[1:], rows[experiment])

    names = [(f"{one_line(name)} ({_held(rows[name])})", name) for name in rows]
    chosen = gr.Dropdown(names, value=next(iter(rows)), label="Experiment", elem_id="experiment")
    content = gr.HTML(shown(next(iter(rows))), elem_id="experiments")
    chosen.change(shown, chosen, content, show_progress="hidden")


def _held(rows: Sequence[Sequence[str]]) -> str:
    """How many of the paper's claims hold, by its own metric, of those that could be decided."""
    said = [row[HOLDS] for row in rows if row[HOLDS]]
    decided = len(said) - said.count("cannot tell")
    return f"{said.count('yes')} of {decided} decided claims hold" if said else "no claim to decide"
