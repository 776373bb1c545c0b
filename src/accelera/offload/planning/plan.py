"""Offload plan: what was predicted, and how long its passes take on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from accelera._result_html import MemoryBar, result_html
from accelera.devices import Device
from accelera.engine._internal import cost_model, disk_rates, link_rates, memory_bytes_per_s
from accelera.memory import Compute, Hierarchy, Tier
from accelera.memory._internal import UNBOUNDED_BYTES
from accelera.offload.training.activation_plan import ActivationPlan
from accelera.simulator import simulate
from accelera.trace import Trace
from accelera.units import format_bytes

_LAUNCH_S = 2e-5
"""Overhead in seconds of one PyTorch operation on offloaded operands, whatever its size."""


@dataclass(frozen=True)
class OffloadRates:
    """The speeds of a machine, measured when they are first needed."""

    device: Device
    store: str | None
    """Folder of the backing stores on disk; None: temporary files."""
    home: str
    """``"disk"`` or ``"ram"``."""

    @cached_property
    def link(self) -> Tier:
        """The tier of the backing stores."""
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
        """Return the seconds of moving these bytes, one after the other."""
        return bytes_read * self.link.towards_s_per_byte + bytes_written * self.link.away_s_per_byte

    def compute_s(self, trace: Trace) -> float:
        """Return the seconds of all arithmetic in ``trace``."""
        touched = np.array(trace.meta["touched_bytes"], dtype=np.float64)
        return float(self.compute.seconds(trace.flops, touched).sum())


def seconds_of(
    trace: Trace, endings: Sequence[int], capacity_bytes: int, policy: str, rates: OffloadRates
) -> tuple[float, ...]:
    """Return the seconds of each pass; ``endings`` are the numbers of events after which passes end."""
    touched = np.array(trace.meta["touched_bytes"], dtype=np.float64)
    timed = replace(trace, seconds=rates.compute.seconds(trace.flops, touched))
    machine = Hierarchy((Tier(rates.device.name, capacity_bytes, float("inf")), rates.link))
    until = [simulate(_truncated(timed, ending), machine, policy).total_s for ending in endings]
    return tuple(float(each) for each in np.diff([0.0, *until]))


def _truncated(trace: Trace, events: int) -> Trace:
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


@dataclass(frozen=True)
class PassForecast:
    """One pass over the model: a forward pass, or a whole training step."""

    uses: int
    """Operations that use blocks."""
    hits: int
    misses: int
    evictions: int
    bytes_read: int
    """Bytes brought to the device's memory."""
    bytes_written: int
    """Bytes taken back from it."""
    ending: int
    """Number of events of the plan's trace when it ends."""


@dataclass(frozen=True)
class OffloadPlan:
    """Plan of an offloaded model inside a budget, pass by pass; made by ``plan_offload``."""

    model: str
    """Name of the module's class."""
    train: bool
    budget_bytes: int
    tier: str
    """The memory that the budget governs: ``"ram"`` or a device's name."""
    home: str
    """Where blocks are that are not resident: ``"disk"`` or ``"ram"``."""
    policy: str
    activations: str
    capacity_bytes: int
    """Room for blocks: the budget less what is reserved."""
    block_bytes: int
    """Largest block; larger tensors are cut by rows."""
    reserved: Mapping[str, int]
    """Bytes kept for what is no block, by what they are for."""
    weights_bytes: int
    """Bytes of the weights that are offloaded."""
    kept_bytes: int
    """Bytes of small weights and buffers, which stay ordinary tensors."""
    pool_bytes: int
    """Bytes of all blocks: weights, and in training gradients, optimizer state and activations."""
    peak_pool_bytes: int
    """Most bytes of blocks that are resident at once."""
    passes: tuple[PassForecast, ...]
    """The first pass, those after it in which the order is known, and last the steady one."""
    ordinary_peak_op: str
    """The operation at which most bytes of ordinary tensors are alive."""
    trace: Trace
    """The accesses of all passes, for ``accelera.simulate`` and ``accelera.advise``."""
    rates: OffloadRates
    """The speeds behind the predicted seconds."""
    find_minimum: Callable[[], int]
    """Finds the smallest workable budget, by dry runs in smaller blocks."""
    activation_plan: ActivationPlan | None = None
    """What becomes of each saved tensor; None when they all go one way."""
    signature: Any = ()
    """Shapes and types of the inputs."""

    @property
    def first(self) -> PassForecast:
        """The first pass: nothing is resident, the order is not known."""
        return self.passes[0]

    @property
    def steady(self) -> PassForecast:
        """The last pass planned, like all that follow."""
        return self.passes[-1]

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Projected peak per tier, in bytes."""
        peak = {self.tier: self.peak_pool_bytes + sum(self.reserved.values())}
        return {**peak, self.home: self.pool_bytes}

    @property
    def resident_bytes(self) -> int:
        """Bytes of weights that a steady pass finds in memory."""
        return max(0, self.weights_bytes - self.streamed_bytes)

    @property
    def streamed_bytes(self) -> int:
        """Bytes that a steady pass brings in."""
        return self.steady.bytes_read

    @cached_property
    def minimum_budget_bytes(self) -> int:
        """Smallest workable budget on these inputs: the largest weight in 64 parts at most."""
        return self.find_minimum()

    @cached_property
    def seconds(self) -> tuple[float, ...]:
        """Predicted seconds of each pass; the machine's speed is measured when they are first asked for."""
        endings = [each.ending for each in self.passes]
        return seconds_of(self.trace, endings, self.capacity_bytes, self.policy, self.rates)

    @property
    def compute_s(self) -> float:
        """Predicted seconds of arithmetic in a steady pass."""
        return self.rates.compute_s(self.trace) / len(self.passes)

    @property
    def moving_s(self) -> float:
        """Predicted seconds of moving a steady pass' bytes, one after the other."""
        return self.rates.moving_s(self.steady.bytes_read, self.steady.bytes_written)

    def __repr__(self) -> str:
        phase = "training" if self.train else "inference"
        peak, limit = format_bytes(self.peak_bytes[self.tier]), format_bytes(self.budget_bytes)
        return (
            f"<OffloadPlan {phase} of {self.model}: peak {peak} of {limit} on {self.tier}, "
            f"{format_bytes(self.streamed_bytes)} read per pass>"
        )

    def _repr_html_(self) -> str:
        """Return the plan without its times, for which the machine would have to be measured."""
        lines = [self._title(), self._peak(), self._weights(), *self._saved()]
        bar = MemoryBar("planned peak", {"blocks": self.peak_pool_bytes, **self.reserved}, self.budget_bytes)
        return result_html(repr(self), "\n".join(lines), [bar])

    def explain(self) -> str:
        """Return the plan in words and numbers, for people."""
        return "\n".join([self._title(), self._peak(), self._weights(), *self._saved(), *self._traffic()])

    def table(self) -> str:
        """Return one line per pass, under a heading."""
        rows = [
            f"{'pass':>4}{'hits':>8}{'misses':>8}{'evictions':>11}{'read':>12}{'written':>12}{'seconds':>10}"
        ]
        for index, (each, seconds) in enumerate(zip(self.passes, self.seconds, strict=True), 1):
            read, written = format_bytes(each.bytes_read), format_bytes(each.bytes_written)
            rows.append(
                f"{index:>4}{each.hits:>8}{each.misses:>8}{each.evictions:>11}{read:>12}{written:>12}{seconds:>10.3f}"
            )
        return "\n".join(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan's figures as JSON-able values."""
        return {
            "model": self.model,
            "train": self.train,
            "budget_bytes": self.budget_bytes,
            "peak_bytes": self.peak_bytes,
            "reserved": dict(self.reserved),
            "capacity_bytes": self.capacity_bytes,
            "block_bytes": self.block_bytes,
            "policy": self.policy,
            "activations": self.activations,
            "saved_bytes": {} if self.activation_plan is None else self.activation_plan.bytes_by_fate(),
            "weights_bytes": self.weights_bytes,
            "kept_bytes": self.kept_bytes,
            "pool_bytes": self.pool_bytes,
            "resident_bytes": self.resident_bytes,
            "streamed_bytes": self.streamed_bytes,
            "passes": [
                {**vars(each), "seconds": seconds}
                for each, seconds in zip(self.passes, self.seconds, strict=True)
            ],
            "compute_s": self.compute_s,
            "moving_s": self.moving_s,
        }

    def __str__(self) -> str:
        return self.explain()

    def _title(self) -> str:
        what = "training" if self.train else "inference"
        budget = format_bytes(self.budget_bytes)
        return f"{what} of {self.model} in {budget} on {self.tier}, homes on {self.home}"

    def _peak(self) -> str:
        parts = [f"blocks {format_bytes(self.peak_pool_bytes)}"]
        parts += [f"{name} {format_bytes(size)}" for name, size in self.reserved.items() if size]
        peaks = ", ".join(f"{tier} {format_bytes(size)}" for tier, size in self.peak_bytes.items())
        return f"  peak         {peaks} ({' + '.join(parts)})"

    def _weights(self) -> str:
        return (
            f"  weights      {format_bytes(self.weights_bytes)} offloaded, {format_bytes(self.kept_bytes)} "
            f"small and kept; policy {self.policy}, {format_bytes(self.capacity_bytes)} for blocks of up "
            f"to {format_bytes(self.block_bytes)}"
        )

    def _saved(self) -> list[str]:
        if self.activation_plan is None:
            return []
        sums = self.activation_plan.bytes_by_fate()
        parts = [f"{name} {format_bytes(nbytes)}" for name, nbytes in sums.items() if nbytes]
        added = f"; adds {self.activation_plan.added_s:.3f} s to a step"
        return [
            f"  activations  {', '.join(parts) or 'none of 64 KiB or more'}{added if len(parts) > 1 else ''}"
        ]

    def _traffic(self) -> list[str]:
        first = _row("first pass", self.first, self.seconds[0])
        later = _row("later passes", self.steady, self.seconds[-1])
        times = (
            f"  arithmetic   {self.compute_s:.3f} s of a later pass; moving its bytes {self.moving_s:.3f} s"
        )
        return [first, later, times]


def _row(name: str, one: PassForecast, seconds: float) -> str:
    read, written = format_bytes(one.bytes_read), format_bytes(one.bytes_written)
    counts = f"{one.hits} hits, {one.misses} misses"
    return f"  {name:<13}read {read}, written {written}, {counts}, {seconds:.3f} s"
