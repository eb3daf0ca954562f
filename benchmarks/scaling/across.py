"""The networks that were measured, whatever their sizes: how near the default and the best solver come to a full run.

    python -m benchmarks.scaling.across        # measures nothing; reads results/strong_rivals, scaling and transfer

These networks differ in data, training, architecture and noise levels, so the figure cannot tell what size alone does.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from benchmarks.places import results_of
from benchmarks.scaling.gathering import (
    GOALS,
    SHARES,
    STEPS,
    Case,
    Goal,
    network_of,
    of_scaling,
    of_strong_rivals,
    of_transfer,
)
from benchmarks.scaling.report import RECORD as SCALING
from benchmarks.strong_rivals.report import RECORD as STRONG
from benchmarks.transfer.report import RECORD as TRANSFER
from scripts.command_line import run
from tenuto.files import replacing, write_text
from tenuto_lab.judging.least_squares import rank_correlation, student_quantile
from tenuto_lab.result_files import read_result

SURE = 0.05
WHAT = {False: "Tenuto's dB", True: "Tenuto's dB less the solver's"}  # what may go with size
SAMPLES = {  # what a sample is
    "tiny-dit": "32×32",
    "tiny-uvit": "32×32",
    "tiny-sdxl": "32×32",
    "natural-dit": "64×64, latent",
    "faces": "64×64",
    "electric load": "24 hours",
    **dict.fromkeys(("wind", "wind, speed", "wind, speed and direction"), "a day's wind"),
    "power spectra": "spectra",
    "emulated spectra": "32×64",
}
ABOUT = """\
# Networks of several sizes

How near the default and the best solver come with the same number of evaluations, for every network that was measured.
*Full* is DDIM with 50 steps, *converged* is DDIM with very many steps. dB, with a 95 % interval over the samples. *Best
solver*: the best of DDIM, UniPC, DPM-Solver++ and DEIS at that point, with hindsight. *Tenuto* holds within the 50
steps; to the converged run, the better of this and of holding within more steps, with hindsight as well.

![The tables below, as a figure](across.png)

**What this can tell.** {finding}

**What it cannot tell.** The networks differ in much more than size: data (a day's electric load, pictures of 32 or
64 pixels, faces), architecture, noise levels, training and number of samples. dB also depend on the data: smooth data
are easy to predict. So nothing here separates size from the rest, and nothing is shown about networks of billions of
parameters. One architecture was trained at several sizes on the same data: [does it scale?](scaling.md)
"""


class Trend(NamedTuple):
    rho: float  # rank correlation with the number of parameters
    p: float
    networks: int


def trend(cases: Sequence[Case], share: float, goal: Goal, ahead: bool) -> Trend | None:
    """Whether Tenuto's dB (or its dB less the best solver's) go with size. None if fewer than four networks tell.

    Each network counts once, at the least guidance at which it was measured.
    """
    least: dict[str, Case] = {}
    for case in sorted(cases, key=lambda case: case.guidance or 0):
        least.setdefault(case.network, case)
    sizes, found = [], []
    for case in least.values():
        ours, rival = case.near.get(("tenuto", share, goal)), case.near.get(("solver", share, goal))
        if ours is not None and (rival is not None or not ahead):
            sizes.append(case.parameters)
            found.append(ours.dB - rival.dB if ahead and rival is not None else ours.dB)
    if len(sizes) < 4:
        return None
    return Trend(*rank_correlation(np.array(sizes, dtype=float), np.array(found)), len(sizes))


def finding(cases: Sequence[Case]) -> str:
    """In how many points Tenuto is ahead, and whether size and dB go together."""
    counted = [one for case in cases for one in _ahead(case)]
    largest = max(filter(_ahead, cases), key=lambda case: case.parameters)
    won = _ahead(largest)
    least, most = (size(pick(case.parameters for case in cases)) for pick in (min, max))
    return (
        f"From {least} to {most} parameters, Tenuto is ahead of the best solver in {sum(counted)} of {len(counted)} "
        f"points; on the largest network ({largest.network}), in {sum(won)} of {len(won)}.{correlations(cases)}"
    )


def correlations(cases: Sequence[Case]) -> str:
    """Which rank correlations are told from chance, and how strong one must be for that."""
    known = [
        (f"{WHAT[ahead]} to the {goal} run at {share:.0%}", one)
        for ahead in WHAT
        for goal in GOALS
        for share in SHARES
        if (one := trend(cases, share, goal, ahead)) is not None
    ]
    if not known:
        return ""
    sure = [f"{what} (ρ = {one.rho:+.2f})" for what, one in known if one.p < SURE]
    named = f": {'; '.join(sure)}" if sure else ""
    most = max(one.networks for _, one in known)
    return (
        f" Of {len(known)} rank correlations with size, {len(sure)} {'has' if len(sure) == 1 else 'have'} p < {SURE}"
        f"{named}. Chance alone gives {SURE * len(known):.1f} of {len(known)}. With {most} networks, ρ must be "
        f"{told_from(most):.2f} at least to be told from chance, so weaker trends may go unseen."
    )


def told_from(networks: int) -> float:
    """The least rank correlation of so many networks whose p is small enough."""
    t = student_quantile(1 - SURE / 2, networks - 2)
    return t / math.sqrt(networks - 2 + t * t)


def _ahead(case: Case) -> list[bool]:
    """For each point at which both were measured, whether Tenuto is nearer."""
    both = [
        (case.near.get(("tenuto", share, goal)), case.near.get(("solver", share, goal)))
        for share in SHARES
        for goal in GOALS
    ]
    return [ours.dB > solver.dB for ours, solver in both if ours is not None and solver is not None]


def size(parameters: int) -> str:
    return f"{parameters / 1e6:.1f} M"


def page(cases: Sequence[Case]) -> str:
    """The tables, in Markdown."""
    lines = [ABOUT.format(finding=finding(cases))]
    titles = [f"{share:.0%} ({' or '.join(map(str, SHARES[share]))} of {STEPS})" for share in SHARES]
    for goal in GOALS:
        lines += [f"## To the {goal} run\n", "Tenuto; best solver.\n", f"| network | size | {' | '.join(titles)} |"]
        lines.append(f"|---|---:|{'---|' * len(SHARES)}")
        for case in cases:
            cells = [_cell(case, share, goal) for share in SHARES]
            lines.append(f"| {case.network} ({_setting(case)}) | {size(case.parameters)} | {' | '.join(cells)} |")
        for ahead, what in WHAT.items():
            told = [trend(cases, share, goal, ahead) for share in SHARES]
            cells = ["" if one is None else f"ρ = {one.rho:+.2f}, p = {one.p:.2f} ({one.networks})" for one in told]
            lines.append(f"| *rank correlation of size and {what} (networks)* | | {' | '.join(cells)} |")
        lines.append("")
    sources = "; ".join(dict.fromkeys(f"{case.network}: {case.source}" for case in cases))
    return "\n".join([*lines, f"`python -m benchmarks.scaling.across` drew this from measurements: {sources}.", ""])


def _setting(case: Case) -> str:
    guided = "no guidance" if case.guidance is None else f"guidance {case.guidance:g}"
    return ", ".join(filter(None, (SAMPLES.get(case.network), guided)))


def _cell(case: Case, share: float, goal: Goal) -> str:
    ours, solver = case.near.get(("tenuto", share, goal)), case.near.get(("solver", share, goal))
    cells = ["–" if one is None else f"{one.dB:.1f} [{one.low:.1f}, {one.high:.1f}]" for one in (ours, solver)]
    return f"{cells[0]}; {cells[1]}{'' if solver is None else f' {solver.way}'}"


def draw(cases: Sequence[Case], path: Path) -> None:
    """The networks in the order of their sizes, one below the other, with one column for each share of the work."""
    from matplotlib.figure import Figure

    height = 0.21 * len(cases) + 0.5  # of a goal's line, in inches
    figure = Figure(figsize=(2.6 + 2.8 * len(SHARES), len(GOALS) * height + 0.6), layout="constrained", dpi=110)
    grid: Any = figure.subplots(len(GOALS), len(SHARES), sharex="row", sharey=True, squeeze=False)
    labels = [f"{case.network}, {size(case.parameters)}, {_setting(case)}" for case in cases]
    for line, goal in enumerate(GOALS):
        for column, share in enumerate(SHARES):
            axes = grid[line, column]
            for who, style, label in (("tenuto", "o", "Tenuto"), ("solver", "s", "best solver, with hindsight")):
                aside, colour = (-0.12, "#1f5fa8") if who == "tenuto" else (0.12, "#2f855a")
                found = [(i, one) for i, case in enumerate(cases) if (one := case.near.get((who, share, goal)))]  # type: ignore[arg-type]
                errors = [[one.dB - one.low for _, one in found], [one.high - one.dB for _, one in found]]
                at, dB = [i + aside for i, _ in found], [one.dB for _, one in found]
                axes.errorbar(dB, at, xerr=errors, fmt=style, color=colour, markersize=4, capsize=2, label=label)
            axes.grid(True, linewidth=0.3)
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=8)
            axes.set_yticks(range(len(cases)), labels, fontsize=7.5)
            axes.set_xlabel(f"dB to the {goal} run", fontsize=9)
            if not line:
                axes.set_title(f"{share:.0%} of the work", fontsize=10)
    grid[0, 0].invert_yaxis()  # the smallest network first; the lines share their axis
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


def parameters_of(name: str) -> int:
    import tenuto

    return sum(value.numel() for value in tenuto.load(name).network.parameters())


def main(
    out: Annotated[Path, typer.Option(help="The page to write; the figure goes beside it.")] = results_of(
        "scaling"
    ).with_name("across.md"),
    transfer: Annotated[Path, typer.Option(help="What benchmarks.transfer wrote.")] = results_of("transfer"),
    strong: Annotated[Path, typer.Option(help="What benchmarks.strong_rivals wrote.")] = results_of("strong_rivals"),
    scaling: Annotated[Path, typer.Option(help="What benchmarks.scaling wrote, if anything.")] = results_of("scaling"),
) -> None:
    """Draw how near the default and the best solver come, against the size of the network."""
    rivals = read_result(strong, "record of rivals", STRONG)
    sizes = {name: parameters_of(name) for name in {network_of(title)[0] for title in rivals["cases"]}}
    cases = [*of_transfer(read_result(transfer, "record of networks", TRANSFER)), *of_strong_rivals(rivals, sizes)]
    if scaling.is_file():
        cases += of_scaling(read_result(scaling, "record of sizes", SCALING))
    cases.sort(key=lambda case: (case.parameters, case.network, case.guidance or 0))
    write_text(out, page(cases))
    draw(cases, out.with_suffix(".png"))
    print(f"Wrote {out} and {out.with_suffix('.png').name}.")


if __name__ == "__main__":
    run(main)
