"""The exception tree.

    AcceleraError
    ├── ShapeError            (ValueError)    operands do not fit together
    ├── DTypeError            (TypeError)     an element type is unknown, mixed or not supported
    ├── BudgetExceededError   (MemoryError)   refused before anything was allocated
    ├── DeviceMemoryError     (MemoryError)   a device ran out while working
    ├── DeviceError           (RuntimeError)  a device failed for another reason
    ├── StoreError            (OSError)       bytes could not be read, written or published
    │   ├── StoreFormatError  (ValueError)    a header or a file is not what its name says
    │   └── StoreChangedError                 an operand changed since the journal was begun
    ├── TraceFormatError      (ValueError)    a trace file is malformed; names the line
    ├── ScorerError           (RuntimeError)  a scorer's model is absent, fails, or answers nonsense
    ├── UnknownNameError      (LookupError)   no such policy, device, strategy …; near names given
    ├── BackendMissingError   (ImportError)   an optional dependency is absent; remedy given
    └── SettingError          (ValueError)    an ACCELERA_* variable cannot be read

Every message reads: ``[op]`` · what was asked, with numbers · the rule it met · what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AcceleraError(Exception):
    """Base of every error raised on purpose by this package."""


class ShapeError(AcceleraError, ValueError):
    """Shapes that do not fit the operation."""


class DTypeError(AcceleraError, TypeError):
    """An element type that the operation cannot take, or a pair that cannot be mixed."""


class BudgetExceededError(AcceleraError, MemoryError):
    """The smallest possible plan needs more than the budget; nothing was allocated."""

    def __init__(self, message: str, *, needed_bytes: int, budget_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        """Smallest budget, in bytes, that would do."""
        self.budget_bytes = budget_bytes
        """The budget that was given, in bytes."""


class DeviceMemoryError(AcceleraError, MemoryError):
    """A device ran out of memory while working."""


class DeviceError(AcceleraError, RuntimeError):
    """A device failed for a reason other than memory."""


class StoreError(AcceleraError, OSError):
    """Bytes could not be read, written or published."""


class StoreFormatError(StoreError, ValueError):
    """A file or header is not what it claims to be."""


class StoreChangedError(StoreError):
    """An operand changed since the journal of an interrupted run was begun."""


class TraceFormatError(AcceleraError, ValueError):
    """A trace file is malformed; the message names the line."""


class ScorerError(AcceleraError, RuntimeError):
    """The model behind a scorer cannot be loaded, or its answer cannot be used."""


class UnknownNameError(AcceleraError, LookupError):
    """A name that is not registered; the message lists the near ones."""

    @classmethod
    def among(cls, kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
        """Build the error for ``name``, listing close matches from ``known``."""
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(names)}"
        return cls(f"[{kind}] no {kind} is called {name!r}; {hint}")


class BackendMissingError(AcceleraError, ImportError):
    """An optional dependency is not installed."""


class SettingError(AcceleraError, ValueError):
    """A setting or ACCELERA_* variable holds a value that cannot be read."""
