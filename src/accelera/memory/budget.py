"""A budget: the bytes an operation may take, and the refusal when it would take more."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Protocol

from accelera.errors import ArgumentError, BudgetExceededError
from accelera.settings import current
from accelera.units import format_bytes, parse_bytes, parse_fraction, parse_share


class UsableMemory(Protocol):
    """Memory that a budget is a share of (``MemoryManager`` is one)."""

    def get_total_memory(self) -> int:
        """Return the bytes there are."""

    def get_usable_memory(self) -> int:
        """Return the bytes that may be taken now without leaving the threshold."""


@dataclass(frozen=True)
class Budget:
    """The bytes that may be used, and where the figure comes from."""

    limit_bytes: int
    origin: str
    """For messages: ``"budget"``, ``"ACCELERA_BUDGET"`` or ``"ACCELERA_MEMORY_THRESHOLD"``."""

    @classmethod
    def parse(cls, amount: int | float | str | None, memory: UsableMemory) -> Budget:
        """Read a budget as people write it.

        An int or ``"512MiB"`` is bytes; a float up to 1, ``"0.5"`` or ``"50%"`` is a share of the
        memory there is. None takes ``ACCELERA_BUDGET``, and without that what the threshold leaves
        free now. Raises ArgumentError for anything else, also for a float above 1 that is no whole number
        of bytes: 1.5 is neither a share nor a size.
        """
        if amount is not None:
            return cls(_to_bytes(amount, memory), "budget")
        default = current().budget
        if default is not None:
            return cls(_to_bytes(default, memory), "ACCELERA_BUDGET")
        return cls(memory.get_usable_memory(), "ACCELERA_MEMORY_THRESHOLD")

    @property
    def is_given(self) -> bool:
        """Whether it was asked for; otherwise the free memory decides."""
        return self.origin != "ACCELERA_MEMORY_THRESHOLD"

    @property
    def allowance(self) -> str:
        """How much it allows, for messages: ``"more than the " + allowance``."""
        size = f"{format_bytes(self.limit_bytes)} ({self.limit_bytes:,} bytes)"
        if self.is_given:
            return f"{size} that {self.origin} allows"
        return f"{size} that are free now within {self.origin}, a share of the memory"

    def remedy(self, needed_bytes: int) -> str:
        """Return what to do where ``needed_bytes`` are wanted, for messages."""
        if self.is_given:
            return f"raise it to at least {needed_bytes:,} bytes"
        return f"free memory, or set a budget (ACCELERA_BUDGET) of at least {needed_bytes:,} bytes"

    def require(self, needed_bytes: int, op: str, what: str) -> None:
        """Raise BudgetExceededError with both numbers when ``needed_bytes`` do not fit."""
        if needed_bytes > self.limit_bytes:
            raise BudgetExceededError(
                f"[{op}] {what} needs {format_bytes(needed_bytes)} ({needed_bytes:,} bytes), more than the "
                f"{self.allowance}; {self.remedy(needed_bytes)}, or write the result to a file with out=",
                needed_bytes=needed_bytes,
                budget_bytes=self.limit_bytes,
            )

    def __str__(self) -> str:
        return f"{format_bytes(self.limit_bytes)} ({self.origin})"


def _to_bytes(amount: object, memory: UsableMemory) -> int:
    if isinstance(amount, bool) or not isinstance(amount, (numbers.Real, str)):
        raise ArgumentError(
            f"[budget] {amount!r} is a {type(amount).__name__}, and no size; write for example '512MiB', "
            "bytes, or a share such as 0.5 or '50%'"
        )
    try:
        plain = amount if isinstance(amount, str) else _plain(amount)
        return _bytes_of(plain, memory)
    except (ValueError, OverflowError) as error:
        raise ArgumentError(str(error) if str(error).startswith("[") else f"[budget] {error}") from error


def _plain(amount: numbers.Real) -> int | float:
    return int(amount) if isinstance(amount, numbers.Integral) else float(amount)


def _bytes_of(amount: int | float | str, memory: UsableMemory) -> int:
    share = parse_share(amount) if isinstance(amount, str) else amount
    if isinstance(share, float) and share <= 1:
        return int(parse_fraction(str(share)) * memory.get_total_memory())
    if isinstance(share, float) and math.isfinite(share) and not share.is_integer():
        raise ValueError(
            f"[budget] {amount!r} is not a size: above 1 it would be bytes, and is no whole number of them; "
            "write for example '1.5GiB', int(bytes), or a share such as 0.5 or '50%'"
        )
    return parse_bytes(share)
