"""What a budget must hold besides blocks, and the room that leaves for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from accelera.devices import Device
from accelera.engine.staging import buffer_bytes
from accelera.plan import Operand

RUNTIME_BYTES = 8 << 20
"""Threads' stacks, the plan's own lists, and the allocator's slack."""


@dataclass(frozen=True)
class MemorySplit:
    """The budget of one run, divided."""

    tier: str
    """The tier that the budget governs."""
    budget_bytes: int
    reserved: Mapping[str, int]
    """Bytes of host RAM that are not blocks, by what they are for."""
    host_bytes: int
    """Host RAM needed besides when the budget governs a device's memory."""

    @classmethod
    def on(
        cls,
        device: Device,
        budget_bytes: int | None,
        operands: Iterable[Operand],
        readers: int,
        result_bytes: int,
    ) -> MemorySplit:
        """Divide ``budget_bytes`` (None: what the device has free) for a run on ``device``."""
        given = list(operands)
        threads = readers + 1
        buffers = max((buffer_bytes(device, each) for each in given if not each.in_place), default=0)
        scratch = max((each.scratch_bytes for each in given if not each.in_place), default=0)
        reserved = {
            "result": result_bytes,
            "staging": threads * (buffers + scratch),
            "arithmetic": device.workspace_bytes(),
            "runtime": RUNTIME_BYTES,
        }
        limit = device.available_bytes() if budget_bytes is None else budget_bytes
        return cls("ram" if device.host_memory else device.name, limit, reserved, 0)

    def capacity(self, limit_bytes: int | None = None) -> int:
        """Return the bytes left for blocks, at most ``limit_bytes``; negative when nothing is left."""
        left = self.budget_bytes - (sum(self.reserved.values()) if self.tier == "ram" else 0)
        return left if limit_bytes is None else min(left, limit_bytes)
