"""`tenuto chat`: talk with a language model, and see its answers being written."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenuto.cli.app import MOST, PERIODS, PERIODS_HELP, Device, ModelName, Seed, app, period, real_text
from tenuto.cli.console import clean, failure, out, say

if TYPE_CHECKING:
    from rich.text import Text

    from tenuto.scheduling.schedule import Schedule
    from tenuto.text import LanguageModel, Texts, Writing

COMMANDS = {
    "/full": "compute everything, one token at a time",
    "/fast": "write all probable tokens at once, with the KV cache",
    "/new": "forget the conversation",
    "/quit": "end",
}


@app.command(
    epilog="Example: tenuto chat small-llada --length 32 --block-length 16"
    ' · tenuto chat small-llada --prompt "sort: 42 48 7 25 53 40 ->" --length 32 --block-length 16'
)
def chat(
    model: ModelName,
    prompt: Annotated[str | None, typer.Option(callback=real_text, help="Answer this and end.")] = None,
    parallel: Annotated[
        float | None,
        typer.Option(help="Write all tokens of at least this probability at once. Default: 0.9. More accurate: 0.97."),
    ] = None,
    factor: Annotated[
        float | None,
        typer.Option(help="Instead of --parallel: the factor rule. More tokens at once need higher probabilities."),
    ] = None,
    every: Annotated[
        Any,
        typer.Option(
            parser=period,
            metavar=PERIODS,
            help=f"Compute all positions at every N-th evaluation. {PERIODS_HELP}",
        ),
    ] = None,
    sliding: Annotated[
        bool,
        typer.Option(
            "--sliding", help="Instead of a block, write the leftmost masks of the whole text, as many as a block has."
        ),
    ] = False,
    budget: Annotated[
        float | None,
        typer.Option(help="Instead of --parallel, a fixed number of steps: share of unit-steps to compute."),
    ] = None,
    speedup: Annotated[
        float | None, typer.Option(help="How many times as fast as full inference; instead of a budget.")
    ] = None,
    schedule: Annotated[Path | None, typer.Option(help="A schedule file; instead of a budget.")] = None,
    length: Annotated[int, typer.Option(min=1, max=MOST, help="Most tokens of an answer.")] = 64,
    steps: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Steps. Default: the schedule's, else one for each token.")
    ] = None,
    block_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a block. Default: the schedule's, else 32.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0: always the most probable token.")] = 0.0,
    top_p: Annotated[
        float, typer.Option(help="Choose among the most probable tokens that together have this probability.")
    ] = 1.0,
    seed: Seed = 0,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compile the network's branches first: later answers are faster.")
    ] = False,
    device: Device = "cpu",
) -> None:
    """Talk with a language model, and see its answers being written. Lines from a pipe are answered one by one."""
    from tenuto.cli.app import check_device
    from tenuto.errors import TenutoError
    from tenuto.scheduling.schedule import load_schedule
    from tenuto.text import load

    chosen, place = None if schedule is None else load_schedule(schedule), check_device(device)
    fast = fastest(parallel, factor, every, sliding, budget, speedup, chosen, steps)
    options = {"length": length, "temperature": temperature, "top_p": top_p, "seed": seed}
    if block_length is not None:
        options["block_length"] = block_length
    full = {} if steps is None else {"steps": steps}
    talk = Chat(load(model, device=place, compiled=compiled), fast, full, options)
    if prompt is not None:
        talk.answer(prompt)
        return
    talking = sys.stdin.isatty()
    if talking:
        say(f"{model}. " + ", ".join(f"{command}: {what}" for command, what in COMMANDS.items()))
    for line in _typed() if talking else map(str.strip, sys.stdin):
        if line == "/quit":
            return
        try:
            talk.told(line)
        except TenutoError as error:
            if not talking:
                raise
            failure(error)


def fastest(
    parallel: float | None,
    factor: float | None,
    every: Any,
    sliding: bool,
    budget: float | None,
    speedup: float | None,
    schedule: "Schedule | None",
    steps: int | None,
) -> dict[str, Any]:
    """What /fast means: the options of `LanguageModel.stream` that make it fast."""
    from tenuto.text import PARALLEL

    fixed = {"budget": budget, "speedup": speedup, "schedule": schedule, "steps": steps}  # one token a step
    in_parallel = {"parallel": parallel, "factor": factor, "every": every, "sliding": sliding or None}
    given: dict[str, Any] = {name: one for name, one in {**fixed, **in_parallel}.items() if one is not None}
    if parallel is None and factor is None and not given.keys() & fixed.keys():
        given["parallel"] = PARALLEL
    if given.keys() == {"steps"}:
        given["budget"] = 0.5
    return given


def _typed() -> Iterator[str]:
    while True:
        try:
            yield out.input("[bold]>[/] ").strip()
        except EOFError:
            return


@dataclass
class Chat:
    """A conversation. Without a chat template each prompt stands by itself."""

    model: "LanguageModel"
    fast: dict[str, Any]  # what /fast means
    full: dict[str, Any]  # what /full means
    options: dict[str, Any]  # of the sampler
    scheduled: bool = True
    said: list[dict[str, str]] = field(default_factory=list)

    def told(self, line: str) -> None:
        """A command, or something to answer."""
        if line in ("/full", "/fast"):
            self.scheduled = line == "/fast"
            say(f"From now on: {COMMANDS[line]}.")
        elif line == "/new":
            self.said.clear()
        elif line.startswith("/"):
            say(f"{line} is no command; there are {', '.join(COMMANDS)}.")
        elif line:
            self.answer(real_text(line))

    def answer(self, line: str) -> None:
        from rich.text import Text

        asked = [*self.said, {"role": "user", "content": line}]
        prompt = asked if self.model.chats else line
        writing = self.model.stream([prompt], **(self.fast if self.scheduled else self.full), **self.options)
        texts = self._watched(writing) if out.is_terminal else writing.texts
        out.print(Text(texts[0]), soft_wrap=True)
        say(texts.summary())
        if self.model.chats:
            self.said = [*asked, {"role": "assistant", "content": texts[0]}]

    def _watched(self, writing: "Writing") -> "Texts":
        """Show each position as soon as it is written."""
        from rich.live import Live

        config = self.model.model.config
        answer: dict[int, int] = {}
        length = self.options["length"]
        with Live(console=out, transient=True, refresh_per_second=15) as live:
            for written in writing:
                answer.update(written.of(0))
                tokens = [answer.get(place) for place in range(length)]
                live.update(canvas(tokens, self.model.model.tokenizer.decode, config.eos_token_id))
        return writing.texts


def canvas(tokens: list[int | None], decode: Any, end: int) -> "Text":
    """An answer half written: masks are dim dots, and nothing is shown after its end."""
    from rich.text import Text

    shown = tokens[: tokens.index(end)] if end in tokens else tokens
    text = Text()
    for masked, some in groupby(shown, key=lambda token: token is None):
        run = list(some)
        if masked:
            text.append("·" * len(run), style="dim")
        else:
            text.append(clean(decode(run)))
    return text
