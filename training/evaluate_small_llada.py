"""Measures the larger small LLaDA: each task at several levels, by full inference and by threshold decoding.

Both sampling loops are written out here, so that the measure of the model does not rest on the package that will hold
it. A level where full inference is right 60 to 95 % of the time can tell schedules apart; the others cannot.

With --scout the search for such levels is quick: among many levels of each task, threshold decoding finds one that it
answers 60 to 95 % of the time, and full inference begins there.

weights/small-llada is such a model; its card has the figures.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import sqrt
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from tokenizers import Tokenizer
from torch import Tensor

import tenuto
from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.files import read_json, write_json, write_text
from tenuto.models.llada import LLaDA
from tenuto.provenance import provenance
from tenuto_lab.judging.verdicts import TELLING
from training.evaluate_llada import text_loss, until_end
from training.llada_text import BOS, EOS, MASK, Corpus, Problem
from training.loop import default_device
from training.reasoning_rows import parse_sizes
from training.reasoning_tasks import TASKS, Posed, problems, right
from training.reasoning_text import DEFAULT_PATH, NEEDLE_LEVELS, Library, load, needles, starts_of
from training.small_llada_card import model_card

BLOCK = 16  # tokens that are written before the next ones are begun
THRESHOLD = 0.9  # confidence at which threshold decoding writes a token
STORED = 200  # problems of each level in problems.json
SHOWN = 3  # problems of each level in samples.txt
PROMPT_LENGTH, TEXT_LENGTH, CONTINUATIONS = 64, 128, 6
TEXT_ROWS = 128  # of held-out books, for the loss
Z = 1.96  # of a 95 % interval
STEPS = 8  # levels of a task whose sizes the training chose
FINE = 32  # the same where threshold decoding looks for the level first


class Written(NamedTuple):
    tokens: list[list[int]]  # of each row, up to the end-of-text
    steps: list[int]  # evaluations of the network that each row took
    positions: list[int]  # tokens of the blocks that each row wrote, its padding included
    ready: float  # positions above the threshold, a step and row, of full inference; 0 if not measured


class Question(NamedTuple):
    problem: Problem
    posed: Posed  # as text


def questions(library: Library, task: str, level: int, count: int, seed: int) -> list[Question]:
    """Held-out problems of one level."""
    if task == "needles":
        found = islice(needles(library, seed, held_out=True, most=level), count)
        return [Question(one, Posed(library.decode(one.prompt), library.decode(one.answer), "")) for one in found]
    return [
        Question(Problem([BOS, *library.encode(posed.prompt)], library.encode(posed.answer)), posed)
        for posed in islice(problems(task, seed, held_out=True, size=level), count)
    ]


Levels = Mapping[str, tuple[tuple[int, ...], str]]  # of each task from easy to hard, and what they count


def levels(
    trained: Mapping[str, Sequence[int]] | None = None, steps: int = STEPS
) -> dict[str, tuple[tuple[int, ...], str]]:
    """The levels of each task from easy to hard, and what they count.

    trained  {task: least and most size}, for a model that was trained at other sizes than the tasks' own
    """
    if trained is not None:
        return {task: (spread(sizes[0], sizes[1], steps), TASKS[task].unit) for task, sizes in trained.items()}
    return {name: (kind.levels, kind.unit) for name, kind in TASKS.items()} | {"needles": (NEEDLE_LEVELS, "tokens")}


def spread(least: int, most: int, steps: int = STEPS) -> tuple[int, ...]:
    """Sizes from the least to the most, at most so many of them."""
    count = min(most - least + 1, steps)
    return tuple(np.linspace(least, most, count).round().astype(int).tolist())


def next_level(known: Mapping[int, float]) -> int | None:
    """Which level of a task to measure next, by its number; known: {its number: accuracy, or −1 if not measured}.

    Levels below one that is always right and above one that is too hard are left out. Of the others, the middle one
    says most.
    """
    low = max((i for i, right in known.items() if right > TELLING[1]), default=-1)
    high = min((i for i, right in known.items() if 0 <= right < TELLING[0]), default=len(known))
    open_ones = [i for i, right in known.items() if right < 0 and low < i < high]
    return min(open_ones, key=lambda i: abs(i - (low + high) / 2), default=None)


def ladder(
    right: Mapping[str, float], every: Levels, enough: int | None = None, first: Mapping[str, int] | None = None
) -> Iterator[tuple[str, int, str]]:
    """The levels to measure of every task's, task after task and again, as `right` fills: how often each is right.

    enough  no further level of a task of which so many can tell
    first   the level that a task begins with
    """
    while True:
        found = False
        for task, (of, unit) in every.items():
            known = {i: right.get(f"{task}-{level}", -1.0) for i, level in enumerate(of)}
            if enough is not None and sum(verdict(one) == "can tell" for one in known.values()) >= enough:
                continue
            i = next_level(known)
            if first and first.get(task) in of and max(known.values()) < 0:
                i = of.index(first[task])
            if i is not None:
                found = True
                yield task, of[i], unit
        if not found:
            return


def length_for(asked: Sequence[Question]) -> int:
    """Tokens to write: whole blocks, with room for an end-of-text."""
    return -(-(max(len(one.problem.answer) for one in asked) + 1) // BLOCK) * BLOCK


# Sampling


def padded(network: LLaDA, prompts: Sequence[list[int]], length: int) -> tuple[Tensor, Tensor | None, int]:
    """Prompts aligned at their ends, with masks behind them; which tokens are real, if not all; the prompts' width."""
    device, context = next(network.parameters()).device, network.config.max_sequence_length
    width = max(map(len, prompts))
    if width + length > context:
        raise UsageError(f"A prompt of {width} tokens and {length} to write are more than {context}.")
    rows = [[EOS] * (width - len(prompt)) + prompt + [MASK] * length for prompt in prompts]
    missing = [width - len(prompt) for prompt in prompts]
    real = torch.arange(width + length) >= torch.tensor(missing)[:, None]
    return torch.tensor(rows, device=device), real.to(device) if any(missing) else None, width


def guessed(network: LLaDA, tokens: Tensor, real: Tensor | None, places: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest token at each place and its probability: [B, P] each. A mask is never an answer."""
    logits = network(tokens, attention_mask=real, positions=places).float()
    likely = logits.softmax(-1)  # the mask counts here, as in LLaDA's own rule
    logits[..., MASK] = float("-inf")
    guesses = logits.argmax(-1)
    return guesses, likely.gather(-1, guesses[..., None])[..., 0]


@torch.inference_mode()
def write_full(network: LLaDA, prompts: Sequence[list[int]], length: int) -> Written:
    """One token a step, the most confident of the block. Rows whose text has ended are not computed any further."""
    device = next(network.parameters()).device
    tokens, real, width = padded(network, prompts, length)
    going = torch.arange(len(prompts), device=device)  # rows that have not ended
    steps, ready, seen = np.zeros(len(prompts), dtype=int), torch.zeros((), device=device), 0
    for first in range(width, width + length, BLOCK):
        if first > width:
            going = going[(tokens[going, width:first] != EOS).all(1)]
        if not len(going):
            break
        part, part_real = tokens[going], None if real is None else real[going]
        places, everyone = torch.arange(first, first + BLOCK, device=device), torch.arange(len(going), device=device)
        for _ in range(BLOCK):
            guesses, confidence = guessed(network, part, part_real, places)
            confidence = confidence.masked_fill(part[:, first : first + BLOCK] != MASK, -1)
            ready += (confidence > THRESHOLD).sum()
            seen += len(going)
            place = confidence.argmax(1)
            part[everyone, first + place] = guesses[everyone, place]
        tokens[going] = part
        steps[going.cpu().numpy()] += BLOCK
    written = [until_end(row) for row in tokens[:, width:].masked_fill(tokens[:, width:] == MASK, EOS).tolist()]
    return Written(written, steps.tolist(), steps.tolist(), ready.item() / max(seen, 1))


@torch.inference_mode()
def write_by_threshold(network: LLaDA, prompts: Sequence[list[int]], length: int) -> Written:
    """Fast-dLLM's rule: a step writes every masked token of the block above the threshold, and the surest in any case.

    Every row goes to its next block when its own is full, and ends when a full block holds an end-of-text.
    """
    device = next(network.parameters()).device
    tokens, real, width = padded(network, prompts, length)
    count = len(prompts)
    first = torch.full((count,), width, device=device)  # where each row's block begins
    steps = torch.zeros(count, dtype=torch.long, device=device)
    going = torch.arange(count, device=device)
    within = torch.arange(BLOCK, device=device)
    while len(going):
        part, places = tokens[going], first[going][:, None] + within
        guesses, confidence = guessed(network, part, None if real is None else real[going], places)
        inside = part.gather(1, places)
        confidence = confidence.masked_fill(inside != MASK, -1)
        chosen = confidence > THRESHOLD
        chosen[torch.arange(len(going), device=device), confidence.argmax(1)] = True
        inside = torch.where(chosen, guesses, inside)
        tokens[going] = part.scatter(1, places, inside)
        steps[going] += 1
        full = (inside != MASK).all(1)
        first[going] += BLOCK * full.long()
        ended = full & ((inside == EOS).any(1) | (first[going] >= width + length))
        going = going[~ended]
    written = [until_end(row) for row in tokens[:, width:].masked_fill(tokens[:, width:] == MASK, EOS).tolist()]
    return Written(written, steps.tolist(), (first - width).tolist(), 0.0)


# Measuring


def interval(successes: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    share, square = successes / count, Z * Z / count
    centre = (share + square / 2) / (1 + square)
    half = Z / (1 + square) * sqrt(share * (1 - share) / count + square / count / 4)
    return round(max(centre - half, 0.0), 4), round(min(centre + half, 1.0), 4)


def verdict(accuracy: float) -> str:
    if accuracy > TELLING[1]:
        return "cannot tell: saturated"
    return "can tell" if accuracy >= TELLING[0] else "cannot tell: too hard"


def measured(library: Library, task: str, asked: Sequence[Question], written: Written) -> dict[str, Any]:
    answers = [library.decode(tokens) for tokens in written.tokens]
    good = [right(task, one.posed, answer) for one, answer in zip(asked, answers, strict=True)]
    tokens = sum(len(row) + 1 for row in written.tokens)  # with the end-of-text
    return {
        "accuracy": sum(good) / len(good),
        "interval": interval(sum(good), len(good)),
        "right": "".join("1" if each else "0" for each in good),  # problem by problem, for paired comparisons
        "steps": sum(written.steps) / len(good),
        "tokens_per_step": tokens / sum(written.steps),  # up to the end-of-text
        "positions_per_step": sum(written.positions) / sum(written.steps),  # with the padding of the last block
    }


def in_batches(way: Any, network: LLaDA, asked: Sequence[Question], length: int, batch_tokens: int) -> Written:
    """Rows of like length together, as many as `batch_tokens` hold."""
    order = sorted(range(len(asked)), key=lambda i: len(asked[i].problem.prompt))
    rows: dict[int, tuple[list[int], int, int]] = {}
    ready = 0.0
    while order:
        width = len(asked[order[-1]].problem.prompt) + length
        size = max(batch_tokens // width, 1)
        chunk, order = order[-size:], order[:-size]
        written = way(network, [asked[i].problem.prompt for i in chunk], length)
        rows |= dict(zip(chunk, zip(*written[:3], strict=True), strict=True))
        ready += written.ready * len(chunk) / len(asked)
    tokens, steps, positions = zip(*(rows[i] for i in range(len(asked))), strict=True)
    return Written(list(tokens), list(steps), list(positions), ready)


def scouted(
    network: LLaDA, library: Library, every: Levels, count: int, seed: int, batch_tokens: int, seconds: float | None
) -> dict[str, float]:
    """How often threshold decoding is right at levels of every task, until one of each can tell: {"sums-4": 0.8}"""
    began, found = perf_counter(), dict[str, float]()
    for task, level, _ in ladder(found, every, enough=1):
        if seconds is not None and perf_counter() - began > seconds:
            print(f"the search for levels ends before {task} {level}: {seconds:.0f} s are over", flush=True)
            break
        asked = questions(library, task, level, count, seed)
        written = in_batches(write_by_threshold, network, asked, length_for(asked), batch_tokens)
        found[f"{task}-{level}"] = measured(library, task, asked, written)["accuracy"]
    print("by threshold, to find levels: " + ", ".join(f"{name} {one:.0%}" for name, one in found.items()), flush=True)
    return found


def nearest(right: Mapping[str, float]) -> dict[str, int]:
    """The level of each task whose answers are right nearest to the middle of what can tell."""
    order = sorted(right, key=lambda name: -abs(right[name] - sum(TELLING) / 2))
    return {name.rpartition("-")[0]: int(name.rpartition("-")[2]) for name in order}  # the last one stays


def continuations(library: Library, count: int) -> list[Problem]:
    """The beginnings of sentences in held-out books, all over them, and what the books really say next."""
    text, length = library.held_out["books"], PROMPT_LENGTH + TEXT_LENGTH
    starts = starts_of(library, "books", text)
    starts = starts[starts + length <= len(text)]
    if not len(starts):
        raise UsageError(f"The held-out books have no row of {length} tokens.")
    chosen = starts[np.linspace(0, len(starts) - 1, count).astype(int)].tolist()
    rows = [[BOS, *text[start : start + length - 1].tolist()] for start in chosen]
    return [Problem(row[:PROMPT_LENGTH], row[PROMPT_LENGTH:]) for row in rows]


def evaluate(
    checkpoint: Path,
    data: Path,
    count: int,
    device: torch.device,
    seed: int,
    batch_tokens: int,
    out: Path,
    seconds: float | None = None,
    dtype: torch.dtype = torch.bfloat16,
    sizes: Mapping[str, Sequence[int]] | None = None,
    scout: int | None = None,
    enough: int | None = None,
) -> dict[str, Any]:
    """Measures, and writes evaluation.json, problems.json, samples.txt and the card.

    sizes   {task: least and most}, where they are not those of the training
    scout   how many problems of a level threshold decoding answers, to find levels to begin with
    enough  of a task, measure no further level if so many can tell
    """
    began = perf_counter()
    model, library = tenuto.load(str(checkpoint), device=device, dtype=dtype), load(data)
    network = model.network
    assert isinstance(network, LLaDA)
    if Tokenizer.from_file(str(checkpoint / "tokenizer.json")).get_vocab() != library.tokenizer.get_vocab():
        raise UsageError(f"{checkpoint} was trained on other tokens than those of {data}.")
    record: dict[str, Any] = {}
    posed: dict[str, list[Question]] = {}
    shown = []
    lessons = read_json(checkpoint / "loss.json", "training record") if (checkpoint / "loss.json").exists() else {}
    trained = levels(lessons.get("sizes"))
    every = trained | (levels(sizes) if sizes else {})
    full_right: dict[str, float] = {}
    found: dict[str, float] = {}
    if scout:
        every = levels(lessons.get("sizes"), FINE) | (levels(sizes, FINE) if sizes else {})
    if "books" not in library.held_out:
        every.pop("needles", None)  # which lie in books
    if scout:
        time = None if seconds is None else seconds / 2
        found = scouted(network, library, every, scout, seed + 1000, batch_tokens, time)
    for task, level, unit in ladder(full_right, every, enough, nearest(found)):
        if seconds is not None and perf_counter() - began > seconds:
            print(f"{task} {level} and others are not measured: {seconds:.0f} s are over", flush=True)
            break
        name, asked = f"{task}-{level}", questions(library, task, level, count, seed)
        length, start = length_for(asked), perf_counter()
        full = in_batches(write_full, network, asked, length, batch_tokens)
        fast = in_batches(write_by_threshold, network, asked, length, batch_tokens)
        record[name] = {
            "task": task,
            "level": level,
            "unit": unit,
            "length": length,
            "full": measured(library, task, asked, full),
            "above_threshold_per_step": full.ready,
            "threshold": measured(library, task, asked, fast),
        }
        full_right[name] = record[name]["full"]["accuracy"]
        record[name]["verdict"] = verdict(full_right[name])
        posed[name] = asked
        one, two = record[name]["full"], record[name]["threshold"]
        print(
            f"{name}: {one['accuracy']:.1%} {one['interval']}, by threshold {two['accuracy']:.1%} at "
            f"{two['tokens_per_step']:.2f} tokens a step; {record[name]['verdict']}; {perf_counter() - start:.1f} s",
            flush=True,
        )
        shown.append(f"## {name}: {one['accuracy']:.1%} right\n")
        for i in range(min(SHOWN, count)):
            expected = "right" if one["right"][i] == "1" else f"wrong, not【{asked[i].posed.answer}】"
            shown.append(f"{asked[i].posed.prompt}【{library.decode(full.tokens[i])}】 {expected}\n")
    texts, text = [], {}
    if "books" in library.held_out:
        texts = continuations(library, STORED)
        shown.append("## Held-out books continued\n")
        prompts = [one.prompt for one in texts[:: max(len(texts) // CONTINUATIONS, 1)]][:CONTINUATIONS]
        for prompt, tokens in zip(prompts, write_full(network, prompts, TEXT_LENGTH).tokens, strict=True):
            shown.append(f"{library.decode(prompt)}【{library.decode(tokens)}】\n")
        books = Corpus(library.train["books"], library.held_out["books"], library.tokenizer)
        text = {"text_loss": text_loss(network, books, TEXT_ROWS, TEXT_ROWS, seed), "text_rows": TEXT_ROWS}
    made = provenance(device, seed=seed, data=data.name)
    result = {
        "problems": count,
        "block_length": BLOCK,
        "threshold": THRESHOLD,
        "telling": TELLING,
        **text,
        "precision": str(dtype).removeprefix("torch."),
        "seconds": round(perf_counter() - began, 1),
        "tasks": in_order(record),
        **({"scouted": found, "scouted_problems": scout} if scout else {}),
        "provenance": made,
    }
    write_json(out / "evaluation.json", result)
    write_problems(out / "problems.json", chosen(record), posed, texts, record, made)
    write_text(out / "samples.txt", "What the model wrote stands in 【 】.\n\n" + "\n".join(shown))
    write_text(out / "README.md", model_card(checkpoint, out, trained))
    return result


def in_order(record: dict[str, Any]) -> dict[str, Any]:
    """Task by task; within a task from easy to hard."""
    return dict(sorted(record.items(), key=lambda item: (item[1]["task"], item[1]["level"])))


def chosen(record: dict[str, Any]) -> list[str]:
    """The levels that can tell; of a task without any, the one that comes nearest."""
    names = {name for name, one in record.items() if one["verdict"] == "can tell"}
    middle = sum(TELLING) / 2
    for task in {one["task"] for one in record.values()} - {record[name]["task"] for name in names}:
        own = [name for name, one in record.items() if one["task"] == task]
        names.add(min(own, key=lambda name: abs(record[name]["full"]["accuracy"] - middle)))
    return sorted(names)


def write_problems(
    path: Path,
    names: list[str],
    posed: dict[str, list[Question]],
    texts: list[Problem],
    record: dict[str, Any],
    made: dict[str, Any],
) -> None:
    """The problems of these levels, and texts to continue."""
    stored = {name: [one.problem for one in posed[name][:STORED]] for name in names}
    stored |= {"text": texts} if texts else {}
    lengths = {name: record[name]["length"] for name in names} | ({"text": TEXT_LENGTH} if texts else {})
    write_problem_file(path, stored, lengths, made)


def write_problem_file(
    path: Path, stored: Mapping[str, Sequence[Problem]], lengths: Mapping[str, int], made: Mapping[str, Any]
) -> None:
    """JSON with one problem a line, in the checkpoint's own tokens, and how many tokens each task's answers get."""
    tasks = [
        f"{json.dumps(name)}: [\n"
        + ",\n".join(json.dumps(one._asdict(), separators=(",", ":")) for one in some)
        + "\n]"
        for name, some in stored.items()
    ]
    head = f'"provenance": {json.dumps(made, ensure_ascii=False)},\n"lengths": {json.dumps(lengths)}'
    write_text(path, f'{{{head},\n"problems": {{\n' + ",\n".join(tasks) + "\n}}\n")


def main(
    checkpoint: Annotated[Path, typer.Option(help="The directory that training.train_small_llada wrote.")],
    data: Annotated[Path, typer.Option(help="The file made by training.reasoning_text.")] = DEFAULT_PATH,
    count: Annotated[int, typer.Option(min=1, help="Problems of each level.")] = 256,
    device: Annotated[str, typer.Option()] = default_device(),
    seed: Annotated[int, typer.Option(help="Of the problems.")] = 0,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens that are computed at once, about.")] = 262_144,
    seconds: Annotated[float | None, typer.Option(help="Begin no further level after so long.")] = None,
    precise: Annotated[bool, typer.Option(help="Compute in float32, not in bfloat16.")] = False,
    sizes: Annotated[
        list[str] | None, typer.Option("--task", help="Measure this task at other sizes than trained: reverse=8-20.")
    ] = None,
    scout: Annotated[
        int | None, typer.Option(min=1, help="Find levels by threshold decoding first, with so many problems of each.")
    ] = None,
    enough: Annotated[
        int | None, typer.Option(min=1, help="Measure no further level of a task of which so many can tell.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write; the checkpoint's directory if not given.")] = None,
) -> None:
    """Measure what the LLaDA has learnt, on problems it has not seen."""
    dtype = torch.float32 if precise else torch.bfloat16
    result = evaluate(
        checkpoint,
        data,
        count,
        torch.device(device),
        seed,
        batch_tokens,
        out or checkpoint,
        seconds,
        dtype,
        parse_sizes(sizes or []),
        scout,
        enough,
    )
    telling = [name for name, one in result["tasks"].items() if one["verdict"] == "can tell"]
    print(f"{len(telling)} of {len(result['tasks'])} levels can tell: {', '.join(telling)}; {result['seconds']} s")


if __name__ == "__main__":
    run(main)
