"""Workers of the service: threads that claim jobs and have the executor do them, in processes or on Ray."""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from typing import final

from accelera.errors import (
    AcceleraError,
    ArgumentError,
    ClusterError,
    DeviceError,
    TransferError,
    UnfinishedError,
    UnknownOutcomeError,
)
from accelera.execution import ProcessesExecutor, RayCluster, RayExecutor, StrategyManager
from accelera.service.database import Database
from accelera.service.jobs import FAULT, LEASE_S, Claim, JobQueue
from accelera.service.work import DispatchedJob, WorkResult, run_job

LOG = logging.getLogger("accelera.service")
_POLL_S = 0.2
"""Time that an idle worker waits before it looks for a job again."""
_RENEWAL_S = min(0.2, LEASE_S / 5)
"""Time between two renewals of a lease; a worker learns within this time that its job was cancelled."""

_SERVICE_FAULTS = (DeviceError, TransferError, UnknownOutcomeError, ClusterError)
"""Errors of the executor that are faults of the service, not of the request."""


@final
class Workers:
    """Does the jobs of a queue, ``count`` at once, each in a process of its own.

    Beside these, one process of this machine does only interactive jobs, those that a user waits for at a
    page, so that they do not wait for a long sweep. It starts with the first such job that the others leave.

    The database's limits say how long one may take, and how large its result may be. ``stop`` gives running
    jobs back to the queue as interrupted.

    Parameters
    ----------
    ray_address
        Of the cluster whose nodes do the jobs, and open the same database; empty: processes of this machine.

    Raises ClusterError when no cluster answers, BackendMissingError without Ray.
    """

    def __init__(self, database: Database, count: int, ray_address: str = "") -> None:
        self._queue = JobQueue(database)
        self._database_url = database.url
        self._limits = database.limits
        self._ray_address = ray_address
        self._cluster = RayCluster(ray_address) if ray_address else None
        self._stopping = threading.Event()
        self._name = f"{socket.gethostname()[:40]}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        kinds = [False] * count + [True] * (count > 0 and not ray_address)
        self._threads = [
            threading.Thread(
                target=self._work_loop, args=(each,), name=f"accelera-jobs-{number}", daemon=True
            )
            for number, each in enumerate(kinds)
        ]

    def start(self) -> None:
        """Start the worker threads."""
        for each in self._threads:
            each.start()

    def stop(self) -> None:
        """Stop the running jobs, and return when all worker threads have ended."""
        self._stopping.set()
        for each in self._threads:
            if each.ident is not None:  # else it was never started
                each.join()
        if self._cluster is not None:
            self._cluster.close()

    def _executor(self) -> ProcessesExecutor | RayExecutor:
        """Return an executor for one job at a time: cancelling a job may end its process."""
        return RayExecutor(self._ray_address) if self._ray_address else ProcessesExecutor(1)

    def _work_loop(self, interactive: bool) -> None:
        with self._executor() as executor:
            manager = StrategyManager(executor, strategy="cpu", learn=False)
            while not self._stopping.is_set():
                try:
                    self._queue.end_lapsed()
                    claim = self._queue.claim(self._name, interactive=interactive)
                    if claim is not None:
                        self._run_claim(manager, claim)
                        continue
                except Exception:  # such as a database that is away for a while
                    LOG.exception("a worker met an error, and goes on")
                self._stopping.wait(_POLL_S)

    def _run_claim(self, manager: StrategyManager, claim: Claim) -> None:
        cancel, finished = threading.Event(), threading.Event()
        renewal = threading.Thread(target=self._keep_lease, args=(claim, cancel, finished), daemon=True)
        renewal.start()
        result, error = None, ""
        try:
            result = self._run_in_process(manager, claim, cancel)
        except UnfinishedError:
            most = self._limits.job_s
            error = f"it took more than {most:g} s, the most that a job may take; ask for less at once"
        except Exception as failure:
            error = self._error_message(claim, failure)
        finally:
            finished.set()
            renewal.join()
        if cancel.is_set():
            if self._stopping.is_set():
                self._queue.interrupt(claim, self._name)
            else:
                self._queue.finish_cancelled(claim, self._name)
        elif result is None:
            self._queue.finish(claim, self._name, error=error or FAULT)
        else:
            self._queue.finish(claim, self._name, result=result.result, summary=result.summary)
        self._queue.prune()

    def _error_message(self, claim: Claim, error: Exception) -> str:
        """Return the error text for the caller: why the request was refused, else that the service failed."""
        if isinstance(error, (AcceleraError, ValueError, MemoryError)) and not isinstance(
            error, _SERVICE_FAULTS
        ):
            return str(error) or type(error).__name__
        LOG.error("the job %s (%s) failed", claim.id, claim.kind, exc_info=error)
        return f"{FAULT} ({type(error).__name__}); its log says where"

    def _run_in_process(
        self, manager: StrategyManager, claim: Claim, cancel: threading.Event
    ) -> WorkResult | None:
        """Run the job in a process and return its result; None when it was cancelled."""
        job = DispatchedJob(self._database_url, self._name, claim, self._limits)
        execution = manager.execute([job], run_job, timeout=self._limits.job_s, cancel=cancel)
        result: WorkResult | None = execution.outputs[0] if execution.outputs else None
        if result is not None and len(result.result) > self._limits.result_bytes:
            raise ArgumentError(
                f"[{claim.kind}] the result has {len(result.result):,} bytes of at most "
                f"{self._limits.result_bytes:,}; ask for less at once"
            )
        return result

    def _keep_lease(self, claim: Claim, cancel: threading.Event, finished: threading.Event) -> None:
        """Renew the lease until the job has finished; set ``cancel`` when the job is no longer wanted."""
        while not finished.wait(_RENEWAL_S):
            try:
                wanted = self._queue.renew(claim, self._name) and not self._stopping.is_set()
            except Exception:
                LOG.exception("the lease of %s could not be renewed; trying again", claim.id)
                continue
            if not wanted:
                cancel.set()
                finished.wait()
                return
