"""Detection of task sources that only the thread that made them may read, such as rows of SQLite."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from types import CodeType, FunctionType, GeneratorType, ModuleType
from typing import Any, Final

MAX_OBJECTS: Final = 500
"""Number of objects that a search examines; a source that refers to more is taken to be unbound."""
_CONTAINERS: Final = (list, tuple, dict, set, frozenset)
_LEAVES: Final = (str, bytes, int, float, complex, type, ModuleType, CodeType, type(None))


def is_thread_bound(source: object) -> bool:
    """Return whether ``source`` reads from a SQLite connection or a ``threading.local``, also indirectly.

    Generators, ``zip``, ``map`` and other wrappers are searched for the sources that they read.
    """
    bound = (threading.local, *_sqlite_types())
    pending, known = [source], {id(source)}
    while pending and len(known) <= MAX_OBJECTS:
        obj = pending.pop()
        if isinstance(obj, bound):
            return True
        for referent in _referents(obj):
            if id(referent) not in known and not isinstance(referent, _LEAVES):
                known.add(id(referent))
                pending.append(referent)
    return False


def _sqlite_types() -> tuple[type, ...]:
    sqlite3 = sys.modules.get("sqlite3")
    return () if sqlite3 is None else (sqlite3.Cursor, sqlite3.Connection)


def _referents(obj: object) -> Iterator[Any]:
    """Yield the objects that ``obj`` reads; of a module's globals only those that its code names."""
    if isinstance(obj, FunctionType):
        yield from obj.__closure__ or ()
        yield from _globals_named(obj.__code__, obj.__globals__)
    elif isinstance(obj, GeneratorType):
        frame = obj.gi_frame
        if frame is not None:
            yield from frame.f_locals.values()
            yield from _globals_named(frame.f_code, frame.f_globals)
    elif isinstance(obj, _CONTAINERS) and len(obj) > MAX_OBJECTS:
        return  # listing the tasks of a large batch would take longer than beginning it
    else:
        yield from gc.get_referents(obj)


def _globals_named(code: CodeType, names: dict[str, Any]) -> Iterator[Any]:
    for name in code.co_names:
        if name in names:
            yield names[name]
