"""The exception tree.

    AcceleraError
    ├── ArgumentError         (ValueError, TypeError)  an argument has a wrong value or type
    ├── ShapeError            (ValueError, RuntimeError)  operands do not fit together
    │   └── IndexingError     (IndexError, TypeError)  an index is out of range, or of an unsupported type
    ├── DTypeError            (TypeError, RuntimeError)  an element type is unknown, mixed or not supported
    ├── StateError            (RuntimeError)  a call comes too early, too late, or twice
    ├── UnsupportedError      (NotImplementedError)  a valid request that this version does not implement
    ├── OutOfMemoryError      (MemoryError)   memory is exhausted, or a limit would be exceeded
    │   ├── BudgetExceededError               refused before anything was allocated
    │   ├── DeviceMemoryError                 a device ran out while working
    │   └── TaskTooLargeError                 a task fits neither the device nor the CPU's memory
    ├── DeviceError           (RuntimeError)  a device failed for another reason
    ├── StoreError            (OSError)       bytes could not be read, written or published
    │   ├── MissingFileError  (FileNotFoundError)  a file or folder does not exist
    │   ├── StoreFormatError  (ValueError)    a header or a file is not what its name states
    │   └── StoreChangedError                 an operand changed since the journal was started
    ├── TraceFormatError      (ValueError)    a trace file is malformed; names the line
    ├── ProgramSyntaxError    (SyntaxError)   a program to analyze cannot be parsed
    ├── ScorerError           (RuntimeError)  a scorer's model is absent, fails, or returns unusable values
    ├── UnknownNameError      (KeyError)      no such policy, device, strategy …; similar names are listed
    │   └── UnknownAttributeError (AttributeError)  a module has no such parameter, buffer or submodule
    ├── BackendMissingError   (ImportError)   an optional dependency is absent; the remedy is named
    ├── UnfinishedError       (TimeoutError)  a batch of work was not done in time; has the results so far
    ├── TransferError         (TypeError)     a value cannot be sent to another process, or back
    ├── PoisonTaskError       (RuntimeError)  a task killed the process that ran it, repeatedly
    ├── UnknownOutcomeError   (RuntimeError)  a task was lost in transit and must not be started again
    ├── ClusterError          (ConnectionError)  no cluster answers, or its versions or resources do not fit
    ├── ServiceError          (RuntimeError)  the Copilot's service refused or failed; has its problem details
    │   ├── ServiceUnreachableError (ConnectionError)  no service answers at the address
    │   └── JobError                          a job of the service failed, was cancelled or interrupted
    └── SettingError          (ValueError)    an ACCELERA_* variable cannot be read

Each class also derives from the built-in exceptions in parentheses, which users of NumPy and PyTorch catch.
A message reads ``[operation] problem: value found, value expected. Remedy.``
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


class AcceleraError(Exception):
    """Base of every error raised on purpose by this package."""


class ArgumentError(AcceleraError, ValueError, TypeError):
    """An argument has a wrong value or a wrong type, or contradicts another one."""


class ShapeError(AcceleraError, ValueError, RuntimeError):
    """Shapes that do not fit the operation."""


class IndexingError(ShapeError, IndexError, TypeError):
    """An index that is out of range, or of a kind that is not taken."""


class DTypeError(AcceleraError, TypeError, RuntimeError):
    """An element type that the operation cannot take, or a pair that cannot be mixed."""


class StateError(AcceleraError, RuntimeError):
    """A call comes too early, too late or twice: the object is closed, or was not prepared."""


class UnsupportedError(AcceleraError, NotImplementedError):
    """A valid request that this version does not implement."""


class OutOfMemoryError(AcceleraError, MemoryError):
    """Memory is exhausted, or a limit would be exceeded."""


class BudgetExceededError(OutOfMemoryError):
    """The smallest possible plan needs more than the budget; nothing was allocated."""

    def __init__(self, message: str, *, needed_bytes: int, budget_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        """Smallest budget, in bytes, that would do; of an operation that is refused in the middle of a run,
        the least for this operation, which those after it may exceed."""
        self.budget_bytes = budget_bytes
        """The budget that was given, in bytes."""


class DeviceMemoryError(OutOfMemoryError):
    """A device ran out of memory while working."""


class DeviceError(AcceleraError, RuntimeError):
    """A device failed for a reason other than memory."""


class StoreError(AcceleraError, OSError):
    """Bytes could not be read, written or published."""


class MissingFileError(StoreError, FileNotFoundError):
    """A file or folder does not exist."""


class StoreFormatError(StoreError, ValueError):
    """A file or header is not what it claims to be."""


class StoreChangedError(StoreError):
    """An operand changed since the journal of an interrupted run was begun."""


class TraceFormatError(AcceleraError, ValueError):
    """A trace file is malformed; the message names the line."""


class ProgramSyntaxError(AcceleraError, SyntaxError):
    """A program that is to be analyzed cannot be parsed."""


class ScorerError(AcceleraError, RuntimeError):
    """The model behind a scorer cannot be loaded, or its answer cannot be used."""


class UnknownNameError(AcceleraError, KeyError):
    """A name that is not registered; the message lists similar ones."""

    __str__ = Exception.__str__  # KeyError shows its message in quotation marks

    @classmethod
    def among(cls, kind: str, name: object, known: Iterable[str]) -> UnknownNameError:
        """Build the error for ``name``, listing close matches from ``known``."""
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=3) if isinstance(name, str) else []
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(names)}"
        return cls(f"[{kind}] no {kind} is called {name!r}; {hint}")


class UnknownAttributeError(UnknownNameError, AttributeError):
    """A module has no parameter, buffer or submodule of this name."""


class BackendMissingError(AcceleraError, ImportError):
    """An optional dependency is not installed."""


class UnfinishedError(AcceleraError, TimeoutError):
    """A batch or a stream of work was not done in time."""

    def __init__(self, message: str, *, result: Any = None) -> None:
        super().__init__(message)
        self.result = result
        """Result so far: an ``accelera.execution.ExecutionResult``, or the ``StreamReport`` of a stream."""


class TransferError(AcceleraError, TypeError):
    """A function, task, output or exception that cannot be sent to another process, or back."""


class PoisonTaskError(AcceleraError, RuntimeError):
    """A task killed the process that ran it, twice; it is not tried again, and the others go on."""


class UnknownOutcomeError(AcceleraError, RuntimeError):
    """The process or device at a task failed, and it must not run again: nobody knows whether it was done."""


class TaskTooLargeError(OutOfMemoryError):
    """A task fits neither the device, even alone, nor what the CPU may take."""

    def __init__(self, message: str, *, index: int, needed_bytes: int, budget_bytes: int) -> None:
        super().__init__(message)
        self.index = index
        """Position of the task in the batch."""
        self.needed_bytes = needed_bytes
        """Bytes that the task needs."""
        self.budget_bytes = budget_bytes
        """Bytes that tasks on the CPU may use."""


class ClusterError(AcceleraError, ConnectionError):
    """No cluster answers, or its versions or resources do not fit."""


class ServiceError(AcceleraError, RuntimeError):
    """The Copilot's service refused a request, or failed; problem details (RFC 9457) say why."""

    def __init__(self, message: str, *, status: int = 0, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; 0 when there was no reply."""
        self.problem = dict(problem or {})
        """Members of the problem details: ``detail``, ``limit``, ``found``, ``errors`` …"""


class ServiceUnreachableError(ServiceError, ConnectionError):
    """No service answers at the address, or not in time."""


class JobError(ServiceError):
    """A job of the service has ended without a result: it failed, was cancelled, or was interrupted."""

    def __init__(self, message: str, *, id: str, state: str) -> None:
        super().__init__(message)
        self.id = id
        """Of the job, to run it again by."""
        self.state = state
        """``"failed"``, ``"cancelled"`` or ``"interrupted"``."""


class SettingError(AcceleraError, ValueError):
    """A setting or ACCELERA_* variable holds a value that cannot be read."""
