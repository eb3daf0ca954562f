"""All experiments on one page, in Markdown: first one screen for readers of the abstract, then the details."""

from collections.abc import Mapping, Sequence
from typing import Any

from tenuto_lab.paper import EXPERIMENTS
from tenuto_lab.paper.abstract import abstract_table
from tenuto_lab.paper.experiment_report import counts, rejudged, rests_on, table_rows, verdict

MOST = 24  # rows of a table on the page

INTRODUCTION = """\
# The paper's experiments, done again

Tenuto began as an implementation of a paper, "Spectral-Guided Diffusion". The paper decides from the weights alone how
long each part of a diffusion model is computed before it is held for good. This page repeats every experiment of the
paper on the small models that come with Tenuto, and says of every claim whether it holds here.

## In one screen
"""

READING = """
**How a verdict is made.** The paper's own metric decides: FID for pictures, right answers for text. Both
ways draw from the same noise, and the interval is of the paired difference. A claim holds (*yes*) or does not (*no*)
only if the interval says so after Holm's correction for all comparisons of the experiment; otherwise this measurement
*cannot tell*. If no answer changes under any schedule, the task is too easy, and it cannot tell either. How near the
outputs are to the full run's (dB, or equal tokens) stands beside it with a verdict of its own. A claim about every
model fails with one sure *no*.

**What this page cannot say.** The models are small (2 to 15 million parameters, 32 x 32 pictures, short texts). A
claim that fails here may hold on large models, and a claim that holds here is no proof. FIDs are taken in a small
classifier's features; compare them with each other, not with published ones. *By blocks* means that the branches of a
block share one score and one lifetime, as the paper counts its layer-steps; *by branches*, each has its own.
"""


REJUDGED = """\
**Where today's figures come from.** The verdicts on these experiments were made later, from figures
measured before, by branches only, at 50 steps (text: 64), with 3 seeds and one random order, in which the paired
difference of two FIDs was not stored. Its interval is therefore as wide as any correlation could make it. The commands
below measure them again with the paper's protocol. This concerns: {titles}.
"""


PARTS = """\
**Measured at one commit**, {made}, by many processes that shared the GPU with other work, so their rows about time say
*not measured*: {titles}. Matrix products are TF32. """


def results_page(records: Sequence[Mapping[str, Any]], folder: str, ladder: Mapping[str, Any] | None = None) -> str:
    """The page. folder: path from the page to the tables and figures."""
    lines = [INTRODUCTION, *abstract_table(records, ladder), READING]
    if old := [record["title"].lower() for record in records if record["provenance"].get("rejudged")]:
        lines.append(REJUDGED.format(titles="; ".join(old)))
    lines += in_parts(records)
    lines += [
        "## Every experiment\n",
        "| experiment | the paper | yes | no | cannot tell | nearer: yes, no, cannot tell | rests on |",
    ]
    lines.append("|---|---|---:|---:|---:|---|---|")
    for record in records:
        yes, no, unsure = counts(record["rows"])
        near = counts(record["rows"], nearness=True)
        lines.append(
            f"| [{record['title']}](#{anchor(record['title'])}) | {record['where']} | {yes} | {no} | {unsure} "
            f"| {', '.join(map(str, near)) if sum(near) else ''} | {rests_on(record)} |"
        )
    missing = [name for name in EXPERIMENTS if name not in {record["name"] for record in records}]
    if missing:
        lines.append(f"\nNot run yet: {', '.join(missing)}.")
    lines += ["", *running()]
    for record in records:
        lines += _section(record, folder)
    return "\n".join(lines) + "\n"


def in_parts(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """What to say of experiments that many processes measured beside each other."""
    new = [record for record in records if record["provenance"].get("measured_by")]
    if not new:
        return []
    made = sorted({f"{one['provenance']['commit']} on {one['provenance']['hardware']}" for one in new})
    left = [f"{one['title'].lower()}: {', '.join(out)}" for one in new if (out := one["provenance"].get("left_out"))]
    told = PARTS.format(titles="; ".join(one["title"].lower() for one in new), made=", ".join(made))
    return [told + (f"Not measured yet: {'; '.join(left)}.\n" if left else "")]


def running() -> list[str]:
    """Which command makes which table of the paper, and how long that takes."""
    lines = [
        "## Run it again\n",
        "`pip install '.[lab]'`. All of it on one GPU, in pieces of ten minutes; the same command goes on "
        "where it stopped:",
        "",
        "```",
        "tenuto lab experiment all --device cuda --resume --minutes 9",
        "tenuto lab results",
        "python -m benchmarks.ladder",
        "```",
        "",
        "One process leaves most of a large GPU idle. Many at a time, each with its own file of trials, then the times "
        "alone, then everything put together:",
        "",
        "```",
        "python -m benchmarks.experiments measure --minutes 9",
        "python -m benchmarks.experiments times --minutes 4",
        "python -m benchmarks.experiments assemble",
        "```",
        "",
        "The same in bfloat16, beside it: `tenuto lab experiment all --device cuda --dtype bfloat16 --resume "
        "--minutes 9 "
        "-o results/experiments-bfloat16`. A run that stopped in time ends with the status 75.",
        "",
        "One table of the paper. The times are estimates for one H200 with the paper's protocol (100 steps, "
        "50 of SDXL; "
        "10 seeds), not measurements. Without a GPU, add `--samples 8 --seeds 1 --steps 20`: that shows the "
        "machinery, and "
        "its verdicts will mostly be *cannot tell*.",
        "",
        "| in the paper | command | about |",
        "|---|---|---:|",
    ]
    for one in EXPERIMENTS.values():
        where = "no GPU needed" if one.on_cpu else f"{one.minutes:g} min"
        device = "" if one.on_cpu else " --device cuda"
        lines.append(f"| {one.where}: {one.title.lower()} | `tenuto lab experiment {one.name}{device}` | {where} |")
    lines += [
        "",
        "On a checkpoint of your own, in the layout that it was published in:",
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
        "These three were tried on miniatures of the same layouts (`tests/lab/paper/test_real_layouts.py`), not on the "
        "published weights.",
    ]
    return lines


def _section(record: Mapping[str, Any], folder: str) -> list[str]:
    name, made = record["name"], record["provenance"]
    lines = [
        f"\n## {record['title']}\n",
        f"*The paper ({record['where']}):* {record['claim']}\n",
        f"*Here:* {verdict(record)}\n",
    ]
    if record.get("figure"):
        lines.append(f"![{record['title']}]({folder}/{name}.png)\n")
    lines += table_rows(most_telling(record["rows"]))
    parts = made.get("measured_by")
    by = f"`python -m benchmarks.experiments measure` ({len(parts)} processes)" if parts else f"`{made['command']}`"
    lines.append(
        f"\n[Every row]({folder}/{name}.md). {by} at {made['commit']}, {made['hardware']}; "
        f"{rests_on(record)}.{rejudged(record)} {record.get('limits', '')}"
    )
    return lines


def most_telling(rows: Sequence[Mapping[str, Any]], most: int = MOST) -> list[Mapping[str, Any]]:
    """All rows that test a claim. If there is room, also rows with a figure of the paper, as many for each model.

    If none tests a claim or has a figure of the paper: the first rows of each model.
    """
    models = list(dict.fromkeys(row["model"] for row in rows))
    claims = [i for i, row in enumerate(rows) if row["holds"] is not None]
    room = max(0, most - len(claims)) // max(1, len(models))
    chosen = set(claims)
    for model in models:
        known = [i for i, row in enumerate(rows) if row["model"] == model and i not in chosen]
        chosen.update([i for i in known if None not in (rows[i]["paper"], rows[i]["measured"])][:room])
        if not claims and not any(row["paper"] is not None for row in rows):
            chosen.update(known[:room])
    return [row for i, row in enumerate(rows) if i in chosen]


def anchor(title: str) -> str:
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -")
    return kept.replace(" ", "-")
