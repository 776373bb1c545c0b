"""A plan in words: what it holds, what it moves, how close that is to the least possible."""

from __future__ import annotations

from accelera.plan.plan import Plan
from accelera.units import format_bytes


def explain(plan: Plan) -> str:
    """Return a report of ``plan`` of some fifteen lines."""
    lines = [_title(plan), f"  schedule     {plan.schedule}: {plan.shape_note}"]
    lines += _peak(plan)
    lines += _traffic(plan)
    lines.append(f"  time         {_time(plan)}")
    lines += _alternatives(plan)
    return "\n".join(lines)


def _title(plan: Plan) -> str:
    *inputs, result = plan.operands
    shapes = " , ".join(f"{each.name}{list(each.shape)} {each.dtype} on {each.tier}" for each in inputs)
    return f"{plan.operation}: {shapes} -> {result.name}{list(result.shape)} {result.dtype} on {result.tier}"


def _peak(plan: Plan) -> list[str]:
    budget = "no budget" if plan.budget_bytes is None else f"budget {format_bytes(plan.budget_bytes)}"
    parts = [f"blocks {format_bytes(plan.forecast.peak_pool_bytes)}"]
    parts += [f"{name} {format_bytes(size)}" for name, size in plan.reserved.items() if size]
    peaks = ", ".join(f"{tier} {format_bytes(size)}" for tier, size in plan.peak_bytes.items())
    return [f"  peak         {peaks} ({' + '.join(parts)}); {budget} on {plan.tier}"]


def _traffic(plan: Plan) -> list[str]:
    reads = ", ".join(f"{name} {format_bytes(size)}" for name, size in plan.forecast.bytes_read.items())
    written = f"{plan.operands[-1].name} {format_bytes(plan.forecast.bytes_written)}"
    return [
        f"  bytes moved  {format_bytes(plan.moved_bytes)} (read {reads}; written {written})",
        f"  least        {format_bytes(plan.lower_bound_bytes)} by the lower bound for this capacity, "
        f"{format_bytes(plan.compulsory_bytes)} compulsory; the plan moves {plan.bound_ratio:.2f} x as much",
    ]


def _time(plan: Plan) -> str:
    forecast = plan.forecast
    waiting = max(forecast.seconds - forecast.compute_s, 0.0)
    return (
        f"{forecast.seconds:.2f} s estimated: {forecast.compute_s:.2f} s arithmetic, "
        f"{waiting:.2f} s waiting for data, in {forecast.steps} steps"
    )


def _alternatives(plan: Plan) -> list[str]:
    return [
        f"  not chosen   {other.schedule}: {format_bytes(other.moved_bytes)}, {other.seconds:.2f} s; "
        f"{other.reason}"
        for other in plan.alternatives
    ]
