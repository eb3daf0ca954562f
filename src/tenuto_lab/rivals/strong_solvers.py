"""The strong solvers, each with every choice of noise levels: with N evaluations, which one comes nearest?

The steps are diffusers' own: UniPC (Zhao et al. 2023, bh2), DEIS (Zhang & Chen 2023, log-rho), DPM-Solver++ 2M and
3M (Lu et al. 2022), DDIM and Euler. The noise levels are diffusers' own where they lie on the trained timesteps.
Karras et al.'s levels and exponential ones (even in log σ) are computed here from the same formulas, because
diffusers rounds their times to whole timesteps, and spends the last evaluation on a step of length zero if they end
at the lowest trained level.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.models.architecture import NoiseLevels
from tenuto_lab.rivals.noise_prediction import Denoise

Method = Literal["UniPC", "DEIS", "DPM-Solver++", "DDIM", "Euler"]
Spacing = Literal["linspace", "leading", "trailing"]
Levels = Literal["trained", "karras", "exponential"]
Final = Literal["zero", "sigma_min"]
Time = Literal["exact", "rounded"]
Judge = Callable[[Tensor], float]  # higher is better; usually dB to a reference

ORDERS: dict[Method, tuple[int, ...]] = {
    "UniPC": (2, 3),
    "DEIS": (2, 3),
    "DPM-Solver++": (2, 3),
    "DDIM": (1,),
    "Euler": (1,),
}
RHO = 7.0  # exponent of Karras et al.'s levels


@dataclass(frozen=True)
class Setting:
    """A solver and its choice of noise levels.

    spacing  of the timesteps, if the levels are the trained ones
    final    the noise level behind the last step: none, or the lowest trained level
    time     what the network is told if a level lies between two timesteps: the exact time, or the nearest timestep
    """

    method: Method
    order: int = 1
    spacing: Spacing = "leading"
    levels: Levels = "trained"
    final: Final = "zero"
    time: Time = "exact"

    def __str__(self) -> str:
        placed = self.spacing if self.levels == "trained" else f"{self.levels} {self.time}"
        return f"{self.solver} {placed} {self.final}"

    @property
    def solver(self) -> str:
        return self.method if self.order == 1 else f"{self.method} {self.order}"


def settings(methods: Iterable[Method] = get_args(Method)) -> list[Setting]:
    """Every setting that makes a difference: 90 of them for all methods."""
    return [setting for method in methods for order in ORDERS[method] for setting in _settings(method, order)]


def _settings(method: Method, order: int) -> Iterator[Setting]:
    finals: tuple[Final, ...] = ("sigma_min",) if method == "DEIS" else get_args(Final)  # DEIS divides by log σ
    for final in finals:
        for spacing in get_args(Spacing):
            yield Setting(method, order, spacing, "trained", final)
        if method != "DDIM":  # DDIM on other levels is Euler on them
            levels: tuple[Levels, ...] = ("karras", "exponential")
            for level in levels:
                for time in get_args(Time):
                    yield Setting(method, order, "linspace", level, final, time)


@dataclass(frozen=True)
class Course:
    """A scheduler that is ready to step; for each step, its noise level σ/α and the time that the network is told."""

    scheduler: Any
    times: tuple[float, ...]
    sigmas: tuple[float, ...]  # one more than times: the level behind the last step

    @property
    def variance_exploding(self) -> bool:
        """Whether the scheduler's samples are x/α instead of x."""
        return type(self.scheduler).__name__ == "EulerDiscreteScheduler"


def course(noise: NoiseLevels, setting: Setting, steps: int) -> Course:
    """The steps of a setting."""
    if not 1 <= steps <= noise.timesteps:
        raise UsageError(f"The number of steps lies between 1 and {noise.timesteps}, not at {steps}.")
    scheduler = _scheduler(noise, setting)
    scheduler.set_timesteps(steps)
    table = _table(scheduler)
    if setting.levels != "trained":
        sigmas = _levels(table, setting, steps)
        exact = np.array([time_of(table, sigma) for sigma in sigmas[:-1]])
        times = exact if setting.time == "exact" else exact.round()
        scheduler.sigmas = torch.from_numpy(sigmas.astype(np.float32))
        scheduler.timesteps = torch.arange(steps, 0, -1.0)  # only names of the steps from here on
    else:
        times = np.asarray(scheduler.timesteps, dtype=np.float64)
        if setting.method == "DDIM":
            sigmas = np.append(np.interp(times, np.arange(len(table)), table), _behind(scheduler))
        else:
            sigmas = np.asarray(scheduler.sigmas, dtype=np.float64)
    falls = np.diff(sigmas)  # a step of length zero wastes an evaluation, and makes multistep solvers divide by zero
    if (
        len(times) != steps
        or falls.max() > 0
        or (setting.order > 1 and falls.max() == 0)
        or times[0] >= noise.timesteps
    ):
        raise UsageError(f"{setting} has no {steps} different steps within {noise.timesteps} timesteps.")
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(0)
    return Course(scheduler, tuple(times.tolist()), tuple(sigmas.tolist()))


@torch.inference_mode()
def sample(denoise: Denoise, noise_levels: NoiseLevels, noise: Tensor, setting: Setting, evaluations: int) -> Tensor:
    """Samples from noise [B, C, H, W] with N evaluations; every solver here evaluates once a step."""
    return integrate(denoise, course(noise_levels, setting, evaluations), noise)


@torch.inference_mode()
def integrate(denoise: Denoise, steps: Course, noise: Tensor) -> Tensor:
    """Take the steps of a course from noise, which is the sample x = α x₀ + σ ε at the first time."""
    x = noise
    for step, time in enumerate(steps.times):
        x = step_from(steps, step, x, denoise(x, time))
    return x


def step_from(steps: Course, step: int, x: Tensor, output: Tensor) -> Tensor:
    """The sample x after a step with the predicted noise `output`."""
    scheduler = steps.scheduler
    if not steps.variance_exploding:
        stepped: Tensor = scheduler.step(output, scheduler.timesteps[step], x, return_dict=False)[0]
        return stepped
    before, after = ((1 + sigma**2) ** 0.5 for sigma in steps.sigmas[step : step + 2])  # 1/α
    scheduler.is_scale_input_called = True  # x is scaled already; otherwise diffusers would warn
    exploded: Tensor = scheduler.step(output, scheduler.timesteps[step], x * before, return_dict=False)[0]
    return exploded / after


def judged(
    denoise: Denoise,
    noise_levels: NoiseLevels,
    noise: Tensor,
    evaluations: int,
    judge: Judge,
    among: Iterable[Setting] | None = None,
) -> list[tuple[float, Setting]]:
    """Every setting that has so many steps, with its judgement, the best first."""
    found = []
    for setting in settings() if among is None else among:
        try:
            x = sample(denoise, noise_levels, noise, setting, evaluations)
        except UsageError:  # too few timesteps for so many steps
            continue
        score = judge(x)
        found.append((score if np.isfinite(score) or score > 0 else -np.inf, setting))
    if not found:
        raise UsageError(f"No setting has {evaluations} steps.")
    return sorted(found, key=lambda one: -one[0])


def best(
    denoise: Denoise,
    noise_levels: NoiseLevels,
    noise: Tensor,
    evaluations: int,
    judge: Judge,
    among: Iterable[Setting] | None = None,
) -> tuple[float, Setting]:
    """The best setting with hindsight: the judge knows the reference."""
    return judged(denoise, noise_levels, noise, evaluations, judge, among)[0]


def time_of(table: NDArray[np.float64], sigma: float) -> float:
    """The time between two timesteps at which the noise level is σ: linear in log σ, as diffusers interpolates."""
    return float(np.interp(np.log(sigma), np.log(table), np.arange(len(table))))


def _levels(table: NDArray[np.float64], setting: Setting, steps: int) -> NDArray[np.float64]:
    """From the highest trained level to the lowest; behind the last step, none or the lowest."""
    count = steps if setting.final == "zero" else steps + 1
    if count < 2:
        return np.array([table[-1], 0.0])
    ramp = np.linspace(0, 1, count)
    if setting.levels == "karras":  # σ_i = (σ_max^(1/ρ) + i/(n−1) (σ_min^(1/ρ) − σ_max^(1/ρ)))^ρ
        high, low = table[-1] ** (1 / RHO), table[0] ** (1 / RHO)
        sigmas = (high + ramp * (low - high)) ** RHO
    else:
        sigmas = np.exp(np.log(table[-1]) + ramp * (np.log(table[0]) - np.log(table[-1])))
    return np.append(sigmas, 0.0) if setting.final == "zero" else np.asarray(sigmas)


def _table(scheduler: Any) -> NDArray[np.float64]:
    """σ/α at each trained timestep, rising."""
    kept = np.asarray(scheduler.alphas_cumprod, dtype=np.float64)
    return np.sqrt((1 - kept) / kept)


def _behind(scheduler: Any) -> float:
    """The noise level behind DDIM's last step."""
    kept = float(scheduler.final_alpha_cumprod)
    return float(((1 - kept) / kept) ** 0.5)


def _scheduler(noise: NoiseLevels, setting: Setting) -> Any:
    import diffusers

    options: dict[str, Any] = {
        "num_train_timesteps": noise.timesteps,
        "beta_start": noise.start,
        "beta_end": noise.end,
        "beta_schedule": noise.schedule,
        "timestep_spacing": setting.spacing,
        "steps_offset": noise.offset,
    }
    if setting.method == "DDIM":
        return diffusers.DDIMScheduler(**options, clip_sample=False, set_alpha_to_one=setting.final == "zero")
    if setting.method == "DEIS":
        return diffusers.DEISMultistepScheduler(**options, solver_order=setting.order)
    options["final_sigmas_type"] = setting.final
    if setting.method == "UniPC":
        return diffusers.UniPCMultistepScheduler(**options, solver_order=setting.order, solver_type="bh2")
    if setting.method == "DPM-Solver++":
        return diffusers.DPMSolverMultistepScheduler(**options, solver_order=setting.order)
    if setting.method == "Euler":
        return diffusers.EulerDiscreteScheduler(**options)
    raise UsageError(f"There is no solver {setting.method!r}; there are {', '.join(ORDERS)}.")
