"""Pickles of functions, tasks and outputs, which may refer to context variables."""

from __future__ import annotations

import contextvars
import io
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle

from accelera.execution.executors.processes.context_variables import reduce_variable
from accelera.execution.executors.processes.decorated_functions import reduce_decorated
from accelera.execution.executors.processes.script_classes import complete_class


class TaskPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles what functions and tasks refer to, context variables as well."""

    def reducer_override(self, obj: Any) -> Any:
        """Return the reduced form of ``obj`` for pickling."""
        if type(obj) is contextvars.ContextVar:
            return reduce_variable(obj)
        reduced = reduce_decorated(obj)
        if reduced is None:
            reduced = super().reducer_override(obj)
        return complete_class(obj, reduced) if isinstance(obj, type) else reduced


def dumps(value: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """Return ``value`` pickled with protocol 5; raises whatever its pickling raises."""
    with io.BytesIO() as file:
        TaskPickler(file, protocol=5, buffer_callback=buffer_callback).dump(value)
        return file.getvalue()
