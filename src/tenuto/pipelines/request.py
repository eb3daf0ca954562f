"""What the user asked for: the parameters of `enable`."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, get_args

import torch.distributed

from tenuto import deciding
from tenuto.errors import UsageError
from tenuto.runtime.executor import Mode
from tenuto.runtime.pacing import check_quality
from tenuto.scheduling.refresh import BUDGET, check_evaluations
from tenuto.scheduling.schedule import Schedule
from tenuto.scheduling.units import WHOLE, Subject

OnChange = Literal["rescore", "refuse"]
OF_THE_SAMPLER = {  # options of a policy that a pipeline decides by itself
    "ahead": "A pipeline asks its network about its own noise level at every step",
    "log_snr": "The noise levels are those of the pipeline's scheduler",
}


@dataclass(frozen=True)
class Request:
    given: Schedule | None = None
    budget: float | None = None
    evaluations: int | None = None
    speedup: float | None = None
    quality: float | None = None
    group: Any = None  # processes that must evaluate the same steps
    policy: deciding.Policy | None = None
    options: tuple[tuple[str, Any], ...] = ()  # of the policy
    mode: Mode = "auto"
    compiled: bool = False
    on_change: OnChange = "rescore"
    check_weights: bool = False

    def __post_init__(self) -> None:
        if self.on_change not in get_args(OnChange):
            raise UsageError(f"on_change is one of {', '.join(get_args(OnChange))}, not {self.on_change!r}.")
        if self.mode == "eager":
            raise UsageError("In the mode eager nothing is held: leave the pipeline as it is.")
        asked = (self.budget, self.evaluations, self.speedup)
        if sum(one is not None for one in asked) > 1:
            raise UsageError("Give a budget, a number of evaluations or a speed-up, not two of them.")
        if self.quality is not None:
            self._check_quality()
            self._check_group()
        elif self.group is not None:
            raise UsageError("A group is needed only with a quality: otherwise all processes evaluate the same steps.")
        if self.evaluations is not None:
            check_evaluations(self.evaluations)
        switches = {"compiled": self.compiled, "check_weights": self.check_weights, **dict(self.options)}
        for name in ("compiled", "check_weights", "correction"):
            if not isinstance(switches.get(name, False), bool):
                raise UsageError(f"{name} is True or False, not {switches[name]!r}.")
        for name, _ in self.options:
            if name in OF_THE_SAMPLER:
                raise UsageError(f"{OF_THE_SAMPLER[name]}: leave out {name}.")
            if not any(name in kind.options for kind in deciding.POLICIES.values()):
                raise UsageError(f"There is no option {name!r}.{_remedy(name)}")

    def _check_quality(self) -> None:
        assert self.quality is not None
        check_quality(self.quality)
        if self.budget is not None or self.speedup is not None:
            raise UsageError("Give a quality, a budget or a speed-up, not two of them. Evaluations limit a quality.")
        if self.policy not in (None, "refresh") or self.options:
            chosen = self.policy or ", ".join(name for name, _ in self.options)
            raise UsageError(f"A quality chooses the evaluated steps by itself: leave out {chosen}.")

    def _check_group(self) -> None:
        kind = getattr(torch.distributed, "ProcessGroup", ())  # a torch without it cannot make a group
        if self.group is not None and not isinstance(self.group, kind):
            raise UsageError(
                "A group is a process group of torch.distributed that this process belongs to (dist.group.WORLD after "
                f"dist.init_process_group), not {self.group!r}."
            )

    def schedule(
        self, subject: Subject, steps: int, log_snr: Sequence[float] | None = None, spent: int = 0
    ) -> Schedule:
        """A schedule for `steps` steps. spent: how many evaluations the steps before these took"""
        options = dict(self.options)
        if self.quality is not None:
            options["evaluations"] = steps  # the pace leaves some of them out
        elif self.evaluations is not None:
            options["evaluations"] = min(max(1, self.evaluations - spent), steps)
        if self.policy in (None, "refresh") and "every" not in options:
            options["log_snr"] = log_snr
        return deciding.schedule(
            subject, steps, budget=self.budget, speedup=self.speedup, policy=self.policy, **options
        )

    def more_than(self, steps: int) -> str:
        """What to say if more evaluations were asked for than there are steps; empty if that is not so."""
        if self.evaluations is None or self.quality is not None or self.evaluations <= steps:
            return ""
        return (
            f"{self.evaluations} evaluations were asked for, and there are {steps} steps: all of them are evaluated, "
            "and nothing is gained. Ask for fewer evaluations, or for a budget, which is a share of the steps."
        )

    @property
    def asks_for_work(self) -> bool:
        """Whether the request says how much is computed, or how."""
        asked = (self.budget, self.evaluations, self.speedup, self.quality, self.policy)
        return any(one is not None for one in asked) or bool(self.options)

    def settings(self) -> dict[str, Any]:
        """The request as arguments of `enable`."""
        own = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("given", "options")}
        return {"schedule": self.given, **own, **dict(self.options)}

    @property
    def asked(self) -> str:
        """The request in words."""
        if self.given is not None:
            return f"a schedule of {self.given.steps} steps"
        if self.quality is not None:
            most = "" if self.evaluations is None else f", with at most {self.evaluations} evaluations"
            return f"a quality of {self.quality:g} dB{most}"
        if self.evaluations is not None:
            return f"{self.evaluations} evaluation" + ("" if self.evaluations == 1 else "s")
        if self.speedup is not None:
            return f"{self.speedup:g} times as fast"
        chosen = [f"{name} {value}" for name, value in self.options if name in ("every", "tau", "keep", "held")]
        if self.policy is not None:
            chosen.insert(0, f"policy {self.policy}")
        by_hand = self.policy is not None or any(name in ("every", "tau") for name, _ in self.options)
        if self.budget is not None or not by_hand:
            chosen.insert(0, f"a budget of {BUDGET if self.budget is None else self.budget:g}")
        return ", ".join(chosen)

    @property
    def ranked(self) -> bool:
        """Whether the schedule depends on the units' scores."""
        kind = deciding.POLICIES.get(self.policy or "refresh")
        return self.given is None and kind is not None and kind.reads_scores

    @property
    def holds_units(self) -> bool:
        """Whether the request is about single units, so that the units must be known."""
        kept = self.given.keep if self.given is not None else dict(self.options).get("keep", "output")
        return self.ranked or kept != "output"

    @property
    def looks_inside(self) -> bool:
        """Whether the request is about the inside of a network: its units, or branches that are compiled."""
        named = self.given is not None and self.given.units != (WHOLE.name,)
        return self.holds_units or self.compiled or named

    def runs_like(self, other: "Request") -> bool:
        """Whether what runs the denoiser for one request also serves the other."""
        same = (self.mode, self.compiled, self.looks_inside) == (other.mode, other.compiled, other.looks_inside)
        return same and not self.holds_units and not other.holds_units


def option_names() -> list[str]:
    """All options of `enable`, those of every policy for pictures included."""
    own = [one for one in Request.__dataclass_fields__ if one not in ("given", "options")]
    of_policies = {one for kind in deciding.POLICIES.values() if kind.name != "rewrite" for one in kind.options}
    return sorted({"schedule", *own, *of_policies} - set(OF_THE_SAMPLER))


def _remedy(name: str) -> str:
    """What may have been meant by an option that there is not."""
    if name in ("steps", "num_inference_steps"):
        return " The number of steps is given where you generate: pipe(…, num_inference_steps=50)."
    known = option_names()
    if near := get_close_matches(name, known, 1):
        return f" Did you mean {near[0]}?"
    return f" The options are {', '.join(known)}."
