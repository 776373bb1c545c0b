"""Queue of jobs in the database: claimed by lease, so that a worker that dies loses nothing that is done.

A worker renews the lease of what it runs. A lease that has lapsed makes its job ``interrupted``; ``rerun``
queues it again. A result and the state ``done`` are written in one transaction, and only by the worker that
holds the lease.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, final

from sqlalchemy import ColumnElement, and_, case, delete, func, or_, select, update

from accelera import __version__
from accelera.service.database import Database, StoredJob, StoredRun
from accelera.service.history import INTERACTIVE_KINDS, Summary, keep
from accelera.service.settings import ENDED

LEASE_S = 15.0
FAULT = "the service failed at it"
"""How the error of a job begins that is no refusal of what was asked."""
_INTERRUPTED = "the service stopped while this ran; run it again"
_RANK: ColumnElement[int] = case((StoredJob.kind.in_(INTERACTIVE_KINDS), 0), else_=1)
"""Order in which jobs are claimed, before their age."""
_AT_ONCE = 500
"""Rows that one statement deletes."""


class Claim(NamedTuple):
    """A job that a worker has taken."""

    id: str
    kind: str
    request: dict[str, Any]
    attempt: int


def digest_of(kind: str, request: Mapping[str, Any]) -> str:
    """Return what is the same for the same question, asked of the same version of this package."""
    question = json.dumps([__version__, kind, request], sort_keys=True)
    return hashlib.sha256(question.encode()).hexdigest()


@final
class JobQueue:
    """Jobs of one database; any number of processes may use it at once.

    ``clock`` returns seconds since 1970; of several machines the clocks are to agree within a few seconds.
    The database's limits say how much of what has ended stays.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._limits = database.limits

    def submit(self, kind: str, request: dict[str, Any]) -> str:
        """Queue a job; return its id."""
        id = uuid.uuid4().hex
        with self._database.session() as session:
            digest = digest_of(kind, request)
            job = StoredJob(
                id=id, kind=kind, request=request, digest=digest, state="queued", created_s=self._clock()
            )
            session.add(job)
        return id

    def answered(self, kind: str, request: Mapping[str, Any]) -> tuple[str, bytes] | None:
        """Return the newest job that has answered the same question, and its result."""
        same = select(StoredJob.id, StoredJob.result).where(
            StoredJob.digest == digest_of(kind, request), StoredJob.state == "done"
        )
        with self._database.session() as session:
            row = session.execute(same.order_by(StoredJob.finished_s.desc()).limit(1)).first()
        return None if row is None or row.result is None else (row.id, row.result)

    def find(self, id: str) -> StoredJob | None:
        """Return a job as it is now."""
        with self._database.session() as session:
            return session.get(StoredJob, id)

    def latest(self, count: int, offset: int = 0) -> Sequence[StoredJob]:
        """Return the newest jobs first."""
        newest = (
            select(StoredJob).order_by(StoredJob.created_s.desc(), StoredJob.id).limit(count).offset(offset)
        )
        with self._database.session() as session:
            return session.scalars(newest).all()

    def result(self, id: str) -> bytes | None:
        """Return the result of a job that is done, as JSON."""
        with self._database.session() as session:
            return session.scalar(select(StoredJob.result).where(StoredJob.id == id))

    def waiting(self) -> int:
        """Return how many jobs are queued."""
        with self._database.session() as session:
            return session.scalar(select(func.count()).where(StoredJob.state == "queued")) or 0

    def before(self, job: StoredJob) -> int:
        """Return how many jobs run, or go before one that is queued."""
        mine = 0 if job.kind in INTERACTIVE_KINDS else 1
        twin = and_(StoredJob.created_s == job.created_s, StoredJob.id < job.id)
        same = and_(_RANK.in_([mine]), or_(StoredJob.created_s < job.created_s, twin))
        earlier = and_(StoredJob.state == "queued", or_(_RANK.in_(range(mine)), same))
        count = select(func.count()).where(or_(StoredJob.state == "running", earlier))
        with self._database.session() as session:
            return session.scalar(count) or 0

    def claim(self, worker: str, *, interactive: bool = False) -> Claim | None:
        """Take the oldest job that somebody waits for at a page, else the oldest; None when there is none.

        ``interactive``: take none of the others.
        """
        now = self._clock()
        waiting = select(StoredJob.id).where(StoredJob.state == "queued")
        if interactive:
            waiting = waiting.where(StoredJob.kind.in_(INTERACTIVE_KINDS))
        oldest = waiting.order_by(_RANK, StoredJob.created_s, StoredJob.id).limit(1)
        if self._database.is_postgresql:
            oldest = oldest.with_for_update(skip_locked=True)
        taken = (
            update(StoredJob)
            .where(StoredJob.id == oldest.scalar_subquery(), StoredJob.state == "queued")
            .values(
                state="running",
                worker=worker,
                lease_until_s=now + LEASE_S,
                attempt=StoredJob.attempt + 1,
                progress=0.0,
                doing="",
                sequence=StoredJob.sequence + 1,
            )
            .returning(StoredJob.id, StoredJob.kind, StoredJob.request, StoredJob.attempt)
        )
        with self._database.session() as session:
            row = session.execute(taken, execution_options={"synchronize_session": False}).first()
        return None if row is None else Claim(*row)

    def renew(self, claim: Claim, worker: str) -> bool:
        """Renew the lease; return whether the work is still wanted: neither cancelled nor lost."""
        with self._database.session() as session:
            wanted = session.scalar(
                self._held(claim, worker)
                .values(lease_until_s=self._clock() + LEASE_S)
                .returning(StoredJob.cancelling)
            )
        return wanted is False

    def tell(self, claim: Claim, worker: str, progress: float, doing: str) -> None:
        """Say how far the work is, from 0 to 1."""
        with self._database.session() as session:
            session.execute(
                self._held(claim, worker).values(
                    progress=min(max(progress, 0.0), 1.0),
                    doing=doing[:200],
                    sequence=StoredJob.sequence + 1,
                    lease_until_s=self._clock() + LEASE_S,
                )
            )

    def finish(
        self,
        claim: Claim,
        worker: str,
        *,
        result: bytes | None = None,
        error: str | None = None,
        summary: Summary | None = None,
    ) -> bool:
        """End a job with its result or its error; False when the worker holds it no more.

        A ``summary`` becomes a run in the same transaction.
        """
        ended: dict[str, Any] = {"state": "failed", "error": error}
        run = None
        if error is None:
            ended = {"state": "done", "result": result, "progress": 1.0}
            if summary is not None:
                told = {"request": claim.request, "job": claim.id, "created_s": self._clock()}
                run = StoredRun(kind=claim.kind, **told, **summary._asdict())
        return self._end(self._held(claim, worker), ended, run)

    def drop(self, claim: Claim, worker: str) -> bool:
        """End a job as cancelled that its worker has stopped."""
        return self._end(self._held(claim, worker), {"state": "cancelled"})

    def interrupt(self, claim: Claim, worker: str) -> bool:
        """End a job as interrupted, because its worker is asked to stop."""
        return self._end(self._held(claim, worker), {"state": "interrupted", "error": _INTERRUPTED})

    def cancel(self, id: str) -> bool:
        """Cancel what waits, and ask the worker of what runs to stop; False for what has ended."""
        with self._database.session() as session:
            waiting = update(StoredJob).where(StoredJob.id == id, StoredJob.state == "queued")
            ended = waiting.values(
                state="cancelled", finished_s=self._clock(), sequence=StoredJob.sequence + 1
            ).returning(StoredJob.id)
            if session.scalar(ended) is not None:
                return True
            running = update(StoredJob).where(StoredJob.id == id, StoredJob.state == "running")
            asked = running.values(cancelling=True, sequence=StoredJob.sequence + 1).returning(StoredJob.id)
            return session.scalar(asked) is not None

    def rerun(self, id: str) -> bool:
        """Queue a job again that failed, was cancelled or interrupted; False for any other."""
        again = (
            update(StoredJob)
            .where(StoredJob.id == id, StoredJob.state.in_(ENDED - {"done"}))
            .values(
                state="queued",
                worker=None,
                lease_until_s=None,
                finished_s=None,
                cancelling=False,
                error=None,
                progress=0.0,
                doing="",
                sequence=StoredJob.sequence + 1,
            )
            .returning(StoredJob.id)
        )
        with self._database.session() as session:
            return session.scalar(again) is not None

    def delete(self, id: str) -> bool:
        """Forget a job that has ended; False for any other."""
        with self._database.session() as session:
            job = session.get(StoredJob, id)
            if job is None or job.state not in ENDED:
                return False
            session.delete(job)
            return True

    def prune(self) -> int:
        """Forget the oldest jobs that have ended, beyond the limits on their number and bytes.

        The newest one stays in any case, and so does whatever waits or runs; return how many were forgotten.
        """
        ended = select(StoredJob.id, func.coalesce(func.length(StoredJob.result), 0)).where(
            StoredJob.state.in_(ENDED)
        )
        with self._database.session() as session:
            newest = session.execute(ended.order_by(StoredJob.finished_s.desc(), StoredJob.id)).all()
            upto = accumulate(size for _, size in newest)
            beyond = [
                id
                for number, ((id, _), total) in enumerate(zip(newest, upto, strict=True))
                if number >= self._limits.kept_jobs or (number and total > self._limits.kept_result_bytes)
            ]
            for first in range(0, len(beyond), _AT_ONCE):
                some = beyond[first : first + _AT_ONCE]
                session.execute(delete(StoredJob).where(StoredJob.id.in_(some), StoredJob.state.in_(ENDED)))
        return len(beyond)

    def end_lapsed(self) -> list[str]:
        """Mark jobs whose worker is gone as interrupted; return their ids."""
        now = self._clock()
        lapsed = (
            update(StoredJob)
            .where(StoredJob.state == "running", StoredJob.lease_until_s < now)
            .values(
                state="interrupted",
                finished_s=now,
                sequence=StoredJob.sequence + 1,
                error=_INTERRUPTED,
            )
            .returning(StoredJob.id)
        )
        with self._database.session() as session:
            return list(session.scalars(lapsed))

    def _end(self, held: Any, values: dict[str, Any], run: StoredRun | None = None) -> bool:
        ended = held.values(
            **values, finished_s=self._clock(), lease_until_s=None, sequence=StoredJob.sequence + 1
        ).returning(StoredJob.id)
        with self._database.session() as session:
            is_held = session.scalar(ended) is not None
            if is_held and run is not None:
                keep(session, run, self._limits.runs)
            return is_held

    @staticmethod
    def _held(claim: Claim, worker: str) -> Any:
        """Return the update of a job that ``worker`` still holds in this attempt."""
        return (
            update(StoredJob)
            .where(
                StoredJob.id == claim.id,
                StoredJob.state == "running",
                StoredJob.worker == worker,
                StoredJob.attempt == claim.attempt,
            )
            .execution_options(synchronize_session=False)
        )
