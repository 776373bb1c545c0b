"""Store of traces in the database by their contents, and cache of those that were asked about last."""

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

_SHOWN = ("digest", "name", "created_s", "model_type", "accesses", "buffers", "steps", "footprint_bytes")


def shown(trace: StoredTrace) -> dict[str, Any]:
    """Return a trace as callers see it, without its contents."""
    return {name: getattr(trace, name) for name in _SHOWN}


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
    """Store a trace as Parquet under its digest; return it as callers see it, and whether it is new.

    One that is there already stays as it was. Raises Problem (413) where all would exceed the limit.
    """
    with database.session() as session:
        known = session.get(StoredTrace, facts["digest"])
        if known is not None:
            return shown(known), False
        held, most = stored_bytes(session) + len(content), database.limits.stored_bytes
        if held > most:
            raise too_large("bytes of stored traces", held, most, "delete some first")
        dialect: Any = postgresql if database.is_postgresql else sqlite
        row = {**facts, "name": name, "created_s": time.time(), "parquet": content}
        added = dialect.insert(StoredTrace).values(row).on_conflict_do_nothing()  # another may be faster
        is_new = session.execute(added.returning(StoredTrace.digest)).first() is not None
        return shown(session.get_one(StoredTrace, facts["digest"])), is_new


MOST_TRACES = 64
MOST_ACCESSES = 2_000_000
"""Of all traces held together: about 200 MB."""


class HeldTraces:
    """Traces with their facts by what they were made from, the least recently asked given up first."""

    def __init__(self, most: int = MOST_TRACES, most_accesses: int = MOST_ACCESSES) -> None:
        self._most = most
        self._most_accesses = most_accesses
        self._held: OrderedDict[str, MeasuredTrace] = OrderedDict()
        self._accesses = 0

    def get(self, key: str) -> MeasuredTrace | None:
        """Return what is held for ``key``."""
        found = self._held.get(key)
        if found is not None:
            self._held.move_to_end(key)
        return found

    def put(self, key: str, trace: Trace) -> MeasuredTrace:
        """Hold ``trace`` for ``key``, and return its facts."""
        self.drop(key)
        facts = self._held[key] = MeasuredTrace(trace)
        self._accesses += trace.access_count
        while len(self._held) > 1 and (len(self._held) > self._most or self._accesses > self._most_accesses):
            self.drop(next(iter(self._held)))
        return facts

    def drop(self, key: str) -> None:
        """Give up what is held for ``key``."""
        gone = self._held.pop(key, None)
        if gone is not None:
            self._accesses -= gone.trace.access_count

    def made(self, key: str, make: Callable[[], Trace]) -> MeasuredTrace:
        """Return what is held for ``key``, made first if it is not."""
        return self.get(key) or self.put(key, make())
