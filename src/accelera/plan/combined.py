"""Combined plan: several plans, carried out one after the other, as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from accelera.plan.plan import Plan
from accelera.plan.types import Forecast, OperandBlock, PlanStep
from accelera.plan.walk import Part, Pass, Pattern, Repeat


def combine_plans(
    operation: str, plans: Sequence[Plan], names: Sequence[str], held_bytes: Sequence[int], budget_bytes: int
) -> Plan:
    """Return one plan of the stages ``plans``, whose results are called ``names``.

    ``held_bytes`` says for each stage what results of other stages take of the budget meanwhile. Figures
    are sums; the peak is that of the stage that takes most.
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
