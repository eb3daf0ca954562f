"""A call of a scheduler's step, taken apart."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

from torch import Tensor

EXCHANGED = ("model_output", "sample")
NOISY = ("eta", "s_churn")  # arguments that make DDIM's and Euler's steps add noise


@dataclass(frozen=True)
class Call:
    """The arguments of one call, whose output and sample can be exchanged."""

    original: Callable[..., Any]
    given: dict[str, Any]

    @staticmethod
    def of(original: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> "Call | None":
        try:
            known = signature(original)
            given = known.bind(*args, **kwargs).arguments
        except TypeError:
            return None
        for name in [name for name, one in known.parameters.items() if one.kind is one.VAR_KEYWORD]:
            given |= given.pop(name, {})
        call = Call(original, dict(given))
        found = [call.given.get(name) for name in EXCHANGED]
        return call if all(isinstance(one, Tensor) for one in found) else None

    @property
    def output(self) -> Tensor:
        found: Tensor = self.given["model_output"]
        return found

    @property
    def sample(self) -> Tensor:
        found: Tensor = self.given["sample"]
        return found

    @property
    def gives_clean(self) -> bool:
        """Whether the loop gives the estimate of the clean picture (Cosmos 1) and not the network's output."""
        return self.given.get("pred_original_sample") is not None

    @property
    def threads_state(self) -> bool:
        """Whether the loop hands a result of the last step to the next one, besides the sample."""
        return "old_pred_original_sample" in self.given

    @property
    def adds_noise(self) -> bool:
        """Whether the loop tells the scheduler to add noise at this step."""
        return any(self.given.get(name) for name in NOISY)

    @property
    def without_tensors(self) -> "Call":
        """The same call, to be taken with an output and a sample of others. Its own are not kept in memory."""
        return replace(self, given={name: one for name, one in self.given.items() if name not in EXCHANGED})

    def take(self, output: Tensor, sample: Tensor) -> Any:
        clean = {"pred_original_sample": output} if self.gives_clean else {}
        return self.original(**{**self.given, "model_output": output, "sample": sample, **clean})
