"""What a worker is asked and what it answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple, final

from accelera.errors import TransferError
from accelera.execution.executors.constants import constants_of
from accelera.execution.executors.workers.parcels import pack
from accelera.execution.executors.workers.raised import Raised
from accelera.execution.executors.workers.surroundings import Surroundings
from accelera.execution.executors.workers.wire import Part
from accelera.execution.kernel import Kernel, name_of
from accelera.execution.retry import Retry


@final
class Job:
    """A function and when it is tried again, in bytes; sent to each worker once.

    Parameters
    ----------
    checked
        Whether a worker is to make sure that the function finds there what it finds here.

    Raises
    ------
    TransferError
        When the function cannot be pickled.
    """

    def __init__(self, function: Callable[[Any], Any], retry: Retry | None, *, checked: bool = False) -> None:
        inner = function.function if isinstance(function, Kernel) else function
        constants = constants_of(inner) if checked else {}
        try:
            self.parts: list[Part] = pack((inner, retry, constants))
        except Exception as error:
            raise TransferError(
                f"[processes] {name_of(function)} cannot be sent to another process"
                f" ({type(error).__name__}: {error}): whatever it refers to must be picklable; open files,"
                f" locks and connections inside the function, or run it on threads"
            ) from error
        digest = hashlib.blake2b(digest_size=16)
        for part in self.parts:
            digest.update(part)
        self.digest = digest.digest()
        """The same for equal functions."""
        self.surroundings = Surroundings.here()


@final
class Order(NamedTuple):
    """The first part of what a worker is asked; the tasks follow, unless it is to stop."""

    digest: bytes
    """Of the function."""
    job_parts: int
    """How many of the parts that follow are the function; 0: the worker has it."""
    forget: bytes | None
    """The digest of a function that is not needed any more."""
    surroundings: Surroundings | None
    """Where the program is now; None: where it was."""


@final
class Answer(NamedTuple):
    """The first part of what a worker answers; the outputs follow, where there are any."""

    done: int
    """So many of the first tasks came to an end."""
    failed: list[tuple[int, Raised]]
    """Positions of tasks that raised, and what."""
    retried: list[tuple[int, Raised]]
    """Positions of tasks that were tried again, and why."""
    unsendable: list[tuple[int, str]]
    """Positions of tasks whose outputs cannot be pickled, and why."""
    seconds: float
    """How long the tasks took."""
    unreadable: str | None = None
    """What could not be unpickled: ``"function"`` or ``"tasks"``, and nothing was begun; or ``"outputs"``."""
    why: str = ""
