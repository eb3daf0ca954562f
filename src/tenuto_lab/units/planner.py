"""Makes one plan for each kind of inputs, within bounds on memory and on graphs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from tenuto.errors import ScheduleError, first_line
from tenuto.runtime.signature import Signature, hashable
from tenuto.runtime.stages import Inputs, Unrecorded
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.units.chain import Chain, chain_of
from tenuto_lab.units.lifetimes import with_fewer_lifetimes
from tenuto_lab.units.plan import Plan, fitting_plan, make_plan

CHAINS = 64  # signatures of inputs whose chains are remembered


class Planner:
    def __init__(
        self,
        network: Callable[..., Any],
        module: nn.Module | None,
        schedule: Schedule,
        memory: int | None = None,
        graphs: int | None = None,
    ) -> None:
        """memory  how many bytes a plan may keep
        graphs  how many programs a plan may have; if it needs more, the nearest lifetimes are merged
        """
        self.schedule = schedule
        self._network = network
        self._module = module
        self._memory = memory
        self._graphs = graphs
        self._chains: dict[Signature, Chain] = {}
        self._plans: dict[Chain, tuple[Plan, str]] = {}  # each with what was given up for the bounds

    @property
    def cache_bytes(self) -> int:
        """How many bytes the largest of all plans keeps."""
        return max((plan.cache_bytes for plan, _ in self._plans.values()), default=0)

    @property
    def given_up(self) -> str:
        """What all plans gave up for the bounds; "" means nothing."""
        return "; ".join(dict.fromkeys(lost for _, lost in self._plans.values() if lost))

    def plan(self, chain: Chain) -> tuple[Plan, str]:
        """The plan for a chain, and what was given up for the bounds."""
        if chain not in self._plans:
            self._plans[chain] = self._bounded(chain)
        return self._plans[chain]

    def chain(self, signature: Signature, inputs: Sequence[Any], named: Mapping[str, Any]) -> Chain:
        """How the network's units follow one another for such inputs; nothing is computed."""
        known = self._chains.get(signature) if hashable(signature) else None
        if known is None:
            known = chain_of(self._network, inputs, named, self._module)
            if hashable(signature):
                if len(self._chains) >= CHAINS:
                    self._chains.clear()
                self._chains[signature] = known
        return known

    def plan_for(self, kind: Inputs) -> Plan:
        """The plan for such inputs. `Unrecorded` if the network cannot be looked at without running it."""
        try:
            chain = self.chain(*kind)
        except ScheduleError:
            raise
        except Exception as error:  # a network may do anything with tensors that have no values
            raise Unrecorded(f"the network cannot be looked at beforehand ({first_line(error)})") from error
        return self.plan(chain)[0]

    def _bounded(self, chain: Chain) -> tuple[Plan, str]:
        schedule, lost = self.schedule, []
        plan = make_plan(schedule, chain)
        if self._graphs is not None and len(plan.programs) > self._graphs:
            before = len(set(schedule.lifetimes))
            for most in reversed(range(1, before)):
                schedule = with_fewer_lifetimes(self.schedule, most)
                plan = make_plan(schedule, chain)
                if len(plan.programs) <= self._graphs:
                    break
            else:
                raise ScheduleError(
                    f"This schedule cannot be run with {self._graphs} graphs: it needs {len(plan.programs)} at least."
                )
            lost.append(
                f"{before} lifetimes became {most}: {schedule.budget:.1%} of the unit-steps are computed, "
                f"not {self.schedule.budget:.1%}"
            )
        if self._memory is not None and plan.cache_bytes > self._memory:
            plan, less = fitting_plan(schedule, chain, self._memory)
            lost.append(less)
        return plan, "; ".join(lost)
