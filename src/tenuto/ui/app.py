"""The page itself: controls on the left; the schedule, a trial of it, the frontier and the experiments on the right.

Nothing leaves this machine: no analytics, no fonts or scripts from elsewhere, no public link unless asked for.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from html import escape
from pathlib import Path
from typing import Any

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before gradio is imported, or it has phoned home by then

import gradio as gr

from tenuto import api
from tenuto.cli.show import schedule_facts
from tenuto.errors import CheckpointError, TenutoError
from tenuto.models import SHIPPED, Model, load, open_model, shipped
from tenuto.report.claims import HEAD, claims_table
from tenuto.report.frontier import frontier_image, frontier_tables, models_of
from tenuto.report.maps import COMPUTED_COLOUR, HELD_COLOUR, KIND_COLOURS, schedule_svg, scores_svg
from tenuto.report.results import known_frontier
from tenuto.report.texts import DIFFERS
from tenuto.schedules import Schedule
from tenuto.scores import Scores
from tenuto.ui.compare import GAIN, compare_pictures, compare_texts

CAPTION, PROMPT = "a red car\na horse", "The old man looked at the sea, and"
STEPS, LENGTH, BLOCKS, CLASSES = 50, 128, 4, 6
BUDGET, SPEEDUP = "budget", "speed-up"
FONTS = ("system-ui", "sans-serif")
CSS = """
.figures { display: flex; flex-wrap: wrap; gap: .8rem; }
.figures div { border: 1px solid var(--border-color-primary); border-radius: .5rem; padding: .5rem 1rem; }
.figures div { min-width: 8rem; }
.figures b { display: block; font-size: 1.5rem; font-variant-numeric: tabular-nums; }
.figures span, .facts td:first-child, .caption { opacity: .65; font-size: .85rem; }
.drawn svg { width: 100%; height: auto; max-width: 60rem; color: var(--body-text-color); }
.key i { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; border-radius: 2px; }
.facts, .facts tr, .facts td { border: none !important; padding: .1rem 1.2rem .1rem 0 !important; }
.sheet img { image-rendering: pixelated; }
"""


def theme() -> Any:
    """Gradio's plain theme in our blue, with the system's own fonts."""
    return gr.themes.Base(primary_hue="blue", font=FONTS, font_mono=("ui-monospace", "monospace"))


def build(model: str = "tiny-dit", *, results: Path = Path("results"), device: str = "cpu") -> gr.Blocks:
    """The page, not yet served; `results` is the folder whose frontier and experiments it shows."""
    machine = Machine(device)
    with gr.Blocks(title="Tenuto", analytics_enabled=False) as page:
        gr.Markdown("# Tenuto\nWhich residual branches are computed at which step, and what comes of it.")
        with gr.Row():
            with gr.Column(scale=1, min_width=300):
                controls = _controls(machine, model)
            with gr.Column(scale=3, min_width=500):
                with gr.Tab("Schedule"):
                    _schedule_tab(page, machine, controls)
                with gr.Tab("Side by side"):
                    _compare_tab(machine, controls)
                with gr.Tab("Frontier"):
                    _frontier_tab(results)
                with gr.Tab("Experiments"):
                    _experiments_tab(results / "experiments")
    return page


def launch(page: gr.Blocks, host: str, port: int, share: bool = False, **options: Any) -> Any:
    """Serve it; blocks unless told otherwise."""
    return page.queue(default_concurrency_limit=1).launch(
        server_name=host,
        server_port=port,
        share=share,
        theme=theme(),
        css=CSS,
        ssr_mode=False,
        footer_links=[],
        **options,
    )


class Machine:
    """What was loaded and scored, kept for the next question about the same model."""

    def __init__(self, device: str) -> None:
        self.model: Callable[[str], Model] = lru_cache(maxsize=2)(lambda name: load(name, device=device))
        self.scores: Callable[[str], Scores] = lru_cache(maxsize=8)(api.score)
        self.asks_for: Callable[[str], str] = lru_cache(maxsize=32)(lambda name: open_model(name).architecture.asks_for)

    def schedule(self, name: str, aim: str, budget: float, speedup: float, steps: float, blocks: float) -> Schedule:
        options: dict[str, Any] = {"budget": budget} if aim == BUDGET else {"speedup": speedup}
        if self.asks_for(name) == "prompt":
            options["blocks"] = int(blocks)
        return api.schedule(self.scores(name), int(steps), **options)


def kindly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Our errors are shown as sentences on the page."""

    @wraps(function)
    def shown(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except TenutoError as error:
            raise gr.Error(escape(str(error)), title="Not possible", print_exception=False) from error

    return shown


class Controls:
    """The components on the left; `decision` are those that a schedule follows from."""

    adapted: Any  # the event of their having changed with the model

    def __init__(self, machine: Machine, model: str) -> None:
        here = [name for name in SHIPPED if _is_here(name)]
        asks_for = machine.asks_for(model)
        text = asks_for == "prompt"
        self.model = gr.Dropdown(
            list(dict.fromkeys([*here, model])),
            value=model,
            allow_custom_value=True,
            label="Model",
            info="One that ships, a checkpoint's path, or a hub id",
            elem_id="model",
        )
        self.aim = gr.Radio([BUDGET, SPEEDUP], value=BUDGET, label="Aim", elem_id="aim")
        self.budget = gr.Slider(0.05, 1, 0.25, step=0.01, label="Share of the work", elem_id="budget")
        self.speedup = gr.Slider(1, 10, 3, step=0.1, label="Times as fast", visible=False, elem_id="speedup")
        self.steps = gr.Slider(4, 250, _steps(asks_for), step=1, label="Steps", elem_id="steps")
        self.blocks = gr.Slider(1, 16, BLOCKS, step=1, label="Blocks of text", visible=text, elem_id="blocks")
        self.length = gr.Slider(8, 256, LENGTH, step=8, label="Tokens to write", visible=text, elem_id="length")
        classes = _classes(model) if asks_for == "class" else []
        self.classes = gr.Dropdown(
            classes, value=classes[:CLASSES], multiselect=True, label="Classes", visible=asks_for == "class"
        )
        self.words = gr.Textbox(
            CAPTION if asks_for == "caption" else PROMPT,
            label=_words_label(asks_for),
            lines=3,
            visible=asks_for != "class",
            elem_id="words",
        )
        self.seed = gr.Number(0, label="Seed", precision=0, minimum=0, elem_id="seed")
        self.decision = [self.model, self.aim, self.budget, self.speedup, self.steps, self.blocks]


def _controls(machine: Machine, model: str) -> Controls:
    controls = Controls(machine, model)

    def aimed(aim: str) -> tuple[Any, Any]:
        return gr.update(visible=aim == BUDGET), gr.update(visible=aim == SPEEDUP)

    @kindly
    def adapted(name: str) -> list[Any]:
        asks_for = machine.asks_for(name)
        text = asks_for == "prompt"
        classes = _classes(name) if asks_for == "class" else []
        words = gr.update(visible=asks_for != "class", label=_words_label(asks_for), value=PROMPT if text else CAPTION)
        return [
            gr.update(visible=text),
            gr.update(visible=text),
            gr.update(visible=asks_for == "class", choices=classes, value=classes[:CLASSES]),
            words,
            gr.update(value=_steps(asks_for)),
        ]

    controls.aim.change(aimed, controls.aim, [controls.budget, controls.speedup], show_progress="hidden")
    controls.adapted = controls.model.change(
        adapted,
        controls.model,
        [controls.blocks, controls.length, controls.classes, controls.words, controls.steps],
        show_progress="hidden",
    )
    return controls


def _schedule_tab(page: gr.Blocks, machine: Machine, controls: Controls) -> None:
    facts = gr.HTML(elem_id="facts")
    drawn = gr.HTML(elem_classes="drawn", elem_id="map")
    keep = gr.DownloadButton("Download schedule.json", size="sm", elem_id="download")
    with gr.Accordion("How sensitive each unit looks from its weights", open=False):
        bars = gr.HTML(elem_classes="drawn", elem_id="scores")

    @kindly
    def decide(*asked: Any) -> tuple[str, str, str, str]:
        scores, schedule = machine.scores(asked[0]), machine.schedule(*asked)
        if advice := api.advice(schedule, text=machine.asks_for(asked[0]) == "prompt"):
            gr.Warning(escape(advice))
        return _facts_html(schedule), _map_html(schedule), _saved(schedule), _bars_html(scores)

    # A new model first changes the controls, and only if it is one.
    controls.adapted.success(decide, controls.decision, [facts, drawn, keep, bars], show_progress="minimal")
    gr.on(
        [page.load, *(one.change for one in controls.decision if one is not controls.model)],
        decide,
        controls.decision,
        [facts, drawn, keep, bars],
        trigger_mode="always_last",
        show_progress="minimal",
    )


def _compare_tab(machine: Machine, controls: Controls) -> None:
    gr.Markdown("Everything computed, and the same under the schedule, from the same noise; each run and timed once.")
    start = gr.Button("Generate both", variant="primary", elem_id="generate")
    told = gr.HTML(elem_id="told", min_height=90)
    with gr.Row(visible=False) as sheets:
        full, held = _sheet("Everything computed"), _sheet("Under the schedule")
        apart = _sheet(f"The difference, {GAIN} times amplified")
    with gr.Row(visible=False) as texts:
        full_text, held_text = _text("Everything computed"), _text("Under the schedule")

    @kindly
    def compare(*asked: Any, progress: Any = gr.Progress()) -> dict[Any, Any]:  # gradio asks for it so
        decision, (length, classes, words, seed) = asked[:-4], asked[-4:]
        name, blocks = decision[0], int(decision[-1])
        progress(0.0, desc="Loading")
        schedule, model = machine.schedule(*decision), machine.model(name)

        def advance(run: str, done: int, total: int) -> None:
            progress((done, total), desc=run)

        if machine.asks_for(name) == "prompt":
            both = compare_texts(model, schedule, words, int(length), blocks, advance)
            figures = [*_times(both, schedule), (f"{both.alike:.0%}", "of the tokens are the same")]
            return {
                told: _figures_html(figures),
                sheets: gr.update(visible=False),
                texts: gr.update(visible=True),
                full_text: both.full,
                held_text: both.scheduled,
            }
        wanted = classes if machine.asks_for(name) == "class" else [line for line in words.splitlines() if line.strip()]
        drawn = compare_pictures(model, schedule, wanted, int(seed), advance)
        return {
            told: _figures_html([*_times(drawn, schedule), *_decibels(drawn.decibels)]),
            sheets: gr.update(visible=True),
            texts: gr.update(visible=False),
            full: drawn.full,
            held: drawn.scheduled,
            apart: drawn.difference,
        }

    start.click(
        compare,
        [*controls.decision, controls.length, controls.classes, controls.words, controls.seed],
        [told, sheets, texts, full, held, apart, full_text, held_text],
        show_progress_on=told,
    )


def _frontier_tab(folder: Path) -> None:
    record = known_frontier(folder)
    if record is None:
        path = folder / "frontier.json"
        gr.Markdown(
            f"Nothing has been measured yet: there is no `{path}`.\n\n"
            f"`tenuto frontier tiny-dit -o {path}` measures it; it takes some minutes."
        )
        return
    models = models_of(record)
    chosen = gr.Dropdown(models, value=models[0], label="Model", elem_id="frontier-model")
    image = gr.Image(
        frontier_image(record, models[0]),
        show_label=False,
        interactive=False,
        format="png",
        buttons=["fullscreen"],
        elem_id="frontier",
    )
    with gr.Accordion("Every row", open=False):
        gr.Markdown(frontier_tables(record))
    chosen.change(lambda model: frontier_image(record, model), chosen, image)


def _experiments_tab(folder: Path) -> None:
    table = claims_table(folder)
    if table is None:
        gr.Markdown(f"No experiment has been run yet: there is nothing in `{folder}`.")
        return
    gr.Dataframe(
        [list(row) for row in table.rows], headers=list(HEAD), interactive=False, wrap=True, elem_id="experiments"
    )


def _sheet(caption: str) -> Any:
    with gr.Column(min_width=200):
        gr.HTML(f'<span class="caption">{escape(caption)}</span>')
        return gr.Image(show_label=False, interactive=False, format="png", elem_classes="sheet", buttons=["fullscreen"])


def _text(label: str) -> Any:
    return gr.HighlightedText(label=label, color_map={DIFFERS: "#d08a2e"}, show_inline_category=False)


def _is_here(name: str) -> bool:
    try:
        return shipped(name).is_dir()
    except CheckpointError:
        return False


def _classes(name: str) -> list[str]:
    stored = open_model(name)
    return list(stored.labels) or [str(i) for i in range(min(stored.config.classes, 1000))]


def _steps(asks_for: str) -> int:
    """To begin with; of text, a step for two tokens."""
    return LENGTH // 2 if asks_for == "prompt" else STEPS


def _words_label(asks_for: str) -> str:
    return "Captions, one a line" if asks_for == "caption" else "Text to write after"


def _saved(schedule: Schedule) -> str:
    folder = Path(tempfile.mkdtemp(prefix="tenuto-"))
    schedule.save(folder / "schedule.json")
    return str(folder / "schedule.json")


def _facts_html(schedule: Schedule) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in schedule_facts(schedule).items()
    )
    return f'<table class="facts">{rows}</table>'


def _map_html(schedule: Schedule) -> str:
    key = _key_html([("computed", COMPUTED_COLOUR), ("held", HELD_COLOUR)])
    return f"<p>One row a unit, one column a step.{key}</p>{schedule_svg(schedule)}"


def _bars_html(scores: Scores) -> str:
    kinds = dict.fromkeys(unit.kind for unit in scores.units)
    key = _key_html([(kind.replace("_", "-"), KIND_COLOURS[kind]) for kind in kinds])
    return f"<p>The SCR/Frobenius score of each residual branch, within the model.{key}</p>{scores_svg(scores)}"


def _key_html(entries: Sequence[tuple[str, str]]) -> str:
    marks = "".join(f'<i style="background:{colour}"></i>{name}' for name, colour in entries)
    return f'<span class="key">{marks}</span>'


def _figures_html(figures: Sequence[tuple[str, str]]) -> str:
    cards = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for value, name in figures)
    return f'<div class="figures">{cards}</div>'


def _times(compared: Any, schedule: Schedule) -> list[tuple[str, str]]:
    return [
        (f"{compared.speedup:.2f}×", "as fast"),
        (f"{compared.seconds_full:.2f} s", "everything computed"),
        (f"{compared.seconds_scheduled:.2f} s", "under the schedule"),
        (f"{schedule.budget:.0%}", "of unit-steps computed"),
    ]


def _decibels(values: Any) -> list[tuple[str, str]]:
    if not values.isfinite().all():
        return [("identical", "at least one picture")] if values.isfinite().any() else [("identical", "pictures")]
    return [(f"{values.mean():.1f} dB", "PSNR to the full run"), (f"{values.min():.1f} dB", "the worst picture")]
