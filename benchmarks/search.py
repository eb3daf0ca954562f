"""The search behind the default: where to evaluate, what to predict, in which variable, when to correct.

    python -m benchmarks.search --device cuda --only tiny-dit --guidance 5   # one process for each case
    python -m benchmarks.search --only tiny-dit --trials 4 --samples 2 --evaluations 8   # a try on the CPU
    python -m benchmarks.search --begins --only tiny-dit --guidance 7 --grids ddim-50,ddim-250 --thinned 64
    python -m benchmarks.search --signal --only tiny-uvit --guidance 5 --grids ddim-50,ddim-250 --thinned 64
    python -m benchmarks.search --noise --only tiny-dit --guidance 5 --grids ddim-50,karras-28,flow-28 --thinned 64
    python -m benchmarks.search --few-steps --only tiny-dit --guidance 5 --grids ddim-20,flow-28 --evaluations 6,7,8

DDIM, Euler and flow matching's Euler are one update on different grids of noise levels: sample = signal · clean + noise
· ε. A scheme says which steps of a grid are evaluated, which combination of clean estimate and noise is predicted at
the others, and when a refresh corrects the steps before it. Every scheme is judged by its distance (dB) to the run that
evaluates every step of the grid, and to the converged run. All cases try the same schemes in the same order.
"""

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

from benchmarks.places import own_network, results_of
from scripts.command_line import run
from tenuto.files import write_json
from tenuto.models import Model
from tenuto.provenance import provenance
from tenuto.quality import psnr
from tenuto.runtime.prediction import polynomial_weights
from tenuto.runtime.residual import plain
from tenuto.sampling.pictures import (
    Sampling,
    _caption_conditions,
    _class_conditions,
    decode,
    guide,
    make_solver,
    vae_of,
)
from tenuto.scheduling.placement import EASING, FEW, MANY, SHIFT, asked_ahead
from tenuto_lab.frontier.cases import asked_for

Floats = NDArray[np.float64]
Network = Callable[[Tensor, float], Tensor]  # (sample with unit variance, timestep) -> noise


@dataclass(frozen=True)
class Grid:
    """Noise levels of T steps, with signal² + noise² = 1; one more for the end."""

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
    kept: str = "clean"  # clean, noise, velocity, or adaptive: what predicted the last refresh best
    variable: float = 0.0  # the share of the log-SNR in the variable; the rest is the step's number
    points: int = 3
    bound: float = 2.5  # the largest sum of magnitudes of weights
    mixed: float = 0.3  # the share of the log-SNR in the placement
    angle: float = 0.2  # the share of the angle between signal and noise in the placement
    time: float = 0.0  # the share of the noise's time in placement and variable (tenuto.scheduling.placement)
    flow: float = 0.0  # the share of flow matching's time in the placement
    timed: bool = False  # whether the variable is the noise's time, whatever the shares are
    ease: float = 1.0  # above 1: the first evaluations lie closer together
    correction: str = "all"  # none, all, gap (of the log-SNR below the limit), risk (a² · gap below the limit)
    limit: float = 0.0
    variance: float = 0.25  # of pictures; decides which part of a corrected difference counts as picture
    damped: float = 1.0  # the share of a correction that is applied
    silent: float | None = None  # log-SNR up to which the first evaluation may ask ahead; None: it does not
    many: int = MANY  # evaluations from which on it does not
    audible: float | None = None  # with it, the bound grows with the signal: this times the signal-to-noise ratio
    before_end: float = 0.0  # of an interval: how much earlier few evaluations of many steps end
    easing: float | None = None  # with it, of fewer steps too: this times the share of the steps that are left out
    bound_if_few: float | None = None  # the bound with few evaluations


def normed(values: Floats) -> Floats:
    return (values - values[0]) / (values[-1] - values[0])


def noise_time(grid: Grid) -> Floats:
    return normed(-np.sqrt(np.logaddexp(0.0, -2 * np.maximum.accumulate(grid.log_snr))))


def flow_time(grid: Grid) -> Floats:
    return normed(SHIFT / (SHIFT + np.exp(-np.maximum.accumulate(grid.log_snr))))


def placed(grid: Grid, scheme: Scheme, count: int) -> list[int]:
    """The steps that are evaluated."""
    index = normed(np.arange(grid.steps, dtype=float))
    level, angle = np.maximum.accumulate(grid.log_snr), -np.arctan2(grid.noise[:-1], grid.signal[:-1])
    progress = (1 - scheme.mixed - scheme.angle - scheme.time - scheme.flow) * index + scheme.time * noise_time(grid)
    progress += scheme.mixed * normed(level) + scheme.angle * normed(angle) + scheme.flow * flow_time(grid)
    chosen, last = [], -1
    quiet = int((grid.log_snr <= scheme.silent).sum()) if scheme.silent is not None and count < scheme.many else 0
    first = float(progress[max(0, quiet - 1)])
    aims = np.linspace(min(first, 1 / count), 1 - before_end(grid.steps, scheme, count) / count, count) ** scheme.ease
    aims[0] = 0.0
    for number, aim in enumerate(aims):
        nearest = int(np.abs(progress - aim).argmin())
        last = min(max(nearest, last + 1), grid.steps - count + number)
        chosen.append(last)
    return chosen


def before_end(steps: int, scheme: Scheme, count: int) -> float:
    """How much earlier than the last step the last evaluation is, in intervals between evaluations."""
    left_out = 1 - count / steps
    if count >= FEW:
        return 0.0
    if scheme.easing is None:
        return scheme.before_end if steps >= 4 * count else 0.0
    return min(scheme.before_end, scheme.easing * left_out) if left_out > 0.5 else 0.0


class Run:
    """One run of a scheme. Of every refresh, the clean estimate and the noise are kept."""

    def __init__(self, grid: Grid, scheme: Scheme) -> None:
        self.grid, self.scheme = grid, scheme
        self.a, self.s = grid.signal, grid.noise
        index = normed(np.arange(grid.steps, dtype=float))
        self.at = scheme.variable * normed(grid.log_snr) + scheme.time * noise_time(grid)
        self.at += (1 - scheme.variable - scheme.time) * index
        if scheme.timed:
            self.at = noise_time(grid)
        self.bound, self.ahead = scheme.bound, 0
        self.kept = "velocity" if scheme.kept == "adaptive" else scheme.kept
        self.known: list[tuple[int, Tensor, Tensor]] = []  # (step, clean, noise) of the last refreshes

    def parts(self, step: int) -> tuple[float, float]:
        """(α, β): what is predicted is α · clean + β · noise."""
        if self.kept == "velocity":
            return -self.s[step], self.a[step]
        return (1.0, 0.0) if self.kept == "clean" else (0.0, 1.0)

    def estimates(self, x: Tensor, step: int, known: Sequence[tuple[int, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """The clean estimate and the noise at a step, predicted from known ones."""
        bound, audible = self.bound, self.scheme.audible
        if audible is not None and self.ahead and step > known[-1][0]:
            bound = 1 + (bound - 1) * min(1.0, float(audible * self.a[step] / self.s[step]))
        at = self.at[max(step, self.ahead)]
        weights = polynomial_weights([self.at[one[0]] for one in known], at, bound)
        value = torch.zeros_like(x)
        for weight, (node, clean, noise) in zip(weights, known, strict=True):
            alpha, beta = self.parts(node)
            if weight and alpha:
                value.add_(clean, alpha=float(weight * alpha))
            if weight and beta:
                value.add_(noise, alpha=float(weight * beta))
        (alpha, beta), a, s = self.parts(step), self.a[step], self.s[step]
        scale = a * beta - s * alpha
        return (beta * x - s * value) / scale, (a * value - alpha * x) / scale

    def stepped(self, x: Tensor, first: int, last: int, known: Sequence[tuple[int, Tensor, Tensor]]) -> Tensor:
        for step in range(first, last):
            clean, noise = self.estimates(x, step, known)
            x = self.a[step + 1] * clean + self.s[step + 1] * noise
        return x

    def corrects(self, before: int, step: int) -> bool:
        rule, limit = self.scheme.correction, self.scheme.limit
        if before == step - 1 or rule == "none":
            return False
        gap = float(self.grid.log_snr[step] - self.grid.log_snr[before])
        return rule == "all" or (gap if rule == "gap" else gap * self.a[step] ** 2) < limit

    def choose(self, x: Tensor, step: int, clean: Tensor) -> None:
        """From now on, predict what would have predicted this refresh best."""
        errors = {}
        for self.kept in ("clean", "noise", "velocity"):
            errors[self.kept] = float((self.estimates(x, step, self.known)[0] - clean).square().mean())
        self.kept = min(errors, key=errors.__getitem__)

    @torch.inference_mode()
    def __call__(self, network: Network, computed: Sequence[int], x: Tensor) -> Tensor:
        a, s, after = self.a, self.s, x
        if self.scheme.bound_if_few is not None and len(computed) < FEW:
            self.bound = self.scheme.bound_if_few
        if self.scheme.silent is not None and len(computed) < self.scheme.many:
            self.ahead = asked_ahead([step in computed for step in range(self.grid.steps)], self.grid.log_snr.tolist())
        before = computed[0]
        for number, step in enumerate(computed):
            asked = step or self.ahead
            sized = x if asked == step else x * float(s[asked] / s[step])
            noise = network(sized, float(self.grid.times[asked]))
            clean = (sized - s[asked] * noise) / a[asked]
            if asked != step:
                noise = (x - a[step] * clean) / s[step]
            kept = self.kept
            if self.scheme.kept == "adaptive" and self.known:
                self.choose(x, step, clean)
            if self.known and self.corrects(before, step):
                self.kept, chosen = kept, self.kept
                change = self.stepped(after, before + 1, step, [*self.known, (step, clean, noise)]) - x
                self.kept, change = chosen, self.scheme.damped * change
                picture = a[step] * self.scheme.variance / (a[step] ** 2 * self.scheme.variance + s[step] ** 2)
                x, clean = x + change, clean + picture * change
                noise = noise + (1 - a[step] * picture) / s[step] * change
            self.known = [*self.known, (asked, clean, noise)][-self.scheme.points :]
            before = step
            after = a[step + 1] * clean + s[step + 1] * noise
            until = computed[number + 1] if number + 1 < len(computed) else self.grid.steps
            x = self.stepped(after, step + 1, until, self.known)
        return x


def network_of(model: Model, samples: int, guidance: float) -> tuple[Network, Tensor]:
    """The noise that a model estimates, under guidance, and samples to begin with."""
    wanted = asked_for(model, samples)[1]
    by_class = model.architecture.asks_for == "class"
    conditions = (_class_conditions if by_class else _caption_conditions)(model, wanted, guidance != 1)
    first = getattr(model.config, "first_timestep", 0)
    generators = [torch.Generator().manual_seed(1000 + i) for i in range(samples)]
    start = torch.stack([torch.randn(model.config.sample_shape, generator=one) for one in generators]).to(model.device)
    times = torch.zeros(samples * (1 if guidance == 1 else 2), device=model.device)
    buffer = start.clone()

    @torch.inference_mode()
    def evaluate() -> Tensor:
        inputs = buffer if guidance == 1 else torch.cat([buffer, buffer])
        noise = model.network(inputs, times, *conditions, residual=plain)[:, : buffer.shape[1]]
        return noise if guidance == 1 else guide(noise, guidance)

    @torch.inference_mode()
    def network(x: Tensor, t: float) -> Tensor:
        buffer.copy_(x)
        times.fill_(t + first)
        return evaluate()

    return network, start


def full(network: Network, grid: Grid, x: Tensor) -> Tensor:
    return Run(grid, Scheme(correction="none", points=1))(network, range(grid.steps), x)


def _near(got: Tensor, goal: Tensor) -> float:
    return round(float(psnr(got, goal).nan_to_num(0).mean()), 2)


def drawn(rng: random.Random) -> Scheme:
    correction, limit = rng.choice(
        [
            ("none", 0.0),
            ("all", 0.0),
            *(("gap", x) for x in (0.5, 0.8, 1.2, 1.8)),
            *(("risk", x) for x in (0.2, 0.4, 0.7, 1.0)),
        ]
    )
    return Scheme(
        kept=rng.choice(["clean", "noise", "velocity", "adaptive"]),
        variable=rng.choice([0.0, 0.0, 0.25, 0.5, 1.0]),
        points=rng.choice([2, 3, 3, 4]),
        bound=rng.choice([2.5, 4.0, 4.0, 7.0]),
        mixed=rng.choice([0.0, 0.2, 0.3, 0.4]),
        angle=rng.choice([0.0, 0.2, 0.3, 0.4]),
        ease=rng.choice([1.0, 1.0, 1.15, 1.3]),
        correction=correction,
        limit=limit,
        variance=rng.choice([0.0, 0.1, 0.25, 1.0]),
        damped=rng.choice([1.0, 1.0, 0.7, 0.5]),
    )


DEFAULT = Scheme()
ONCE = Scheme(bound_if_few=2.0, before_end=0.5)  # the default until the first evaluation could ask ahead
BEGINS = [
    ONCE,
    replace(ONCE, silent=-3.5, audible=3.0, before_end=0.8),  # the default until flow matching's time was measured
]
# If a run begins in noise alone: the step's number in the placement, and since. Nothing asks ahead, as in pipelines.
NOISE = [
    replace(ONCE, before_end=0.8),
    replace(ONCE, before_end=0.8, flow=0.5, timed=True),
]
# The same with few evaluations of few steps, before and since: they used to end with the last step.
FEW_STEPS = [NOISE[-1], replace(NOISE[-1], easing=EASING)]
# If a run begins with signal: the default until placement and variable became half level, half time, and since.
SIGNAL = [
    replace(ONCE, before_end=0.8),
    Scheme(variable=0.5, mixed=0.5, angle=0.0, time=0.5, bound_if_few=2.0, before_end=0.4),
]
ABOUT_BEGINS = [
    replace(ONCE, silent=-3.5, audible=3.0, before_end=0.8, many=1000),
    *(replace(ONCE, silent=silent, before_end=0.8) for silent in (None, -4.0, -3.5, -3.0)),
    *(replace(ONCE, silent=-3.5, audible=audible, before_end=0.8) for audible in (2.0, 5.0)),
    replace(ONCE, silent=-3.5, audible=3.0, before_end=0.8, points=2),
    replace(ONCE, silent=-3.5, audible=3.0, before_end=0.8, variance=0.0),
    replace(ONCE, silent=-3.5, audible=3.0, before_end=0.8, damped=0.75),
    replace(ONCE, silent=-3.5, audible=3.0, before_end=0.8, kept="noise"),
    replace(ONCE, silent=-3.5, audible=3.0, before_end=0.8, correction="none"),
    replace(ONCE, silent=-3.5, audible=3.0, before_end=0.8, variable=0.5),
]
SHARES = ((0.25, 0.0), (0.5, 0.0), (0.3, 0.2), (0.2, 0.3), (0.1, 0.3), (0.0, 0.5), (0.5, 0.5), (0.25, 0.5))
PLACEMENTS = [replace(DEFAULT, mixed=mixed, angle=angle) for mixed, angle in SHARES]
SCHEMES = [
    DEFAULT,
    Scheme("noise", correction="none"),
    *(replace(DEFAULT, kept=kept, correction="none") for kept in ("clean", "velocity", "adaptive")),
    *(replace(DEFAULT, kept=kept, variance=v) for kept in ("clean", "velocity", "adaptive") for v in (0.0, 0.25, 1.0)),
    *(
        replace(DEFAULT, kept=kept, variance=v, correction="gap", limit=limit)
        for kept in ("clean", "velocity", "adaptive")
        for v in (0.0, 0.25, 1.0)
        for limit in (0.5, 0.8, 1.2, 1.8)
    ),
    *(
        replace(DEFAULT, kept=kept, variance=v, correction="risk", limit=limit)
        for kept in ("clean", "velocity", "adaptive")
        for v in (0.0, 0.25, 1.0)
        for limit in (0.2, 0.4, 0.7, 1.0)
    ),
    *(
        replace(DEFAULT, kept=kept, damped=damped)
        for kept in ("clean", "velocity", "adaptive")
        for damped in (0.5, 0.75)
    ),
]


def main(
    out: Annotated[Path, typer.Option(help="The file to write.")] = results_of("search"),
    only: Annotated[str, typer.Option(help="The network.")] = "tiny-dit",
    guidance: Annotated[float, typer.Option()] = 1.5,
    grids: Annotated[str, typer.Option(help="kind-steps, with commas between.")] = "ddim-50,flow-50",
    evaluations: Annotated[str, typer.Option(help="Numbers, with commas between.")] = "6,8,10,12,16,25",
    samples: Annotated[int, typer.Option(min=1)] = 16,
    trials: Annotated[int, typer.Option(min=0, help="Random schemes besides those that are listed.")] = 300,
    placements: Annotated[bool, typer.Option("--placements", help="Try nothing but where to evaluate.")] = False,
    begins: Annotated[bool, typer.Option("--begins", help="Try nothing but the default before and now.")] = False,
    signal: Annotated[
        bool,
        typer.Option("--signal", help="Try nothing but the default before and now, for runs that begin with signal."),
    ] = False,
    noise: Annotated[
        bool,
        typer.Option("--noise", help="Try nothing but the default before and now, for runs that begin in noise alone."),
    ] = False,
    few_steps: Annotated[
        bool, typer.Option("--few-steps", help="Try nothing but the default before and now, for few steps of the same.")
    ] = False,
    about: Annotated[bool, typer.Option("--about", help="With --begins: and what is near to it.")] = False,
    thinned: Annotated[
        int | None, typer.Option(help="Evaluate only so many steps of the converged run; long grids have no full run.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Stop after so many.")] = 400,
    converging: Annotated[int, typer.Option(help="Plain steps of the converged run.")] = 1000,
    seed: Annotated[int, typer.Option()] = 0,
    threads: Annotated[int | None, typer.Option(help="Of the CPU.")] = None,
    device: Annotated[str, typer.Option()] = "cuda" if torch.cuda.is_available() else "cpu",
) -> None:
    """Try listed and random schemes on one network, and write what each was worth."""
    began, rng = time.monotonic(), random.Random(seed)
    torch.set_num_threads(threads or torch.get_num_threads())
    model = own_network(only, device)
    network, x = network_of(model, samples, guidance)
    vae = vae_of(model)

    def shown(x: Tensor) -> Tensor:
        return x if vae is None else decode(x, vae)

    long = grid_of(model, "ddim", converging)
    exact = replace(DEFAULT, points=4, bound=4.0)
    converged = (
        full(network, long, x) if thinned is None else Run(long, exact)(network, placed(long, exact, thinned), x)
    )
    converged = shown(converged)
    counts = [int(one) for one in evaluations.split(",")]
    cases: list[dict[str, Any]] = []
    states: list[tuple[Grid, Tensor | None]] = []
    for kind, steps in (one.split("-") for one in grids.split(",")):
        grid = grid_of(model, kind, int(steps))
        whole = None if thinned is not None and grid.steps > thinned else shown(full(network, grid, x))
        states.append((grid, whole))
        near = None if whole is None else float(psnr(whole, converged).mean())
        cases.append({"network": only, "guidance": guidance, "grid": f"{kind}-{steps}", "whole": near, "rows": []})
    schemes = PLACEMENTS if placements else [*SCHEMES, *(drawn(rng) for _ in range(trials))]
    listed = begins or signal or noise or few_steps
    if listed:
        begun = [*BEGINS, *(ABOUT_BEGINS if about else [])]
        schemes = SIGNAL if signal else NOISE if noise else FEW_STEPS if few_steps else begun
    record: dict[str, Any] = {"provenance": provenance(device, seed=seed), "samples": samples, "evaluations": counts}
    for number, scheme in enumerate(schemes):
        if time.monotonic() - began > seconds:
            break
        for case, (grid, whole) in zip(cases, states, strict=True):
            row = []
            for count in counts:
                got = shown(Run(grid, scheme)(network, placed(grid, scheme, count), x))
                goals = (whole, converged)
                row.append([None if one is None else _near(got, one) for one in goals])
            case["rows"].append(row)
        if listed or number % 20 == 19:
            write_json(out, {**record, "schemes": [asdict(one) for one in schemes[: number + 1]], "cases": cases})
    done = len(cases[0]["rows"])
    write_json(out, {**record, "schemes": [asdict(one) for one in schemes[:done]], "cases": cases})
    print(f"{only} {guidance:g}: {done} schemes in {time.monotonic() - began:.0f} s; default", cases[0]["rows"][0])


if __name__ == "__main__":
    run(main)
