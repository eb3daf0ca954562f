"""The noise levels of a scheduler's steps: at each step, sample = signal · clean picture + noise · unit noise.

With these two numbers a network's output (noise, clean picture, velocity, flow) can be turned into its estimate of the
clean picture and back. Schedulers do not state their levels in one way. So each convention is tried on a copy of the
scheduler: the copy is given the exact outputs for one picture and one noise, and its samples must stay on the line
between the two. A scheduler whose samples stay there also adds no noise of its own. If a scheduler adds noise, its
samples must keep the picture and the amount of noise instead.
"""

import inspect
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from tenuto.errors import first_line

Pairs = Sequence[tuple[float, float]]
TOLERANCE = 2e-2  # relative, of a sample to the line on which it should lie
ROUNDED = 0.2  # the same for DDIM with linspace, whose steps are a whole number of timesteps and so fall short
EXAMPLES = ((0.7, -1.3), (-0.2, 0.9))  # pairs of a clean value and a noise value
REMEMBERED = 64  # natures of schedulers


@dataclass(frozen=True)
class Levels:
    """One pair of numbers for each step."""

    mixed: tuple[tuple[float, float], ...]  # (a, s): sample = a · clean + s · noise
    estimated: tuple[tuple[float, float], ...]  # (p, q): clean estimate = p · sample + q · output

    def __len__(self) -> int:
        return len(self.mixed)

    def after(self, step: int) -> "Levels":
        """The levels of the steps from this one on."""
        return Levels(self.mixed[step:], self.estimated[step:])

    def of_clean(self) -> "Levels":
        """These levels, for a loop that gives the estimate of the clean picture instead of the network's output."""
        return Levels(self.mixed, ((0.0, 1.0),) * len(self))

    @property
    def log_snr(self) -> tuple[float, ...]:
        """Half the logarithm of the signal-to-noise ratio at each step; finite also where there is no signal."""
        return tuple(math.log(max(a, 1e-4) / max(s, 1e-4)) for a, s in self.mixed)


def _estimated(output: str, mixed: Pairs, data: float) -> Pairs | None:
    """(p, q) at each step, for a network that predicts `output`; None if this is unknown. data: EDM's σ of the data"""
    rules: dict[str, Callable[[float, float], tuple[float, float]]] = {
        "epsilon": lambda a, s: (1 / a, -s / a),
        "sample": lambda a, s: (0.0, 1.0),
        "flow_prediction": lambda a, s: (1 / (a + s), -s / (a + s)),
        "flow_backwards": lambda a, s: (1 / (a + s), s / (a + s)),
        "v_prediction": lambda a, s: (a / (a * a + s * s), -s / math.hypot(a, s)),
        "edm": lambda a, s: (data**2 / (data**2 + s * s), data * s / math.hypot(data, s)),
    }
    try:
        return [rules[output](a, s) for a, s in mixed]
    except (KeyError, ZeroDivisionError):
        return None


@dataclass(frozen=True)
class Nature:
    """What is known of a scheduler before it runs."""

    levels: Levels | None  # None: unknown
    adds_noise: bool = False
    why_unknown: str = ""
    finite: bool = True  # whether its samples were numbers when it was tried


class NotFinite(Exception):
    """A scheduler was tried, and returned values that are infinite or no numbers."""


_remembered: OrderedDict[Any, Nature] = OrderedDict()
_lock = Lock()


def nature_of(scheduler: Any, first: int = 0, steps: int | None = None) -> Nature:
    """The nature of a diffusers scheduler over `steps` of its timesteps, from number `first` on.

    The scheduler and torch's random numbers stay as they are: a copy of the scheduler runs on the CPU.
    """
    timesteps = getattr(scheduler, "timesteps", None)
    steps = (0 if timesteps is None else len(timesteps)) - first if steps is None else steps
    if timesteps is None or steps < 1 or len(timesteps) < first + steps:
        return Nature(None, why_unknown=f"{type(scheduler).__name__} has fewer timesteps than the loop")
    key = _key(scheduler, first, steps)
    with _lock:
        if key in _remembered:
            _remembered.move_to_end(key)
            return _remembered[key]
    found = _asked(scheduler, first, steps)
    with _lock:
        _remembered[key] = found
        while len(_remembered) > REMEMBERED:
            _remembered.popitem(last=False)
    return found


def _key(scheduler: Any, first: int, steps: int) -> tuple[Any, ...]:
    """What a scheduler's nature depends on: its class, its config, its timesteps and its noise levels."""
    sigmas = getattr(scheduler, "sigmas", None)
    numbers = [None if one is None else tuple(torch.as_tensor(one).tolist()) for one in (scheduler.timesteps, sigmas)]
    config = json.dumps(dict(getattr(scheduler, "config", {})), sort_keys=True, default=str)
    return type(scheduler), config, *numbers, first, steps


def _asked(scheduler: Any, first: int, steps: int) -> Nature:
    name, failed = type(scheduler).__name__, ""
    try:
        deepcopy(scheduler)
    except Exception as error:  # a scheduler may hold anything
        return Nature(None, why_unknown=f"{name} cannot be copied ({first_line(error)})")
    with torch.random.fork_rng(devices=[]):
        try:
            draws = _draws(scheduler, first, steps)
        except NotFinite:
            return Nature(None, why_unknown=f"{name} returns values that are not finite", finite=False)
        for levels in _candidates(scheduler, first, steps):
            try:
                if (_keeps_amounts if draws else _fits)(scheduler, first, levels):
                    return Nature(levels, draws)
            except Exception as error:  # a scheduler may be of any class and may require anything
                failed = f" ({first_line(error)})"
        return Nature(None, draws, f"the noise levels of {name} are not known{failed}")


def _candidates(scheduler: Any, first: int, steps: int) -> Iterator[Levels]:
    """The levels under each convention that a scheduler may have."""
    config = getattr(scheduler, "config", {})
    data, stated = config.get("sigma_data"), config.get("prediction_type")
    outputs = ["edm"] if data is not None else ["flow_prediction", "v_prediction"] if stated is None else [str(stated)]
    if config.get("invert_sigmas"):
        outputs = ["flow_backwards"]
    for mixed in _conventions(scheduler, first, steps):
        for output in outputs:
            estimated = _estimated(output, mixed, data or 0.0)
            if estimated is not None:
                yield Levels(tuple(mixed), tuple(estimated))


def _conventions(scheduler: Any, first: int, steps: int) -> Iterator[Pairs]:
    sigmas, between = getattr(scheduler, "sigmas", None), getattr(scheduler, "sigmas_interpol", None)
    if sigmas is not None and len(sigmas) >= first + steps:
        noise = [float(one) for one in sigmas[first : first + steps]]
        if between is not None:  # KDPM2 evaluates every second time between two levels
            inner = [float(one) for one in between[first : first + steps]]
            noise = [inner[i] if (first + i) % 2 else noise[i] for i in range(steps)]
        if getattr(scheduler, "config", {}).get("invert_sigmas"):  # they are amounts of picture
            noise = [1 - one for one in noise]
        if max(noise) <= 1:
            yield [(1 - one, one) for one in noise]
        yield [(1 / math.hypot(1, one), one / math.hypot(1, one)) for one in noise]
        yield [(1.0, one) for one in noise]
    kept = getattr(scheduler, "alphas_cumprod", None)
    if kept is not None:
        times = torch.as_tensor(scheduler.timesteps)[first : first + steps].long().cpu()
        signal = torch.as_tensor(kept).cpu().double()[times].tolist()
        yield [(math.sqrt(one), math.sqrt(1 - one)) for one in signal]
    signals, noises = getattr(scheduler, "alphas", None), getattr(scheduler, "betas", None)
    if signals is not None and noises is not None and len(signals) == len(noises) == len(scheduler.timesteps) + 1:
        pairs = zip(signals[first : first + steps], noises[first : first + steps], strict=True)
        yield [(float(one), float(other)) for one, other in pairs]  # of iPNDM


def _probe(scheduler: Any, first: int, steps: int) -> tuple[Any, Tensor]:
    """A copy of a scheduler that runs on the CPU, and the timesteps to run it through."""
    probe = deepcopy(scheduler)
    vars(probe).pop("step", None)  # an enabled pipeline wraps the `step` of the instance
    for name, value in vars(probe).items():
        if isinstance(value, Tensor):
            setattr(probe, name, value.cpu())
    probe.is_scale_input_called = True  # otherwise some schedulers warn that their input was not scaled
    if hasattr(probe, "set_begin_index"):
        probe.set_begin_index(first)
    # What a running scheduler remembers of its last steps belongs to another sample.
    fresh: dict[str, Any] = {"_step_index": None, "lower_order_nums": 0, "last_sample": None}
    fresh |= {"ets": [], "counter": 0, "cur_model_output": 0, "cur_sample": None}  # of PNDM
    fresh["model_outputs"] = [None] * len(getattr(probe, "model_outputs", ()))
    for name, value in fresh.items():
        if hasattr(probe, name):
            setattr(probe, name, value)
    return probe, torch.as_tensor(probe.timesteps)[first : first + steps].cpu()


def _fits(scheduler: Any, first: int, levels: Levels) -> bool:
    """Whether the samples of a scheduler that adds no noise are where these levels say."""
    if _stays_on_line(scheduler, first, levels):
        return True
    blind = levels.mixed[0][0] == 0 and len(levels) > 2  # iPNDM sees no picture in a first sample that is all noise
    return blind and _stays_on_line(scheduler, first + 1, levels.after(1))


def _stays_on_line(scheduler: Any, first: int, levels: Levels) -> bool:
    probe, times = _probe(scheduler, first, len(levels))
    clean, noise = (torch.tensor(values).view(-1, 1, 1, 1) for values in zip(*EXAMPLES, strict=True))
    config = getattr(scheduler, "config", {})
    one_step = not any(hasattr(scheduler, name) for name in ("sigmas", "ets"))  # as DDIM is, and PNDM is not
    rounded = one_step and config.get("timestep_spacing") == "linspace"
    tolerance, sample = ROUNDED if rounded else TOLERANCE, None
    for step, (a, s) in enumerate(levels.mixed):
        line = a * clean + s * noise
        if sample is None:
            sample = line
        p, q = levels.estimated[step]
        if q == 0 or not torch.allclose(sample, line, rtol=0, atol=tolerance * math.hypot(a, s)):
            return False
        sample = _stepped(probe, (clean - p * sample) / q, times, step, sample)
    return bool(torch.isfinite(torch.as_tensor(sample)).all())


def _keeps_amounts(scheduler: Any, first: int, levels: Levels) -> bool:
    """Whether samples of a scheduler that adds noise have as much picture and as much noise as these levels say."""
    probe, times = _probe(scheduler, first, len(levels))
    torch.manual_seed(0)
    clean, sample = torch.tensor([0.7, -0.4]).view(2, 1, 1, 1).expand(2, 1, 64, 64), None
    for step, (a, s) in enumerate(levels.mixed):
        p, q = levels.estimated[step]
        if sample is None:
            sample = a * clean + s * torch.randn(clean.shape)
        noise = (sample - a * clean) / s
        if q == 0 or float(noise.mean().abs()) > 0.1 or not 0.9 < float(noise.std()) < 1.1:
            return False
        sample = _stepped(probe, (clean - p * sample) / q, times, step, sample)
    return bool(torch.isfinite(torch.as_tensor(sample)).all())


def _stepped(probe: Any, output: Tensor, times: Tensor, step: int, sample: Tensor) -> Tensor:
    """The next sample. UnCLIP's scheduler must be told which timestep follows; otherwise it takes a thousand steps."""
    told = step + 1 < len(times) and "prev_timestep" in inspect.signature(probe.step).parameters
    following = {"prev_timestep": times[step + 1]} if told else {}
    found: Tensor = probe.step(output, times[step], sample, return_dict=False, **following)[0]
    return found


def _draws(scheduler: Any, first: int, steps: int) -> bool:
    """Whether a scheduler's steps draw random numbers, so that two runs give different samples.

    If a scheduler cannot be run here (CogVideoX's DPM solver wants more arguments), the code of its step tells.
    """
    for shape in ((), (1,)):  # some schedulers want one timestep for each sample
        try:
            (one, times), (other, _) = _probe(scheduler, first, steps), _probe(scheduler, first, steps)
            left, right = torch.zeros(2, 1, 1, 2, 2)
            for seed, time in enumerate(times):
                torch.manual_seed(2 * seed)
                left = one.step(torch.zeros_like(left), time.expand(shape), left, return_dict=False)[0]
                torch.manual_seed(2 * seed + 1)
                right = other.step(torch.zeros_like(right), time.expand(shape), right, return_dict=False)[0]
                if not (left.isfinite().all() and right.isfinite().all()):
                    raise NotFinite
                if not torch.equal(left, right):
                    return True
            return False
        except NotFinite:
            raise
        except Exception:  # a scheduler may require arguments that are not given here
            continue
    try:
        return "randn" in inspect.getsource(type(scheduler).step)
    except (OSError, TypeError, AttributeError):
        return False
