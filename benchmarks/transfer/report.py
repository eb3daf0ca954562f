"""What the benchmark measured, in Markdown: a table for each network."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.transfer.measuring import FULL, LONG, MANY, OURS
from tenuto.provenance import origin
from tenuto_lab.frontier.measurements import HIGHEST
from tenuto_lab.result_files import ORIGIN, both, fields, makes, number, shaped, text, whole

SURE = 0.05  # p below which a difference is taken for one
NOTATION = (
    "The network's output is held, so no network was changed. All ways start from the same noise and evaluate the "
    "network equally often. *dB* is 10 log₁₀ of peak² over the mean squared distance to one of two runs, averaged over "
    "samples; the peak is the range of the converged samples; ± is half a 95 % interval. *Full* is the run of DDIM "
    "that evaluates at every step; *converged* is DDIM in very many steps, at most as "
    "many as the network has levels. *tenuto* holds within the full "
    f"run's steps; *many steps* within {MANY} steps, or all levels if {MANY} does not divide them; the number of "
    "evaluations follows in brackets where it differs. *Best solver* is the best at that point, with hindsight, of "
    "DDIM, UniPC, DPM-Solver++ and DEIS in several settings, whose times are not rounded. Differences are "
    "of the better of our two ways less the rival, sample by sample; p by flipped signs, "
    "not corrected for the number of comparisons.\n"
)
WRITING = (
    "Each network continues prompts by unmasking tokens, with a temperature of 1 and from the same random numbers "
    "by every way. *Full* writes one token a step and computes everything. *tenuto* keeps the keys and values of "
    "attention, and computes only the block that is being written, except at full steps. *Work* is the share of "
    "positions computed. The log-likelihood is the network's own, in nats a token, of each written token given "
    "the others. No constant was chosen by results on these networks.\n"
)
HINDSIGHT = {
    True: "Results on this network had a part in choosing constants of the default.",
    False: "No constant of the default was chosen by results on this network.",
}


def tables(record: Mapping[str, Any]) -> str:
    parts = ["# The default schedule on networks that others trained\n", NOTATION, *_counted(record)]
    for name, found in record["networks"].items():
        parts += [f"## {name[0].upper()}{name[1:]}\n", _about(found), *_ways(found), ""]
    if record.get("writers"):
        parts += ["# Language models that others trained\n", WRITING]
    for name, found in record.get("writers", {}).items():
        parts += [f"## {name[0].upper()}{name[1:]}\n", _about_writer(found), *_written(found), ""]
    return "\n".join(parts)


def _about_writer(found: Mapping[str, Any]) -> str:
    known = found["network"]
    return (
        f"{known['about'][0].upper()}{known['about'][1:]}: {known['parameters']:,} parameters, of {known['source']}. "
        f"{known['length']} tokens in {known['blocks']} blocks, {found['seeds']} texts after each of "
        f"{found['samples']} prompts; {origin(found['provenance'])}.\n"
    )


def _written(found: Mapping[str, Any]) -> list[str]:
    rows = []
    for row in found["rows"]:
        one = row["against_full"]
        same, judged = ((row[key], (row[f"{key}_high"] - row[f"{key}_low"]) / 2) for key in ("same", "likelihood"))
        p = f"p = {one['p']:.2g}" if one["p"] >= 0.001 else "p < 0.001"
        difference = (
            "" if one["a"] == one["b"] else f"{one['difference']:+.3f} [{one['low']:+.3f}, {one['high']:+.3f}] {p}"
        )
        cells = [row["way"], f"{row['work']:.1%}", f"{same[0]:.1%} ± {same[1]:.1%}"]
        rows.append([*cells, f"{judged[0]:.3f} ± {judged[1]:.3f}", difference])
    return _table(["way", "work", "tokens as in the full run", "log-likelihood", "less the full run's"], rows)


def _about(found: Mapping[str, Any]) -> str:
    known = found["network"]
    noise = "" if known["other_noise"] is None else f" Other noise, same conditions: {known['other_noise']:.1f} dB."
    again = f" Tenuto's columns: {origin(made)}." if (made := found.get("provenance_of_tenuto")) else ""
    doubt = "" if known["converged"] else ", too little to call the latter converged"
    half, most = known["most"] // 2, known["most"]
    agreed = (
        f"{half} and {most} steps agree to {known['agree']:.1f} dB{doubt}."
        if known["agree"] is not None
        else (f"The converged run has {most} steps; it was not compared with one of {half}.")
    )
    rivals = dict.fromkeys(row["way"] for row in found["rows"] if row["way"] not in (FULL, OURS, LONG))
    return (
        f"{known['about'][0].upper()}{known['about'][1:]}: {known['parameters']:,} parameters, of {known['source']}. "
        f"{HINDSIGHT[found['chosen_by']]} Range {known['peak']:.3g}.{noise} {agreed} "
        f"The solvers: {'; '.join(rivals)}. "
        f"{found['seeds']} seeds of {found['samples']} samples; "
        f"{origin(found['provenance'])}.{again}\n"
    )


def _counted(record: Mapping[str, Any]) -> list[str]:
    """How often ours is ahead, behind, or neither."""
    rows = []
    for name, found in record["networks"].items():
        cells = [name]
        for target in ("full", "converged"):
            for rival in ("fewer steps", "best solver"):
                wanted = {"measure": target, "rival": rival}
                all_of = [one for one in found["comparisons"] if wanted.items() <= one.items()]
                sure = [one["difference"] for one in all_of if one["p"] < SURE]
                ahead, behind = sum(value > 0 for value in sure), sum(value < 0 for value in sure)
                cells.append(f"{ahead} / {len(all_of) - ahead - behind} / {behind}")
        rows.append(cells)
    titles = [
        f"{target}: {rival}" for target in ("to full", "to converged") for rival in ("fewer steps", "best solver")
    ]
    lead = f"At how many points ours is ahead of each rival / not told apart (p ≥ {SURE}) / behind:\n"
    return [lead, *_table(["network", *titles], rows), ""]


def _ways(found: Mapping[str, Any]) -> Iterator[str]:
    """dB to the full and to the converged run: ours, fewer steps, and the best solver with the difference to it."""
    full = {row["steps"]: row for row in found["rows"] if row["way"] == FULL}
    points: dict[tuple[int, int], dict[str, Mapping[str, Any]]] = {}
    for row in found["rows"]:
        if row["way"] != FULL:
            points.setdefault((row["steps"], row["of_ours"]), {})[row["way"]] = row
    lines = []
    for (steps, evaluations), ways in points.items():
        cells = [str(steps), str(evaluations)]
        for target in ("full", "converged"):
            if target == "converged":
                cells.append(_interval(full[steps], target))
            cells += [_interval(ways[way], target) for way in (OURS, LONG)]
            if (other := ways[LONG]["evaluations"]) != evaluations:
                cells[-1] += f" ({other})"
            for rival in ("fewer steps", "best solver"):
                wanted = {"steps": steps, "of_ours": evaluations, "measure": target, "rival": rival}
                one = next(one for one in found["comparisons"] if wanted.items() <= one.items())
                named = f", {one['b']}" if rival == "best solver" else ""
                p = f"p = {one['p']:.2g}" if one["p"] >= 0.001 else "p < 0.001"
                cells.append(
                    f"{_interval(ways[one['b']], target)}{named}; {one['difference']:+.1f} "
                    f"[{one['low']:+.1f}, {one['high']:+.1f}] {p}"
                )
        lines.append(cells)
    ours = [OURS, "many steps", "fewer steps; ours less it", "best solver; ours less it"]
    to_full, to_converged = ([f"{target}: {title}" for title in ours] for target in ("to full", "to converged"))
    yield from _table(["steps", "evaluations", *to_full, "to converged: full", *to_converged], lines)


def _interval(row: Mapping[str, Any], target: str) -> str:
    value, low, high = (row[f"{target}_{name}"] for name in ("dB", "low", "high"))
    return "equal" if value >= HIGHEST else f"{value:.1f} ± {(high - low) / 2:.1f}"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    line = "|---|" + "---:|" * (len(titles) - 1)
    return ["| " + " | ".join(titles) + " |", line, *("| " + " | ".join(row) + " |" for row in rows)]


FIGURES = ("full_dB", "full_low", "full_high", "converged_dB", "converged_low", "converged_high")
COMPARISON = {"a": str, "b": str, **dict.fromkeys(("difference", "low", "high", "p"), float)}
ABOUT = {"about": str, "source": str, "parameters": int}
MADE = {"provenance": ORIGIN, "samples": int, "seeds": int}
NETWORK = {
    **MADE,
    "chosen_by": bool,
    "network": {
        **ABOUT,
        **{"peak": float, "most": int, "agree": float | None, "converged": bool | None, "other_noise": float | None},
    },
    "rows": [
        fields(
            {"way": text, "steps": whole(), "evaluations": whole(), **{name: number() for name in FIGURES}},
            {"of_ours": whole()},
            others=True,
        )
    ],
    "comparisons": [{**COMPARISON, "steps": int, "of_ours": int, "measure": str, "rival": str}],
}
KINDS = ("same", "same_low", "same_high", "likelihood", "likelihood_low", "likelihood_high")
WRITER = {
    **MADE,
    "network": {**ABOUT, "length": int, "blocks": int},
    "rows": [{"way": str, "work": float, **dict.fromkeys(KINDS, float), "against_full": COMPARISON}],
}
RECORD = both(
    fields({"networks": shaped({str: NETWORK})}, {"writers": shaped({str: WRITER})}),
    makes(tables),
)
