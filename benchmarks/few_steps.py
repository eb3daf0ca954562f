"""What can be gained with 4 to 12 steps, and what it costs.

    python -m benchmarks.few_steps                     # writes results/few_steps/
    python -m benchmarks.few_steps --draw-only         # the table again, from what was measured

The shipped networks draw with T steps of the schedulers that few-step models come with (Lightning and Turbo: Euler,
trailing; LCM; TCD) and with a good solver. Tenuto holds some of the steps. Its rival is the same scheduler with as
many plain steps as Tenuto evaluates. dB is the distance to the run of all T steps, from the same noise and random
numbers. The shipped networks are not distilled: a distilled network changes its estimate more from step to step,
so these figures are the most that can be hoped for.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from diffusers import (
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    LCMScheduler,
    TCDScheduler,
)
from torch import Tensor, nn

import tenuto
from benchmarks.places import results_of
from scripts.command_line import run
from tenuto.files import write_json, write_text
from tenuto.models import Model
from tenuto.models.architecture import NoiseLevels
from tenuto.provenance import origin, provenance
from tenuto.quality import psnr
from tenuto.sampling.pictures import decode, vae_of
from tenuto_lab.frontier.cases import asked_for
from tenuto_lab.frontier.named_rivals import noise_of
from tenuto_lab.result_files import ORIGIN, both, makes, read_result, shaped
from tenuto_lab.rivals.noise_prediction import Denoiser

RESULTS = results_of("few_steps")
NETWORKS = ("tiny-dit", "tiny-uvit", "tiny-sdxl")
HELD = {4: (3,), 6: (5,), 8: (6, 7), 10: (6, 7, 8), 12: (6, 8, 10)}  # steps: evaluations
ONCE = {8: (6,)}  # for schedulers that add noise: everything is computed, whatever is asked for
HIGHEST = 200.0  # dB: equal pictures
TRAILING = {"timestep_spacing": "trailing"}
SCHEDULERS: Mapping[str, tuple[type, dict[str, Any]]] = {
    "Euler, trailing": (EulerDiscreteScheduler, TRAILING),
    "DPM-Solver++ 2M": (DPMSolverMultistepScheduler, {}),
    "LCM": (LCMScheduler, {}),
    "TCD": (TCDScheduler, {}),
}


NOISY = (LCMScheduler, TCDScheduler)


class Network(nn.Module):
    """A shipped network that predicts the noise of one batch, as a loop calls it."""

    def __init__(self, model: Model, wanted: Sequence[Any]) -> None:
        super().__init__()
        self._denoiser = Denoiser(model, wanted)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return self._denoiser(x, float(time))


def scheduler_for(name: str, noise: NoiseLevels, steps: int) -> Any:
    kind, options = SCHEDULERS[name]
    levels = {"num_train_timesteps": noise.timesteps, "beta_start": noise.start, "beta_end": noise.end}
    made = kind(**levels, beta_schedule=noise.schedule, **options)
    made.set_timesteps(steps)
    return made


@torch.no_grad()
def draw(network: Network, scheduler: Any, noise: Tensor) -> Tensor:
    random = torch.Generator().manual_seed(0)
    takes_noise = isinstance(scheduler, NOISY)
    sample = noise * scheduler.init_noise_sigma
    for time in scheduler.timesteps:
        output = network(scheduler.scale_model_input(sample, time), time)
        given = {"generator": random} if takes_noise else {}
        sample = scheduler.step(output, time, sample, **given).prev_sample
    return sample


def measure(model: Model, name: str, samples: int) -> Iterator[dict[str, Any]]:
    """A row for each number of steps and of evaluations."""
    assert model.noise is not None
    network, noise = Network(model, asked_for(model, samples)[1]), noise_of(model, 0, samples)
    vae = vae_of(model)
    levels, plain = model.noise, {}
    asked = ONCE if SCHEDULERS[name][0] in NOISY else HELD

    def shown(x: Tensor) -> Tensor:
        return (x if vae is None else decode(x, vae)).clamp(-1, 1)

    for steps in sorted({*asked, *(count for counts in asked.values() for count in counts)}):
        plain[steps] = shown(draw(network, scheduler_for(name, levels, steps), noise))
    for steps, counts in asked.items():
        for count in counts:
            scheduler = scheduler_for(name, levels, steps)
            with tenuto.running(network, scheduler, evaluations=count) as running:
                held = shown(draw(network, scheduler, noise))
                summary = running.summary()
            yield {
                "network": model.name,
                "scheduler": name,
                "steps": steps,
                "asked": count,
                "computed": summary.computed,
                "held_db": mean_db(held, plain[steps]),
                "worst_db": float(psnr(held, plain[steps]).clamp(max=HIGHEST).min()),
                "fewer_db": mean_db(plain[count], plain[steps]),
            }


def mean_db(pictures: Tensor, reference: Tensor) -> float:
    return float(psnr(pictures, reference).clamp(max=HIGHEST).mean())


def table(known: Mapping[str, Any]) -> str:
    rows = known["rows"]
    lines = [
        "# Few steps\n",
        "dB to the run of all T steps: Tenuto with N evaluations / N plain steps of the same scheduler, means over "
        f"{known['provenance']['samples']} pictures. *Full*: the scheduler adds random numbers, so Tenuto computes "
        "everything and says so. The most that can be gained is T / N. The networks are not distilled; see the head of "
        "`benchmarks/few_steps.py`.\n",
        "| T, N | at most |" + "".join(f" {one} |" for one in SCHEDULERS),
        "| --- | ---: |" + " --- |" * len(SCHEDULERS),
    ]
    for steps, counts in HELD.items():
        for count in counts:
            cells = [cell([row for row in rows if row["scheduler"] == name], steps, count) for name in SCHEDULERS]
            lines.append(f"| {steps}, {count} | {steps / count:.2f}× | {' | '.join(cells)} |")
    lines += ["", "Networks in each cell: " + ", ".join(dict.fromkeys(row["network"] for row in rows)) + "."]
    return "\n".join([*lines, "", origin(known["provenance"])]) + "\n"


def cell(rows: Sequence[Mapping[str, Any]], steps: int, count: int) -> str:
    """The rows of one scheduler at so many steps and evaluations."""
    if rows and all(row["computed"] == row["steps"] for row in rows):
        return "full"
    here = [row for row in rows if (row["steps"], row["asked"]) == (steps, count)]
    return "; ".join(f"{row['held_db']:.1f} / {row['fewer_db']:.1f}" for row in here)


RECORD = both(
    shaped(
        {
            "provenance": {**ORIGIN, "samples": int},
            "rows": [
                {
                    **{"network": str, "scheduler": str},
                    **dict.fromkeys(("steps", "asked", "computed"), int),
                    **dict.fromkeys(("held_db", "worst_db", "fewer_db"), float),
                }
            ],
        }
    ),
    makes(table),
)


def main(
    out: Annotated[Path, typer.Option(help="The file to write.")] = RESULTS,
    samples: Annotated[int, typer.Option(min=1)] = 4,
    only: Annotated[list[str] | None, typer.Option(help="Networks.")] = None,
    draw_only: Annotated[bool, typer.Option("--draw-only", help="Measure nothing; write the table again.")] = False,
) -> None:
    """Few steps: held, and as many plain steps."""
    if draw_only:
        write_text(out.with_suffix(".md"), table(read_result(out, "table of few steps", RECORD)))
        return
    known: dict[str, Any] = {"provenance": provenance("cpu", samples=samples, seed=0), "rows": []}
    for network in only or NETWORKS:
        model = tenuto.load(network)
        for name in SCHEDULERS:
            for row in measure(model, name, samples):
                known["rows"].append(
                    {key: round(one, 2) if isinstance(one, float) else one for key, one in row.items()}
                )
            write_json(out, known)
            write_text(out.with_suffix(".md"), table(known))
            print(f"{network} {name}", flush=True)


if __name__ == "__main__":
    run(main)
