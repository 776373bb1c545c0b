"""Worker processes that load batches: the code that runs in a worker, and the pool that a loader uses."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import random as python_random
import signal
import socket
import struct
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from accelera.errors import StateError
from accelera.tensora import random
from accelera.tensora.core import native
from accelera.tensora.data.dataset import IterableDataset
from accelera.tensora.data.shared_memory import pack, unpack

DATA, ERROR, END = range(3)
"""Kinds of replies: a batch, an exception, and the end of a worker's stream."""

_REPLY_HEADER = struct.Struct("<QQB")
_JOIN_TIMEOUT_S = 1.0
_INIT_PLACE = (1 << 32) - 2
"""Batch number that seeds the generators while a worker starts; larger than that of any batch."""


# --- batches of a dataset ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fetching:
    """Options for making batches from a dataset."""

    dataset: Any
    collate_fn: Callable[[Any], Any]
    batched: bool
    """Whether several samples are one batch."""
    batch_size: int | None = None
    """Samples of a batch, for streams only."""
    drop_last: bool = False
    """Leave out the last batch of a stream if it is shorter."""
    worker_init_fn: Callable[[int], Any] | None = None
    """Called in each worker with its number, before it loads."""

    def fetcher(self) -> Callable[[Any], tuple[int, Any]]:
        """Return a function from sample indices to (`DATA`, batch), or to (`END`, None)."""
        if not is_stream(self.dataset):
            return self._fetch_by_index
        samples = iter(self.dataset)
        return lambda _: self._fetch_from_stream(samples)

    def _fetch_by_index(self, numbers: Any) -> tuple[int, Any]:
        if not self.batched:
            return DATA, self.collate_fn(self.dataset[numbers])
        if hasattr(self.dataset, "__getitems__"):
            return DATA, self.collate_fn(self.dataset.__getitems__(numbers))
        return DATA, self.collate_fn([self.dataset[each] for each in numbers])

    def _fetch_from_stream(self, samples: Any) -> tuple[int, Any]:
        batch = list(islice(samples, self.batch_size if self.batched else 1))
        if not batch or (self.drop_last and len(batch) < (self.batch_size or 0)):
            return END, None
        return DATA, self.collate_fn(batch if self.batched else batch[0])


def is_stream(dataset: Any) -> bool:
    """Return whether a dataset is iterated in its own order instead of indexed."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


# --- in the worker ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerInfo:
    """Facts about the worker in whose process the code runs."""

    id: int
    """From 0."""
    num_workers: int
    seed: int
    """Different for each worker, and for each start of the workers."""
    dataset: Any
    """The worker's own copy."""


_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Return the facts about this worker of a `DataLoader`, or None in any other process."""
    return _info


class BatchRequest(NamedTuple):
    """Request to a worker for one batch."""

    epoch: int
    """Number of the iteration over the pool; with a new one, streams begin again."""
    seed: int
    """Seed of the epoch."""
    batch: int
    """Number of the batch in the epoch."""
    numbers: Any
    """Indices of the samples."""


class _WorkerSettings(NamedTuple):
    """Settings that a worker receives when it begins."""

    id: int
    num_workers: int
    seed: int
    fetching: Fetching | None
    """None if it follows as the first message, in shared memory."""


def seed_everything(seed: int, place: int) -> None:
    """Seed all generators of this process, with a different sequence for each seed and place.

    The numbers that the default generator draws for two places of a seed do not overlap.
    """
    random.default_generator.state = (seed, (place + 1) << 32)
    mixed = (seed * 0x9E3779B97F4A7C15 + place) % (1 << 64)
    python_random.seed(mixed)
    np.random.seed([mixed & 0xFFFFFFFF, mixed >> 32])


def run_worker(start: _WorkerSettings, connection: Connection, inherited: Iterable[Any]) -> None:
    """Serve requests until None arrives or the parent process ends."""
    for each in inherited:  # the parent's ends of pipes: open copies would keep the workers alive after it
        each.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    native.set_thread_count(1)
    with contextlib.suppress(OSError, EOFError):
        channel = _socket_of(connection)
        parcel = _receive_reply(channel)[1] if start.fetching is None else None
        _serve_requests(connection, channel, *_initialize(start, parcel))


def _initialize(start: _WorkerSettings, parcel: int | None) -> tuple[Any, bytes | None]:
    """Return `Fetching.fetcher`, or the pickled exception of a failed start, which the first batch raises."""
    global _info
    try:
        fetching: Any = start.fetching if parcel is None else unpack(parcel, private=True)
        _info = WorkerInfo(start.id, start.num_workers, start.seed, fetching.dataset)
        seed_everything(start.seed, _INIT_PLACE)
        if fetching.worker_init_fn is not None:
            fetching.worker_init_fn(start.id)
    except Exception as error:
        return None, _pickle_error(error)
    return fetching.fetcher, None


def _serve_requests(
    connection: Connection, channel: socket.socket, begin: Callable[[], Any], failure: bytes | None
) -> None:
    epoch, fetch = -1, None
    parent = multiprocessing.parent_process()
    ends: list[Any] = [connection] if parent is None else [connection, parent.sentinel]
    while connection in wait(ends):
        request: BatchRequest | None = connection.recv()
        if request is None:
            return
        if request.epoch != epoch:
            epoch, fetch = request.epoch, None
        seed_everything(request.seed, request.batch)
        try:
            if failure is None:
                fetch = fetch or begin()
                kind, parcel = _pack_reply(*fetch(request.numbers))
            else:
                kind, parcel = ERROR, pack(failure)
        except Exception as error:
            kind, parcel = ERROR, pack(_pickle_error(error))
        _send_reply(channel, request.epoch, request.batch, kind, parcel)


def _pack_reply(kind: int, content: Any) -> tuple[int, int]:
    return kind, pack(content)


def _pickle_error(error: Exception) -> bytes:
    """Return an exception and its traceback, pickled; if that fails, a RuntimeError with its message."""
    text = "".join(traceback.format_exception(error))
    try:
        data = cloudpickle.dumps((error, text))
        pickle.loads(data)
    except Exception:
        return cloudpickle.dumps((RuntimeError(f"{type(error).__qualname__}: {error}"), text))
    return data


# --- messages ---------------------------------------------------------------------------------------------


def _socket_of(connection: Connection) -> socket.socket:
    """Return the socket of a connection, for messages that carry a file descriptor."""
    return socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)


def _send_reply(channel: socket.socket, epoch: int, batch: int, kind: int, parcel: int) -> None:
    """Send a reply with the descriptor of its shared memory, and close the descriptor in this process."""
    try:
        socket.send_fds(channel, [_REPLY_HEADER.pack(epoch, batch, kind)], [parcel])
    finally:
        os.close(parcel)


def _receive_reply(channel: socket.socket) -> tuple[tuple[int, int, int], int]:
    """Return a reply's header and the descriptor of its memory; EOFError if the sender has ended."""
    try:
        message, parcels, _, _ = socket.recv_fds(channel, _REPLY_HEADER.size, 1)
    except ConnectionResetError:
        message, parcels = b"", []
    if not parcels:
        raise EOFError("the other process has ended")
    return _REPLY_HEADER.unpack(message), parcels[0]


class BatchReply(NamedTuple):
    """Reply of a worker to a request."""

    epoch: int
    batch: int
    kind: int
    content: Any
    """The batch, or the exception."""


class WorkerTraceback(Exception):
    """Traceback of an exception in a worker, as its cause in the parent."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def _decode_reply(epoch: int, batch: int, kind: int, parcel: int, worker: int) -> BatchReply:
    """Return a reply with its content; an error while reading the content becomes an `ERROR` reply."""
    try:
        content = unpack(parcel)
    except Exception as error:
        return BatchReply(epoch, batch, ERROR, error)
    if kind != ERROR:
        return BatchReply(epoch, batch, kind, content)
    raised, text = pickle.loads(content)
    raised.__cause__ = WorkerTraceback(f"In worker {worker} of the DataLoader:\n{text}")
    return BatchReply(epoch, batch, kind, raised)


# --- the pool ---------------------------------------------------------------------------------------------


class _LoaderProcess(NamedTuple):
    process: Any
    connection: Connection
    channel: socket.socket


class WorkerPool:
    """Worker processes that serve the requests of a loader; they end with the pool.

    Parameters
    ----------
    fetching
        Options of the loader. Where processes are not forked, all of them map one copy of its arrays.
    num_workers
        Number of processes.
    context
        From `multiprocessing`.
    seed
        From which those of the workers follow.

    """

    def __init__(self, fetching: Fetching, num_workers: int, context: Any, seed: int) -> None:
        self.epoch = 0
        """Number of the current iteration."""
        self._workers: list[_LoaderProcess] = []
        self._stop = weakref.finalize(self, _stop_workers, self._workers, os.getpid())
        forked = context.get_start_method() == "fork"
        parcel = None if forked else pack(fetching)
        try:
            for i in range(num_workers):
                start = _WorkerSettings(i, num_workers, (seed + i) % (1 << 64), fetching if forked else None)
                self._workers.append(self._start_worker(context, start))
                if parcel is not None:
                    _send_reply(self._workers[i].channel, 0, 0, DATA, os.dup(parcel))
        finally:
            if parcel is not None:
                os.close(parcel)

    def _start_worker(self, context: Any, start: _WorkerSettings) -> _LoaderProcess:
        ours, theirs = context.Pipe(duplex=True)
        others = [end for each in self._workers for end in (each.connection, each.channel)]
        inherited = [] if start.fetching is None else [ours, *others]
        name = f"DataLoader worker {start.id}"
        process = context.Process(target=run_worker, args=(start, theirs, inherited), name=name, daemon=True)
        process.start()
        theirs.close()
        return _LoaderProcess(process, ours, _socket_of(ours))

    @property
    def closed(self) -> bool:
        """Whether the workers were stopped."""
        return not self._stop.alive

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [each.process.pid for each in self._workers]

    def submit(self, worker: int, request: BatchRequest) -> None:
        """Send a request to a worker; RuntimeError if it has ended."""
        try:
            self._workers[worker].connection.send(request)
        except (BrokenPipeError, ConnectionResetError):
            raise self._worker_lost(worker) from None

    def receive(self, timeout: float) -> list[BatchReply]:
        """Wait for answers.

        Parameters
        ----------
        timeout
            Seconds; 0 waits for ever.

        Raises
        ------
        RuntimeError
            If a worker has ended, or none answers in time.

        """
        channels = {each.channel: i for i, each in enumerate(self._workers)}
        sentinels = {each.process.sentinel: i for i, each in enumerate(self._workers)}
        ready: Sequence[Any] = wait([*channels, *sentinels], timeout or None)
        if not ready:
            raise StateError(
                f"[DataLoader] no batch came within timeout={timeout} s; give a longer one, or look for what "
                "the dataset waits for"
            )
        answered = [channels[each] for each in ready if each in channels]
        if not answered:
            raise self._worker_lost(next(sentinels[each] for each in ready))
        return [self._read_reply(each) for each in answered]

    def _read_reply(self, worker: int) -> BatchReply:
        try:
            (epoch, batch, kind), parcel = _receive_reply(self._workers[worker].channel)
        except EOFError:
            raise self._worker_lost(worker) from None
        return _decode_reply(epoch, batch, kind, parcel, worker)

    def _worker_lost(self, worker: int) -> RuntimeError:
        """Stop all workers, and return an error that says how one of them has ended."""
        process = self._workers[worker].process
        process.join(_JOIN_TIMEOUT_S)
        pid, code = process.pid, process.exitcode
        self.close()
        how = (
            f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
        )
        return RuntimeError(
            f"[DataLoader] worker {worker} (process {pid}) ended {how} before it was asked to; if memory ran "
            "out, use fewer workers or smaller batches, and if a script starts workers, it does so below "
            'if __name__ == "__main__"'
        )

    def close(self) -> None:
        """End all workers; those that are busy after a second are killed."""
        self._stop()


def _stop_workers(workers: list[_LoaderProcess], owner: int) -> None:
    if os.getpid() != owner:
        return  # a copy of the pool in a forked process
    for each in workers:
        with contextlib.suppress(OSError):
            os.set_blocking(each.connection.fileno(), False)
            each.connection.send(None)
        each.connection.close()
        each.channel.close()
    deadline = time.monotonic() + _JOIN_TIMEOUT_S
    for each in workers:
        each.process.join(max(0.0, deadline - time.monotonic()))
    for each in workers:
        each.process.kill()
        each.process.join()
    workers.clear()
