"""All experiments on one page, in Markdown: first one screen for readers of the abstract, then the details."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tenuto_lab.paper import EXPERIMENTS
from tenuto_lab.paper.abstract import (
    OLDER,
    TIMED,
    Ladders,
    Records,
    abstract_table,
    models_table,
)
from tenuto_lab.paper.experiment_report import (
    anchor,
    counted_words,
    counts,
    number,
    rejudged,
    rests_on,
    table_rows,
    verdict,
    where_of,
)
from tenuto_lab.paper.operating import SMALL
from tenuto_lab.paper.smallest import SIZE
from tenuto_lab.paper.speeds import SETTINGS, runs_differ
from tenuto_lab.paper.ways import SATURATED
from tenuto_lab.retired import about_retired

MOST = 12  # rows of a table on the page, unless more rows test a claim
SAME = 0.01  # share by which a repeated figure may differ
RESULTS = "../results"  # from the page
TEXT_FOLDER = f"{RESULTS}/experiments_text"
PICTURES = 50_000  # the paper's
WEIGHTS_ALONE = "the weights alone"  # what an experiment without samples rests on
NOT_THE_PAPERS = "no experiment of the paper"
NOTHING: Mapping[str, Any] = MappingProxyType({})

INTRODUCTION = """\
# The paper's experiments, done again

The paper "Spectral-Guided Diffusion" gives each residual branch a *lifetime*, computed from the weights alone. After
its lifetime a branch is never computed again. Here is every claim of its abstract, tried on small models of the same
kinds.
"""

BELOW = """
*small-llada* and *tiny-llada* stand for LLaDA-8B, *tiny-dit* for DiT-XL/2, *tiny-uvit* for U-ViT-L and *tiny-sdxl* for
SDXL. *better* and *worse* count only significant differences (95 %, corrected for the number of comparisons), by the
paper's own metric.
FID × 2 means twice full inference's FID. ρ is a rank correlation: 1 for equal orders, 0 for unrelated ones.
"""

READING = """
## How to read this page

**How a verdict is made.** The paper's own metric decides: FID for pictures, right answers for text. Both
methods start from the same noise, and the interval is that of the paired difference. Holm's correction covers all
comparisons of an experiment. If the corrected interval excludes zero, the claim holds (*yes*) or does not hold (*no*).
Otherwise the verdict is *cannot tell*. If both methods give the same answers, the verdict is *cannot tell* as well.

**Ruined pictures.** A schedule has ruined its pictures if a classifier sees the class asked for no more often than by
chance: the 95 % interval of this share reaches down to 10 %. If both schedules of a comparison have ruined their
pictures, the verdict is *cannot tell*, whichever FID is lower: FID then compares two kinds of noise. Without a judge
that knows classes, pictures with at least half of the FID of white noise count as ruined. The rule was added after
results had been seen, and it takes back *yes* and *no* alike. A comparison with full inference needs no such rule.
[What pictures score that show nothing](../results/ruined/ruined.md).

**The second column.** The column *nearness* shows how near the outputs are to the full run (in dB, or as the share
of equal tokens), and the column *nearer* gives a separate verdict on this. Nearness still differs where FID ranks
nothing, but it does not tell quality there either: it says which of two ruined pictures is nearer.
A claim about every model fails if one model gives a *no*. The paper counts blocks, so rows by blocks decide where a
model was measured both ways, and rows by branches stand beside them.

**Limits of this page.** The models are small (2 to 15 million parameters, 32 x 32 pictures, short texts). A claim that
fails here may hold on large models, and a claim that holds here is no proof. The FIDs use the features of a small
classifier. Compare them with each other, not with published FIDs. *By blocks* means that the branches of a block share
one score and one lifetime, as the paper counts its layer-steps. *By branches* means that each branch has its own.
In the column *paper*, a number in parentheses is the paper's figure in the unit of the column *here*.
"""

MODELS = """
## Model by model

The comparisons behind the verdicts: by the paper's metric, and (*nearer*) by nearness to the full run.
"""


REJUDGED = """\
{mark} **Of the first protocol.** {count} experiments were measured before the paper's protocol was followed: by
branches only, in float32 (TF32), at 50 steps at most (text: 64; horizons: as their rows say), with at most 3 seeds and
one random order.
The verdicts were computed later. These files lack the paired difference of two FIDs, so its interval assumes the worst
correlation: it is too wide rather than too narrow. `tenuto lab experiment` measures with the paper's protocol now.
"""


PARTS = """\
**Measured beside each other.** Several processes on one GPU measured these experiments ({made}): {titles}. So rows
about time say *not measured*. Matrix products are TF32. """

TEXT = """\
**Text rests on {names}** ({tasks}; [files]({folder}); weights {weights}), because no answer of
tiny-llada changes under any schedule. A task of which full inference solves less than 60 % or more than 95 % says
*cannot tell*.
On six tasks, the same model was also measured with
[the paper's lifetimes at 75 % of the work](../results/text_frontier/text_frontier.md).
"""

LADDER = """\
{mark} **Speeds of the full-size networks** ([every row](../results/ladder/ladder.md),
[every mode](../results/ladder/ladder_modes.md)) are those of the denoiser alone, with random weights, on an H200 at
several commits ({commits}). The paper captures CUDA graphs and names no compiler, so the ways without compiled branches
decide. The paper's denominator is the same: eager full inference. If the spread of the repeated times reaches across
the claimed speed-up, the verdict is *cannot tell*.
{lifetimes}"""
SCATTERED = """\
Their lifetimes follow uniform random scores at the paper's budget. `python -m benchmarks.ladder` takes the spectral
lifetimes of the small model of each layout now, and times whole generations as well; it was not run again yet.
"""


def results_page(
    records: Records,
    folder: str,
    ladders: Ladders = (),
    smallest: Mapping[str, Any] = NOTHING,
    repeated: Records = (),
    text: Records = (),
) -> str:
    """The page.

    folder    path from the page to the tables and figures
    ladders   the speed of the full-size networks; smallest: the core seconds of the experiments at the smallest size
    repeated  later runs of the same size, to see whether the figures are found again
    text      the experiments of a language model whose tasks can tell
    """
    lines = [INTRODUCTION, *abstract_table(records, ladders, text), BELOW]
    lines += [
        *retired_of(records),
        *about_text(text),
        *about_older(records),
        *about_ladders(ladders),
        *in_parts(records),
    ]
    lines += [MODELS, *models_table(records, text), READING]
    lines += [
        "## Every experiment\n",
        "The columns count comparisons. *Differs from the paper's protocol* besides the models, their data and the "
        "judge: the paper runs in bfloat16 and takes 50,000 pictures (30,000 of SDXL), 100 steps (SDXL 50) and 10 "
        "seeds.\n",
        "| experiment | the paper | yes | no | cannot tell | nearer: yes, no, cannot tell | differs | rests on |",
    ]
    lines.append("|---|---|---:|---:|---:|---|---|---|")
    for record in records:
        yes, no, unsure = counts(record["rows"])
        near = counts(record["rows"], nearness=True)
        lines.append(
            f"| [{record['title']}](#{anchor(record['title'])}) | {where_of(record)} | {yes} | {no} | {unsure} "
            f"| {', '.join(map(str, near)) if sum(near) else ''} | {differs(record)} | {rests_on(record)} |"
        )
    missing = [name for name in EXPERIMENTS if name not in {record["name"] for record in records}]
    if missing:
        lines.append(f"\nNot run yet: {', '.join(missing)}.")
    lines += ["", *running(smallest)]
    for record in records:
        lines += [*_section(record, folder), *found_again(record, repeated)]
        lines += [line for one in text if one["name"] == record["name"] for line in _on_text(one)]
    return "\n".join(lines) + "\n"


def retired_of(records: Records) -> list[str]:
    """What to say of models that were measured and are no longer in the repository."""
    return about_retired((row["model"] for record in records for row in record["rows"]), RESULTS)


def about_older(records: Records) -> list[str]:
    """What to say of verdicts that were made later than their measurements."""
    old = sum(bool(record["provenance"].get("rejudged")) for record in records)
    return [REJUDGED.format(mark=OLDER, count=old)] if old else []


def differs(record: Mapping[str, Any]) -> str:
    """In a few words: how the run differs from the paper's protocol."""
    made = record["provenance"]
    if made.get("rejudged"):
        return f"first protocol {OLDER}"
    found = [NOT_THE_PAPERS] if where_of(record) in ("Section 3", "Limitations") else []
    found += [f"{made['steps']} steps"] if made.get("steps") else []
    if rests_on(record) != WEIGHTS_ALONE:
        precise = made.get("protocol", {}).get("dtype", "float32")
        found += [f"{precise} (TF32)" if "NVIDIA" in made["hardware"] else precise] if precise != "bfloat16" else []
        many = made["samples"] * made["seeds"]
        drawn = any("FID" in row["quantity"] and row["measured"] is not None for row in record["rows"])
        found += [f"{many:,} pictures"] if drawn and many < PICTURES else []
    missing = [plain_gap(one) for one in made.get("left_out", ())]
    return "; ".join([*found, *([f"without {', '.join(missing)}"] if missing else [])])


def plain_gap(left: str) -> str:
    """What was not measured, in words. Older records name the extra refreshes by a word of their own."""
    model, _, rest = left.partition(": ")
    return f"extra refreshes on {model} (not the paper's)" if rest == "refreshed" else left


def about_text(text: Records) -> list[str]:
    """What to say of the language model that stands in for the one whose tasks are too easy."""
    if not text:
        return []
    asked = {made["protocol"].get("tasks", "all"): record for record in text for made in [record["provenance"]]}
    tasks = [_asked(one) for one in asked.values()]
    made = text[0]["provenance"]
    weights = ", ".join(made.get("weights", {}).values())
    named = {"names": names_of(made), "tasks": "; ".join(tasks), "weights": weights}
    return [TEXT.format(**named, folder=TEXT_FOLDER)]


def _asked(record: Mapping[str, Any]) -> str:
    """The tasks of a record of text, its samples, and its random orders."""
    made = record["provenance"]
    return f"{tasks_of(made)}: {rests_on(record, of_text=True)}, {made['orders']} random orders"


def about_ladders(ladders: Ladders) -> list[str]:
    """What to say of the speeds of the full-size networks."""
    made = [setting for ladder in ladders for case, setting in ladder["settings"].items() if case in SETTINGS]
    if not made:
        return []
    commits = ", ".join(sorted({setting["commit"] for setting in made}))
    scattered = any("lifetimes" not in setting for setting in made)
    told = LADDER.format(mark=TIMED, commits=commits, lifetimes=SCATTERED if scattered else "")
    both = [
        f"{model} {' and '.join(f'{number(one)}×' for one in each)}" for model, each in runs_differ(ladders).items()
    ]
    return [told + (f"Two runs with compiled branches: {', '.join(both)}.\n" if both else "")]


def in_parts(records: Records) -> list[str]:
    """What to say of experiments that many processes measured beside each other."""
    new = [record for record in records if record["provenance"].get("measured_by")]
    if not new:
        return []
    made = sorted({f"{one['provenance']['commit']} on {one['provenance']['hardware']}" for one in new})
    gaps = [(one["title"], [plain_gap(gap) for gap in one["provenance"].get("left_out", ())]) for one in new]
    left = [f"{in_line(title)}: {', '.join(out)}" for title, out in gaps if out]
    told = PARTS.format(titles="; ".join(in_line(one["title"]) for one in new), made=", ".join(made))
    return [told + (f"Not measured yet: {'; '.join(left)}.\n" if left else "")]


def running(smallest: Mapping[str, Any]) -> list[str]:
    """Which command makes which table of the paper, and how long that takes.

    smallest  what `python -m benchmarks.smallest_experiments` wrote
    """
    tried = smallest.get("experiments", {})
    lines = [
        "## Run it again\n",
        "Install with `pip install '.[lab]'`. To run all experiments on one GPU, in parts of ten minutes (the same "
        "command continues where it stopped):",
        "",
        "```",
        "tenuto lab experiment all --device cuda --resume --minutes 9",
        "tenuto lab results",
        "python -m benchmarks.ladder",
        "```",
        "",
        "One process leaves most of a large GPU idle. To use several processes, measure first, then measure the times "
        "alone, then join the results:",
        "",
        "```",
        "python -m benchmarks.experiments measure --minutes 9",
        "python -m benchmarks.experiments times --minutes 4",
        "python -m benchmarks.experiments assemble",
        "```",
        "",
        "In bfloat16: `tenuto lab experiment all --device cuda --dtype bfloat16 --resume --minutes 9 "
        "-o results/experiments-bfloat16`. If a run reaches its time limit, its exit code is 75.",
        "",
        "### To get a table of the paper, run this\n",
        "Tables and figures are numbered as in the paper's source. Tables 1, 13, 14 and 16 describe its protocol, and "
        "it excludes Table 15 from its claims itself. *On a GPU*: an estimate for one H200 with the paper's protocol "
        "(100 steps, SDXL 50; 10 seeds). *To try it*: core seconds of one CPU core, measured with "
        f"`--model tiny-dit {' '.join(SIZE)}` (language: `--model small-llada`) instead of `--device cuda`. So few "
        "samples only show that the command works: most verdicts will be *cannot tell*. Empty: not timed.",
        "",
        "| in the paper | command | on a GPU | to try it |",
        "|---|---|---:|---:|",
    ]
    for one in EXPERIMENTS.values():
        gpu = "none needed" if one.on_cpu else f"about {one.minutes:g} min"
        device = "" if one.on_cpu else " --device cuda"
        core = f"{tried[one.name]['core_seconds']:.0f} s" if one.name in tried else ""
        lines.append(
            f"| {one.where}: {in_line(one.title)} | `tenuto lab experiment {one.name}{device}` | {gpu} | {core} |"
        )
    if tried:
        made = next(iter(tried.values()))
        commits = " and ".join(dict.fromkeys(one["commit"] for one in tried.values()))
        lines.append(f"\n`{made['command']}` at {commits}, {made['hardware']}, torch {made['torch']}.")
    lines += [
        "",
        "On your own checkpoint, in its published layout:",
        "",
        "```",
        "tenuto lab experiment rankings --checkpoint DiT-XL-2 --vae vae --dtype bfloat16 --device cuda \\",
        "    --inception weights-inception-2015-12-05-6726825d.pth --reference VIRTUAL_imagenet256_labeled.npz",
        "tenuto lab experiment rankings --checkpoint path/to/sdxl --captions coco.txt --dtype bfloat16 "
        "--device cuda \\",
        "    --inception inception-2015-12-05.pt --reference coco-val",
        "tenuto lab experiment rankings --checkpoint LLaDA-8B-Instruct --problems gsm8k.jsonl --answer-length 256 \\",
        "    --dtype bfloat16 --device cuda",
        "```",
        "",
        "These three commands were tested on small checkpoints with the same layouts "
        "(`tests/lab/paper/test_real_layouts.py`), not on the published weights. `--problems` takes the files of "
        "[`tenuto lab eval build`](evaluation.md#language); the metric that a file names judges the answers. Without "
        "a metric, an answer must be the expected one, token by token. Prompts are used as they stand in the file.",
    ]
    return lines


def _section(record: Mapping[str, Any], folder: str) -> list[str]:
    name, made = record["name"], record["provenance"]
    lines = [
        f"\n## {record['title']}\n",
        f"*The paper ({where_of(record)}):* {record['claim']}\n",
        f"*Here:* {verdict(record)}\n",
    ]
    if record.get("figure"):
        lines.append(f"![{record['title']}]({folder}/{name}.png)\n")
    chosen, alike = without_repeats(most_telling(record["rows"]))
    if chosen:
        lines += [*table_rows(chosen), ""]
    if alike:
        lines.append(f"Left out of this table: {alike} more comparisons in which no sample differs (*cannot tell*).\n")
    by = "`python -m benchmarks.experiments measure`" if made.get("measured_by") else f"`{made['command']}`"
    limits = record.get("limits", "").replace(SMALL, "").strip()  # the page says this once, for all experiments
    lines.append(
        f"[Every row]({folder}/{name}.md). {by} at {made['commit']}, {made['hardware']}; "
        f"{rests_on(record)}.{rejudged(record)} {limits}".rstrip()
    )
    return lines


def _on_text(record: Mapping[str, Any]) -> list[str]:
    """The same experiment on the language model whose tasks can tell."""
    made = record["provenance"]
    said = f"{counted_words(counts(record['rows']))}."
    chosen, alike = without_repeats(most_telling(record["rows"]))
    if alike:
        said += f" Left out of this table: {alike} more comparisons in which no sample differs (*cannot tell*)."
    lines = [f"\n*On {names_of(made)}, {tasks_of(made)}:* {said}\n", *table_rows(chosen), ""]
    return [*lines, f"`{made['command']}` at {made['commit']}, {made['hardware']}; {rests_on(record, of_text=True)}."]


def tasks_of(made: Mapping[str, Any]) -> str:
    """The tasks that a run asked."""
    return re.sub(r"[^a-z0-9-]+", " ", made["protocol"].get("tasks", "all tasks")).strip()


def names_of(made: Mapping[str, Any]) -> str:
    return ", ".join(Path(name).name for name in made["models"])


def without_repeats(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], int]:
    """The rows with only the first saturated one of each model, and how many were left out."""
    saturated = [row["model"] if SATURATED in row.get("note", "") else None for row in rows]
    kept = [row for i, row in enumerate(rows) if saturated[i] is None or saturated[i] not in saturated[:i]]
    return kept, len(rows) - len(kept)


def found_again(record: Mapping[str, Any], repeated: Records) -> list[str]:
    """How many figures of a result a later run found again, within 1 %."""
    lines = []
    for later in repeated:
        if later["name"] != record["name"]:
            continue
        first = {(row["model"], row["quantity"]): row["measured"] for row in record["rows"]}
        pairs = [(first.get((row["model"], row["quantity"])), row["measured"]) for row in later["rows"]]
        both = [(a, b) for a, b in pairs if a is not None and b is not None]
        same = sum(abs(a - b) <= SAME * abs(a) for a, b in both)
        made, models = later["provenance"], ", ".join(dict.fromkeys(row["model"] for row in later["rows"]))
        lines.append(
            f"\n*Repeated* on {models}: {same} of {len(both)} figures are the same within {SAME:.0%}. "
            f"`{made['command']}` at {made['commit']}, {made['hardware']}."
        )
    return lines


def most_telling(rows: Sequence[Mapping[str, Any]], most: int = MOST) -> list[Mapping[str, Any]]:
    """All rows that test a claim. If there is room, also rows with a figure of the paper, as many for each model."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    claims = [i for i, row in enumerate(rows) if row["holds"] is not None]
    room = max(0, most - len(claims)) // max(1, len(models))
    chosen = set(claims)
    for model in models:
        known = [i for i, row in enumerate(rows) if row["model"] == model and i not in chosen]
        chosen.update([i for i in known if None not in (rows[i]["paper"], rows[i]["measured"])][:room])
    return [row for i, row in enumerate(rows) if i in chosen]


def in_line(title: str) -> str:
    """A title inside a sentence: names keep their capitals."""
    return title if title.startswith("Lemma") else title[:1].lower() + title[1:]


def plain(text: str) -> str:
    """A text without Markdown's marks and links."""
    return " ".join(re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text).replace("*", "").replace("`", "").split())


def titled(note: str) -> tuple[str, str]:
    """The title and the text of a note, which begins with its mark and with bold words."""
    mark, bold, rest = note.split("**", 2)
    text = rest if bold.endswith(".") else f"{bold} {rest}"
    return f"{mark}{bold.rstrip('.')}", plain(text)
