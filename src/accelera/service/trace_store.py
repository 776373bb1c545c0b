"""Store of traces in the database: content-addressed, so that the same trace is stored once."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from accelera.service.database import Database, StoredTrace
from accelera.service.problems import too_large

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
