"""A denoiser without a pipeline: under a schedule, where each call is one step; or in a loop with a scheduler."""

import warnings
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn

from tenuto.errors import ScheduleError, UsageError, check_whole
from tenuto.pipelines.denoiser import Denoiser, kind_of_denoiser
from tenuto.pipelines.engine import Unannounced
from tenuto.pipelines.request import Request
from tenuto.pipelines.timesteps import lacks_timesteps, timesteps_of
from tenuto.runtime.executor import Executor


class Running(Unannounced):
    """Denoisers in the user's own loop, which calls scheduler.step."""

    def __init__(self, networks: dict[str, nn.Module], scheduler: Any, steps: int | None, request: Request) -> None:
        if not hasattr(scheduler, "step") or not (
            hasattr(scheduler, "timesteps") or hasattr(scheduler, "set_timesteps")
        ):
            raise UsageError(f"A diffusers scheduler is needed, not a {type(scheduler).__name__}.")
        if not isinstance(networks, dict) or not networks:
            raise UsageError("Give the network that the loop evaluates, or several of them by name.")
        for name, network in networks.items():
            if not isinstance(network, nn.Module):
                raise UsageError(f"The loop's {name} should be a torch module, not a {type(network).__name__}.")
        if steps is not None:
            check_whole("The number of steps", steps)
        super().__init__("loop", networks, request)
        self._scheduler, self._asked = scheduler, steps
        self._watch([scheduler])

    def close(self) -> None:
        loop, calls = self.last, 0 if self.last is None else len(self.last.evaluations)
        if loop is not None and calls >= loop.steps and not loop.step and not loop.stepped_by(self._scheduler):
            self._warn(
                f"The loop evaluated its network {calls} times and never called the step of its "
                f"{type(self._scheduler).__name__}, so nothing was held and nothing was gained."
            )
        super().close()

    def scheduler(self) -> Any:
        return self._scheduler

    def _steps(self, scheduler: Any) -> int:
        if lacks_timesteps(scheduler):
            raise UsageError(f"Call the set_timesteps of {type(scheduler).__name__} before the loop begins.")
        there = timesteps_of(scheduler)
        if self._asked is None:
            return super()._steps(scheduler)
        if not 1 <= self._asked <= there:
            raise UsageError(
                f"The loop is to take {self._asked} steps, and the scheduler has {there} timesteps: call its "
                "set_timesteps first."
            )
        return self._asked


class Bare:
    """A denoiser without a pipeline, under a schedule: each of its calls is one step."""

    def __init__(self, module: nn.Module, request: Request) -> None:
        if request.given is None:
            raise UsageError("A denoiser without a pipeline does not say how many steps there are: give a schedule.")
        self._stack = ExitStack()
        kind = kind_of_denoiser(request)
        self._denoiser = kind(module, "denoiser", request, lambda sentence: warnings.warn(sentence, stacklevel=2))
        self._denoiser.enter(self._stack, self._evaluate)
        self._schedule = request.given
        self.start()

    @property
    def step(self) -> int:
        """How many steps of the current generation were taken."""
        return self._generation.step

    @property
    def executor(self) -> Executor:
        """What runs the denoiser."""
        return self._denoiser.executor(self._schedule, 0)

    def start(self) -> None:
        """Begin a new generation, with nothing held."""
        self._generation = self._denoiser.start(self._schedule, 0)
        self._shape: tuple[int, ...] | None = None

    def close(self) -> None:
        self._stack.close()

    def _evaluate(self, denoiser: Denoiser, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._check_shape(next((one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)), None))
        try:
            return self._generation(*args, **kwargs)
        except BaseException:
            if self._generation.broken:
                self.start()  # the step is half done: nothing of this generation may reach the next
            raise

    def _check_shape(self, sample: Tensor | None) -> None:
        if sample is None:
            return
        if self._shape is not None and self.step > 0 and tuple(sample.shape) != self._shape:
            raise ScheduleError(
                f"The denoiser's input changed from {list(self._shape)} to {list(sample.shape)} in the middle of a "
                "generation, and what is held no longer fits it. Begin a new generation when shapes change."
            )
        self._shape = tuple(sample.shape)
