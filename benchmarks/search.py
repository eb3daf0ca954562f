"""The search behind the default: where to evaluate, what to predict, in which variable, through how many points.

    python -m benchmarks.search --device cuda              # three minutes on an H200
    python -m benchmarks.search --networks tiny-dit --trials 4 --samples 2   # a try on the CPU

DDIM, Euler and flow matching's Euler are one update on different grids of noise levels: between two evaluations the
clean estimate and the noise are combined anew. So a scheme is a grid, the steps that are evaluated, and how the steps
in between are predicted and corrected; and all steps in between are one weighted sum. This makes the search fast.

Every scheme is judged by the distance (dB) to the run of the same grid that evaluates every step, and to the converged
run. Schemes are drawn at random; `results/search/search.json` holds all of them.
"""

import itertools
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor

import tenuto
from benchmarks.places import results_of
from tenuto.files import write_json
from tenuto.models import Model
from tenuto.provenance import provenance
from tenuto.quality import psnr
from tenuto.runtime.residual import plain
from tenuto.sampling.pictures import Sampling, _caption_conditions, _class_conditions, guide, make_solver
from tenuto_lab.frontier.cases import asked_for

Floats = NDArray[np.float64]
Network = Callable[[Tensor, float], Tensor]  # (sample with unit variance, timestep) -> noise
CONVERGED = 1000


@dataclass(frozen=True)
class Grid:
    """Noise levels of T steps: sample = signal · clean + noise · ε, with signal² + noise² = 1; one more for the end."""

    signal: Floats
    noise: Floats
    times: Floats

    @property
    def steps(self) -> int:
        return len(self.times)

    @property
    def log_snr(self) -> Floats:
        return np.log(self.signal[:-1] / self.noise[:-1])


def grid_of(model: Model, kind: str, steps: int) -> Grid:
    """kind: ddim (even timesteps), karras, or flow (flow matching's levels, shifted by 3)"""
    assert model.noise is not None
    solver = make_solver(model.noise, Sampling(steps=50))
    kept = solver.alphas_cumprod.double().numpy()
    sigmas, trained = np.sqrt((1 - kept) / kept), np.arange(len(kept))
    final = float(solver.final_alpha_cumprod)
    if kind == "ddim":
        solver.set_timesteps(steps)
        times = solver.timesteps.double().numpy().clip(0, len(kept) - 1)
        levels = sigmas[times.astype(int)]
    else:
        if kind == "karras":
            low, high = sigmas[0] ** (1 / 7), sigmas[-1] ** (1 / 7)
            levels = np.linspace(high, low, steps) ** 7
        else:
            share = np.linspace(1, 1 / steps, steps)
            share = 3 * share / (1 + 2 * share)
            levels = np.clip(share / (1 - share + 1e-9), sigmas[0], sigmas[-1])
        times = np.interp(np.log(levels), np.log(sigmas), trained)
    signal = 1 / np.sqrt(1 + levels**2)
    return Grid(np.append(signal, math.sqrt(final)), np.append(levels * signal, math.sqrt(1 - final)), times)


@dataclass(frozen=True)
class Scheme:
    kept: str = "clean"  # clean or noise
    variable: float = 0.0  # the share of the log-SNR in the variable; the rest is the step's number
    points: int = 4
    bound: float = 7.0  # the largest sum of magnitudes of weights
    share: float | None = 1.0  # of a difference between samples that counts as noise; None: no correction
    placement: str = "mix"  # mix or karras
    mixed: float = 0.5  # share of the log-SNR in the placement
    ease: float = 1.0  # above 1: the first evaluations lie closer together
    closing: int = 0  # how many of the last steps are evaluated besides


def lagrange(nodes: Sequence[float], at: float) -> list[float]:
    return [math.prod((at - o) / (n - o) for o in nodes if o != n) for n in nodes]


def bounded(nodes: Sequence[float], at: float, bound: float) -> list[float]:
    for first in range(len(nodes)):
        weights = lagrange(nodes[first:], at)
        if sum(map(abs, weights)) <= bound or first == len(nodes) - 1:
            return [0.0] * first + weights
    raise AssertionError


def normed(values: Floats) -> Floats:
    return (values - values[0]) / (values[-1] - values[0])


def placed(grid: Grid, scheme: Scheme, count: int) -> list[int]:
    """The steps that are evaluated."""
    steps, index = grid.steps, normed(np.arange(grid.steps, dtype=float))
    if scheme.placement == "karras":
        progress = normed(-np.exp(-grid.log_snr / 7))
    else:
        progress = (1 - scheme.mixed) * index + scheme.mixed * normed(grid.log_snr)
    closing = list(range(steps - scheme.closing, steps))
    free = count - scheme.closing
    for inner in range(free, steps + 1):  # rounding may make two fall together
        wanted = np.linspace(0, 1, inner + (1 if closing else 0))[:inner] ** scheme.ease
        chosen = sorted({int(np.abs(progress - one).argmin()) for one in wanted} | {0} | set(closing))
        if len(chosen) >= count:
            break
    while len(chosen) > count:  # drop where it matters least
        gaps = [progress[chosen[i + 1]] - progress[chosen[i - 1]] for i in range(1, len(chosen) - 1)]
        del chosen[1 + int(np.argmin(gaps))]
    return chosen


def run(network: Network, grid: Grid, scheme: Scheme, computed: Sequence[int], x: Tensor) -> Tensor:
    """The final sample."""
    a, s = grid.signal, grid.noise
    at = scheme.variable * normed(grid.log_snr) + (1 - scheme.variable) * normed(np.arange(grid.steps, dtype=float))
    clean = scheme.kept == "clean"
    kept: list[Tensor] = []
    known: list[int] = []

    def factors(m: int) -> tuple[float, float]:
        if clean:
            return s[m + 1] / s[m], a[m + 1] - a[m] * s[m + 1] / s[m]
        return a[m + 1] / a[m], s[m + 1] - s[m] * a[m + 1] / a[m]

    def stepped(x: Tensor, values: Sequence[Tensor], nodes: Sequence[int], first: int, last: int) -> Tensor:
        own, others = 1.0, np.zeros(len(nodes))
        for m in range(first, last):
            by, of = factors(m)
            own, others = own * by, others * by + of * np.array(bounded([at[n] for n in nodes], at[m], scheme.bound))
        total = own * x
        for value, weight in zip(values, others, strict=True):
            if weight:
                total = total.add(value, alpha=float(weight))
        return total

    after = x
    for k, step in enumerate(computed):
        noise = network(x, float(grid.times[step]))
        value = (x - s[step] * noise) / a[step] if clean else noise
        if scheme.share is not None and known and known[-1] < step - 1:
            change = stepped(after, [*kept, value], [*known, step], known[-1] + 1, step) - x
            for _ in range(0 if clean and scheme.share == 1 else 2):
                moved = value + ((1 - scheme.share) * change / a[step] if clean else scheme.share * change / s[step])
                change = stepped(after, [*kept, moved], [*known, step], known[-1] + 1, step) - x
            if not (clean and scheme.share == 1):
                value = moved
            x = x + change
        kept, known = [*kept, value][-scheme.points :], [*known, step][-scheme.points :]
        by, of = factors(step)
        after = by * x + of * value
        until = computed[k + 1] if k + 1 < len(computed) else grid.steps
        x = stepped(after, kept, known, step + 1, until) if until > step + 1 else after
    return x


def network_of(model: Model, samples: int, guidance: float) -> tuple[Network, Tensor]:
    wanted = asked_for(model, samples)[1]
    by_class = model.architecture.asks_for == "class"
    conditions = (_class_conditions if by_class else _caption_conditions)(model, wanted, guidance != 1)
    first = getattr(model.config, "first_timestep", 0)

    @torch.inference_mode()
    def network(x: Tensor, t: float) -> Tensor:
        inputs = torch.cat([x, x]) if guidance != 1 else x
        times = torch.full((len(inputs),), t + first, device=x.device)
        noise = model.network(inputs, times, *conditions, residual=plain)[:, : x.shape[1]]
        return guide(noise, guidance) if guidance != 1 else noise

    generators = [torch.Generator().manual_seed(1000 + i) for i in range(samples)]
    x = torch.stack([torch.randn(model.config.sample_shape, generator=one) for one in generators])
    return network, x.to(model.device)


@torch.inference_mode()
def full(network: Network, grid: Grid, x: Tensor) -> Tensor:
    return run(network, grid, Scheme(share=None, points=1), range(grid.steps), x)


def drawn(rng: random.Random) -> Scheme:
    return Scheme(
        kept=rng.choice(["clean", "noise"]),
        variable=rng.choice([0.0, 0.25, 0.5, 0.75, 1.0]),
        points=rng.choice([2, 3, 4, 5]),
        bound=rng.choice([4.0, 7.0, 12.0]),
        share=rng.choice([None, 0.5, 0.75, 0.9, 1.0]),
        placement=rng.choice(["mix", "mix", "mix", "karras"]),
        mixed=rng.choice([0.0, 0.25, 0.5, 0.75, 1.0]),
        ease=rng.choice([1.0, 1.15, 1.3]),
        closing=rng.choice([0, 1, 2, 3]),
    )


BASE = Scheme("noise", 1.0, 3, 4.0, 0.75, "mix", 0.5, 1.0, 1)
KEPT, SHARES, VARIABLES, MIXTURES = ("noise", "clean"), (None, 0.75, 1.0), (0.0, 1.0), (0.25, 0.5)
SCHEMES = [
    *(
        replace(BASE, kept=kept, share=share, variable=variable, mixed=mixed)
        for kept, share, variable, mixed in itertools.product(KEPT, SHARES, VARIABLES, MIXTURES)
    ),
    *(
        replace(BASE, kept=kept, share=share, variable=variable, points=4)
        for kept, share, variable in itertools.product(KEPT, SHARES[1:], VARIABLES)
    ),
    *(
        replace(BASE, kept=kept, share=None, variable=variable, points=2, mixed=0.25)
        for kept, variable in itertools.product(KEPT, VARIABLES)
    ),
    *(replace(BASE, kept=kept, points=4, bound=7.0) for kept in KEPT),
    *(replace(BASE, kept=kept, closing=0) for kept in KEPT),
]


def main(
    out: Annotated[Path, typer.Option(help="The file to write.")] = results_of("search"),
    networks: Annotated[str, typer.Option(help="Names, with commas between.")] = "tiny-dit,tiny-sdxl",
    grids: Annotated[str, typer.Option(help="kind-steps, with commas between.")] = "ddim-50,ddim-250,karras-50,flow-50",
    counts: Annotated[str, typer.Option(help="Numbers of evaluations, with commas between.")] = "7,10,16",
    guidances: Annotated[str, typer.Option(help="Scales, with commas between.")] = "1.5,5",
    samples: Annotated[int, typer.Option(min=1)] = 16,
    trials: Annotated[int, typer.Option(min=0, help="Random schemes for each case.")] = 300,
    seconds: Annotated[float, typer.Option(help="Stop after so many.")] = 400,
    converging: Annotated[int, typer.Option(help="Plain steps of the converged run.")] = CONVERGED,
    seed: Annotated[int, typer.Option()] = 0,
    device: Annotated[str, typer.Option()] = "cuda" if torch.cuda.is_available() else "cpu",
) -> None:
    """Try random schemes on every case, and write what each was worth."""
    began, rng = time.monotonic(), random.Random(seed)
    record: dict[str, Any] = {"provenance": provenance(device, seed=seed), "samples": samples, "cases": []}
    cases: list[dict[str, Any]] = []
    for name, guidance in itertools.product(networks.split(","), map(float, guidances.split(","))):
        model = tenuto.load(name, device=torch.device(device), dtype=torch.float32)
        network, x = network_of(model, samples, guidance)
        converged = full(network, grid_of(model, "ddim", converging), x)
        for kind, steps in (one.split("-") for one in grids.split(",")):
            grid = grid_of(model, kind, int(steps))
            whole = full(network, grid, x)
            for count in map(int, counts.split(",")):
                few = full(network, grid_of(model, kind, count), x)
                case: dict[str, Any] = {"network": name, "guidance": guidance, "grid": kind}
                case |= {"steps": int(steps), "count": count}
                case["whole"] = float(psnr(whole, converged).mean())
                case["plain"] = [float(psnr(few, one).mean()) for one in (whole, converged)]
                cases.append({**case, "rows": [], "state": (network, grid, x, whole, converged)})
                print(f"{time.monotonic() - began:.0f} s {case}", flush=True)
    schemes = [*SCHEMES, *(drawn(rng) for _ in range(trials))]
    for number, scheme in enumerate(schemes):  # scheme by scheme, so that every case has tried the same ones
        if time.monotonic() - began > seconds:
            break
        for case in cases:
            network, grid, x, whole, converged = case["state"]
            if scheme.closing >= case["count"] - 3:
                continue
            got = run(network, grid, scheme, placed(grid, scheme, case["count"]), x)
            values = [psnr(got, one).mean() for one in (whole, converged)]
            case["rows"].append([number, *torch.stack(values).tolist()])
        record["schemes"] = [asdict(one) for one in schemes[: number + 1]]
        record["cases"] = [{key: value for key, value in case.items() if key != "state"} for case in cases]
        write_json(out, record)
    for case in record["cases"]:
        best = max(case["rows"], key=lambda row: row[1]), max(case["rows"], key=lambda row: row[2])
        head = f"{case['network']} g{case['guidance']} {case['grid']}-{case['steps']} N={case['count']}"
        print(head, "plain", case["plain"], "present", case["rows"][0][1:], "best", [b[1:] for b in best], flush=True)


if __name__ == "__main__":
    typer.run(main)
