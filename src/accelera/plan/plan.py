"""A plan: steps of one operation, their cost, why they were chosen, who takes them, and its file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from typing import Any, final

from accelera._atomic import atomic_write
from accelera._json_values import parse_json
from accelera._result_html import MemoryBar, result_html
from accelera._user_paths import user_path
from accelera.errors import ArgumentError, DTypeError, ShapeError, StoreError, StoreFormatError
from accelera.plan.dry_run import trace_of_passes
from accelera.plan.limits import Eviction
from accelera.plan.types import Alternative, Forecast, Operand, OperandBlock, PlanStep
from accelera.plan.walk import Part, Pass, Pattern, Repeat
from accelera.trace import Trace
from accelera.units import format_bytes, format_seconds

FORMAT = 1
_FIELDS: dict[str, tuple[type, ...]] = {
    "operation": (str,),
    "operands": (dict,),
    "budget_bytes": (int, type(None)),
    "spec": (dict,),
}


def _has_fields(found: Mapping[str, Any]) -> bool:
    if found.keys() != _FIELDS.keys() or not all(
        isinstance(found[name], kind) for name, kind in _FIELDS.items()
    ):
        return False
    budget = found["budget_bytes"]
    return (budget is None or _is_size(budget)) and all(map(_is_operand, found["operands"].values()))


def _is_operand(value: Any) -> bool:
    """Return whether ``value`` is a shape and the name of an element type, as ``Plan.save`` writes them."""
    if not isinstance(value, list) or len(value) != 2:
        return False
    shape, dtype = value
    return isinstance(shape, list) and all(map(_is_size, shape)) and isinstance(dtype, str)


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


@final
@dataclass(frozen=True)
class SavedPlan:
    """Choices of a plan, and the operands they are for."""

    operation: str
    operands: Mapping[str, list[Any]]
    """Shape and element type of each operand and the result, by name."""
    budget_bytes: int | None
    """The budget it was made for."""
    spec: Mapping[str, Any]
    """Its choices."""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SavedPlan:
        """Return the plan in a file.

        Raises StoreError when it cannot be read, StoreFormatError when it is no saved plan.
        """
        try:
            text = user_path(path, "plan").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"[plan] {path} cannot be read: {error}; give what Plan.save wrote") from error
        try:
            members = parse_json(text)
            version = members.pop("accelera_plan")
            sound = version != FORMAT or _has_fields(members)
        except (ValueError, KeyError, TypeError, AttributeError):
            sound = False
        if not sound:
            raise StoreFormatError(f"[plan] {path} is no saved plan; give what Plan.save wrote")
        if version != FORMAT:
            raise StoreFormatError(
                f"[plan] {path} has format {version}, this version reads {FORMAT}; plan and save again"
            )
        return cls(**members)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON; raises StoreError when that cannot be."""
        try:
            text = json.dumps({"accelera_plan": FORMAT, **asdict(self)}, indent=2)
            with atomic_write(user_path(path, "plan")) as partial:
                partial.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise StoreError(
                f"[plan] {path} cannot be written: {error.strerror or error}; choose another place"
            ) from error

    def stage(self, number: int, operation: str) -> SavedPlan:
        """Return the plan of one of its stages, counted from 0, which is that ``operation``."""
        begin = f"{number + 1}."
        operands = {
            name.removeprefix(begin): each for name, each in self.operands.items() if name.startswith(begin)
        }
        return SavedPlan(operation, operands, self.budget_bytes, self.spec["stages"][number])

    def require_stages(self, operation: str, count: int) -> None:
        """Raise ArgumentError or StoreFormatError unless it is of ``operation`` in ``count`` stages."""
        self.require_same(operation, {})
        specs = self.spec.get("stages")
        if (
            not isinstance(specs, list)
            or len(specs) != count
            or not all(isinstance(each, dict) for each in specs)
        ):
            raise StoreFormatError(
                f"[{operation}] plan= is not one of {count} stages, as this expression needs; plan again"
            )

    def require_same(self, operation: str, inputs: Mapping[str, tuple[Sequence[int], Any]]) -> None:
        """Raise unless it was made for ``operation`` on operands of these shapes and element types.

        Raises ArgumentError for another operation, ShapeError or DTypeError for other operands.
        """
        if operation != self.operation:
            raise ArgumentError(f"[{operation}] plan= was made for {self.operation}; plan this operation")
        for name, (shape, dtype) in inputs.items():
            planned_shape, planned_dtype = self.operands.get(name, [None, None])
            if planned_shape != list(shape):
                raise ShapeError(
                    f"[{operation}] {name} has shape {tuple(shape)}, plan= was made for {planned_shape}; "
                    f"plan for these operands"
                )
            if planned_dtype != str(dtype):
                raise DTypeError(
                    f"[{operation}] {name} is {dtype}, plan= was made for {planned_dtype}; plan for these "
                    f"operands"
                )


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
    """Schedule of that block."""


@final
@dataclass(frozen=True)
class DevicePlacement:
    """The blocks of a result, assigned to devices."""

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
        f"    {share.device:10} {share.blocks} of {blocks} blocks expected, {format_seconds(share.seconds)}; "
        f"each in at most {format_bytes(share.peak_bytes)} of {share.tier}: {share.schedule}"
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
    """Bytes for other things than blocks: staging buffers, the BLAS workspace …"""
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
        """Return the facts that a replay of the run's trace needs."""
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

    def __repr__(self) -> str:
        peak = format_bytes(self.peak_bytes.get(self.tier, self.peak_bytes["ram"]))
        limit = "" if self.budget_bytes is None else f" of {format_bytes(self.budget_bytes)}"
        return (
            f"<Plan {self.operation}: {self.schedule}, peak {peak}{limit} on {self.tier}, "
            f"{format_bytes(self.moved_bytes)} moved, {format_seconds(self.forecast.seconds)}>"
        )

    def _repr_html_(self) -> str:
        parts = {"blocks": self.forecast.peak_pool_bytes}
        if self.tier == "ram":
            parts |= self.reserved
        bar = MemoryBar(f"planned peak of {self.tier}", parts, self.budget_bytes)
        return result_html(repr(self), self.explain(), [bar])

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

        Raises StoreError when the file cannot be written.
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
    """Return the saved form of an argument ``plan=``: a plan, a saved one, the path of one, or None.

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
        f"{format_seconds(forecast.seconds)} estimated: {format_seconds(forecast.compute_s)} arithmetic, "
        f"{format_seconds(waiting)} waiting for data, in {forecast.steps} steps{passes}"
    )


def _alternatives(plan: Plan) -> list[str]:
    return [
        f"  not chosen   {other.schedule}: {format_bytes(other.moved_bytes)}, "
        f"{format_seconds(other.seconds)}; {other.reason}"
        for other in plan.alternatives
    ]


def combine_plans(
    operation: str, plans: Sequence[Plan], names: Sequence[str], held_bytes: Sequence[int], budget_bytes: int
) -> Plan:
    """Return one plan of the stages ``plans``, whose results are called ``names``.

    ``held_bytes`` are, per stage, the bytes of the budget that results of other stages take meanwhile.
    Figures are sums; the peak is that of the stage with the largest peak.
    """
    peaks = [plan.peak_bytes["ram"] + held for plan, held in zip(plans, held_bytes, strict=True)]
    top = peaks.index(max(peaks))
    operands = tuple(
        replace(operand, name=f"{number}.{operand.name}")
        for number, plan in enumerate(plans, 1)
        for operand in plan.operands
    )
    return replace(
        plans[top],
        operation=operation,
        operands=operands,
        schedule=f"{len(plans)} stages",
        shape_note=", ".join(f"{name} by {plan.operation}" for name, plan in zip(names, plans, strict=True)),
        budget_bytes=budget_bytes,
        reserved={**plans[top].reserved, "intermediates": held_bytes[top]},
        forecast=_forecast([plan.forecast for plan in plans], plans[top].forecast.peak_pool_bytes),
        lower_bound_bytes=sum(plan.lower_bound_bytes for plan in plans),
        compulsory_bytes=sum(plan.compulsory_bytes for plan in plans),
        pattern=_pattern(plans),
        spec={"stages": [dict(plan.spec) for plan in plans]},
        alternatives=(),
        stages=tuple(plans),
    )


def _forecast(found: Sequence[Forecast], peak_pool_bytes: int) -> Forecast:
    read = {f"{n}.{name}": size for n, each in enumerate(found, 1) for name, size in each.bytes_read.items()}
    summed = {
        name: sum(getattr(each, name) for each in found)
        for name in Forecast.__dataclass_fields__
        if name not in ("bytes_read", "peak_pool_bytes")
    }
    return Forecast(peak_pool_bytes=peak_pool_bytes, bytes_read=read, **summed)


def _pattern(plans: Sequence[Plan]) -> Pattern:
    """Return the passes of all plans, operands numbered on from one to the next."""
    firsts = [0, *accumulate(len(plan.operands) for plan in plans)]
    numbered = list(zip(plans, firsts, strict=False))
    return Pattern(
        tuple(_shifted(kind, first) for plan, first in numbered for kind in plan.pattern.kinds),
        lambda: (_shifted_pass(each, first) for plan, first in numbered for each in plan.pattern.passes()),
    )


def _shifted(kind: Repeat, first: int) -> Repeat:
    """Return a part whose operands are numbered from ``first``."""

    def part(number: int) -> Part:
        found = kind.part(number)
        if isinstance(found, Pass):
            return _shifted_pass(found, first)
        return tuple(_shifted(each, first) for each in found)

    return Repeat(kind.count, part)


def _shifted_pass(found: Pass, first: int) -> Pass:
    def moved(block: OperandBlock) -> OperandBlock:
        return replace(block, operand=block.operand + first)

    def steps() -> Iterator[PlanStep]:
        return (
            replace(step, reads=tuple(map(moved, step.reads)), write=moved(step.write))
            for step in found.steps()
        )

    return Pass(steps)
