"""Several plans, carried out one after the other, as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from accelera.plan.figures import Forecast, Step
from accelera.plan.operand import Block
from accelera.plan.plan import Plan


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
        make_steps=lambda: _steps(plans),
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


def _steps(plans: Sequence[Plan]) -> Iterator[Step]:
    """Yield the steps of all plans, blocks and operands numbered on from one to the next."""
    first_operand = first_block = 0
    for plan in plans:
        most = first_block

        def numbered(block: Block, operand: int = first_operand, number: int = first_block) -> Block:
            return replace(block, id=block.id + number, operand=block.operand + operand)

        for step in plan.steps():
            moved = replace(step, reads=tuple(map(numbered, step.reads)), write=numbered(step.write))
            most = max(most, moved.write.id, *(block.id for block in moved.reads))
            yield moved
        first_operand, first_block = first_operand + len(plan.operands), most + 1
