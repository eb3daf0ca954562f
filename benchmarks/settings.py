"""The default under the settings that people use: schedulers, numbers of steps, guidance, with and without rescaling.

    python -m benchmarks.settings --device cuda                                     # all
    python -m benchmarks.settings --only tiny-dit --steps 20 --guidance 3 --samples 2   # a try on the CPU
    python -m benchmarks.settings --scheduler "flow matching" --only tiny-dit --only tiny-sdxl --guidance 3 \
        --guidance 5 --not-rescaled --steps 20 --steps 28 --steps 50 --samples 3        # ten minutes on one core

For each setting: the run that evaluates every step, a share of its evaluations by Tenuto, and as many plain steps of
the same scheduler, from the same noise. Distances are in dB to the full run, and to the converged run (DDIM in 500
steps with the same guidance).

Settings that the file holds are not measured again. What is added says itself where it comes from.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
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
from tenuto_lab.frontier.cases import asked_for
from tenuto_lab.frontier.named_rivals import noise_of
from tenuto_lab.result_files import ORIGIN, both, fields, listed, makes, read_result, shaped, whole
from tenuto_lab.rivals.noise_prediction import Denoiser

NETWORKS = ("tiny-dit", "tiny-uvit", "tiny-sdxl")
STEPS, GUIDANCES, SHARES, CONVERGED = (20, 28, 50, 100, 250), (1.5, 3.0, 5.0, 7.5), (0.5, 0.34, 0.25), 500
RESCALED = 0.7  # as diffusers' pages recommend, where guidance is rescaled
SCHEDULERS: Mapping[str, Callable[..., Any]] = {
    "DDIM": lambda **levels: DDIMScheduler(**levels, clip_sample=False, timestep_spacing="trailing"),
    "Euler": lambda **levels: EulerDiscreteScheduler(**levels, timestep_spacing="trailing"),
    "DPM-Solver++ Karras": lambda **levels: DPMSolverMultistepScheduler(**levels, use_karras_sigmas=True),
    "UniPC": lambda **levels: UniPCMultistepScheduler(**levels, timestep_spacing="trailing"),
    "flow matching": lambda **levels: FlowMatchEulerDiscreteScheduler(shift=3.0),
}


class Noise(nn.Module):
    """A model's prediction after guidance, as a module that a diffusers loop calls."""

    def __init__(self, model: Model, wanted: list[Any], guidance: float, rescaled: float, flow: bool) -> None:
        super().__init__()
        self._denoise, self._rescaled, self._flow = Denoiser(model, wanted, guidance), rescaled, flow
        kept = DDIMScheduler(**levels_of(self._denoise.noise)).alphas_cumprod.double()
        self._log_snr = (kept / (1 - kept)).log().flip(0) / 2
        self.evaluations = 0

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        self.evaluations += 1
        if not self._flow:
            return self._noise(x, float(t))
        s = min(float(t) / 1000, 1 - 1e-4)  # samples are (1 − s) · clean + s · noise
        a, norm = 1 - s, ((1 - s) ** 2 + s**2) ** 0.5
        place = int(torch.searchsorted(self._log_snr, torch.tensor([a / s], dtype=torch.float64).log())[0])
        noise = self._noise(x / norm, float(max(0, len(self._log_snr) - 1 - place)))
        least = float(self._log_snr[0].exp())  # the network was trained with no less signal than this
        return noise - (x - s * noise) / max(a, least * s)

    def _noise(self, x: Tensor, time: float) -> Tensor:
        guided = self._denoise(x, time)
        if not self._rescaled:
            return guided
        scale, self._denoise.guidance = self._denoise.guidance, 0.0
        # ε_null + w (ε − ε_null) is linear in w, so two scales give the conditional one
        empty = self._denoise(x, time)
        self._denoise.guidance = scale
        conditional = empty + (guided - empty) / scale
        matched = guided * conditional.flatten(1).std(1).view(-1, 1, 1, 1) / guided.flatten(1).std(1).view(-1, 1, 1, 1)
        return self._rescaled * matched + (1 - self._rescaled) * guided


def levels_of(noise: NoiseLevels) -> dict[str, Any]:
    return {
        "num_train_timesteps": noise.timesteps,
        "beta_schedule": noise.schedule,
        "beta_start": noise.start,
        "beta_end": noise.end,
    }


@torch.inference_mode()
def drawn(network: Noise, scheduler: Any, steps: int, noise: Tensor, **held: Any) -> Tensor:
    """From noise to samples; `held` are options of `tenuto.running`."""
    scheduler.set_timesteps(steps, device=noise.device)
    x = noise * getattr(scheduler, "init_noise_sigma", 1.0)
    scales = hasattr(scheduler, "scale_model_input")
    with tenuto.running(network, scheduler, mode="skip", **(held or {"budget": 1.0})):
        for t in scheduler.timesteps:
            output = network(scheduler.scale_model_input(x, t) if scales else x, t)
            x = scheduler.step(output, t, x, return_dict=False)[0]
    return x


def measure(model: Model, name: str, guidance: float, rescaled: float, counts: tuple[int, ...], samples: int,
            converged: Tensor) -> Iterator[dict[str, Any]]:  # fmt: skip
    """A row for each number of steps and share."""
    assert model.noise is not None
    wanted, noise = asked_for(model, samples)[1], noise_of(model, 0, samples).to(model.device)
    network = Noise(model, wanted, guidance, rescaled, name == "flow matching")

    def new() -> Any:
        return SCHEDULERS[name](**levels_of(model.noise))  # type: ignore[arg-type]

    for steps in counts:
        full = drawn(network, new(), steps, noise)
        for evaluations in dict.fromkeys(max(6, round(share * steps)) for share in SHARES):
            network.evaluations = 0
            ours = drawn(network, new(), steps, noise, evaluations=evaluations)
            assert network.evaluations == min(steps, evaluations), "not as many evaluations as asked"
            fewer = drawn(network, new(), evaluations, noise)
            near = {
                f"{way}_{goal}": round(float(psnr(got, reference).clamp(max=200).mean()), 2)
                for way, got in (("ours", ours), ("fewer", fewer), ("full", full))
                for goal, reference in (("full", full), ("converged", converged))
            }
            yield {"steps": steps, "evaluations": evaluations, **near}


def table(record: Mapping[str, Any]) -> str:
    rows = [(case, row) for case in record["cases"] for row in case["rows"]]
    ahead = {
        goal: sum(row[f"ours_{goal}"] >= row[f"fewer_{goal}"] for _, row in rows) for goal in ("full", "converged")
    }
    lines = [
        "# Schedulers, steps and guidance\n",
        str(__doc__).split("\n\n")[2].replace("\n", " ") + "\n",
        *(f"{about}\n" for about in _origins(record)),
        f"Of {len(rows)} settings, Tenuto is nearer to the full run than as many plain steps of the same scheduler in "
        f"{ahead['full']}, and nearer to the converged run in {ahead['converged']}.\n",
        "| network | scheduler | guidance | steps | evaluations | to full: Tenuto | fewer steps | "
        "to converged: Tenuto | fewer steps | the full run |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for case, row in rows:
        guidance = f"{case['guidance']:g}" + (", rescaled" if case["rescaled"] else "")
        numbers = [
            row[key] for key in ("ours_full", "fewer_full", "ours_converged", "fewer_converged", "full_converged")
        ]
        lines.append(
            f"| {case['network']} | {case['scheduler']} | {guidance} | {row['steps']} | {row['evaluations']} | "
            + " | ".join(f"{one:.1f}" for one in numbers)
            + " |"
        )
    return "\n".join(lines) + "\n"


def _origins(record: Mapping[str, Any]) -> Iterator[str]:
    """Where the rows come from. Older cases have no origin of their own, but the file's."""
    if "provenance" in record:
        yield f"{record['samples']} samples; {origin(record['provenance'])}."
    added: dict[str, list[str]] = {}
    for case in record["cases"]:
        if "provenance" in case:
            about = f"{case['samples']} samples; {origin(case['provenance'])}"
            added.setdefault(about, []).append(f"{case['network']} by {case['scheduler']}")
    for about, cases in added.items():
        yield f"{', '.join(dict.fromkeys(cases))}: {about}."


ROW: dict[str, type] = {"steps": int, "evaluations": int}
ROW |= {f"{way}_{goal}": float for way in ("ours", "fewer", "full") for goal in ("full", "converged")}
CASE = {"network": str, "scheduler": str, "guidance": float, "rescaled": float, "rows": [ROW]}
MADE = {"samples": whole(), "provenance": shaped(ORIGIN)}  # of the file, or of a case that was added later
RECORD = both(
    fields(
        {"cases": listed(both(shaped(CASE), fields({}, MADE, others=True)))},
        MADE,
        others=True,
    ),
    makes(table),
)


def main(
    out: Annotated[Path, typer.Option(help="The file to write.")] = results_of("settings"),
    only: Annotated[list[str] | None, typer.Option(help="Networks.")] = None,
    schedulers: Annotated[list[str] | None, typer.Option("--scheduler", help=f"{', '.join(SCHEDULERS)}.")] = None,
    guidance: Annotated[list[float] | None, typer.Option(help="Scales.")] = None,
    steps: Annotated[list[int] | None, typer.Option()] = None,
    rescaled_too: Annotated[
        bool, typer.Option("--rescaled/--not-rescaled", help="From guidance 5 on, measure rescaled guidance as well.")
    ] = True,
    samples: Annotated[int, typer.Option(min=1)] = 8,
    seconds: Annotated[float, typer.Option(help="Begin no setting after so many.")] = 1e9,
    device: Annotated[str, typer.Option()] = "cuda" if torch.cuda.is_available() else "cpu",
    draw_only: Annotated[bool, typer.Option("--draw-only", help="Measure nothing; write the table again.")] = False,
) -> None:
    """Measure every setting."""
    if draw_only:
        return write_text(out.with_suffix(".md"), table(read_result(out, "table of settings", RECORD)))
    began = time.monotonic()
    record: dict[str, Any] = read_result(out, "table of settings", RECORD) if out.is_file() else {"cases": []}
    made = {"provenance": provenance(device, seed=0), "samples": samples}
    done = [[case[key] for key in ("network", "scheduler", "guidance", "rescaled")] for case in record["cases"]]
    scales = [(one, 0.0) for one in guidance or GUIDANCES]
    scales += [(one, RESCALED) for one, _ in scales if one >= 5 and rescaled_too]
    for name in only or NETWORKS:
        model = tenuto.load(name, device=torch.device(device), dtype=torch.float32)
        for scale, rescaled in scales:
            converged: Tensor | None = None
            for scheduler in schedulers or SCHEDULERS:
                if [name, scheduler, scale, rescaled] in done or time.monotonic() - began > seconds:
                    continue
                if converged is None:
                    assert model.noise is not None
                    network = Noise(model, asked_for(model, samples)[1], scale, rescaled, flow=False)
                    start = noise_of(model, 0, samples).to(model.device)
                    converged = drawn(network, SCHEDULERS["DDIM"](**levels_of(model.noise)), CONVERGED, start)
                rows = list(measure(model, scheduler, scale, rescaled, tuple(steps or STEPS), samples, converged))
                case = {"network": name, "scheduler": scheduler, "guidance": scale, "rescaled": rescaled, "rows": rows}
                record["cases"].append({**case, **made})
                write_json(out, record)
                write_text(out.with_suffix(".md"), table(record))
                brief = [(row["steps"], row["evaluations"], row["ours_full"], row["fewer_full"]) for row in rows]
                print(
                    f"{time.monotonic() - began:.0f} s {name} {scheduler} {scale:g} {rescaled:g}: {brief}", flush=True
                )


if __name__ == "__main__":
    run(main)
