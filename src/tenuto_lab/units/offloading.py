"""Kept values in the host's pinned memory. They are fetched ahead, on a stream of their own, while the network runs.

A step's program says which values will be read, and in which order. So the next ones are on their way to the device
while the units before them are computed. All of this is recorded in the step's CUDA graph.
"""

from collections import deque
from typing import Any

import torch
from torch import Tensor

from tenuto.errors import UsageError
from tenuto_lab.units.holding import Holding, Planes
from tenuto_lab.units.plan import Cell, Plan

AHEAD = 2  # values on their way; each takes the memory of one on the device


class HostPlanes(Planes):
    """What graphs keep of units, in the host's memory."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        if plan.remembered > 1:
            raise UsageError(
                "Caches in the host's memory go with predict 'constant' only, which keeps one value of each."
            )
        super().__init__(plan, device, pinned=True)
        self._device = device
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._reads: deque[Cell] = deque()  # of the current step, in their order, those not fetched yet
        self._coming: deque[tuple[Cell, Tensor, Any]] = deque()  # fetched, but not read yet

    @property
    def bytes(self) -> int:
        return 0

    def residual(self, step: int, rows: Tensor | None) -> Holding:
        holding = super().residual(step, rows)
        self._coming.clear()
        self._reads = deque(cell for action in holding.program for cell in action.adds)
        for _ in range(AHEAD):
            self._fetch()
        return holding

    def keep(self, cell: Cell, value: Tensor) -> None:
        self.storages[cell.store][cell.planes[0]].copy_(value, non_blocking=True)

    def add(self, h: Tensor, cells: tuple[Cell, ...], gates: list[Tensor] | None) -> Tensor:
        for i, cell in enumerate(cells):
            value = self._fetched(cell)
            h = h + (value if gates is None else gates[i] * value)
        return h

    def _fetched(self, cell: Cell) -> Tensor:
        """A value on the device. The next one sets out meanwhile."""
        if not self._coming or self._coming[0][0] != cell:  # a step without a look ahead
            self._reads = deque([cell])
            self._coming.clear()
            self._fetch()
        _, value, arrived = self._coming.popleft()
        if arrived is not None:
            arrived.wait()
        self._fetch()
        return value

    def _fetch(self) -> None:
        if not self._reads:
            return
        cell = self._reads.popleft()
        kept = self.storages[cell.store][cell.planes[0]]
        if self._copies is None:
            self._coming.append((cell, kept, None))
            return
        value = torch.empty_like(kept, device=self._device)
        # The memory of `value` may have been used by work that is still under way, and so may `kept`.
        self._copies.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._copies):
            value.copy_(kept, non_blocking=True)
            arrived = self._copies.record_event()
        self._coming.append((cell, value, arrived))
