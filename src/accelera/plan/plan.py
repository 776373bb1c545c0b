"""A plan: steps of one operation, their cost, why they were chosen, and the devices that take them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from accelera.errors import ArgumentError
from accelera.plan.dry_run import trace_of_passes
from accelera.plan.eviction import Eviction
from accelera.plan.saved import SavedPlan
from accelera.plan.types import Alternative, Forecast, Operand, PlanStep
from accelera.plan.walk import Pattern
from accelera.trace import Trace
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
class DevicePlacement:
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


@dataclass(frozen=True)
class Plan:
    """Plan of one operation inside its budget, and what it costs."""

    operation: str
    """``"matmul"``, ``"add"`` …"""
    operands: tuple[Operand, ...]
    """The inputs, then the result."""
    schedule: str
    """Name of the schedule: ``"C-stationary"``, ``"A-panel-stationary"`` …"""
    shape_note: str
    """The tile shape and slabs, in words."""
    budget_bytes: int | None
    """The budget it was made for; None when none was given."""
    capacity_bytes: int
    """Room for blocks: the budget less what is reserved."""
    reserved: Mapping[str, int]
    """Bytes kept for what is not a block: staging buffers, the BLAS workspace …"""
    tier: str
    """The tier the budget governs: ``"ram"`` or a device name."""
    window: int
    """Steps that may be under way at once: the one computed and those being loaded."""
    forecast: Forecast
    lower_bound_bytes: int
    """Least bytes any schedule must move in this capacity."""
    compulsory_bytes: int
    """Bytes of the operands and the result, each once."""
    pattern: Pattern = field(repr=False)
    """Generates the steps, pass by pass, the same ones every time."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """The choices in JSON-able form, from which the same steps can be made again."""
    alternatives: tuple[Alternative, ...] = ()
    host_staging_bytes: int = 0
    """Bytes of host RAM needed besides, when the tier is not RAM."""
    eviction: Eviction = field(default_factory=Eviction)
    """Policy that evicts blocks when the pool is full."""
    placement: DevicePlacement | None = None
    """Which devices make which blocks, when several work together; each step is a block then."""
    stages: tuple[Plan, ...] = ()
    """The plans that this one is made of, when it is several operations one after the other."""

    def steps(self) -> Iterator[PlanStep]:
        """Yield the steps in order; the ids of blocks are those of their pass."""
        return self.pattern.steps()

    def trace(self) -> Trace:
        """Return the trace that the run will leave; each step carries its predicted seconds.

        Its ``meta`` says capacity, policy and window, so that ``accelera.simulate`` can replay it.
        """
        passes = self.pattern.passes()
        found = trace_of_passes(passes, self.operands, self.window, operation=self.operation, described=True)
        return found.with_meta(**self.facts())

    def facts(self) -> dict[str, Any]:
        """Return what a replay of the run's trace must know."""
        return {
            "operation": self.operation,
            "policy": self.eviction.name,
            "capacity_bytes": self.capacity_bytes,
            "window": self.window,
        }

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Projected peak per tier, in bytes."""
        reserved = sum(self.reserved.values())
        if self.placement is not None:
            return {**self.placement.peak_bytes, "ram": self.forecast.peak_pool_bytes + reserved}
        if self.tier == "ram":
            return {"ram": self.forecast.peak_pool_bytes + reserved}
        return {self.tier: self.forecast.peak_pool_bytes, "ram": self.host_staging_bytes + reserved}

    @property
    def moved_bytes(self) -> int:
        """Bytes that will be read and written."""
        return self.forecast.moved_bytes

    @property
    def bound_ratio(self) -> float:
        """Planned bytes over the lower bound; 1.0 is the least possible."""
        return self.moved_bytes / self.lower_bound_bytes if self.lower_bound_bytes else 1.0

    def explain(self) -> str:
        """Return the plan in some fifteen lines of words and numbers, for people."""
        if self.stages:
            return "\n".join(_staged(self))
        lines = [_title(self), f"  schedule     {self.schedule}: {self.shape_note}", _peak(self)]
        lines += [
            *(self.placement.lines() if self.placement is not None else [_residency(self)]),
            *_traffic(self),
            f"  time         {_time(self.forecast)}",
            *_alternatives(self),
        ]
        return "\n".join(lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write its choices to a file, for ``plan=`` of the same operation here or elsewhere, now or later.

        Raises StoreError when that cannot be.
        """
        self.saved().save(path)

    def saved(self) -> SavedPlan:
        """Return its choices, and for which operands they were made."""
        operands = {each.name: [list(each.shape), str(each.dtype)] for each in self.operands}
        spec = json.loads(json.dumps(dict(self.spec)))
        return SavedPlan(self.operation, operands, self.budget_bytes, spec)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan's figures as JSON-able values."""
        return {
            "operation": self.operation,
            "shapes": {operand.name: list(operand.shape) for operand in self.operands},
            "schedule": self.schedule,
            "tile": self.shape_note,
            "budget_bytes": self.budget_bytes,
            "peak_bytes": self.peak_bytes,
            "policy": self.eviction.name,
            "hits": self.forecast.hits,
            "misses": self.forecast.misses,
            "evictions": self.forecast.evictions,
            "bytes_read": dict(self.forecast.bytes_read),
            "bytes_written": self.forecast.bytes_written,
            "moved_bytes": self.moved_bytes,
            "lower_bound_bytes": self.lower_bound_bytes,
            "compulsory_bytes": self.compulsory_bytes,
            "bound_ratio": self.bound_ratio,
            "steps": self.forecast.steps,
            "passes": self.forecast.passes,
            "seconds": self.forecast.seconds,
            "stall_seconds": self.forecast.stall_s,
            "alternatives": [vars(other) for other in self.alternatives],
            "placement": None if self.placement is None else self.placement.to_dict(),
            "stages": [each.to_dict() for each in self.stages],
        }


def _staged(plan: Plan) -> Iterator[str]:
    """Yield the whole's figures, then each stage as a plan of its own."""
    yield f"{plan.operation}: {plan.schedule}: {plan.shape_note}"
    yield _peak(plan)
    yield f"  bytes moved  {format_bytes(plan.moved_bytes)}"
    yield f"  time         {_time(plan.forecast)}"
    for number, stage in enumerate(plan.stages, 1):
        yield f"stage {number}: {stage.explain()}"


def as_saved(plan: Any) -> SavedPlan | None:
    """Return what a caller gives as ``plan=``: a plan, a saved one, the path of a saved one, or None.

    Raises ArgumentError for anything else.
    """
    if plan is None or isinstance(plan, SavedPlan):
        return plan
    if isinstance(plan, (str, os.PathLike)):
        return SavedPlan.load(plan)
    if isinstance(plan, Plan):
        return plan.saved()
    raise ArgumentError(f"[plan] plan={plan!r}: give a Plan, or the path of what Plan.save wrote")


def _title(plan: Plan) -> str:
    *inputs, result = plan.operands
    shapes = ", ".join(f"{each.name}{list(each.shape)} {each.dtype} on {each.tier}" for each in inputs)
    return f"{plan.operation}: {shapes} -> {result.name}{list(result.shape)} {result.dtype} on {result.tier}"


def _peak(plan: Plan) -> str:
    budget = "no budget" if plan.budget_bytes is None else f"budget {format_bytes(plan.budget_bytes)}"
    parts = [f"blocks {format_bytes(plan.forecast.peak_pool_bytes)}"]
    parts += [f"{name} {format_bytes(size)}" for name, size in plan.reserved.items() if size]
    peaks = ", ".join(f"{tier} {format_bytes(size)}" for tier, size in plan.peak_bytes.items())
    return f"  peak         {peaks} ({' + '.join(parts)}); {budget} on {plan.tier}"


def _residency(plan: Plan) -> str:
    found = plan.forecast
    return (
        f"  policy       {plan.eviction.name}: {found.hits} accesses find their block in the pool, "
        f"{found.misses} do not, {found.evictions} blocks are evicted"
    )


def _traffic(plan: Plan) -> list[str]:
    reads = ", ".join(f"{name} {format_bytes(size)}" for name, size in plan.forecast.bytes_read.items())
    written = f"{plan.operands[-1].name} {format_bytes(plan.forecast.bytes_written)}"
    return [
        f"  bytes moved  {format_bytes(plan.moved_bytes)} (read {reads}; written {written})",
        f"  least        {format_bytes(plan.lower_bound_bytes)} by the lower bound for this capacity, "
        f"{format_bytes(plan.compulsory_bytes)} compulsory; the plan moves {plan.bound_ratio:.2f} x as much",
    ]


def _time(forecast: Forecast) -> str:
    waiting = max(forecast.seconds - forecast.compute_s, 0.0)
    passes = f" of {forecast.passes} passes" if forecast.passes > 1 else ""
    return (
        f"{forecast.seconds:.2f} s estimated: {forecast.compute_s:.2f} s arithmetic, "
        f"{waiting:.2f} s waiting for data, in {forecast.steps} steps{passes}"
    )


def _alternatives(plan: Plan) -> list[str]:
    return [
        f"  not chosen   {other.schedule}: {format_bytes(other.moved_bytes)}, {other.seconds:.2f} s; "
        f"{other.reason}"
        for other in plan.alternatives
    ]
