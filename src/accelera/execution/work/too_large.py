"""A task that fits neither the device nor what the CPU may take."""

from __future__ import annotations

from accelera.errors import TaskTooLargeError
from accelera.execution.work.pieces import Piece
from accelera.execution.work.weight import bytes_of


def refusal(piece: Piece, memory_per_task: int, budget_bytes: int | None) -> TaskTooLargeError | None:
    """Return why the one task of ``piece`` must not go to the CPU; None: it may.

    A task whose size is not known, neither stated nor visible in its arrays, may.
    """
    needed_bytes = memory_per_task or bytes_of(piece.tasks[0])
    if budget_bytes is None or needed_bytes <= budget_bytes:
        return None
    return TaskTooLargeError(
        f"[execute] task {piece.start} takes {needed_bytes:,} bytes: it does not fit the device even alone,"
        f" and the CPU may use {budget_bytes:,} bytes; raise the budget, or make smaller tasks",
        index=piece.start,
        needed_bytes=needed_bytes,
        budget_bytes=budget_bytes,
    )
