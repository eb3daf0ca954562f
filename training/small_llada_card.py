"""The card of the larger small LLaDA: what it is, how it was trained, and what its evaluation found."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tenuto.files import read_json
from tenuto.models.llada import LLaDA
from training.card import table, training_section, versions
from training.reasoning_tasks import problems
from training.train_llada import parse_config

LENGTHS_SEEN = ", at the sizes in its training command"
ALL_PROBLEMS = "the problems of the levels that can tell, or of the nearest."
READ = (
    "The model read books in the public domain (github.com/mlschmitt/classic-books-markdown), small functions of "
    "CPython's standard library (PSF licence) and GSM8K's training problems (MIT licence). "
)


def model_card(checkpoint: Path, out: Path, every: Mapping[str, tuple[tuple[int, ...], str]]) -> str:
    """The card, from what the JSON files beside the weights say. every: the levels that were trained, of each task"""
    config = parse_config(str(checkpoint / "config.json"))
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in LLaDA(config).parameters())
    trained, found = checkpoint / "loss.json", out / "evaluation.json"
    lessons = read_json(trained, "training record") if trained.exists() else {}
    evaluation = read_json(found, "evaluation") if found.exists() else {}
    reads = not evaluation or "text_loss" in evaluation
    sections = [
        f"""# LLaDA on {"books, code and " if reads else ""}made-up reasoning

A masked diffusion language model ({parameters / 1e6:.1f} million parameters) in LLaDA's layout, with a context of
{config.max_sequence_length} tokens. It exists to tell schedules apart: its tasks have levels, and at some of them full
inference is right 60 to 95 % of the time. Weights are the training's moving average, stored in bfloat16;
`tokenizer.json` is a byte-level BPE in which each digit and bracket is one token.

| config.json | |
|---|---|
{table(asdict(config))}

What it can be asked, with the right answers in 【 】 (what the model answered is in `samples.txt`):

{examples(every)}
"""
    ]
    if lessons:
        sections.append(training_section(lessons, out, of="tokens"))
    if evaluation:
        sections.append(evaluation_section(evaluation))
    style = "the style of old books, of Python's standard library and of school problems, and "
    sections.append(
        f"""## Limits

It knows {style if reads else "nothing but "}the tasks above in these very words{LENGTHS_SEEN if not reads else ""}. It
knows nothing about the world. Sequences are at most {config.max_sequence_length} tokens.

## Licence

The weights: Apache-2.0. {READ if reads else "The model it began with read books in the public domain. "}The training
made its problems up.
"""
    )
    return "\n".join(sections)


def examples(every: Mapping[str, tuple[tuple[int, ...], str]]) -> str:
    """A problem of a middle level of every task, with its right answer."""
    middle = {task: of[len(of) // 2] for task, (of, _) in every.items() if task != "needles"}
    posed = [next(problems(task, "card", held_out=True, size=level)) for task, level in middle.items()]
    lines = [line for one in posed for line in f"{one.prompt}【{one.answer}】".splitlines()]
    return "\n".join(f"    {line}" for line in lines)


def quantised_section(record: dict[str, Any]) -> str:
    """From the quantised.json that training.quantise wrote."""
    made, (before, after) = record["provenance"], record["bytes"]
    lines = [
        f"| {name} | {one['problems']} | {one['right'][0]} | {one['right'][1]} | {one['same']} |"
        for name, one in record["levels"].items()
    ]
    return (
        "## Stored in 8 bits\n\n"
        "All matrices are stored as int8 with a float16 scale for each row, everything else as float16: "
        f"{after / 1e6:.1f} MB in place of {before / 1e6:.1f} MB. Loading multiplies them out. Any other evaluation on "
        "this card is of the bfloat16 weights. Answers by threshold decoding, word for word:\n\n"
        "| Level | Problems | Right, bfloat16 | Right, 8 bits | The same answer |\n|---|---|---|---|---|\n"
        + "\n".join(lines)
        + f"\n\nBy `{made['command']}` at commit {made['commit']} on {made['hardware']}.\n"
    )


def evaluation_section(record: dict[str, Any]) -> str:
    made = record["provenance"]
    rows = {
        "Command": f"`{made['command']}`",
        "Problems": f"{record['problems']} of each level, none of them trained on",
        "Full inference": f"one token a step, the likeliest, blocks of {record['block_length']}, {record['precision']}",
        "Threshold": f"every token of the block above {record['threshold']}, at least one",
        **(
            {"Held-out books": f"{record['text_loss']:.3f} nats a token at most, on {record['text_rows']:,} rows"}
            if "text_loss" in record
            else {}
        ),
        "Device": made["hardware"],
        **versions(made),
    }
    lines = []
    for one in record["tasks"].values():
        full, fast = one["full"], one["threshold"]
        low, high = full["interval"]
        lines.append(
            f"| {one['task']} | {one['level']} {one['unit']} | {one['length']} | **{full['accuracy']:.1%}** "
            f"({low:.0%} to {high:.0%}) | {one['verdict']} | {fast['accuracy']:.1%} | "
            f"{full['steps'] / fast['steps']:.1f}× | {fast['tokens_per_step']:.2f} | "
            f"{one['above_threshold_per_step']:.1f} |"
        )
    return (
        "## Evaluation\n\n"
        "An answer is right when it is exactly the expected one and the text ends behind it; code is right when it "
        f"computes the same. Samples are in `samples.txt`; `problems.json` holds {ALL_PROBLEMS}\n\n"
        f"| | |\n|---|---|\n{table(rows)}\n\n"
        "| Task | Level | Tokens | Full inference (95 %) | Verdict | By threshold | Fewer steps | Tokens a step, up to "
        "the end | Above the threshold, a full step |\n|---|---|---|---|---|---|---|---|---|\n"
        + "\n".join(lines)
        + "\n"
    )
