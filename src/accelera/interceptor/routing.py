"""By which route a call goes: torch's kernel in one piece, in pieces, or in pieces into a file."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import torch

from accelera.devices import is_out_of_memory
from accelera.errors import BudgetExceededError
from accelera.interceptor.calls import Call, InMemory
from accelera.interceptor.falling_back import fall_back
from accelera.interceptor.limits import Limits, Room, Route
from accelera.interceptor.spilling import Spill, spill_folder
from accelera.interceptor.statistics import statistics
from accelera.memory import Budget
from accelera.units import format_bytes

logger = logging.getLogger("accelera.interceptor")

Kernel = Callable[..., Any]


def route(call: Call, limits: Limits, kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute one call within the limits.

    Parameters
    ----------
    call
        What was called.
    limits
        What is in force.
    kernel, args, kwargs
        Torch's own kernel, and what it is called with in one piece.

    Raises
    ------
    BudgetExceededError
        No route fits the budget.
    StoreError
        The spill folder cannot take the result.
    """
    room = limits.room(call.device)
    if not call.wants_pieces(limits) and room.allows(call.added_bytes):
        try:
            return _direct(call, kernel, args, kwargs)
        except RuntimeError as error:
            if not is_out_of_memory(error) or call.why_whole() is not None:
                raise
            fall_back(call.op, "in pieces after running out of memory", error)
    why_whole = call.why_whole()
    if why_whole is not None:
        return _whole(call, why_whole, room, kernel, args, kwargs)
    with statistics.in_progress(call.added_bytes if call.device.type == "cpu" else 0):
        return _in_pieces(call, limits, room)


def _direct(call: Call, kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = kernel(*args, **kwargs)
    statistics.direct(call.op, call.looked_bytes, call.added_bytes)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("%s: direct, adds %s", call.op, format_bytes(call.added_bytes))
    return result


def _whole(
    call: Call, why: str, room: Room, kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Leave a call to torch although it may take more than the budget."""
    statistics.passed(call.op, why)
    budget = format_bytes(room.budget_bytes())
    logger.debug("%s: passed, %s; adds %s of %s", call.op, why, format_bytes(call.added_bytes), budget)
    return kernel(*args, **kwargs)


def _in_pieces(call: Call, limits: Limits, room: Room) -> Any:
    budget_bytes, began = room.budget_bytes(), time.perf_counter()
    refusals: dict[Route, int] = {}
    ways = _ways(call, limits, budget_bytes)
    for way in ways:
        try:
            result = (
                _chunked(call, limits, budget_bytes)
                if way == "chunked"
                else _spilled(call, limits, budget_bytes)
            )
        except BudgetExceededError as refusal:
            refusals[way] = refusal.needed_bytes + (call.result_bytes if way == "chunked" else 0)
        except (RuntimeError, MemoryError) as error:
            if way == ways[-1] or not is_out_of_memory(error, of_python=True):
                raise
            fall_back(call.op, "into a file after running out of memory", error)
        else:
            _note(call, way, budget_bytes, time.perf_counter() - began)
            return result
    raise _refusal(call, limits, room, budget_bytes, refusals)


def _ways(call: Call, limits: Limits, budget_bytes: int) -> list[Route]:
    """Return the routes in pieces that may do, the cheaper first."""
    ways: list[Route] = []
    if call.given is not None or (limits.cut.least != "spilled" and call.result_bytes < budget_bytes):
        ways.append("chunked")
    if call.given is None and limits.spill is not None and call.device.type == "cpu":
        ways.append("spilled")
    return ways


def _chunked(call: Call, limits: Limits, budget_bytes: int) -> torch.Tensor:
    if call.given is not None:
        memory = call.given
    else:
        result = call.result()
        memory = torch.empty_strided(result.shape, result.strides, dtype=result.dtype, device=call.device)
    _tell(call, call.fill(InMemory(memory.detach()), limits, budget_bytes - call.result_bytes))
    return memory


def _spilled(call: Call, limits: Limits, budget_bytes: int) -> torch.Tensor:
    spill = Spill(call.op, spill_folder(call.op, limits), call.result())
    try:
        _tell(call, call.fill(spill.target, limits, budget_bytes))
    finally:
        spill.close()
    return spill.tensor()


def _note(call: Call, way: Route, budget_bytes: int, seconds: float) -> None:
    statistics.in_pieces(call.op, way, call.looked_bytes, call.added_bytes, budget_bytes)
    statistics.took(call.op, seconds)
    without = format_bytes(call.added_bytes)
    logger.debug("%s: %s within %s, %s in one piece", call.op, way, format_bytes(budget_bytes), without)


def _tell(call: Call, fallbacks: list[str]) -> None:
    for each in fallbacks:
        what, _, why = each.partition(": ")
        fall_back(call.op, what, why)


def _refusal(
    call: Call, limits: Limits, room: Room, budget_bytes: int, refusals: dict[Route, int]
) -> BudgetExceededError:
    """Return the error of a call for which no route fits, with the smallest budget that would do."""
    statistics.in_pieces(call.op, "refused", call.looked_bytes, call.added_bytes, 0)
    needed = min([call.added_bytes, *refusals.values()])
    budget = Budget(budget_bytes, room.origin)
    remedy = budget.remedy(needed)
    if limits.spill is None:
        remedy += ", or let the result go to a file with spill=True or a folder"
    elif call.device.type != "cpu":
        remedy += ", or move the operands to the CPU, whose results can go to files"
    return BudgetExceededError(
        f"[{call.op}] adds {format_bytes(call.added_bytes)} (result {format_bytes(call.result_bytes)}) in "
        f"one piece, and at least {format_bytes(needed)} ({needed:,} bytes) in pieces: more than the "
        f"{budget.allowance}; {remedy}",
        needed_bytes=needed,
        budget_bytes=budget_bytes,
    )
