"""The page itself: controls on the left, the schedule and a trial of it on the right. Other packages may add tabs.

To add a tab, a package declares an entry point of the group `tenuto.tabs`: a function that takes the results folder and
builds the tab. The laboratory shows its measurements in this way. A tab whose packages are missing is left out.

Nothing leaves this machine: no analytics, no fonts or scripts from elsewhere, no public link unless requested.
"""

import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # gradio reads it when it is imported

import gradio as gr

from tenuto import deciding
from tenuto.errors import TenutoError, UsageError, check_whole
from tenuto.laboratory import TABS, offered, offers
from tenuto.models import SHIPPED, Model, Stored, load, open_model, place_of
from tenuto.scheduling.schedule import Schedule
from tenuto.showing.escaping import in_html, one_line
from tenuto.showing.facts import schedule_facts
from tenuto.showing.html import facts_html, figures_html, map_html, notice_html
from tenuto.showing.texts import DIFFERS
from tenuto.ui.compare import GAIN, Compared, compare_pictures, compare_texts

MOST_SEED = 2**53
CAPTION, PROMPT = "a red car\na horse", "sort: 42 48 7 25 53 40 ->"
STEPS, EVALUATED, LENGTH, BLOCKS, CLASSES = 50, 12, 128, 4, 6
BUDGET, EVALUATIONS, SPEEDUP = "budget", "evaluations", "speed-up"
FIELDS = {BUDGET: "Share of the work", EVALUATIONS: "Steps to evaluate", SPEEDUP: "Times as fast"}  # one for each aim
# Gradio would compare an empty number field (None) with the slider's bounds, which Python refuses. `given` checks it.
RAW: dict[str, Any] = {"preprocess": False}
FONTS = ("system-ui", "sans-serif")
CSS = """
.figures { display: flex; flex-wrap: wrap; gap: .8rem; }
.figures div { border: 1px solid var(--border-color-primary); border-radius: .5rem; padding: .5rem 1rem; }
.figures div { min-width: 8rem; }
.figures b { display: block; font-size: 1.5rem; font-variant-numeric: tabular-nums; }
.figures span, .facts td:first-child, .caption { opacity: .65; font-size: .85rem; }
.verdict { margin: .8rem 0 0; font-size: 1.05rem; }
.notice, .wrong { border-left: 4px solid #d08a2e; padding: .4rem .8rem; margin: .4rem 0; max-width: 52rem; }
.wrong { border-color: #b3261e; }
.drawn svg { width: 100%; height: auto; max-width: 60rem; color: var(--body-text-color); }
.key i { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; border-radius: 2px; }
.facts, .facts tr, .facts td { border: none !important; padding: .1rem 1.2rem .1rem 0 !important; }
.wide { overflow-x: auto; }
table.rows { border: none !important; }
.rows { font-size: .9rem; font-variant-numeric: tabular-nums; border-collapse: collapse; }
.rows th, .rows td { text-align: left; vertical-align: top; padding: .3rem 1rem .3rem .2rem !important; }
.rows th, .rows td, .rows tr { border: none !important; }
.rows tr { border-bottom: 1px solid var(--border-color-primary) !important; }
.sheet img { image-rendering: pixelated; }
"""


def theme() -> Any:
    """Gradio's plain theme in our blue, with the system's own fonts."""
    return gr.themes.Base(primary_hue="blue", font=FONTS, font_mono=("ui-monospace", "monospace"))


def build(model: str = "tiny-dit", *, results: Path = Path("results"), device: str = "cpu") -> gr.Blocks:
    """The page, not yet served; `results` is the folder whose measurements other tabs show."""
    machine = Machine(device)
    with gr.Blocks(title="Tenuto", analytics_enabled=False) as page:
        gr.Markdown("# Tenuto\nThe network is evaluated at some steps, and its output is predicted at the others.")
        with gr.Tab("Try a schedule"), gr.Row():
            with gr.Column(scale=1, min_width=300):
                controls = Controls(machine, model)
            with gr.Column(scale=3, min_width=500):
                _schedule_part(machine, controls, model)
                _compare_part(machine, controls)
        for name, tab in _other_tabs():
            with gr.Tab(name):
                try:
                    tab(results)
                except TenutoError as error:  # a damaged file of results breaks its own tab, not the page
                    gr.HTML(notice_html(error, "wrong"))
    return page


def _other_tabs() -> Iterator[tuple[str, Callable[[Path], None]]]:
    """The tabs that installed packages offer."""
    for name in offers(TABS):
        try:
            yield one_line(name).capitalize(), offered(name, TABS)
        except ImportError:  # an extra is not installed
            continue


def launch(page: gr.Blocks, host: str, port: int, share: bool = False, **options: Any) -> Any:
    """Serve the page. The call blocks unless the options say otherwise."""
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
    """Opens, loads and scores models, and caches the results for the next request."""

    def __init__(self, device: str) -> None:
        self._open: Callable[[str], Stored] = lru_cache(maxsize=32)(open_model)
        self.model: Callable[[str], Model] = lru_cache(maxsize=2)(lambda name: load(name, device=device))
        self.scores: Callable[[str], Any] = lru_cache(maxsize=8)(lambda name: offered("score")(self.opened(name)))
        self._folder = tempfile.TemporaryDirectory(prefix="tenuto-")

    def opened(self, name: str | None) -> Stored:
        if not name:
            raise UsageError("The field “Model” is empty. Name a model.")
        return self._open(name)

    def asks_for(self, name: str) -> str:
        return self.opened(name).architecture.asks_for

    def schedule(
        self, name: str, aim: str, budget: Any, evaluations: Any, speedup: Any, steps: Any, blocks: Any
    ) -> Schedule:
        options: dict[str, Any]
        if aim == BUDGET:
            options = {"budget": given(budget, FIELDS[aim])}
        elif aim == EVALUATIONS:
            options = {"evaluations": int(given(evaluations, FIELDS[aim]))}
        else:
            options = {"speedup": given(speedup, FIELDS[aim])}
        if self.asks_for(name) == "prompt":
            options["blocks"] = int(given(blocks, "Blocks of text"))
        return deciding.schedule(self.opened(name), int(given(steps, "Steps")), **options)

    def saved(self, schedule: Schedule) -> str:
        """Write a schedule to a file; gradio copies the file for the download."""
        path = Path(self._folder.name) / "schedule.json"
        schedule.save(path)
        return str(path)


def given(value: Any, field: str) -> float:
    """The number in a field; an emptied field is refused."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"The field “{field}” needs a number" + (", and it is empty." if value is None else "."))
    return value


def _seed(value: Any) -> int:
    """The number in the field, within the bounds of the command line."""
    seed = given(value, "Seed")
    if seed != int(seed):
        raise UsageError("The field “Seed” needs a whole number.")
    check_whole("The field “Seed”", int(seed), 0, MOST_SEED)
    return int(seed)


class Controls:
    """The components on the left; `decision` lists those that determine the schedule."""

    def __init__(self, machine: Machine, model: str) -> None:
        here = [name for name in SHIPPED if place_of(name)]
        asks_for = machine.asks_for(model)
        text = asks_for == "prompt"
        self.model = gr.Dropdown(
            list(dict.fromkeys([*here, model])),
            value=model,
            allow_custom_value=True,
            label="Model",
            info="A shipped model, the path of a checkpoint, or a hub id",
            elem_id="model",
        )
        self.aim = gr.Radio(_aims(asks_for), value=BUDGET, label="Aim", elem_id="aim")
        self.budget = gr.Slider(0.05, 1, 0.25, step=0.01, label=FIELDS[BUDGET], elem_id="budget")
        self.evaluations = gr.Slider(
            2, 50, EVALUATED, step=1, label=FIELDS[EVALUATIONS], visible=False, elem_id="evaluations"
        )
        self.speedup = gr.Slider(1, 10, 3, step=0.1, label=FIELDS[SPEEDUP], visible=False, elem_id="speedup")
        self.steps = gr.Slider(4, 250, _steps(asks_for), step=1, label="Steps", elem_id="steps")
        self.blocks = gr.Slider(1, 16, BLOCKS, step=1, label="Blocks of text", visible=text, elem_id="blocks")
        self.length = gr.Slider(8, 256, LENGTH, step=8, label="Tokens to write", visible=text, elem_id="length")
        classes = _classes(machine.opened(model)) if asks_for == "class" else []
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
        self.seed = gr.Number(0, label="Seed", precision=0, minimum=0, visible=not text, elem_id="seed")
        amounts = [self.budget, self.evaluations, self.speedup]  # in the order of FIELDS
        self.decision = [self.model, self.aim, *amounts, self.steps, self.blocks]

        def aimed(aim: str) -> list[Any]:
            return [gr.update(visible=aim == one) for one in FIELDS]

        self.aim.change(aimed, self.aim, amounts, show_progress="hidden")
        self.adapted = self.model.change(  # the event after which these components suit the model
            lambda name: self._suited(machine, name),
            self.model,
            [self.blocks, self.length, self.classes, self.words, self.steps, self.seed, self.aim],
            show_progress="hidden",
        )

    def _suited(self, machine: Machine, name: str) -> list[Any]:
        try:
            asks_for = machine.asks_for(name)
        except TenutoError:  # `_schedule_part` shows the error
            return [gr.skip()] * 7
        text = asks_for == "prompt"
        classes = _classes(machine.opened(name)) if asks_for == "class" else []
        return [
            gr.update(visible=text),
            gr.update(visible=text),
            gr.update(visible=asks_for == "class", choices=classes, value=classes[:CLASSES]),
            gr.update(visible=asks_for != "class", label=_words_label(asks_for), value=PROMPT if text else CAPTION),
            gr.update(value=_steps(asks_for)),
            gr.update(visible=not text),
            gr.update(choices=_aims(asks_for), value=BUDGET),
        ]


def _schedule_part(machine: Machine, controls: Controls, model: str) -> None:
    def decided(*asked: Any) -> tuple[str, str, Any]:
        """Facts, map and file of a schedule; or the error, with the old map and file removed."""
        try:
            schedule = machine.schedule(*asked)
        except TenutoError as error:
            return notice_html(error, "wrong"), "", gr.update(value=None, interactive=False)
        advice = deciding.advice(schedule, text=machine.asks_for(asked[0]) == "prompt")
        facts = facts_html(schedule_facts(schedule)) + (notice_html(advice) if advice else "")
        return facts, map_html(schedule), gr.update(value=machine.saved(schedule), interactive=True)

    def scored(name: str, is_open: bool) -> str:
        if not is_open:
            return ""
        try:
            return str(offered("scores_html")(machine.scores(name)))
        except TenutoError as error:
            return notice_html(error, "wrong")

    first = machine.schedule(*(one.value for one in controls.decision))  # so that the page is not blank at first
    facts = gr.HTML(facts_html(schedule_facts(first)), elem_id="facts")
    drawn = gr.HTML(map_html(first), elem_classes="drawn", elem_id="map")
    download = gr.DownloadButton("Download schedule.json", machine.saved(first), size="sm", elem_id="download")
    with gr.Accordion(
        "How sensitive each unit looks from its weights (the default does not use this)", open=False
    ) as more:
        bars = gr.HTML(elem_classes="drawn", elem_id="scores")
    is_open = gr.State(False)

    changed = [one.change for one in controls.decision if one is not controls.model]
    shown: dict[str, Any] = {"inputs": controls.decision, "outputs": [facts, drawn, download], **RAW}
    controls.adapted.then(decided, **shown, show_progress="minimal")
    controls.adapted.then(scored, [controls.model, is_open], bars, show_progress="minimal")
    gr.on(changed, decided, **shown, trigger_mode="always_last", show_progress="minimal")
    # Scores read every weight, so they are computed only if somebody looks.
    more.expand(lambda: True, None, is_open).then(scored, [controls.model, is_open], bars, show_progress="minimal")
    more.collapse(lambda: False, None, is_open)


def _compare_part(machine: Machine, controls: Controls) -> None:
    gr.Markdown(
        "### Side by side\nThe same request, computed in full and under the schedule. Pictures are drawn a few at a "
        "time, in both ways by turns; the times follow from the medians. Texts are written and timed once."
    )
    start = gr.Button("Generate both", variant="primary", elem_id="generate")
    told = gr.HTML(elem_id="told", min_height=90)
    with gr.Row(visible=False) as sheets:
        full, held = _sheet("Everything computed"), _sheet("Under the schedule")
        apart = _sheet(f"The difference, {GAIN} times amplified")
    with gr.Row(visible=False) as texts:
        full_text, held_text = _text("Everything computed"), _text("Under the schedule")
    nothing = {told: "", sheets: gr.update(visible=False), texts: gr.update(visible=False)}

    def compared(*asked: Any, progress: Any = gr.Progress()) -> dict[Any, Any]:  # as gradio requires
        decision, (length, classes, words, seed) = asked[:-4], asked[-4:]
        name = decision[0]

        def advance(run: str, done: int, total: int) -> None:
            progress((done, total), desc=run)

        progress(0.0, desc="Loading")
        try:
            schedule, asks_for = machine.schedule(*decision), machine.asks_for(name)
            if asks_for == "prompt":
                tokens = int(given(length, "Tokens to write"))
                written = compare_texts(machine.model(name), schedule, words or "", tokens, advance)
                return {
                    told: _told_html(written, schedule),
                    sheets: gr.update(visible=False),
                    texts: gr.update(visible=True),
                    full_text: written.full,
                    held_text: written.scheduled,
                }
            lines = [line for line in (words or "").splitlines() if line.strip()]
            wanted = classes if asks_for == "class" else lines
            drawn = compare_pictures(machine.model(name), schedule, wanted, _seed(seed), advance)
        except TenutoError as error:
            return {**nothing, told: notice_html(error, "wrong")}
        return {
            told: _told_html(drawn, schedule),
            sheets: gr.update(visible=True),
            texts: gr.update(visible=False),
            full: drawn.full,
            held: drawn.scheduled,
            apart: drawn.difference,
        }

    start.click(
        compared,
        [*controls.decision, controls.length, controls.classes, controls.words, controls.seed],
        [told, sheets, texts, full, held, apart, full_text, held_text],
        show_progress_on=told,
        **RAW,
    )
    # Remove the results of the old schedule, so that nobody takes them for results of the new one.
    for changed in (one.change for one in controls.decision):
        changed(lambda: nothing, None, list(nothing), show_progress="hidden")


def _told_html(compared: Compared, schedule: Schedule) -> str:
    """The times, how many steps of the schedule compute everything, and the verdict."""
    full = int(schedule.full_steps.sum())
    figures = [
        (f"{compared.speedup:.2f}×", "as fast"),
        (f"{compared.seconds_full:.2f} s", "everything computed"),
        (f"{compared.seconds_scheduled:.2f} s", "under the schedule"),
        (f"{full} of {schedule.steps}", "steps compute everything"),
    ]
    verdict = re.sub("`(.+?)`", r"<code>\1</code>", in_html(compared.verdict))  # a command to type
    return f'{figures_html(figures)}<p class="verdict">{verdict}</p>'


def _sheet(caption: str) -> Any:
    with gr.Column(min_width=200):
        gr.HTML(f'<span class="caption">{in_html(caption)}</span>')
        return gr.Image(show_label=False, interactive=False, format="png", elem_classes="sheet", buttons=["fullscreen"])


def _text(label: str) -> Any:
    return gr.HighlightedText(label=label, color_map={DIFFERS: "#d08a2e"}, show_inline_category=False)


def _classes(stored: Stored) -> list[str]:
    return list(stored.labels) or [str(i) for i in range(min(stored.config.classes, 1000))]


def _aims(asks_for: str) -> list[str]:
    """What can be asked for. Text computes a part of the positions at every step, so its evaluations are its steps."""
    return [one for one in FIELDS if one != EVALUATIONS or asks_for != "prompt"]


def _steps(asks_for: str) -> int:
    """The initial number of steps; for text, one step for every two tokens."""
    return LENGTH // 2 if asks_for == "prompt" else STEPS


def _words_label(asks_for: str) -> str:
    return "Captions, one a line" if asks_for == "caption" else "Text to write after"
