"""Refusals of what does not fit the budget of an offloaded model, with a budget that would do."""

from __future__ import annotations

from collections.abc import Sequence

from accelera._native import Arena
from accelera.errors import BudgetExceededError
from accelera.memory import Use
from accelera.units import format_bytes

_NAMED = 4


def refusal(
    op: str,
    uses: Sequence[Use],
    budget_bytes: int | None,
    error: BudgetExceededError,
    heap_bytes: int = 0,
) -> BudgetExceededError:
    """Return ``error`` of the pool in the words of the operation, with a budget that would do for it.

    Without a budget the figures stay those of the pool. ``heap_bytes`` of what is held are free memory that
    the C library keeps, where tensors are not counted one by one.
    """
    blocks = {use.block.id: use.block for use in uses}
    taken = sum(block.nbytes for block in blocks.values())
    names = [block.name or block.role or "a temporary" for block in blocks.values()]
    shown = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    needed, given = error.needed_bytes, error.budget_bytes
    if budget_bytes is not None:
        needed, given = budget_bytes * needed // given if given else 2 * needed, budget_bytes
    reason = str(error).partition("] ")[2].partition("; ")[0]
    heap = f", of it {format_bytes(heap_bytes)} free heap that the C library keeps" if heap_bytes else ""
    return BudgetExceededError(
        f"[{op or 'offload'}] works on {format_bytes(taken)} at once ({shown}): {reason}{heap}; "
        f"{format_bytes(given)} are given, and {needed} bytes ({format_bytes(needed)}) would do for it",
        needed_bytes=needed,
        budget_bytes=given,
    )


def tensor_refusal(arena: Arena, lacking_bytes: int, budget_bytes: int) -> BudgetExceededError:
    """Return the refusal of a tensor for which ``lacking_bytes`` too few of blocks may leave."""
    needed = budget_bytes + lacking_bytes
    return BudgetExceededError(
        f"[offload] a tensor does not fit: of the budget of {format_bytes(budget_bytes)}, tensors such as "
        f"activations take {format_bytes(arena.ordinary_bytes)} and blocks in use "
        f"{format_bytes(arena.committed_bytes)}; {needed} bytes ({format_bytes(needed)}) would do for it: "
        "raise the budget, use a smaller batch, or activations='recompute'",
        needed_bytes=needed,
        budget_bytes=budget_bytes,
    )
