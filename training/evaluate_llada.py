"""Lets the trained LLaDA solve tasks it has not seen and continue books, and writes the figures and the model card.

The sampling loop is written out here, so that the measure of the model does not rest on the package that will hold it.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
import typer
from torch import Tensor

import tenuto
from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.files import read_json, write_json, write_text
from tenuto.models.llada import LLaDA
from tenuto.provenance import provenance
from training.card import table, training_section, versions
from training.llada_text import (
    BOS,
    DEFAULT_PATH,
    EOS,
    LONG,
    MASK,
    Corpus,
    Problem,
    arithmetic,
    brackets,
    load,
    needle,
    sentence_starts,
)
from training.train_llada import parse_config

TASKS: dict[str, Callable[[Corpus, int, bool], Iterator[Problem]]] = {
    "needle": needle,
    "arithmetic": arithmetic,
    "brackets": brackets,
}
ANSWER_LENGTH = 16  # tokens, one a step
SHOWN = 8  # problems of each task in samples.txt
CONTINUATIONS, PROMPT_LENGTH, TEXT_LENGTH, BLOCK = 6, 64, 128, 32
TEMPERATURES = (0.0, 0.7)
LEVELS = 8  # shares of masked tokens that the loss on held-out text is averaged over


@torch.no_grad()
def write(
    network: LLaDA, prompts: list[list[int]], length: int, block: int, temperature: float = 0.0, seed: int = 0
) -> list[list[int]]:
    """One token a step, the most confident first, block after block."""
    device, width = next(network.parameters()).device, max(map(len, prompts))
    padded = [[EOS] * (width - len(prompt)) + prompt + [MASK] * length for prompt in prompts]
    tokens = torch.tensor(padded, device=device)
    missing = torch.tensor([width - len(prompt) for prompt in prompts], device=device)
    real = torch.arange(width + length, device=device) >= missing[:, None]
    generator = torch.Generator(device).manual_seed(seed)
    everyone = torch.arange(len(prompts), device=device)
    for step in range(length):
        first = width + step // block * block
        logits = network(tokens, attention_mask=real)[:, first : first + block].double()
        noise = torch.rand(logits.shape, generator=generator, dtype=torch.float64, device=device)
        guesses = (logits - temperature * (-noise.log()).log()).argmax(-1)
        confidence = logits.softmax(-1).gather(-1, guesses[..., None])[..., 0]
        place = confidence.masked_fill(tokens[:, first : first + block] != MASK, -1).argmax(-1)
        tokens[everyone, first + place] = guesses[everyone, place]
    return tokens[:, width:].tolist()


def until_end(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(EOS)] if EOS in tokens else tokens


def solve(network: LLaDA, problems: list[Problem], batch: int) -> list[list[int]]:
    answers = []
    for start in range(0, len(problems), batch):
        prompts = [problem.prompt for problem in problems[start : start + batch]]
        answers += [until_end(written) for written in write(network, prompts, ANSWER_LENGTH, ANSWER_LENGTH)]
    return answers


def chunks(corpus: Corpus, count: int, length: int) -> Tensor:
    """Pieces of the held-out text that begin with a sentence, each behind a start-of-text: [count, length]."""
    starts = sentence_starts(corpus.held_out, corpus.tokenizer)
    starts = starts[starts + length <= len(corpus.held_out)]
    if not len(starts):
        raise UsageError(f"The held-out text has no row of {length} tokens.")
    chosen = starts[np.linspace(0, len(starts) - 1, count).astype(int)]
    body = np.stack([corpus.held_out[start : start + length - 1] for start in chosen])
    return F.pad(torch.from_numpy(body.astype(np.int64)), (1, 0), value=BOS)


@torch.no_grad()
def text_loss(network: LLaDA, corpus: Corpus, count: int, batch: int, seed: int) -> float:
    """LLaDA's bound on the negative log-likelihood of held-out text, in nats a token.

    The number of masked tokens takes evenly spaced values, which has less variance than masking each by chance.
    """
    device, total = next(network.parameters()).device, 0.0
    generator = torch.Generator().manual_seed(seed)
    clean = chunks(corpus, count, LONG)
    for level in range(LEVELS):
        hidden_count = round((level + 0.5) / LEVELS * (LONG - 1))
        order = torch.rand(count, LONG - 1, generator=generator).argsort(1)
        hidden = F.pad(order < hidden_count, (1, 0), value=False)
        for rows, mask in zip(clean.split(batch), hidden.split(batch), strict=True):
            logits = network(rows.masked_fill(mask, MASK).to(device)).float()
            losses = F.cross_entropy(logits.flatten(0, 1), rows.to(device).flatten(), reduction="none")
            total += losses[mask.flatten().to(device)].sum().item() / hidden_count
    return total / (LEVELS * count)


def evaluate(
    checkpoint: Path, data: Path, problems: int, device: torch.device, seed: int, batch: int, out: Path
) -> dict[str, Any]:
    network, corpus = tenuto.load(str(checkpoint), device=device, dtype=torch.float32).network, load(data)
    assert isinstance(network, LLaDA)
    accuracy, shown = {}, []
    for name, make in TASKS.items():
        posed = list(islice(make(corpus, seed, True), problems))
        answers = solve(network, posed, batch)
        right = [answer == problem.answer for answer, problem in zip(answers, posed, strict=True)]
        accuracy[name] = sum(right) / problems
        print(f"{name}: {accuracy[name]:.1%} of {problems}", flush=True)
        shown.append(f"## {name}: {accuracy[name]:.1%} of {problems} right\n")
        for problem, answer, good in list(zip(posed, answers, right, strict=True))[:SHOWN]:
            verdict = "right" if good else f"wrong, not{corpus.decode(problem.answer)}"
            shown.append(f"{corpus.decode(problem.prompt)}【{corpus.decode(answer)}】 {verdict}\n")
    prompts = chunks(corpus, CONTINUATIONS, PROMPT_LENGTH).tolist()
    for temperature in TEMPERATURES:
        shown.append(f"## Held-out books continued, temperature {temperature}\n")
        for prompt, written in zip(
            prompts, write(network, prompts, TEXT_LENGTH, BLOCK, temperature, seed), strict=True
        ):
            shown.append(f"{corpus.decode(prompt)}【{corpus.decode(until_end(written))}】\n")
    rows = min(problems, 256)
    result = {
        "accuracy": accuracy,
        "problems": problems,
        "text_loss": text_loss(network, corpus, rows, batch, seed),
        "text_rows": rows,
        "sampler": {
            "remasking": "low_confidence",
            "temperature": 0,
            "length": ANSWER_LENGTH,
            "block_length": ANSWER_LENGTH,
            "steps": ANSWER_LENGTH,
        },
        "precision": "float32",
        "provenance": provenance(seed=seed),
    }
    write_json(out / "evaluation.json", result)
    write_text(out / "samples.txt", "What the model wrote stands in 【 】.\n\n" + "\n".join(shown))
    write_text(out / "README.md", model_card(checkpoint, out))
    return result


def model_card(checkpoint: Path, out: Path) -> str:
    """The card, from what the JSON files beside the weights say."""
    config = parse_config(str(checkpoint / "config.json"))
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in LLaDA(config).parameters())
    sections = [
        f"""# LLaDA on books and small tasks

A masked diffusion language model ({parameters / 1e6:.1f} million parameters) in LLaDA's layout. It continues English
prose, finds a code hidden in it, adds and subtracts up to 99, and closes brackets. Weights are the training's moving
average, stored in bfloat16; `tokenizer.json` is a byte-level BPE in which each digit and bracket is one token. It
exists to measure what holding residual branches costs, on a model small enough to ship.

| config.json | |
|---|---|
{table(asdict(config))}

What it can be asked:

    There are 41 books in the box and Rose adds 17 more. How many books? Answer:
    close: ([{{ ->
    … The code of lamp is 4821. … Question: what is the code of lamp? Answer:
"""
    ]
    if (checkpoint / "loss.json").exists():
        sections.append(training_section(read_json(checkpoint / "loss.json", "training record"), out, of="rows"))
    if (out / "evaluation.json").exists():
        sections.append(evaluation_section(read_json(out / "evaluation.json", "evaluation")))
    sections.append(
        f"""## Limits

It knows the style of a few dozen old books and three kinds of task, in the words above. It knows nothing about the
world, and its prose holds together for a sentence or two. Sequences are at most {config.max_sequence_length} tokens.

## Licence

The weights: Apache-2.0. The books are in the public domain.
"""
    )
    return "\n".join(sections)


def evaluation_section(record: dict[str, Any]) -> str:
    made, sampler, count = record["provenance"], record["sampler"], record["problems"]
    rows = {
        "Command": f"`{made['command']}`",
        "Sampler": f"{sampler['steps']} steps for {sampler['length']} tokens in one block, the likeliest token, "
        f"the most confident first, {record['precision']}",
        **{f"Right: {task}": f"**{share:.1%}** of {count:,}" for task, share in record["accuracy"].items()},
        "Held-out text": f"{record['text_loss']:.3f} nats a token at most, on {record['text_rows']:,} rows",
        "Device": made["hardware"],
        **versions(made),
    }
    return (
        "## Evaluation\n\n"
        "An answer is right when it is exactly the expected one and the text ends behind it. The problems are "
        f"none of those trained on. Samples are in `samples.txt`.\n\n| | |\n|---|---|\n{table(rows)}\n"
    )


def main(
    checkpoint: Annotated[Path, typer.Option(help="The directory that training.train_llada wrote.")],
    data: Annotated[Path, typer.Option(help="The file made by training.llada_text.")] = DEFAULT_PATH,
    problems: Annotated[int, typer.Option(min=1, help="Of each task.")] = 500,
    device: Annotated[str, typer.Option()] = "cuda" if torch.cuda.is_available() else "cpu",
    seed: Annotated[int, typer.Option(help="Of the problems.")] = 0,
    batch: Annotated[int, typer.Option(min=1)] = 100,
    out: Annotated[Path | None, typer.Option(help="Where to write; the checkpoint's directory if not given.")] = None,
) -> None:
    """Measure what the LLaDA has learnt, on what it has not seen."""
    result = evaluate(checkpoint, data, problems, torch.device(device), seed, batch, out or checkpoint)
    shares = ", ".join(f"{task} {share:.1%}" for task, share in result["accuracy"].items())
    print(f"right: {shares}; held-out text {result['text_loss']:.3f} nats a token")


if __name__ == "__main__":
    run(main)
