"""How long the passes of a plan take: a replay of its trace at the speeds of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from accelera.devices import Device
from accelera.engine import cost_model, disk_rates, link_rates, memory_bytes_per_s
from accelera.memory import UNBOUNDED_BYTES, Compute, Hierarchy, Tier
from accelera.simulator import simulate
from accelera.trace import Trace

_LAUNCH_S = 2e-5
"""One operation of PyTorch on offloaded operands, whatever its size."""


@dataclass(frozen=True)
class Rates:
    """The speeds of a machine, measured when they are first needed."""

    device: Device
    store: str | None
    """Folder of the homes on disk; None: temporary files."""
    home: str
    """``"disk"`` or ``"ram"``."""

    @cached_property
    def link(self) -> Tier:
        """The tier of the homes."""
        if self.home == "ram":
            link = link_rates(self.device, pinned=self.device.name.startswith("cuda"))
            away = link.download_bytes_per_s
            return Tier("ram", UNBOUNDED_BYTES, link.upload_bytes_per_s, write_bandwidth_bytes_per_s=away)
        disk = disk_rates(self.store)
        return Tier(
            "disk",
            UNBOUNDED_BYTES,
            disk.read_bytes_per_s,
            write_bandwidth_bytes_per_s=disk.write_bytes_per_s,
            duplex=False,
        )

    @cached_property
    def compute(self) -> Compute:
        """The arithmetic."""
        bandwidth = memory_bytes_per_s() if self.device.host_memory else float("inf")
        return Compute(cost_model(self.device).flops_per_s, bandwidth, _LAUNCH_S)

    def moving_s(self, bytes_read: int, bytes_written: int) -> float:
        """Return the seconds of moving so many bytes, one after the other."""
        return bytes_read * self.link.towards_s_per_byte + bytes_written * self.link.away_s_per_byte

    def compute_s(self, trace: Trace) -> float:
        """Return the seconds of all arithmetic in ``trace``."""
        touched = np.array(trace.meta["touched_bytes"], dtype=np.float64)
        return float(self.compute.seconds(trace.flops, touched).sum())


def seconds_of(
    trace: Trace, endings: Sequence[int], capacity_bytes: int, policy: str, rates: Rates
) -> tuple[float, ...]:
    """Return the seconds of each pass; ``endings`` are the numbers of events after which passes end."""
    touched = np.array(trace.meta["touched_bytes"], dtype=np.float64)
    timed = replace(trace, seconds=rates.compute.seconds(trace.flops, touched))
    machine = Hierarchy((Tier(rates.device.name, capacity_bytes, float("inf")), rates.link))
    until = [simulate(_beginning(timed, ending), machine, policy).total_s for ending in endings]
    return tuple(float(each) for each in np.diff([0.0, *until]))


def _beginning(trace: Trace, events: int) -> Trace:
    """Return the first ``events`` events and the steps that they belong to."""
    steps = int(trace.step[:events].max(initial=-1)) + 1
    buffers = int(trace.buffer[:events].max(initial=-1)) + 1
    return replace(
        trace,
        buffer=trace.buffer[:events],
        kind=trace.kind[:events],
        step=trace.step[:events],
        stride=trace.stride[:events],
        size_bytes=trace.size_bytes[:buffers],
        names=trace.names[:buffers],
        roles=trace.roles[:buffers],
        dtypes=trace.dtypes[:buffers],
        ops=trace.ops[:steps],
        flops=trace.flops[:steps],
        seconds=trace.seconds[:steps],
    )
