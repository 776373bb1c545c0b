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
from accelera.service.work import DispatchedJob, WorkResult, carry_out

LOG = logging.getLogger("accelera.service")
_IDLE_S = 0.2
"""Between two looks for a job."""
_RENEWAL_S = min(0.2, LEASE_S / 5)
"""Between two renewals of a lease, and so the longest until a worker hears that its job is cancelled."""

_FAULTS = (DeviceError, TransferError, UnknownOutcomeError, ClusterError)
"""What the executor meets that no request is to blame for."""


@final
class Workers:
    """Does the jobs of a queue, ``count`` at once, each in a process of its own.

    Beside these, one process of this machine does nothing but what somebody waits for at a page, so that it
    does not wait for a long sweep; it starts with the first such job that the others leave.

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
            threading.Thread(target=self._work, args=(each,), name=f"accelera-jobs-{number}", daemon=True)
            for number, each in enumerate(kinds)
        ]

    def start(self) -> None:
        """Begin to work."""
        for each in self._threads:
            each.start()

    def stop(self) -> None:
        """Stop what runs, and return when it has."""
        self._stopping.set()
        for each in self._threads:
            if each.ident is not None:  # else it was never started
                each.join()
        if self._cluster is not None:
            self._cluster.close()

    def _executor(self) -> ProcessesExecutor | RayExecutor:
        """Return what does one job at a time: a job that is cancelled may cost its process."""
        return RayExecutor(self._ray_address) if self._ray_address else ProcessesExecutor(1)

    def _work(self, interactive: bool) -> None:
        with self._executor() as executor:
            manager = StrategyManager(executor, strategy="cpu", learn=False)
            while not self._stopping.is_set():
                try:
                    self._queue.end_lapsed()
                    claim = self._queue.claim(self._name, interactive=interactive)
                    if claim is not None:
                        self._do(manager, claim)
                        continue
                except Exception:  # such as a database that is away for a while
                    LOG.exception("a worker met an error, and goes on")
                self._stopping.wait(_IDLE_S)

    def _do(self, manager: StrategyManager, claim: Claim) -> None:
        cancel, over = threading.Event(), threading.Event()
        keeper = threading.Thread(target=self._keep, args=(claim, cancel, over), daemon=True)
        keeper.start()
        found, error = None, ""
        try:
            found = self._outcome(manager, claim, cancel)
        except UnfinishedError:
            most = self._limits.job_s
            error = f"it took more than {most:g} s, the most that a job may take; ask for less at once"
        except Exception as failed:
            error = self._told(claim, failed)
        finally:
            over.set()
            keeper.join()
        if cancel.is_set():
            if self._stopping.is_set():
                self._queue.interrupt(claim, self._name)
            else:
                self._queue.drop(claim, self._name)
        elif found is None:
            self._queue.finish(claim, self._name, error=error or FAULT)
        else:
            self._queue.finish(claim, self._name, result=found.result, summary=found.summary)
        self._queue.prune()

    def _told(self, claim: Claim, failed: Exception) -> str:
        """Return what the caller hears: the refusal of what was asked, else that the service failed."""
        if isinstance(failed, (AcceleraError, ValueError, MemoryError)) and not isinstance(failed, _FAULTS):
            return str(failed) or type(failed).__name__
        LOG.error("the job %s (%s) failed", claim.id, claim.kind, exc_info=failed)
        return f"{FAULT} ({type(failed).__name__}); its log says where"

    def _outcome(self, manager: StrategyManager, claim: Claim, cancel: threading.Event) -> WorkResult | None:
        """Have a process do it; None when it was cancelled."""
        assignment = DispatchedJob(self._database_url, self._name, claim, self._limits)
        done = manager.execute([assignment], carry_out, timeout=self._limits.job_s, cancel=cancel)
        found: WorkResult | None = done.outputs[0] if done.outputs else None
        if found is not None and len(found.result) > self._limits.result_bytes:
            raise ArgumentError(
                f"[{claim.kind}] the result has {len(found.result):,} bytes of at most "
                f"{self._limits.result_bytes:,}; ask for less at once"
            )
        return found

    def _keep(self, claim: Claim, cancel: threading.Event, over: threading.Event) -> None:
        """Renew the lease until the job is over; cancel it when it is no longer wanted."""
        while not over.wait(_RENEWAL_S):
            try:
                wanted = self._queue.renew(claim, self._name) and not self._stopping.is_set()
            except Exception:
                LOG.exception("the lease of %s could not be renewed; trying again", claim.id)
                continue
            if not wanted:
                cancel.set()
                over.wait()
                return
