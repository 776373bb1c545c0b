"""Which blocks of a result go to which device, on paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from accelera.units import format_bytes


@final
@dataclass(frozen=True)
class DevicePlan:
    """Part of one device in a result that several make together."""

    device: str
    blocks: int
    """Blocks that it is expected to take."""
    seconds: float
    """Predicted seconds of all of them."""
    tier: str
    """Where its blocks lie: ``"ram"`` or the device's name."""
    peak_bytes: int
    """Projected peak of the block that takes most, in that memory."""
    schedule: str
    """How it makes that block."""


@final
@dataclass(frozen=True)
class Placement:
    """The blocks of a result, dealt out."""

    strategy: str
    """``"Hybrid"``, ``"Hybrid(70% GPU, 30% CPU)"``, ``"GpuOnly"``."""
    reason: str
    devices: tuple[DevicePlan, ...]
    notes: tuple[str, ...] = ()
    """Further lines of the explanation."""

    @property
    def blocks(self) -> int:
        """Blocks in all."""
        return sum(each.blocks for each in self.devices)

    @property
    def peak_bytes(self) -> Mapping[str, int]:
        """Projected peak of each device's blocks, by tier; in RAM more is reserved."""
        return {each.tier: each.peak_bytes for each in self.devices}

    def lines(self) -> list[str]:
        """Return it in words, for people."""
        head = f"  placed       {self.strategy}: {self.reason}"
        return [head, *(_line(each, self.blocks) for each in self.devices), *self.notes]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        devices = [
            {"device": each.device, "blocks": each.blocks, "seconds": each.seconds} for each in self.devices
        ]
        return {
            "strategy": self.strategy,
            "reason": self.reason,
            "devices": devices,
            "notes": list(self.notes),
        }


def _line(share: DevicePlan, blocks: int) -> str:
    return (
        f"    {share.device:10} {share.blocks} of {blocks} blocks expected, {share.seconds:.2f} s; each in "
        f"at most {format_bytes(share.peak_bytes)} of {share.tier}: {share.schedule}"
    )
