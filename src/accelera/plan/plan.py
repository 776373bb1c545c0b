"""A plan: the steps of one operation, what they will cost, and why they were chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from accelera.plan.operand import Block, Operand


@dataclass(frozen=True)
class Step:
    """One call of a kernel: blocks it reads, the block it writes, and what it does with them."""

    reads: tuple[Block, ...]
    """Blocks that must be loaded before the step."""
    write: Block
    """Block the step writes or adds to; held in the pool from its first step to its last."""
    first: bool
    """True when the block written holds nothing yet."""
    last: bool
    """True when the block written is complete afterwards and goes to its store."""
    task: Any
    """What the kernel needs besides the blocks (for matmul, the ranges of k)."""
    compute_s: float
    """Predicted seconds of arithmetic."""


@dataclass(frozen=True)
class Forecast:
    """What a plan's accesses will do, found by walking them on paper."""

    peak_pool_bytes: int
    """Most bytes the pool holds at any time."""
    bytes_read: Mapping[str, int]
    """Bytes read from stores, by operand."""
    bytes_written: int
    """Bytes written to the result's store."""
    hits: int
    misses: int
    evictions: int
    steps: int
    """Number of steps."""
    seconds: float
    """Predicted wall time, reads, arithmetic and writes overlapping."""
    compute_s: float
    """Seconds of arithmetic alone."""

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written."""
        return sum(self.bytes_read.values()) + self.bytes_written


@dataclass(frozen=True)
class Alternative:
    """A schedule that was considered and not chosen."""

    schedule: str
    moved_bytes: int
    seconds: float
    reason: str
    """Why it lost, in words."""


@dataclass(frozen=True)
class Plan:
    """How an operation will run inside its budget, and what that costs."""

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
    make_steps: Callable[[], Iterator[Step]] = field(repr=False)
    """Generates the steps, the same ones every time."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """The choices in JSON-able form, from which the same steps can be made again."""
    alternatives: tuple[Alternative, ...] = ()
    host_staging_bytes: int = 0
    """Bytes of host RAM needed besides, when the tier is not RAM."""

    def steps(self) -> Iterator[Step]:
        """Yield the steps in order."""
        return self.make_steps()

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Projected peak per tier, in bytes."""
        reserved = sum(self.reserved.values())
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
        """Return the plan in words and numbers, for people."""
        from accelera.plan.explain import explain

        return explain(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan's figures as JSON-able values."""
        return {
            "operation": self.operation,
            "shapes": {operand.name: list(operand.shape) for operand in self.operands},
            "schedule": self.schedule,
            "tile": self.shape_note,
            "budget_bytes": self.budget_bytes,
            "peak_bytes": self.peak_bytes,
            "bytes_read": dict(self.forecast.bytes_read),
            "bytes_written": self.forecast.bytes_written,
            "moved_bytes": self.moved_bytes,
            "lower_bound_bytes": self.lower_bound_bytes,
            "compulsory_bytes": self.compulsory_bytes,
            "bound_ratio": self.bound_ratio,
            "steps": self.forecast.steps,
            "seconds": self.forecast.seconds,
            "alternatives": [vars(other) for other in self.alternatives],
        }
