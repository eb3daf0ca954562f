"""Accuracy against work of text: ours, published caches and the paper's lifetimes on one trained model's tasks.

    python -m benchmarks.text_frontier --model DIR --data data/reasoning.npz --device cuda
    python -m benchmarks.text_frontier --model DIR --part 0 --parts 4 --out 0.json    # and 1, 2, 3, at the same time
    python -m benchmarks.text_frontier --join 0.json --join 1.json --join 2.json --join 3.json

Every way is saved as soon as it is measured; --go-on measures only the ways that the file does not have yet. Only
levels that can tell are used: full inference is right 60 to 95 % of the time (evaluation.json beside the weights).
Work is counted in evaluation-equivalents: computed positions (and units), divided by all. Every method may choose its
threshold and its period. The choice is made on the tasks that --choose names, as the least work that loses at most one
point against full inference in each of them (a gain in one task is no excuse for a loss in another); the table shows
the other tasks. Without --choose, both are halves of the problems.
"""

import json
import re
import time
from collections.abc import Iterator, Sequence
from math import sqrt
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

import tenuto
from benchmarks.places import results_of
from benchmarks.text_ways import ALONE, FULL, Way, ways
from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.files import write_json, write_text
from tenuto.models import Model
from tenuto.provenance import origin, provenance
from tenuto_lab.result_files import (
    ORIGIN,
    Misfit,
    check_result,
    fields,
    in_order,
    makes,
    number,
    read_result,
    shaped,
    text,
)
from tenuto_lab.result_files import whole as whole_number
from training.evaluate_llada import until_end
from training.evaluate_small_llada import TELLING, Question, length_for, questions, verdict
from training.reasoning_tasks import TASKS, right
from training.reasoning_text import DEFAULT_PATH, Library, load

RESULTS = results_of("text_frontier")
LEVELS = 8  # at most, if not told otherwise
TOLERANCE = 0.01  # of accuracy that a choice may lose in any task that it is chosen on
BATCH_TOKENS = 120_000  # on a GPU; a CPU is as fast with few rows, and few rows end at nearly the same time
CPU_BATCH_TOKENS = 2_500


def measured(way: Way, model: Model, library: Library, task: str, asked: Sequence[Question]) -> dict[str, Any]:
    """Which answers are right, and what each half of the problems took."""
    length, most = length_for(asked), CPU_BATCH_TOKENS if model.device.type == "cpu" else BATCH_TOKENS
    order = sorted(range(len(asked)), key=lambda i: len(asked[i].problem.prompt))
    good, evaluations, work = [False] * len(asked), [0.0] * len(asked), [0.0] * len(asked)
    for chunk in _chunks(order, asked, length, most):
        rows, taken, done = way.write(model, [asked[i].problem.prompt for i in chunk], length)
        for i, row, one, other in zip(chunk, rows, taken, done, strict=True):
            good[i] = right(task, asked[i].posed, library.decode(until_end(row)))
            evaluations[i], work[i] = one, other
    return {
        "right": "".join("1" if one else "0" for one in good),  # problem by problem, for paired comparisons
        "evaluations": [float(np.mean(evaluations[half::2])) for half in (0, 1)],  # of each half
        "work": [float(np.mean(work[half::2])) for half in (0, 1)],
    }


def _chunks(order: list[int], asked: Sequence[Question], length: int, most: int) -> Iterator[list[int]]:
    while order:
        size = max(most // (len(asked[order[-1]].problem.prompt) + length), 1)
        yield order[-size:]
        order = order[:-size]


def telling(evaluation: dict[str, Any], most: int = LEVELS) -> list[tuple[str, int]]:
    """The levels that can tell, first the one of every task that is nearest to the middle; if none can, two."""
    middle = sum(TELLING) / 2
    found = sorted(evaluation["tasks"].values(), key=lambda one: abs(one["full"]["accuracy"] - middle))
    able = [one for one in found if one["verdict"] == "can tell"] or found[:2]  # the table will say that they cannot
    best = {one["task"]: one for one in reversed(able)}.values()
    chosen = [*best, *(one for one in able if one not in list(best))][:most]
    return sorted((one["task"], one["level"]) for one in chosen)


def named_levels(names: Sequence[str]) -> list[tuple[str, int]]:
    """["sort-4"] -> [("sort", 4)]"""
    found = []
    for name in names:
        task, _, level = name.partition("-")
        if task not in TASKS or not level.isdigit() or int(level) < 1:
            raise UsageError(f"{name} is no level; sort-4 is. The tasks are {', '.join(TASKS)}.")
        found.append((task, int(level)))
    return sorted(found)


def wanted(every: Sequence[Way], only: Sequence[str] | None) -> list[Way]:
    """The ways whose method and name contain one of these, in this order; a number in it is not the start of another.

    "parallel 0.9" is not in "parallel 0.95".
    """
    if not only:
        return list(every)
    found = [way for one in only for way in every if re.search(rf"{re.escape(one)}(?!\d)", f"{way.method}: {way.name}")]
    return [way for i, way in enumerate(found) if way not in found[:i]]


def begun(path: Path, new: dict[str, Any]) -> dict[str, Any]:
    """What an earlier run of the same problems left in the file, to go on with; or a new record."""
    if not path.exists():
        return new
    old = read_result(path, "frontier of text", RECORD)
    for key in ("parameters", "levels", "problems", "precision", "choosing"):
        if json.loads(json.dumps(new.get(key))) != old.get(key):
            raise UsageError(f"{path} cannot be gone on with: its {key} {old.get(key)} should be {new.get(key)}.")
    if old["provenance"].get("seed") != new["provenance"].get("seed"):
        raise UsageError(f"{path} cannot be gone on with: its problems have another seed.")
    return {**old, "parts": [*old.get("parts", [old["provenance"]]), new["provenance"]]}


Halves = dict[str, tuple[int, ...]]  # of each level's problems: the even ones (0), the odd ones (1), or both


def halves(record: dict[str, Any]) -> tuple[Halves, Halves]:
    """What is chosen on, and what is shown: different tasks; or, if none is named, different problems."""
    names = [f"{task}-{level}" for task, level in record["levels"]]
    chosen = [name for name in names if name.split("-")[0] in record.get("choosing", [])]
    if not chosen or len(chosen) == len(names):
        return dict.fromkeys(names, (0,)), dict.fromkeys(names, (1,))
    return dict.fromkeys(chosen, (0, 1)), {name: (0, 1) for name in names if name not in chosen}


def both(record: dict[str, Any]) -> Halves:
    return {f"{task}-{level}": (0, 1) for task, level in record["levels"]}


def summary(record: dict[str, Any], part: Halves) -> dict[str, dict[str, Any]]:
    """For each way, on these problems: accuracy, work and the difference from full inference."""
    found = {}
    reference = record["ways"][full_name(record)]["levels"]

    def good(one: dict[str, Any], level: str) -> list[int]:
        return [int(bit) for half in part[level] for bit in one["right"][half::2]]

    def mean(one: dict[str, Any], what: str, level: str) -> float:
        return float(np.mean([one[what][half] for half in part[level]]))

    for name, way in record["ways"].items():
        if not set(part) <= set(way["levels"]):
            continue
        pairs, right, fewer, lost = [], [], [], {}
        for level in part:
            one, other = way["levels"][level], reference[level]
            mine, theirs = good(one, level), good(other, level)
            pairs += [a - b for a, b in zip(mine, theirs, strict=True)]
            right += mine
            fewer.append(mean(other, "work", level) / mean(one, "work", level))
            lost[level] = float(np.mean(mine) - np.mean(theirs))
        difference, spread = float(np.mean(pairs)), float(np.std(pairs)) / sqrt(len(pairs))
        found[name] = {
            "method": way["method"],
            "accuracy": float(np.mean(right)),
            "difference": difference,
            "interval": [difference - 1.96 * spread, difference + 1.96 * spread],
            "worst_level": min(lost.values()),
            "work": float(np.mean([mean(way["levels"][level], "work", level) for level in part])),
            "evaluations": float(np.mean([mean(way["levels"][level], "evaluations", level) for level in part])),
            "fewer": float(np.mean(fewer)),  # evaluation-equivalents, level by level
        }
    return found


def level_of(one: dict[str, Any]) -> str:
    right = one["right"].count("1") / len(one["right"])
    return f"{right:.1%}, {np.mean(one['evaluations']):.1f}, {np.mean(one['work']):.1f}"


def paired(record: dict[str, Any], first: str, second: str) -> dict[str, tuple[float, float]]:
    """For each level, how much more often the first way is right than the second, and half of the 95 % interval."""
    found = {}
    for level, one in record["ways"][first]["levels"].items():
        other = record["ways"][second]["levels"][level]
        gained = [int(a) - int(b) for a, b in zip(one["right"], other["right"], strict=True)]
        found[level] = float(np.mean(gained)), 1.96 * float(np.std(gained)) / sqrt(len(gained))
    return found


def full_name(record: dict[str, Any]) -> str:
    """The way that the others are compared with: full inference, or else no cache, or else the last way."""
    for method in (FULL, ALONE):
        if found := [name for name, way in record["ways"].items() if way["method"] == method]:
            return found[0]
    return list(record["ways"])[-1]


def choices(record: dict[str, Any]) -> list[dict[str, Any]]:
    """For each method: of the ways that lose at most TOLERANCE in every task of the choice, the one of least work.

    If there is none, the way that loses least in its worst task.
    """
    first, second = (summary(record, half) for half in halves(record))
    result = []
    for method in dict.fromkeys(way["method"] for way in record["ways"].values()):
        own = {name: one for name, one in first.items() if one["method"] == method}
        if not own:
            continue
        good = {name: one for name, one in own.items() if one["worst_level"] >= -TOLERANCE}
        if good:
            chosen = max(good, key=lambda name: good[name]["fewer"])
        else:
            chosen = max(own, key=lambda name: own[name]["worst_level"])
        result.append({"name": chosen, "kept": bool(good), **second[chosen]})
    return sorted(result, key=lambda one: (not one["kept"], -one["fewer"]))


def split(record: dict[str, Any]) -> str:
    """On what the ways were chosen, and what the figures are those of."""
    chosen, shown = halves(record)
    if set(chosen) == set(shown):
        return (
            "Every method's way was chosen on one half of the problems (the least work that loses at most one point in "
            "any task); the figures are those of the other half."
        )
    return (
        f"Every method's way was chosen on {', '.join(chosen)} (the least work that loses at most one point in any "
        f"of them); the figures are those of {', '.join(shown)}."
    )


def table(record: dict[str, Any]) -> str:
    unable, reference = record.get("cannot_tell", {}), full_name(record)
    against = FULL if record["ways"][reference]["method"] == FULL else f"“{reference}”"
    full = record["ways"][reference]["levels"]
    told = []
    for task, level in record["levels"]:
        good = [int(bit) for bit in full[f"{task}-{level}"]["right"]]
        able = verdict(sum(good) / len(good))
        told.append(f"{task} {level} ({sum(good) / len(good):.1%}{'' if able == 'can tell' else f', {able}'})")
    levels = ", ".join(told)
    lines = [
        "# Text: accuracy against work",
        "",
        "\n\n".join(origin(made) for made in record.get("parts", [record["provenance"]])),
        "",
        f"Model: {record['parameters'] / 1e6:.1f} million parameters. Levels, and how often {against} is right: "
        f"{levels}; {record['problems']} problems of each. {split(record)} “Fewer” counts evaluation-equivalents "
        f"against {against}, level by level. Intervals are of the paired difference, at 95 %.",
        "",
        f"| method | chosen | right | against {against} | worst level | evaluations | fewer |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in choices(record):
        low, high = one["interval"]
        lines.append(
            f"| {one['method']} | {one['name']}{'' if one['kept'] else ' (none was within a point)'} | "
            f"{one['accuracy']:.1%} | {100 * one['difference']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f}) | "
            f"{100 * one['worst_level']:+.1f} | {one['evaluations']:.1f} | {one['fewer']:.1f}× |"
        )
    if unable:
        lines += ["", "Not used: " + "; ".join(f"{name} {why}" for name, why in unable.items()) + "."]
    names = [f"{task}-{level}" for task, level in record["levels"]]
    lines += [
        "",
        "## Every way, all problems",
        "",
        "For each level: right, evaluations and evaluation-equivalents.",
        "",
        f"| way | right | fewer | {' | '.join(names)} |",
        f"| --- | --- | --- |{' --- |' * len(names)}",
    ]
    for name, one in summary(record, both(record)).items():
        levels = " | ".join(level_of(record["ways"][name]["levels"][level]) for level in names)
        lines.append(f"| {one['method']}: {name} | {one['accuracy']:.1%} | {one['fewer']:.1f}× | {levels} |")
    lines += [
        "",
        f"## Against {against}, level by level",
        "",
        "Points gained or lost on all problems, with half of the paired 95 % interval, and how many times less work.",
        "",
        f"| way | {' | '.join(names)} |",
        f"| --- |{' --- |' * len(names)}",
    ]
    for name in summary(record, both(record)):
        gained, own = paired(record, name, full_name(record)), record["ways"][name]["levels"]
        cells = [
            f"{100 * gained[level][0]:+.1f} ± {100 * gained[level][1]:.1f}, "
            f"{np.mean(full[level]['work']) / np.mean(own[level]['work']):.1f}×"
            for level in names
        ]
        if name != reference:
            lines.append(f"| {record['ways'][name]['method']}: {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def joined(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What processes measured in parts as one record."""
    first = records[0]
    for other in records[1:]:
        if any(first[key] != other[key] for key in ("levels", "problems", "parameters")):
            raise UsageError("The parts measured different problems, or different models.")
    ways = {name: way for record in records for name, way in record["ways"].items()}
    return {**first, "ways": ways, "parts": [made for one in records for made in one.get("parts", [one["provenance"]])]}


def bits(value: Any, where: str) -> None:
    """A one for each right answer, and a zero for each wrong one."""
    text(value, where)
    if len(value) < 2 or set(value) - {"0", "1"}:
        raise Misfit(where, "should be zeros and ones, at least two")


HALVES = in_order(number(least=1e-9), number(least=1e-9))
EVALUATION = shaped({"tasks": {str: {"task": str, "level": int, "verdict": str, "full": {"accuracy": float}}}})
WAY = {"method": str, "levels": {str: {"right": bits, "evaluations": HALVES, "work": HALVES}}}
RECORD = fields(
    {
        **{"provenance": shaped(ORIGIN), "parameters": whole_number(), "problems": whole_number()},
        **{"levels": shaped([in_order(text, number())]), "ways": shaped({str: WAY})},
    },
    {"cannot_tell": shaped({str: str}), "parts": shaped([ORIGIN]), "choosing": shaped([str])},
    others=True,
)


def main(
    model: Annotated[
        Path | None, typer.Option(help="A checkpoint of training.train_small_llada, with its evaluation.json.")
    ] = None,
    data: Annotated[
        Path, typer.Option(help="The file made by training.reasoning_text, or the model's tokenizer.json.")
    ] = DEFAULT_PATH,
    device: Annotated[str, typer.Option(help="Where to compute.")] = "cuda",
    count: Annotated[int, typer.Option(min=2, help="Problems of each level.")] = 512,
    level: Annotated[
        list[str] | None, typer.Option(help="Only this level (sort-4), measured before or not; again for others.")
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="Levels that can tell, at most, if none is named.")] = LEVELS,
    seconds: Annotated[float, typer.Option(help="Begin no further way after so long.")] = 120.0,
    seed: Annotated[int, typer.Option(help="Of the problems; the evaluation's were seed 0.")] = 1,
    precise: Annotated[bool, typer.Option(help="Compute in float32, not in bfloat16.")] = True,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only ways whose method and name contain this; again for others, in this order."),
    ] = None,
    go_on: Annotated[
        bool, typer.Option("--go-on", help="Keep the ways that --out has, and measure the others.")
    ] = False,
    choose: Annotated[
        list[str] | None, typer.Option(help="Choose every method's way on this task; again for others.")
    ] = None,
    part: Annotated[int, typer.Option(min=0, help="Which part of the ways, counted from 0.")] = 0,
    parts: Annotated[int, typer.Option(min=1, help="Into how many parts the ways are divided.")] = 1,
    join: Annotated[list[Path] | None, typer.Option(help="Measure nothing; join what the parts wrote.")] = None,
    pair: Annotated[
        tuple[str, str] | None, typer.Option(help="With --join: compare two ways, and write nothing.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The JSON file; the table lies beside it.")] = RESULTS,
) -> None:
    """Measure every way on the levels that can tell, and write the JSON file and the table beside it."""
    if unknown := [task for task in choose or [] if task not in TASKS]:
        raise UsageError(f"{unknown[0]} is no task; the tasks are {', '.join(TASKS)}.")
    if join:
        whole = joined([read_result(path, "frontier of text", RECORD) for path in join])
        if choose:
            whole["choosing"] = choose
        drawn = table if pair is None else lambda record: paired(record, *pair)
        check_result(whole, join[0], "frontier of text, with the others", makes(drawn))
        if pair is not None:
            for name, (gained, half) in paired(whole, *pair).items():
                print(f"{name}: {100 * gained:+.1f} points (± {100 * half:.1f})")
            return
        write_json(out, whole)
        write_text(out.with_suffix(".md"), table(whole))
        print(table(whole).split("## Every")[0])
        return
    if model is None:
        raise typer.BadParameter("Give --model, or --join.")
    began = time.perf_counter()
    torch.set_float32_matmul_precision("high")
    dtype = torch.float32 if precise else torch.bfloat16
    loaded, library = tenuto.load(str(model), device=torch.device(device), dtype=dtype), load(data)
    evaluation: dict[str, Any] = {"tasks": {}}
    if level is None:
        evaluation = read_result(model / "evaluation.json", "evaluation", EVALUATION)
    levels = telling(evaluation, most) if level is None else named_levels(level)
    posed = {(task, level): questions(library, task, level, count, seed) for task, level in levels}
    record: dict[str, Any] = {
        "provenance": provenance(device, seed=seed),
        "parameters": sum(parameter.numel() for parameter in loaded.network.parameters()),
        "levels": levels,
        "cannot_tell": {
            name: one["verdict"] for name, one in evaluation["tasks"].items() if one["verdict"] != "can tell"
        },
        **({"choosing": choose} if choose else {}),
        "problems": count,
        "precision": str(dtype).removeprefix("torch."),
        "ways": {},
    }
    if go_on:
        record = begun(out, record)
    for way in wanted(ways(loaded)[part::parts], only):
        if way.name in record["ways"]:
            continue
        if time.perf_counter() - began > seconds:
            print(f"not measured: {way.method}: {way.name}", flush=True)
            continue
        found = {f"{task}-{level}": measured(way, loaded, library, task, posed[task, level]) for task, level in levels}
        record["ways"][f"{way.name}"] = {"method": way.method, "levels": found}
        shares = " ".join(f"{one['right'].count('1') / count:.2f}" for one in found.values())
        print(f"{time.perf_counter() - began:.0f} s  {way.method}: {way.name}: {shares}", flush=True)
        write_json(out, record)
    if any(way["method"] == FULL for way in record["ways"].values()):  # without it there is nothing to compare with
        write_text(out.with_suffix(".md"), table(record))
        print(table(record).split("## Every")[0])


if __name__ == "__main__":
    run(main)
