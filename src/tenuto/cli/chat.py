"""`tenuto chat`: talk with a language model, and see its answers being written."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.text import Text

from tenuto.cli.console import err, failure, out, say
from tenuto.cli.generate import check_device
from tenuto.errors import TenutoError
from tenuto.llada import LanguageModel, Texts, Writing, load
from tenuto.schedules import load_schedule

BUDGET = 0.5  # of /fast, where nothing else was asked for
COMMANDS = {"/full": "compute everything", "/fast": "hold", "/new": "forget what was said", "/quit": "end"}


def run(
    name: str,
    prompt: str | None,
    budget: float | None,
    speedup: float | None,
    schedule_path: Path | None,
    device: str,
    **options: Any,
) -> None:
    schedule = None if schedule_path is None else load_schedule(schedule_path)
    wanted = check_device(device)
    if budget is None and speedup is None and schedule is None:
        budget = BUDGET
    fast = {"budget": budget, "speedup": speedup, "schedule": schedule}
    given = {option: value for option, value in options.items() if value is not None}
    chat = Chat(load(name, device=wanted), fast, given)
    if schedule is None:
        with err.status("Scoring the weights"):
            _ = chat.model.scores  # what schedules are made from; once, and before an answer is timed
    if prompt is not None:
        chat.answer(prompt)
        return
    talking = sys.stdin.isatty()
    if talking:
        say(f"{name}. " + ", ".join(f"{command}: {what}" for command, what in COMMANDS.items()))
    for line in _typed() if talking else map(str.strip, sys.stdin):
        if line == "/quit":
            return
        try:
            chat.told(line)
        except TenutoError as error:
            if not talking:
                raise
            failure(error)


def _typed() -> Iterator[str]:
    while True:
        try:
            yield out.input("[bold]>[/] ").strip()
        except EOFError:
            return


@dataclass
class Chat:
    """A conversation. Without a chat template each prompt stands by itself."""

    model: LanguageModel
    fast: dict[str, Any]  # what /fast means: a budget, a speed-up or a schedule
    options: dict[str, Any]  # of the sampler
    holding: bool = True
    said: list[dict[str, str]] = field(default_factory=list)

    def told(self, line: str) -> None:
        """A command, or something to answer."""
        if line in ("/full", "/fast"):
            self.holding = line == "/fast"
            say("Everything is computed." if line == "/full" else "Units are held.")
        elif line == "/new":
            self.said.clear()
        elif line.startswith("/"):
            say(f"{line} is no command; there are {', '.join(COMMANDS)}.")
        elif line:
            self.answer(line)

    def answer(self, line: str) -> None:
        asked = [*self.said, {"role": "user", "content": line}]
        prompt = asked if self.model.chats else line
        schedule = self.fast if self.holding else {}
        writing = self.model.stream([prompt], **schedule, **self.options)
        texts = self._watched(writing) if out.is_terminal else writing.texts
        out.print(Text(texts[0]), soft_wrap=True)
        say(texts.summary())
        if self.model.chats:
            self.said = [*asked, {"role": "assistant", "content": texts[0]}]

    def _watched(self, writing: Writing) -> Texts:
        """Each position shown as soon as it is written."""
        config = self.model.model.config
        answer: dict[int, int] = {}
        length = self.options["length"]
        with Live(console=out, transient=True, refresh_per_second=15) as live:
            for written in writing:
                answer.update(zip(written.positions[0].tolist(), written.tokens[0].tolist(), strict=True))
                tokens = [answer.get(place) for place in range(length)]
                live.update(canvas(tokens, self.model.model.tokenizer.decode, config.eos_token_id))
        return writing.texts


def canvas(tokens: list[int | None], decode: Any, end: int) -> Text:
    """An answer half written: masks are dim dots, and nothing is shown from its end on."""
    shown = tokens[: tokens.index(end)] if end in tokens else tokens
    text = Text()
    for masked, some in groupby(shown, key=lambda token: token is None):
        run = list(some)
        if masked:
            text.append("·" * len(run), style="dim")
        else:
            text.append(decode(run))
    return text
