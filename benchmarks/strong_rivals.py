"""Tenuto or a better solver? How near N evaluations come to the full run, and to the converged one.

    python -m benchmarks.strong_rivals --device cuda                    # all networks, all rivals
    python -m benchmarks.strong_rivals --only tiny-dit --rival "UniPC 2" --evaluations 10 --samples 2

Every rival draws the same pictures from the same noise. The setting is chosen with hindsight, once by dB to the run
of T steps and once by dB to the converged run, so no choice of a setting stands between a rival and its best. Tenuto's
rows have no setting but the number of steps. Results are written after each case.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

import tenuto
from benchmarks.places import ROOT, results_of
from tenuto.files import write_json, write_text
from tenuto.models import SHIPPED, Model
from tenuto.provenance import origin, provenance
from tenuto.quality import psnr
from tenuto.sampling.pictures import decode, vae_of
from tenuto_lab.frontier.cases import asked_for
from tenuto_lab.frontier.named_rivals import noise_of
from tenuto_lab.judging.statistics import mean_interval
from tenuto_lab.result_files import ORIGIN, Misfit, both, by_name, fields, makes, read_result, shaped, text, whole
from tenuto_lab.rivals import NAMES, RivalPoint, rival_points
from tenuto_lab.rivals.noise_prediction import Denoiser
from tenuto_lab.rivals.strong_solvers import sample
from tenuto_lab.rivals.whole_output import full_run

RESULTS = results_of("strong_rivals")
NETWORKS = ("tiny-dit", "tiny-uvit", "tiny-sdxl", "natural-dit")
EVALUATIONS = (6, 8, 10, 12, 16, 20, 25)
STEPS, CONVERGED = 50, 500
OURS = (50, 100, 250)  # steps
GOALS = {"full": f"the run of {STEPS} steps", "converged": f"the run of {CONVERGED} steps"}
HIGHEST = 200.0  # dB: equal pictures


def drawn_in_full(model: Model, wanted: Sequence[Any], noise: Tensor, steps: int, guidance: float | None) -> Tensor:
    denoiser = Denoiser(model, wanted, guidance)
    return sample(denoiser, denoiser.noise, noise, full_run(denoiser.noise), steps)


def measure(
    model: Model, samples: int, counts: Sequence[int], names: Sequence[str], guidance: float | None, seed: int = 0
) -> Iterator[tuple[int, dict[str, Any]]]:
    """For each number of evaluations and each rival, the best point for each goal, or the reason why there is none."""
    wanted, noise = asked_for(model, samples)[1], noise_of(model, seed, samples)
    vae = vae_of(model)

    def shown(x: Tensor) -> Tensor:
        return x if vae is None else decode(x, vae)

    steps = {"full": STEPS, "converged": CONVERGED}
    goals = {goal: shown(drawn_in_full(model, wanted, noise, count, guidance)) for goal, count in steps.items()}
    for evaluations in counts:
        points: Iterable[RivalPoint] = ()
        if names:
            points = rival_points(model, wanted, noise, STEPS, evaluations, names, guidance=guidance)
        yield evaluations, best_for(chain(ours(model, wanted, evaluations, guidance, seed), points), goals, shown)


def ours(
    model: Model, wanted: Sequence[Any], evaluations: int, guidance: float | None, seed: int
) -> Iterator[RivalPoint]:
    """Tenuto with each number of steps: the steps in between cost nothing."""
    by_class = model.architecture.asks_for == "class"
    for steps in OURS:
        schedule = tenuto.schedule(model, steps, evaluations=evaluations)
        began = time.perf_counter()
        x = tenuto.generate(
            model,
            wanted if by_class else None,
            captions=None if by_class else wanted,
            schedule=schedule,
            guidance=guidance,
            seed=seed,
            batch=len(wanted),
            mode="skip",
        )
        yield RivalPoint(f"Tenuto, {steps} steps", "", evaluations, x, time.perf_counter() - began)


def best_for(
    points: Iterable[RivalPoint], goals: Mapping[str, Tensor], shown: Callable[[Tensor], Tensor]
) -> dict[str, Any]:
    """The best point of each rival for each goal. Latents are compared as the pictures that they show."""
    found: dict[str, Any] = {}
    for point in points:
        best = found.setdefault(point.name, {})
        if isinstance(point.x, str):
            best.setdefault("reason", point.x)
            continue
        if not bool(torch.isfinite(point.x).all()):
            continue
        picture = shown(point.x)
        for goal, reference in goals.items():
            value, low, high = mean_interval(psnr(picture, reference).clamp(max=HIGHEST).cpu(), 500)
            if goal not in best or value > best[goal]["psnr"]:
                cost = round(point.evaluations, 2)
                best[goal] = {"psnr": value, "low": low, "high": high, "setting": point.setting, "evaluations": cost}
    return found


def table(record: Mapping[str, Any]) -> str:
    lines = [
        "# How near every rival comes\n",
        f"dB with 95 % intervals, each rival at its best setting with hindsight; {record['samples']} pictures. "
        f"{origin(record['provenance'])}.\n",
        *([f"Tenuto's rows: {origin(again)}.\n"] if (again := record.get("provenance_of_tenuto")) else []),
    ]
    for case, by_count in record["cases"].items():
        for goal, meaning in GOALS.items():
            counts = sorted(by_count, key=int)
            lines += [f"## {case}: to {meaning}\n", f"| evaluations | {' | '.join(counts)} |"]
            lines += ["|---|" + "---:|" * len(counts)]
            for name in dict.fromkeys(name for found in by_count.values() for name in found):
                lines.append(f"| {name} | {' | '.join(_cell(by_count[n].get(name, {}), goal) for n in counts)} |")
            lines.append("")
    return "\n".join(lines) + "\n"


LINES = {  # of the figure: (rows that belong to it, colour, marker)
    "Tenuto": (("Tenuto, 50 steps", "Tenuto, 250 steps"), "#b5123a", "o"),
    "the best of 90 solvers, with hindsight": (("UniPC", "DEIS", "DPM-Solver++", "DDIM"), "#1f5f8b", "s"),
    "the best of other predictors": (("FSampler", "FoCa", "TaylorSeer", "ZEUS", "HiCache", "AB-Cache"), "#7a7a7a", "^"),
    "plain DDIM": (("DDIM",), "#c9a227", "v"),
}


def figure(record: Mapping[str, Any], path: Path) -> None:
    """One picture that answers at a glance: how near N evaluations come, by each kind of way."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    cases = record["cases"]
    axes = plt.subplots(2, len(cases), figsize=(3.3 * len(cases), 6), sharex=True, sharey="row", squeeze=False)[1]
    for column, (case, by_count) in zip(axes.T, cases.items(), strict=True):
        column[0].set_title(case, fontsize=10)
        for axis, goal in zip(column, GOALS, strict=True):
            for label, (names, colour, marker) in LINES.items():
                if label == "Tenuto":  # the number of steps is chosen by the question that is asked
                    names = names[:1] if goal == "full" else names[1:]
                found = {int(n): _nearest(rows, names, goal) for n, rows in by_count.items()}
                points = sorted((n, near) for n, near in found.items() if near is not None)
                axis.plot(
                    *zip(*points, strict=True), color=colour, marker=marker, ms=4, label=label
                ) if points else None
            axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel(f"dB to {GOALS['full']}")
    axes[1, 0].set_ylabel(f"dB to {GOALS['converged']}")
    for axis in axes[1]:
        axis.set_xlabel("evaluations")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    axes[0, 0].figure.legend(handles, labels, loc="lower center", ncols=4, frameon=False)
    axes[0, 0].figure.tight_layout(rect=(0, 0.06, 1, 1))
    axes[0, 0].figure.savefig(path, dpi=110)
    plt.close(axes[0, 0].figure)


def _nearest(rows: Mapping[str, Any], names: Sequence[str], goal: str) -> float | None:
    near = [one[goal]["psnr"] for name, one in rows.items() if name.startswith(tuple(names)) and goal in one]
    return max(near, default=None)


def _cell(best: Mapping[str, Any], goal: str) -> str:
    if not best:
        return "not measured"
    if goal not in best:
        return str(best.get("reason", "diverges"))
    one = best[goal]
    return f"{one['psnr']:.1f} [{one['low']:.1f}, {one['high']:.1f}] {one['setting']}"


def _way(value: Any, where: str) -> None:
    """How near a way comes to each goal, or why it was not measured."""
    near = shaped({"psnr": float, "low": float, "high": float, "setting": str})
    fields({}, {**dict.fromkeys(GOALS, near), "reason": text}, others=True)(value, where)


def _counts(value: Any, where: str) -> None:
    by_name(by_name(_way))(value, where)
    for count in value:
        if not (count.isascii() and count.isdecimal() and len(count) <= 6):
            raise Misfit(where, f"should name numbers of evaluations, not {count[:60]!r}")


RECORD = both(
    fields(
        {"samples": whole(), "provenance": shaped(ORIGIN), "cases": by_name(_counts)},
        {"provenance_of_tenuto": shaped(ORIGIN)},
        others=True,
    ),
    makes(table),
)


def main(
    out: Annotated[Path, typer.Option(help="The file to write; what it holds is replaced.")] = RESULTS,
    only: Annotated[list[str] | None, typer.Option(help=f"Networks: {', '.join(NETWORKS)}.")] = None,
    rivals: Annotated[list[str] | None, typer.Option("--rival", help=f"Rivals: {', '.join(NAMES)}.")] = None,
    evaluations: Annotated[list[int] | None, typer.Option(min=2, max=STEPS, help="Numbers of evaluations.")] = None,
    guidances: Annotated[list[float] | None, typer.Option("--guidance", help="Default: each network's own.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Pictures, drawn at once.")] = 40,
    device: Annotated[str, typer.Option(help="Where to run.")] = "cuda" if torch.cuda.is_available() else "cpu",
    draw_only: Annotated[bool, typer.Option("--draw-only", help="Measure nothing; write the table again.")] = False,
    ours_only: Annotated[
        bool, typer.Option("--ours-only", help="Measure Tenuto alone; the rivals' rows that the file holds stay.")
    ] = False,
) -> None:
    """Measure every rival at its best."""
    record: dict[str, Any]
    if draw_only:
        record = read_result(out, "table of rivals", RECORD)
        write_text(out.with_suffix(".md"), table(record))
        figure(record, out.with_suffix(".png"))
        return
    record = {"provenance": provenance(device, seed=0), "samples": samples, "cases": {}}
    if ours_only and out.exists():
        record = {**read_result(out, "table of rivals", RECORD), "provenance_of_tenuto": provenance(device, seed=0)}
    for name in only or NETWORKS:
        place = name if name in SHIPPED else str(ROOT / "weights" / name)
        model = tenuto.load(place, device=torch.device(device), dtype=torch.float32)
        scales: list[float | None] = [*guidances] if guidances else [None]
        for guidance in scales:
            case = name if guidance is None else f"{name}, guidance {guidance:g}"
            cases = record["cases"].setdefault(case, {})
            names = () if ours_only else rivals or NAMES
            for count, found in measure(model, samples, evaluations or EVALUATIONS, names, guidance):
                cases[str(count)] = {**cases.get(str(count), {}), **found} if ours_only else found
                print(f"{case}, {count} evaluations: {_best(found)}", flush=True)
                write_json(out, record)
                write_text(out.with_suffix(".md"), table(record))
    figure(record, out.with_suffix(".png"))


def _best(found: Mapping[str, Any]) -> str:
    said = []
    for goal in GOALS:
        if near := {name: one[goal] for name, one in found.items() if goal in one}:
            name = max(near, key=lambda name: float(near[name]["psnr"]))
            said.append(f"{goal} {near[name]['psnr']:.1f} dB ({name}, {near[name]['setting']})")
    return "; ".join(said)


if __name__ == "__main__":
    typer.run(main)
