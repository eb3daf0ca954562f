"""`tenuto lab eval lm`: a language model's answers to tasks."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tenuto.cli.app import MOST, PERIODS, PERIODS_HELP, AsJson, Device, ModelName, Seed, period
from tenuto.cli.generate import Mode
from tenuto_lab.cli.app import Dtype, evaluation, interval


@evaluation.command(
    epilog="Example: tenuto lab eval lm GSAI-ML/LLaDA-8B-Instruct --tasks gsm8k --schedule s.json -o held.json"
    " · tenuto lab eval lm small-llada --tasks-file sums.jsonl --length 16 -o full.json"
)
def lm(
    model: ModelName,
    output: Annotated[Path, typer.Option("-o", "--output", help="Write the results here, question by question.")],
    tasks: Annotated[str | None, typer.Option(help="Tasks of lm-eval by name, with commas between them.")] = None,
    tasks_files: Annotated[
        list[Path] | None, typer.Option("--tasks-file", help="Tasks in a JSONL file, without network; repeat for more.")
    ] = None,
    schedule: Annotated[
        Path | None, typer.Option(help="A schedule file. Without one, every step computes everything.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many questions of each task.")] = None,
    fewshot: Annotated[
        int | None, typer.Option(min=0, max=1000, help="Examples before each question, of lm-eval's tasks.")
    ] = None,
    length: Annotated[int, typer.Option(min=1, max=MOST, help="Tokens of an answer.")] = 256,
    steps: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Steps. Default: the schedule's, else one for each token.")
    ] = None,
    block_length: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a block. Default: the schedule's; with --parallel 32; else all."),
    ] = None,
    parallel: Annotated[
        float | None, typer.Option(help="Parallel decoding: write all tokens of a block that are so probable at once.")
    ] = None,
    factor: Annotated[float | None, typer.Option(help="Instead of --parallel: the factor rule.")] = None,
    every: Annotated[
        Any,
        typer.Option(
            parser=period,
            metavar=PERIODS,
            help="With --parallel or --factor: compute all positions at every N-th evaluation, else a block. "
            f"{PERIODS_HELP}",
        ),
    ] = None,
    sliding: Annotated[
        bool,
        typer.Option(
            "--sliding", help="With --parallel or --factor: instead of a block, the leftmost masks of the whole text."
        ),
    ] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Wrap prompts in the model's chat template.")] = False,
    draws: Annotated[int, typer.Option(min=1, max=MOST, help="Random draws for the estimate of a likelihood.")] = 128,
    seed: Seed = 0,
    batch: Annotated[int, typer.Option(min=1, max=65_536, help="Questions answered at a time.")] = 16,
    dtype: Dtype = None,
    allow_code: Annotated[
        bool, typer.Option("--allow-code-execution", help="Let pass@1 run what the model writes, with your rights.")
    ] = False,
    mode: Annotated[Mode, typer.Option(help="How the schedule is run.")] = "auto",
    compiled: Annotated[bool, typer.Option("--compile", help="Compile the network's branches first.")] = False,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Evaluate a language model: lm-eval's tasks by name, or tasks of your own from files."""
    import torch

    from tenuto.cli.app import check_device
    from tenuto.cli.console import print_json, progress, say
    from tenuto.errors import UsageError
    from tenuto.extras import needs
    from tenuto.files import check_writable
    from tenuto.models import load
    from tenuto.scheduling.schedule import load_schedule
    from tenuto_lab.full_size.answers import Writer
    from tenuto_lab.full_size.jobs import Worker
    from tenuto_lab.full_size.tasks import read_tasks, run_files, run_named

    names, files = [name.strip() for name in (tasks or "").split(",") if name.strip()], tasks_files or []
    if bool(names) == bool(files):
        raise UsageError("Say what to ask: --tasks (of lm-eval, by name) or --tasks-file (your own), one of them.")
    if names:
        needs("--tasks (--tasks-file does not need it)", "eval", "lm_eval")
    elif fewshot is not None:
        raise UsageError("--fewshot is for lm-eval's tasks; in a file the prompts are whole.")
    questions = [question for path in files for question in read_tasks(path, limit)]
    if any(question.metric == "rouge-l" for question in questions):
        needs("The metric rouge-l", "eval", "rouge_score")
    worker = Worker.from_environment()
    place = check_device(worker.device(device))
    check_writable(output, reads=[model, *files, *([schedule] if schedule else [])])
    chosen = load_schedule(schedule) if schedule else None
    loaded = load(model, device=place, dtype=getattr(torch, dtype) if dtype else None)
    how: dict[str, Any] = {"length": length, "steps": steps, "block_length": block_length, "chat": chat}
    how |= {
        "sliding": sliding,
        "mode": mode,
        "compiled": compiled,
        "parallel": parallel,
        "factor": factor,
        "every": every,
    }
    if names:
        from tenuto_lab.full_size.harness import TenutoLM

        harness = TenutoLM(loaded, chosen, draws=draws, seed=seed, batch_size=batch, **how)
        writer = harness.writer
        results = run_named(harness, names, output, limit=limit, fewshot=fewshot, allow_code=allow_code)
    else:
        writer = Writer(loaded, chosen, batch=batch, **how)
        with progress("Answering", len(questions)) as advance:
            results = run_files(writer, files, output, limit=limit, allow_code=allow_code, worker=worker, told=advance)
    if results is None:
        say(f"Process {worker.rank} has no more to do. The last process writes {output}. If one fails, run this again.")
    elif as_json:
        print_json(results)
    else:
        _tell(results, writer.protocol)


def _tell(results: dict[str, Any], protocol: str) -> None:
    """The figures, and beside them the protocol: figures of different protocols cannot be compared."""
    from tenuto.cli.console import counted, tell
    from tenuto_lab.full_size.jobs import SETTINGS

    for task, figures in results["tasks"].items():
        count = figures["questions"]
        tokens = "" if figures["answer_tokens"] is None else f", {figures['answer_tokens']:.1f} tokens an answer"
        if figures["score"] is None:
            tell(f"{task}: {counted(count, 'text')}{tokens}; judge them with `tenuto lab eval mauve`")
            continue
        value, low, high = figures["score"]
        tell(f"{task}: {value:.3f}{interval(low, high, count)}, {counted(count, 'question')}{tokens}")
    for name, told in results.get(SETTINGS, {}).get("protocols", {}).items():
        tell(f"Protocol of {name}: {told}.")
    tell(f"Answers: {protocol}.")
    cut = sum(bool(one.get("prompt_cut")) for one in results["questions"])
    if cut:
        tell(f"{counted(cut, 'prompt')} did not fit into the model's context and lost the beginning.")
