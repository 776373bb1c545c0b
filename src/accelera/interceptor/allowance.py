"""What one call may still take, for those who compute a call by themselves."""

from __future__ import annotations

import torch

from accelera.errors import BudgetExceededError
from accelera.interceptor.calls import Result, contiguous_strides, nbytes
from accelera.interceptor.force import in_force
from accelera.interceptor.spilling import spilled_empty
from accelera.units import format_bytes


def budget_left(device: torch.device) -> int | None:
    """Return the bytes that one call may add, its result included; None while nothing is in force."""
    limits = in_force()
    return None if limits is None else limits.room(device).budget_bytes()


def must_be_cut(added_bytes: int, device: torch.device) -> bool:
    """Return whether a call that would add ``added_bytes`` in one piece has to go in pieces."""
    limits = in_force()
    if limits is None:
        return False
    return limits.cut.least != "direct" or not limits.room(device).allows(added_bytes)


def empty(
    op: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, kept_bytes: int = 0
) -> torch.Tensor:
    """Return a dense tensor of any contents for a result: in memory if it fits, else over a mapped file.

    ``kept_bytes`` are needed besides for the work.

    Raises
    ------
    BudgetExceededError
        It does not fit, and may not or cannot go to a file.
    StoreError
        The spill folder cannot take it.
    """
    limits, size = in_force(), nbytes(shape, dtype)
    if stays_in_memory(size + kept_bytes, device):
        return torch.empty(shape, dtype=dtype, device=device)
    assert limits is not None
    if limits.spill is None or device.type != "cpu":
        budget = limits.room(device).budget()
        raise BudgetExceededError(
            f"[{op}] a result of {format_bytes(size)} on {device} and {format_bytes(kept_bytes)} to work in "
            f"are more than the {budget.allowance}; {budget.remedy(size + kept_bytes)}",
            needed_bytes=size + kept_bytes,
            budget_bytes=budget.limit_bytes,
        )
    return spilled_empty(op, limits, Result(shape, contiguous_strides(shape), dtype))


def stays_in_memory(needed_bytes: int, device: torch.device) -> bool:
    """Return whether a result goes to memory that, with what is needed to work, takes ``needed_bytes``."""
    limits = in_force()
    return limits is None or (limits.cut.least != "spilled" and limits.room(device).allows(needed_bytes))
