"""Runs a network under a schedule that holds single units.

Executor(network, schedule) of such a schedule is one of these: the product finds it by the entry point `executor`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from tenuto.errors import UsageError
from tenuto.runtime.executor import Executor, Mode, Report
from tenuto.runtime.private_torch import tree_flatten
from tenuto.runtime.signature import signature_of
from tenuto.runtime.stages import Cells, Inputs, Unrecorded
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.units.holding import Planes, UnitsKept
from tenuto_lab.units.offloading import HostPlanes
from tenuto_lab.units.plan import Plan
from tenuto_lab.units.planner import Planner


class UnitExecutor(Executor):
    def __init__(
        self,
        network: Callable[..., Any],
        schedule: Schedule,
        *,
        mode: Mode = "auto",
        compiled: bool = False,
        module: nn.Module | None = None,
        memory: int | None = None,
        graphs: int | None = None,
        offload: bool = False,
    ) -> None:
        """memory   the most bytes that may be kept of units, for inputs of one shape; the report says what was given up
        graphs   the most graphs for inputs of one shape; if more are needed, the nearest lifetimes are merged
        offload  keep what graphs hold in the host's memory, and fetch it ahead: no memory of the device, but more time
        """
        super().__init__(network, schedule, mode=mode, compiled=compiled, module=module)
        if offload and (mode in ("eager", "skip") or schedule.order):
            raise UsageError("Only graphs keep values in the host's memory, and only with predict 'constant'.")
        if offload and schedule.rows != "none":
            raise UsageError("Caches in the host's memory cannot be written row by row: offload goes without rows.")
        self.offload = offload
        self.planner = Planner(network, self.module, schedule, None if offload else memory, graphs)

    def plan(self, *inputs: Any, **named: Any) -> Plan:
        """The plan for such inputs; nothing is computed."""
        return self.planner.plan_for(Inputs(signature_of(*tree_flatten((inputs, named))), inputs, named))

    def cells_for(self, kind: Inputs, device: torch.device) -> Cells:
        plan = self.planner.plan_for(kind)
        try:
            return HostPlanes(plan, device) if self.offload else Planes(plan, device)
        except torch.cuda.OutOfMemoryError as error:
            kept = f"{plan.cache_bytes:,} bytes"
            raise Unrecorded(f"there is no memory left for the {kept} that graphs would keep") from error

    def keeper_for(self, kind: Inputs) -> UnitsKept:
        plan = None
        try:
            plan = self.planner.plan_for(kind)
        except Unrecorded as error:
            self.warn(str(error))
        return UnitsKept(self.planner.schedule, plan)

    def report(self) -> Report:
        found = super().report()
        planned = 0 if self.offload or self.stages.graphs else self.planner.cache_bytes
        return replace(found, cache_bytes=found.cache_bytes + planned, given_up=self.planner.given_up)
