"""Where a loop is on its scheduler's timesteps: the number of the timestep that a step is given.

Noise levels belong to timesteps. A loop may take only some of them (image to image, denoising_end, a loop of one's
own), and only the timestep that it gives to its scheduler tells which. On a GPU no value is read for this: a timestep
that was taken from the scheduler's own timesteps is recognised by its place in their memory.
"""

import inspect
from typing import Any

import torch
from torch import Tensor


def timesteps_of(scheduler: Any) -> int:
    timesteps = getattr(scheduler, "timesteps", None)
    return 0 if timesteps is None else len(timesteps)


def lacks_timesteps(scheduler: Any) -> bool:
    """Whether a scheduler cannot take all of its steps because its set_timesteps was not called.

    DDIM, UniPC and DPM-Solver++ refuse the first step. Flow matching fails at its last step: no level follows it.
    """
    if getattr(scheduler, "num_inference_steps", None) is not None:
        return False
    if getattr(scheduler, "timesteps", None) is None:
        return True
    sigmas = getattr(scheduler, "sigmas", None)
    if not hasattr(scheduler, "num_inference_steps"):
        return sigmas is not None and len(sigmas) == timesteps_of(scheduler)
    try:
        kind = type(scheduler)
        refuses = "run 'set_timesteps'" in inspect.getsource(kind)
        return refuses or "// self.num_inference_steps" in inspect.getsource(kind.step)
    except (OSError, TypeError, AttributeError):
        return False


def place_of(timestep: Any, scheduler: Any, expected: int) -> int | None:
    """The number of this timestep among the scheduler's; None if it cannot be told, or if there is no such timestep.

    If a scheduler has a timestep several times, the expected number counts.
    """
    all_of_them = getattr(scheduler, "timesteps", None)
    if not isinstance(all_of_them, Tensor) or all_of_them.ndim != 1 or not len(all_of_them):
        return None
    if isinstance(timestep, Tensor):
        if timestep.numel() != 1 and any(timestep.stride()):
            return None  # one timestep for each sample, or for each token
        place = _place_in_memory(timestep, all_of_them)
        if place is not None:
            return place
        if timestep.device.type != "cpu" or all_of_them.device.type != "cpu" or not timestep.numel():
            return None
        timestep = timestep.flatten()[0].item()
    if isinstance(timestep, bool) or not isinstance(timestep, int | float) or all_of_them.device.type != "cpu":
        return None
    found = torch.nonzero(all_of_them == timestep).flatten().tolist()
    return expected if expected in found else next(iter(found), None)


def _place_in_memory(timestep: Tensor, all_of_them: Tensor) -> int | None:
    if timestep.dtype != all_of_them.dtype or timestep.device != all_of_them.device:
        return None
    try:
        same = timestep.untyped_storage().data_ptr() == all_of_them.untyped_storage().data_ptr()
    except RuntimeError:  # tensors without memory of their own
        return None
    distance, stride = timestep.storage_offset() - all_of_them.storage_offset(), all_of_them.stride()[0] or 1
    place = distance // stride
    return place if same and distance % stride == 0 and 0 <= place < len(all_of_them) else None
