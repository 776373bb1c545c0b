"""Serialization of tasks, functions and outcomes; one that cannot be pickled is reported by itself."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from accelera.errors import TransferError
from accelera.execution.cluster.contract import Lease, UnreadableTasksError
from accelera.execution.executors.processes.messages import pack_error
from accelera.execution.kernel import name_of

Done = list[tuple[int, list[Any]]]
"""Pairs of a first index and the outcomes from there on: outputs, or ``Raised``."""


def pack(value: Any) -> bytes:
    """Return ``value`` pickled; functions of a notebook or a script go along by value."""
    packed: bytes = cloudpickle.dumps(value)
    return packed


def unpack(packed: bytes) -> Any:
    """Return what was packed."""
    return pickle.loads(packed)


def unpack_tasks(lease: Lease) -> Sequence[Any]:
    """Return the tasks of ``lease``.

    Raises
    ------
    UnreadableTasksError
        When one of them cannot be unpickled.
    """
    try:
        tasks: Sequence[Any] = unpack(lease.tasks)
    except Exception as error:
        raise UnreadableTasksError(
            f"[ray] a task cannot be unpickled on its node ({type(error).__name__}: {error}): what it is made"
            f" of must be installed there as here"
        ) from error
    return tasks


def pack_function(function: Callable[..., Any]) -> bytes:
    """Return ``function`` pickled.

    Raises
    ------
    TransferError
        When it cannot be.
    """
    try:
        return pack(function)
    except Exception as error:
        raise TransferError(
            f"[ray] {name_of(function)} cannot be sent to other machines ({type(error).__name__}: {error}):"
            f" whatever it refers to must be picklable; open files, locks and connections inside the function"
        ) from error


def pack_outcomes(done: Done) -> list[tuple[int, int, bytes]]:
    """Return outcomes pickled; in the place of one that cannot be is why."""
    return [(start, len(outcomes), _packed(outcomes)) for start, outcomes in done]


def _packed(outcomes: list[Any]) -> bytes:
    try:
        return pack(outcomes)
    except Exception:
        return pack([_or_why_not(each) for each in outcomes])


def first_that_cannot(tasks: Sequence[Any]) -> tuple[int, TransferError] | None:
    """Return the position of the first task that cannot be pickled, and why."""
    for position, task in enumerate(tasks):
        why = _why_not(task)
        if why is not None:
            return position, TransferError(f"[ray] a task cannot be sent to another machine: {why}")
    return None


def _or_why_not(outcome: Any) -> Any:
    why = _why_not(outcome)
    if why is None:
        return outcome
    return pack_error(TransferError(f"[ray] the output of a task cannot be sent back: {why}"))


def _why_not(value: Any) -> str | None:
    try:
        pack(value)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
