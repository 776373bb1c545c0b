"""Processes that load batches: what runs in one, and the pool of them that a loader asks."""

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

from accelera.tensora import random
from accelera.tensora.core import native
from accelera.tensora.data.dataset import IterableDataset
from accelera.tensora.data.shared_memory import pack, unpack

DATA, ERROR, END = range(3)
"""Kinds of answers: a batch, an exception, and the end of a worker's stream."""

_ANSWER = struct.Struct("<QQB")
_PATIENCE_S = 1.0
_BEFORE_BATCHES = (1 << 32) - 2
"""Place of the random numbers that are drawn before the first batch, behind those of all batches."""


# --- batches of a dataset ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fetching:
    """Options by which batches are made of a dataset."""

    dataset: Any
    collate_fn: Callable[[Any], Any]
    batched: bool
    """Whether several samples are one batch."""
    batch_size: int | None = None
    """Samples of a batch, of a stream."""
    drop_last: bool = False
    """Leave out the last batch of a stream if it is shorter."""
    worker_init_fn: Callable[[int], Any] | None = None
    """Called in each worker with its number, before it loads."""

    def fetcher(self) -> Callable[[Any], tuple[int, Any]]:
        """Return a function from the numbers of samples to `DATA` and a batch, or `END` and None."""
        if not is_stream(self.dataset):
            return self._numbered
        samples = iter(self.dataset)
        return lambda _: self._streamed(samples)

    def _numbered(self, numbers: Any) -> tuple[int, Any]:
        if not self.batched:
            return DATA, self.collate_fn(self.dataset[numbers])
        if hasattr(self.dataset, "__getitems__"):
            return DATA, self.collate_fn(self.dataset.__getitems__(numbers))
        return DATA, self.collate_fn([self.dataset[each] for each in numbers])

    def _streamed(self, samples: Any) -> tuple[int, Any]:
        batch = list(islice(samples, self.batch_size if self.batched else 1))
        if not batch or (self.drop_last and len(batch) < (self.batch_size or 0)):
            return END, None
        return DATA, self.collate_fn(batch if self.batched else batch[0])


def is_stream(dataset: Any) -> bool:
    """Whether samples of a dataset come in its own order."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


# --- in the worker ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerInfo:
    """Facts about the worker in whose process the code runs."""

    id: int
    """From 0."""
    num_workers: int
    seed: int
    """Another one for each worker and each start of the workers."""
    dataset: Any
    """The copy of this worker."""


_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Return the facts about this worker of a `DataLoader`, or None in any other process."""
    return _info


class BatchRequest(NamedTuple):
    """Order to a worker for one batch."""

    epoch: int
    """Number of the iteration over the pool; with a new one, streams begin again."""
    seed: int
    """Of the epoch."""
    batch: int
    """Number of the batch in the epoch."""
    numbers: Any
    """Of the samples."""


class _Start(NamedTuple):
    """Settings that a worker receives when it begins."""

    id: int
    num_workers: int
    seed: int
    fetching: Fetching | None
    """None: it comes as a parcel, as the first message."""


def seed_everything(seed: int, place: int) -> None:
    """Let all generators of this process begin a sequence of their own for each seed and place.

    The numbers that the default generator draws for two places of a seed do not overlap.
    """
    random.default_generator.state = (seed, (place + 1) << 32)
    mixed = (seed * 0x9E3779B97F4A7C15 + place) % (1 << 64)
    python_random.seed(mixed)
    np.random.seed([mixed & 0xFFFFFFFF, mixed >> 32])


def run_worker(start: _Start, connection: Connection, inherited: Iterable[Any]) -> None:
    """Answer requests until there is a None among them, or the parent ends."""
    for each in inherited:  # ends of the parent, which would keep the workers alive without it
        each.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    native.set_thread_count(1)
    with contextlib.suppress(OSError, EOFError):
        channel = _channel_of(connection)
        parcel = _received(channel)[1] if start.fetching is None else None
        _answer_all(connection, channel, *_prepared(start, parcel))


def _prepared(start: _Start, parcel: int | None) -> tuple[Any, bytes | None]:
    """Function that begins to fetch, or the exception that keeps from it, for the first batch to raise."""
    global _info
    try:
        fetching: Any = start.fetching if parcel is None else unpack(parcel, private=True)
        _info = WorkerInfo(start.id, start.num_workers, start.seed, fetching.dataset)
        seed_everything(start.seed, _BEFORE_BATCHES)
        if fetching.worker_init_fn is not None:
            fetching.worker_init_fn(start.id)
    except Exception as error:
        return None, _described(error)
    return fetching.fetcher, None


def _answer_all(
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
                kind, parcel = _packed(*fetch(request.numbers))
            else:
                kind, parcel = ERROR, pack(failure)
        except Exception as error:
            kind, parcel = ERROR, pack(_described(error))
        _send(channel, request.epoch, request.batch, kind, parcel)


def _packed(kind: int, content: Any) -> tuple[int, int]:
    return kind, pack(content)


def _described(error: Exception) -> bytes:
    """Pickled exception and its traceback; its words where it cannot be pickled."""
    text = "".join(traceback.format_exception(error))
    try:
        data = cloudpickle.dumps((error, text))
        pickle.loads(data)
    except Exception:
        return cloudpickle.dumps((RuntimeError(f"{type(error).__qualname__}: {error}"), text))
    return data


# --- messages ---------------------------------------------------------------------------------------------


def _channel_of(connection: Connection) -> socket.socket:
    """Socket beneath a connection, for messages with a descriptor."""
    return socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)


def _send(channel: socket.socket, epoch: int, batch: int, kind: int, parcel: int) -> None:
    """Send an answer with its parcel in one message, and close the parcel here."""
    try:
        socket.send_fds(channel, [_ANSWER.pack(epoch, batch, kind)], [parcel])
    finally:
        os.close(parcel)


def _received(channel: socket.socket) -> tuple[tuple[int, int, int], int]:
    """Answer and parcel; EOFError where the sender has ended."""
    try:
        message, parcels, _, _ = socket.recv_fds(channel, _ANSWER.size, 1)
    except ConnectionResetError:
        message, parcels = b"", []
    if not parcels:
        raise EOFError("the other process has ended")
    return _ANSWER.unpack(message), parcels[0]


class BatchReply(NamedTuple):
    """What a worker made of a request."""

    epoch: int
    batch: int
    kind: int
    content: Any
    """The batch, or the exception."""


class WorkerTraceback(Exception):
    """Traceback of an exception in a worker, as its cause in the parent."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def _opened(epoch: int, batch: int, kind: int, parcel: int, worker: int) -> BatchReply:
    """Answer with the contents of its parcel; what keeps them from being read is an error as well."""
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
    """Processes that answer the requests of a loader; they end with the pool.

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
        self._end = weakref.finalize(self, _end, self._workers, os.getpid())
        forked = context.get_start_method() == "fork"
        parcel = None if forked else pack(fetching)
        try:
            for i in range(num_workers):
                start = _Start(i, num_workers, (seed + i) % (1 << 64), fetching if forked else None)
                self._workers.append(self._started(context, start))
                if parcel is not None:
                    _send(self._workers[i].channel, 0, 0, DATA, os.dup(parcel))
        finally:
            if parcel is not None:
                os.close(parcel)

    def _started(self, context: Any, start: _Start) -> _LoaderProcess:
        ours, theirs = context.Pipe(duplex=True)
        others = [end for each in self._workers for end in (each.connection, each.channel)]
        inherited = [] if start.fetching is None else [ours, *others]
        name = f"DataLoader worker {start.id}"
        process = context.Process(target=run_worker, args=(start, theirs, inherited), name=name, daemon=True)
        process.start()
        theirs.close()
        return _LoaderProcess(process, ours, _channel_of(ours))

    @property
    def closed(self) -> bool:
        """Whether the workers were ended."""
        return not self._end.alive

    @property
    def pids(self) -> list[int]:
        """Numbers of the processes."""
        return [each.process.pid for each in self._workers]

    def submit(self, worker: int, request: BatchRequest) -> None:
        """Send a request to a worker; RuntimeError if it has ended."""
        try:
            self._workers[worker].connection.send(request)
        except (BrokenPipeError, ConnectionResetError):
            raise self._lost(worker) from None

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
            raise RuntimeError(
                f"[DataLoader] no batch came within timeout={timeout} s; give a longer one, or look for what "
                "the dataset waits for"
            )
        answered = [channels[each] for each in ready if each in channels]
        if not answered:
            raise self._lost(next(sentinels[each] for each in ready))
        return [self._answer(each) for each in answered]

    def _answer(self, worker: int) -> BatchReply:
        try:
            (epoch, batch, kind), parcel = _received(self._workers[worker].channel)
        except EOFError:
            raise self._lost(worker) from None
        return _opened(epoch, batch, kind, parcel, worker)

    def _lost(self, worker: int) -> RuntimeError:
        """Error that says how a worker has ended; the others are ended too."""
        process = self._workers[worker].process
        process.join(_PATIENCE_S)
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
        self._end()


def _end(workers: list[_LoaderProcess], owner: int) -> None:
    if os.getpid() != owner:
        return  # a copy of the pool in a forked process
    for each in workers:
        with contextlib.suppress(OSError):
            os.set_blocking(each.connection.fileno(), False)
            each.connection.send(None)
        each.connection.close()
        each.channel.close()
    deadline = time.monotonic() + _PATIENCE_S
    for each in workers:
        each.process.join(max(0.0, deadline - time.monotonic()))
    for each in workers:
        each.process.kill()
        each.process.join()
    workers.clear()
