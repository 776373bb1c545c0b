"""The user's function with its exceptions kept apart from a device's: they come back as values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from accelera.execution.kernel import GpuBatch, Kernel


@final
@dataclass(frozen=True, slots=True)
class Raised:
    """What the user's function raised on one task."""

    error: Exception


@final
@dataclass(frozen=True, slots=True)
class Guarded:
    """Calls a function of one task, returns what it raises as ``Raised``; pickled if the function can be."""

    function: Callable[[Any], Any]

    @property
    def batch(self) -> GpuBatch | None:
        """The function's form for many tasks at once, if it has one."""
        return self.function.batch if isinstance(self.function, Kernel) else None

    def __call__(self, task: Any) -> Any:
        """Return the output of one task, or what was raised."""
        try:
            return self.function(task)
        except Exception as error:
            return Raised(error)
