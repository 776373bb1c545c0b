"""Loader of batches of a dataset, in this process or in worker processes that prefetch."""

from __future__ import annotations

import itertools
import multiprocessing
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from accelera.errors import ArgumentError, StateError
from accelera.tensora import random
from accelera.tensora.data.collate import default_collate, default_convert
from accelera.tensora.data.sampler import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    give_state,
    state_of,
)
from accelera.tensora.data.workers import (
    DATA,
    END,
    ERROR,
    BatchReply,
    BatchRequest,
    Fetching,
    WorkerPool,
    is_stream,
)
from accelera.tensora.random import Generator

DEFAULT_START_METHOD = "forkserver"
"""Start method of the workers: unlike fork, it is sound beside threads of any library."""

_DEFAULT_PREFETCH = 2
_EXHAUSTED = object()


class DataLoader:
    """Iterable over the batches of a dataset.

    The order comes from a seed that is drawn from the generator for each epoch. In workers, the random
    numbers of a batch (those of `accelera.tensora.random`, of NumPy and of Python) depend on that seed and
    the number of the batch alone, so they are the same for any number of workers.

    Parameters
    ----------
    dataset
        Has ``__getitem__`` and ``__len__``, or is an `IterableDataset`.
    batch_size
        Samples in a batch; None: samples come one by one, as they are.
    shuffle
        Take the samples in any order.
    sampler
        Iterable over numbers of samples, instead of `shuffle`.
    batch_sampler
        Iterable over lists of numbers, instead of `batch_size`, `shuffle`, `sampler` and `drop_last`.
    num_workers
        Processes that load ahead; 0: this process loads each batch when it is asked for.
    collate_fn
        Makes a batch of a list of samples; `default_collate` by default.
    drop_last
        Leave out the last batch if it is shorter.
    timeout
        Seconds to wait for a batch of the workers; 0 waits for ever.
    worker_init_fn
        Called in each worker with its number.
    multiprocessing_context
        Start method of the workers, or a context of `multiprocessing`; "forkserver" by default. Functions and
        classes may be local ones with any method. Arrays of the dataset are copied once for all workers, and
        not at all by "fork", which is quicker and safe where no other thread holds a lock.
    generator
        Source of the seeds; the default one if None.
    prefetch_factor
        Batches that each worker loads ahead; 2 by default.
    persistent_workers
        Keep the workers for the next epoch.

    Raises
    ------
    ValueError
        If options exclude each other, or are out of range.

    Examples
    --------
    >>> from accelera.tensora import arange, data
    >>> [batch[0].tolist() for batch in data.DataLoader(data.TensorDataset(arange(5)), batch_size=2)]
    [[0, 1], [2, 3], [4]]

    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        *,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Generator | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> None:
        self.dataset, self.generator = dataset, generator
        self.num_workers, self.timeout = num_workers, timeout
        self.multiprocessing_context = multiprocessing_context
        self.prefetch_factor, self.persistent_workers = prefetch_factor, persistent_workers
        self._check_workers()
        if batch_sampler is not None:
            others = {"shuffle": shuffle, "sampler": sampler, "drop_last": drop_last}
            _exclude("batch_sampler", batch_size=batch_size != 1, **others)
            batch_size = None
        elif batch_size is None:
            _exclude("batch_size=None", drop_last=drop_last)
        if is_stream(dataset):
            _exclude("an IterableDataset", shuffle=shuffle, sampler=sampler, batch_sampler=batch_sampler)
        if sampler is not None:
            _exclude("sampler", shuffle=shuffle)
        self.batch_size, self.drop_last = batch_size, drop_last
        self._order = Generator(0)
        self.sampler, self.batch_sampler = self._samplers(shuffle, sampler, batch_sampler)
        batched = batch_size is not None or batch_sampler is not None
        self.collate_fn = collate_fn or (default_collate if batched else default_convert)
        self._fetching = Fetching(dataset, self.collate_fn, batched, batch_size, drop_last, worker_init_fn)
        self._pool: WorkerPool | None = None
        self._progress: _EpochProgress | None = None
        self._resumed: dict[str, Any] | None = None

    def _check_workers(self) -> None:
        n, factor = self.num_workers, self.prefetch_factor
        if n < 0 or self.timeout < 0:
            raise ArgumentError(f"[DataLoader] num_workers={n}, timeout={self.timeout}; give 0 or more")
        if factor is not None and factor < 1:
            raise ArgumentError(f"[DataLoader] prefetch_factor={factor}; give 1 or more, or None")
        if n == 0:
            given = {
                "prefetch_factor": factor,
                "persistent_workers": self.persistent_workers,
                "timeout": self.timeout,
                "multiprocessing_context": self.multiprocessing_context,
            }
            _exclude("num_workers=0", **given)

    def _samplers(self, shuffle: bool | None, sampler: Any, batch_sampler: Any) -> tuple[Any, Any]:
        """Return the sampler of indices and the sampler of batches; None for one that is not used."""
        if is_stream(self.dataset):
            if self.batch_size is not None and self.batch_size < 1:
                raise ArgumentError(
                    f"[DataLoader] batch_size={self.batch_size}; give a positive integer, or None"
                )
            return None, None
        if batch_sampler is not None:
            return None, batch_sampler
        if sampler is None and shuffle:
            sampler = RandomSampler(self.dataset, generator=self._order)
        elif sampler is None:
            sampler = SequentialSampler(self.dataset)
        if self.batch_size is None:
            return sampler, None
        return sampler, BatchSampler(sampler, self.batch_size, self.drop_last)

    @property
    def _index_source(self) -> Any:
        """Iterable whose items are sent to the workers: the sampler in use; None for streams."""
        return self.batch_sampler if self.batch_sampler is not None else self.sampler

    def __len__(self) -> int:
        """Return the number of batches of an epoch; TypeError where a stream does not know its length."""
        if self._index_source is not None:
            return len(self._index_source)
        total = len(self.dataset)
        if self.batch_size is None:
            return total
        return total // self.batch_size if self.drop_last else -(-total // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch, or resume the one of `load_state_dict`."""
        numbers = self._begin()
        progress = self._progress
        assert progress is not None
        if not self.num_workers:
            return _InlineBatches(progress, numbers, self._fetching)
        pool = self._pool
        if pool is None or pool.closed:
            pool = self._new_pool(progress.seed)
        self._pool = pool if self.persistent_workers else None
        return _PrefetchedBatches(progress, numbers, pool, self)

    def _new_pool(self, seed: int) -> WorkerPool:
        context = self.multiprocessing_context or DEFAULT_START_METHOD
        if isinstance(context, str):
            context = multiprocessing.get_context(context)
        return WorkerPool(self._fetching, self.num_workers, context, seed)

    # --- the order of an epoch, and resuming it ---

    def _begin(self) -> Iterator[Any]:
        """Begin an epoch, or resume one; return the indices of its remaining batches."""
        resumed, self._resumed = self._resumed, None
        requested = self._index_source
        if resumed is None or resumed["seed"] is None:
            source = self.generator or random.default_generator
            seed = int(source.integers(0, 1 << 64, dtype="uint64").item())
            self._order.manual_seed(seed)
            self._progress = _EpochProgress(seed, state_of(requested), 0, 0)
            return _index_iterator(requested)
        skipped, seed = resumed["position"], resumed["seed"]
        now = state_of(requested)
        self._order.manual_seed(seed)
        give_state(requested, resumed["sampler"])
        numbers = _index_iterator(requested)
        # Draw the first of them before the sampler gets its current state back.
        first = list(itertools.islice(numbers, skipped + 1)) if requested is not None else []
        give_state(requested, now)
        self._progress = _EpochProgress(seed, resumed["sampler"], skipped, skipped)
        return itertools.chain(first[skipped:], numbers)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the iteration.

        Returns
        -------
        dict
            Numbers, strings, tuples and dictionaries: batches that were given out, seed of the epoch, states
            of the samplers and of `generator`. The default generator is not part of it: save it beside.

        """
        place: dict[str, Any] = {"position": 0, "seed": None, "sampler": {}}
        if self._resumed is not None:
            place = {name: self._resumed[name] for name in place}
        elif self._progress is not None and not self._progress.ended:
            place = {name: getattr(self._progress, name) for name in place}
        now = None if self.generator is None else self.generator.state
        return {**place, "sampler_now": state_of(self._index_source), "generator": now}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next iteration begin where another one was when `state_dict` was called.

        The batches before are passed over without loading them, but for those of streams. The dataset and
        the options are to be the same; the number of workers may differ, if the dataset is no stream.

        Raises
        ------
        ValueError
            If this is no state of a loader.

        """
        wanted = {"position", "seed", "sampler", "sampler_now", "generator"}
        if state_dict.keys() != wanted:
            raise ArgumentError(
                f"[DataLoader.load_state_dict] give what state_dict returned, with {sorted(wanted)}"
            )
        if self.generator is not None and state_dict["generator"] is not None:
            self.generator.state = state_dict["generator"]
        give_state(self._index_source, state_dict["sampler_now"])
        self._resumed = dict(state_dict)


@dataclass
class _EpochProgress:
    """Place in an epoch."""

    seed: int
    sampler: dict[str, Any]
    """State of the samplers when the epoch began."""
    first: int
    """Number of the first batch to give out."""
    position: int
    """Batches that were given out, those before `first` included."""
    ended: bool = False


class _Batches(ABC):
    """Iterator over the batches of an epoch."""

    def __init__(self, progress: _EpochProgress, numbers: Iterator[Any]) -> None:
        self._progress, self._numbers = progress, numbers

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            kind, batch = self._next()
        except StopIteration as error:  # otherwise it would end the loop over the batches silently
            raise StateError(f"[DataLoader] the dataset raised StopIteration({error})") from error
        if kind == END:
            self._progress.ended = True
            raise StopIteration
        self._progress.position += 1
        return batch

    @abstractmethod
    def _next(self) -> tuple[int, Any]:
        """Return `DATA` and the next batch, or `END` and None; count a batch that is an exception."""


class _InlineBatches(_Batches):
    """Iterator that loads each batch when it is asked for."""

    def __init__(self, progress: _EpochProgress, numbers: Iterator[Any], fetching: Fetching) -> None:
        super().__init__(progress, numbers)
        self._fetch = fetching.fetcher()
        for _ in range(progress.first if is_stream(fetching.dataset) else 0):
            self._fetch(None)

    def _next(self) -> tuple[int, Any]:
        number = next(self._numbers, _EXHAUSTED)
        if number is _EXHAUSTED:
            return END, None
        try:
            return self._fetch(number)
        except Exception:
            self._progress.position += 1
            raise


class _PrefetchedBatches(_Batches):
    """Iterator over batches that workers load ahead, in the order of their requests.

    Requests go to the workers in turn. That a worker's stream has ended counts when the turn of its answer
    has come, so the order does not depend on who is quicker.
    """

    def __init__(
        self, progress: _EpochProgress, numbers: Iterator[Any], pool: WorkerPool, loader: DataLoader
    ) -> None:
        super().__init__(progress, numbers)
        self._pool, self._timeout = pool, loader.timeout
        self._persistent = loader.persistent_workers
        pool.epoch += 1
        self._epoch = pool.epoch
        self._active = deque(range(loader.num_workers))
        self._worker_of: dict[int, int] = {}
        self._replies: dict[int, BatchReply] = {}
        # A stream has no sample indices: its batches before `first` are loaded again and skipped.
        self._to_skip = progress.first if is_stream(loader.dataset) else 0
        self._index = self._sent = progress.first - self._to_skip
        for _ in range(loader.num_workers * (loader.prefetch_factor or _DEFAULT_PREFETCH)):
            self._request()

    def _request(self) -> None:
        """Request the next batch, if there is one, from the worker whose turn it is."""
        number = next(self._numbers, _EXHAUSTED) if self._active else _EXHAUSTED
        if number is _EXHAUSTED:
            return
        worker = self._active[0]
        self._active.rotate(-1)
        self._pool.submit(worker, BatchRequest(self._epoch, self._progress.seed, self._sent, number))
        self._worker_of[self._sent] = worker
        self._sent += 1

    def _next(self) -> tuple[int, Any]:
        while self._index < self._sent:
            answer, worker = self._wait_for_reply(self._index), self._worker_of.pop(self._index)
            self._index += 1
            if answer.kind == END and worker in self._active:
                self._active.remove(worker)
            self._request()
            if answer.kind == END:
                continue
            if self._to_skip:
                self._to_skip -= 1
                continue
            if answer.kind == ERROR:
                self._progress.position += 1
                raise answer.content
            return DATA, answer.content
        if not self._persistent:
            self._pool.close()
        return END, None

    def _wait_for_reply(self, index: int) -> BatchReply:
        if self._pool.closed or self._pool.epoch != self._epoch:
            raise StateError(
                "[DataLoader] the workers were lost, or went over to a later iteration; begin anew"
            )
        while index not in self._replies:
            for answer in self._pool.receive(self._timeout):
                if answer.epoch == self._epoch:
                    self._replies[answer.batch] = answer
        return self._replies.pop(index)


def _index_iterator(requested: Any) -> Iterator[Any]:
    return itertools.repeat(None) if requested is None else iter(requested)


def _exclude(what: str, **others: Any) -> None:
    """Raise ValueError if one of the other options is given."""
    given = [name for name, value in others.items() if value is not None and value is not False]
    given = [name for name in given if not (isinstance(others[name], (int, float)) and others[name] == 0)]
    if given:
        raise ArgumentError(f"[DataLoader] {', '.join(given)} does not go with {what}; leave one of them out")
