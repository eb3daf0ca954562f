"""`tenuto lab eval build`: a published language task as a task file, with its protocol."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from tenuto_lab.cli.app import evaluation

Name = Literal["gsm8k", "math-500", "humaneval", "mbpp", "cnn-dailymail", "needle", "needle-4k", "wikitext"]


@evaluation.command(
    epilog="Example: tenuto lab eval build gsm8k --source grade_school_math/data/test.jsonl -o gsm8k.jsonl"
)
def build(
    name: Annotated[Name, typer.Argument(help="The task.")],
    source: Annotated[Path, typer.Option(help="The published file, or a text to hide needles in.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Write the task file here.")],
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many questions.")] = None,
) -> None:
    """Make a task file for `eval lm --tasks-file` from a published data set, and say how it is asked and judged."""
    import json

    from tenuto.cli.console import counted, tell
    from tenuto.files import check_writable, write_text
    from tenuto_lab.full_size.published_tasks import TASKS, built
    from tenuto_lab.full_size.tasks import PROTOCOL

    check_writable(output, reads=[source])
    questions = built(name, source, limit)
    task = TASKS[name]
    lines = [{PROTOCOL: task.told}, *questions]
    write_text(output, "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in lines))
    tell(f"{counted(len(questions), 'question')} in {output}.")
    tell(f"Protocol: {task.told} (--length {task.length}).")
