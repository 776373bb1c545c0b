"""Store of traces in the database by their contents, and cache of the traces that were used last."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from accelera.service.database import Database, StoredTrace
from accelera.service.problems import too_large
from accelera.trace import Trace
from accelera.views import MeasuredTrace

_RECORD_COLUMNS = (
    "digest",
    "name",
    "created_s",
    "model_type",
    "accesses",
    "buffers",
    "steps",
    "footprint_bytes",
)


def trace_record(trace: StoredTrace) -> dict[str, Any]:
    """Return a trace as replies contain it, without its contents."""
    return {name: getattr(trace, name) for name in _RECORD_COLUMNS}


def stored_bytes(session: Session) -> int:
    """Return the bytes of all stored traces."""
    return session.scalar(select(func.coalesce(func.sum(func.length(StoredTrace.parquet)), 0))) or 0


def has_trace(database: Database, digest: str) -> bool:
    """Return whether a trace is stored."""
    with database.session() as session:
        return session.get(StoredTrace, digest) is not None


def store(
    database: Database, name: str, facts: dict[str, Any], content: bytes
) -> tuple[dict[str, Any], bool]:
    """Store a trace as Parquet under its digest; return its record, and whether it is new.

    A trace that is stored already stays unchanged. Raises Problem (413) when all traces
    together would exceed the limit.
    """
    with database.session() as session:
        existing = session.get(StoredTrace, facts["digest"])
        if existing is not None:
            return trace_record(existing), False
        total, most = stored_bytes(session) + len(content), database.limits.stored_bytes
        if total > most:
            raise too_large("bytes of stored traces", total, most, "delete some first")
        dialect: Any = postgresql if database.is_postgresql else sqlite
        row = {**facts, "name": name, "created_s": time.time(), "parquet": content}
        added = (
            dialect.insert(StoredTrace).values(row).on_conflict_do_nothing()
        )  # another request may have stored it
        is_new = session.execute(added.returning(StoredTrace.digest)).first() is not None
        return trace_record(session.get_one(StoredTrace, facts["digest"])), is_new


MOST_TRACES = 64
MOST_ACCESSES = 2_000_000
"""Of all traces in the cache together: about 200 MB."""


class TraceCache:
    """LRU cache of traces with their facts; the key is a trace's digest, or the JSON of its workload."""

    def __init__(self, most: int = MOST_TRACES, most_accesses: int = MOST_ACCESSES) -> None:
        self._most = most
        self._most_accesses = most_accesses
        self._cached: OrderedDict[str, MeasuredTrace] = OrderedDict()
        self._accesses = 0

    def get(self, key: str) -> MeasuredTrace | None:
        """Return the cached facts for ``key``; None on a miss."""
        found = self._cached.get(key)
        if found is not None:
            self._cached.move_to_end(key)
        return found

    def put(self, key: str, trace: Trace) -> MeasuredTrace:
        """Cache ``trace`` under ``key``, and return its facts."""
        self.drop(key)
        facts = self._cached[key] = MeasuredTrace(trace)
        self._accesses += trace.access_count
        while len(self._cached) > 1 and (
            len(self._cached) > self._most or self._accesses > self._most_accesses
        ):
            self.drop(next(iter(self._cached)))
        return facts

    def drop(self, key: str) -> None:
        """Remove ``key`` from the cache, if it is there."""
        dropped = self._cached.pop(key, None)
        if dropped is not None:
            self._accesses -= dropped.trace.access_count

    def get_or_make(self, key: str, make: Callable[[], Trace]) -> MeasuredTrace:
        """Return the cached facts for ``key``; on a miss, those of the trace that ``make`` returns."""
        return self.get(key) or self.put(key, make())
