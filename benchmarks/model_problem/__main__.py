"""How near the engine comes on a problem whose answer is known, under seven schedulers; two minutes on one core.

    python -m benchmarks.model_problem                    # writes results/model_problem/
    python -m benchmarks.model_problem --guidance 5 --evaluations 8

Nothing here is trained: the denoiser is a formula (benchmarks.model_problem.mixture). So every scheduler can be
measured, flow matching too, and a change of the engine can be judged within minutes. What holds here need not hold for
a network: by this problem alone, evaluations would lie closer together at high noise, which made networks worse.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.model_problem.mixture import WORLDS, Mixture, nearness
from benchmarks.model_problem.running import SCHEDULERS, drawn
from benchmarks.places import results_of
from scripts.command_line import run
from tenuto.files import write_json, write_text
from tenuto.provenance import origin, provenance
from tenuto.scheduling.placement import MANY

STEPS = {"flow matching": 28}  # of the full run, as people take them; otherwise 50
CONVERGED = 500
FROM_NOISE = ("DDIM, linear", "flow matching")  # they begin in noise alone, so a first evaluation could ask ahead
EVALUATIONS, GUIDANCES = (6, 8, 10, 12, 16), (1.5, 5.0, 7.5)


def measure(name: str, guidance: float, counts: tuple[int, ...]) -> list[dict[str, Any]]:
    """A row for each number of evaluations: dB, the mean over all worlds."""
    steps = STEPS.get(name, 50)
    mixtures = [Mixture(world, guidance, seed=seed) for seed, world in enumerate(WORLDS)]
    full = [drawn(mixture, name, steps) for mixture in mixtures]
    converged = [drawn(mixture, name, CONVERGED) for mixture in mixtures]

    def mean(goals: list[torch.Tensor], *run: Any) -> float:
        near = [nearness(drawn(mixture, name, *run), goal) for mixture, goal in zip(mixtures, goals, strict=True)]
        return round(sum(near) / len(near), 2)

    rows = []
    for count in counts:
        ahead = name in FROM_NOISE and count < MANY
        rows.append(
            {
                "scheduler": name,
                "steps": steps,
                "guidance": guidance,
                "evaluations": count,
                "held": mean(full, steps, count),
                "asking_ahead": mean(full, steps, count, True) if ahead else None,
                "fewer_steps": mean(full, count),
                "held_converged": mean(converged, 250, count),
                "fewer_steps_converged": mean(converged, count),
            }
        )
    return rows


def table(record: Mapping[str, Any]) -> str:
    lines = [
        "# The engine on a problem whose answer is known",
        "",
        f"{origin(record['provenance'])}",
        "",
        "The pictures are made up: a mixture of Gaussians with the spectrum of natural pictures. Its exact denoiser is",
        "in the place of a network. dB, the mean over four such worlds with four pictures each. *To the full run*: as",
        "many steps as the column says, of which some are evaluated, or as many plain steps of the same scheduler. *To",
        f"the converged run*: {CONVERGED} steps; Tenuto evaluates some of 250. *Asking ahead*: the first evaluation",
        "asks about a later noise level, as Tenuto's own sampler does with fewer than twelve evaluations; pipelines do",
        "not.",
        "",
        "| scheduler | steps | guidance | evaluations | Tenuto, to the full run | asking ahead | fewer steps | Tenuto, to the converged run | fewer steps |",  # noqa: E501
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in record["rows"]:
        ahead = "" if row["asking_ahead"] is None else f"{row['asking_ahead']:.1f}"
        lines.append(
            f"| {row['scheduler']} | {row['steps']} | {row['guidance']:g} | {row['evaluations']} | {row['held']:.1f} | "
            f"{ahead} | {row['fewer_steps']:.1f} | {row['held_converged']:.1f} | {row['fewer_steps_converged']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main(
    out: Annotated[Path, typer.Option(help="The file to write; a table is written beside it.")] = results_of(
        "model_problem"
    ),
    guidances: Annotated[list[float] | None, typer.Option("--guidance")] = None,
    evaluations: Annotated[list[int] | None, typer.Option(min=2, max=28)] = None,
    schedulers: Annotated[list[str] | None, typer.Option("--scheduler", help=f"Of {'; '.join(SCHEDULERS)}.")] = None,
) -> None:
    """Measure the engine under every scheduler."""
    torch.set_num_threads(1)
    made = provenance("cpu", seed=0)
    rows = []
    for name in schedulers or SCHEDULERS:
        for guidance in guidances or GUIDANCES:
            rows += measure(name, guidance, tuple(evaluations or EVALUATIONS))
            print(f"{name}, guidance {guidance:g}: {[row['held'] for row in rows if row['guidance'] == guidance][-5:]}")
    record = {"provenance": made, "rows": rows}
    write_json(out, record)
    write_text(out.with_suffix(".md"), table(record))


if __name__ == "__main__":
    run(main)
