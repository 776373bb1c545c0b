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
"""First words of a job's error when the service failed; the error of a refused request has others."""
_INTERRUPTED = "the service stopped while this ran; run it again"
_RANK: ColumnElement[int] = case((StoredJob.kind.in_(INTERACTIVE_KINDS), 0), else_=1)
"""Jobs of a lower rank are claimed first; among jobs of one rank, the oldest."""
_DELETE_BATCH = 500
"""Rows that one statement deletes at most."""


class Claim(NamedTuple):
    """A job that a worker has taken."""

    id: str
    kind: str
    request: dict[str, Any]
    attempt: int


def digest_of(kind: str, request: Mapping[str, Any]) -> str:
    """Return a SHA-256 that is equal for equal requests of one kind to one version of this package."""
    question = json.dumps([__version__, kind, request], sort_keys=True)
    return hashlib.sha256(question.encode()).hexdigest()


@final
class JobQueue:
    """Jobs of one database; any number of processes may use it at once.

    ``clock`` returns seconds since 1970; of several machines the clocks are to agree within a few seconds.
    The database's limits say how many ended jobs, and how many bytes of their results, are kept.
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

    def find_result(self, kind: str, request: Mapping[str, Any]) -> tuple[str, bytes] | None:
        """Return id and result of the newest job done with an equal request; None when there is none."""
        same = select(StoredJob.id, StoredJob.result).where(
            StoredJob.digest == digest_of(kind, request), StoredJob.state == "done"
        )
        with self._database.session() as session:
            row = session.execute(same.order_by(StoredJob.finished_s.desc()).limit(1)).first()
        return None if row is None or row.result is None else (row.id, row.result)

    def find(self, id: str) -> StoredJob | None:
        """Return a job as it is now; None when there is none with this id."""
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

    def queued_count(self) -> int:
        """Return how many jobs are queued."""
        with self._database.session() as session:
            return session.scalar(select(func.count()).where(StoredJob.state == "queued")) or 0

    def count_ahead(self, job: StoredJob) -> int:
        """Return the number of jobs that run, or that are queued and will be claimed before ``job``."""
        rank = 0 if job.kind in INTERACTIVE_KINDS else 1
        same_time = and_(StoredJob.created_s == job.created_s, StoredJob.id < job.id)
        same_rank = and_(_RANK.in_([rank]), or_(StoredJob.created_s < job.created_s, same_time))
        earlier = and_(StoredJob.state == "queued", or_(_RANK.in_(range(rank)), same_rank))
        count = select(func.count()).where(or_(StoredJob.state == "running", earlier))
        with self._database.session() as session:
            return session.scalar(count) or 0

    def claim(self, worker: str, *, interactive: bool = False) -> Claim | None:
        """Take the oldest interactive job, which a user waits for at a page, else the oldest of the others.

        None when no job is queued. ``interactive``: take interactive jobs only.
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
                self._leased_row(claim, worker)
                .values(lease_until_s=self._clock() + LEASE_S)
                .returning(StoredJob.cancelling)
            )
        return wanted is False

    def report_progress(self, claim: Claim, worker: str, progress: float, doing: str) -> None:
        """Store the progress of a job, from 0 to 1, and what it is ``doing``; this renews the lease, too."""
        with self._database.session() as session:
            session.execute(
                self._leased_row(claim, worker).values(
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
        """End a job with its result or its error; return False when the worker has lost its lease.

        A ``summary`` becomes a run in the same transaction.
        """
        ended: dict[str, Any] = {"state": "failed", "error": error}
        run = None
        if error is None:
            ended = {"state": "done", "result": result, "progress": 1.0}
            if summary is not None:
                job_fields = {"request": claim.request, "job": claim.id, "created_s": self._clock()}
                run = StoredRun(kind=claim.kind, **job_fields, **summary._asdict())
        return self._end(self._leased_row(claim, worker), ended, run)

    def finish_cancelled(self, claim: Claim, worker: str) -> bool:
        """End a job as cancelled, after its worker has stopped it."""
        return self._end(self._leased_row(claim, worker), {"state": "cancelled"})

    def interrupt(self, claim: Claim, worker: str) -> bool:
        """End a job as interrupted, because its worker is asked to stop."""
        return self._end(self._leased_row(claim, worker), {"state": "interrupted", "error": _INTERRUPTED})

    def cancel(self, id: str) -> bool:
        """Cancel a queued job, or ask the worker of a running one to stop; return False for an ended job."""
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
        """Queue a failed, cancelled or interrupted job again; return False for any other."""
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
        """Delete a job that has ended; return False for any other."""
        with self._database.session() as session:
            job = session.get(StoredJob, id)
            if job is None or job.state not in ENDED:
                return False
            session.delete(job)
            return True

    def prune(self) -> int:
        """Delete the oldest ended jobs beyond the limits on their number and bytes; return how many.

        The newest ended job is kept in any case, and so are queued and running jobs.
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
            for first in range(0, len(beyond), _DELETE_BATCH):
                some = beyond[first : first + _DELETE_BATCH]
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

    def _end(self, leased_row: Any, values: dict[str, Any], run: StoredRun | None = None) -> bool:
        ended = leased_row.values(
            **values, finished_s=self._clock(), lease_until_s=None, sequence=StoredJob.sequence + 1
        ).returning(StoredJob.id)
        with self._database.session() as session:
            is_held = session.scalar(ended) is not None
            if is_held and run is not None:
                keep(session, run, self._limits.runs)
            return is_held

    @staticmethod
    def _leased_row(claim: Claim, worker: str) -> Any:
        """Return an update statement for the job's row while ``worker`` holds its lease in this attempt."""
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
