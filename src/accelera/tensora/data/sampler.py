"""Samplers: the order in which the samples of a dataset are taken, and their grouping to batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, Generic, TypeVar

import numpy as np

from accelera.errors import ArgumentError, UnsupportedError
from accelera.tensora import random
from accelera.tensora.random import Generator
from accelera.tensora.state_kinds import matching_state

Item = TypeVar("Item", covariant=True)
_PIECE = 1 << 16


class Sampler(Generic[Item]):
    """Base of samplers: an iterable over numbers of samples, or over lists of them.

    One that draws at random has `state_dict` and `load_state_dict` if an interrupted epoch is to be resumed:
    with an earlier state, ``__iter__`` gives the order that it gave then.
    """

    def __iter__(self) -> Iterator[Item]:
        """Begin an epoch."""
        raise UnsupportedError(f"[{type(self).__name__}] it has no __iter__; define it")

    def state_dict(self) -> dict[str, Any]:
        """Return the state that determines the order of the next epoch."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""


class SequentialSampler(Sampler[int]):
    """Numbers of all samples in their order.

    Parameters
    ----------
    data_source
        Dataset with a length.

    """

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        """Begin with 0."""
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.data_source)


class _Random(Sampler[int]):
    """Base of the samplers whose order is drawn when an epoch begins."""

    generator: Generator | None

    def _source(self) -> Generator:
        return random.default_generator if self.generator is None else self.generator

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the generator."""
        return {"generator": self._source().state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set the generator, which others may draw from as well, to the state that `state_dict` returned."""
        self._source().state = matching_state("load_state_dict", state_dict, self.state_dict())["generator"]


class RandomSampler(_Random):
    """Numbers of samples in any order.

    Parameters
    ----------
    data_source
        Dataset with a length.
    replacement
        Draw each number independently, so that numbers may repeat or be missing.
    num_samples
        How many to draw; all by default. More of them than samples, without replacement, are drawn from one
        order after the other.
    generator
        Source of the order; the default one if None.

    Raises
    ------
    ValueError
        If `num_samples` is no positive integer.

    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        if num_samples is not None and not _is_positive(num_samples):
            raise ArgumentError(
                f"[RandomSampler] num_samples={num_samples}; give a positive integer, or None"
            )
        self.data_source, self.replacement, self.generator = data_source, replacement, generator
        self._num_samples = num_samples

    @property
    def num_samples(self) -> int:
        """Numbers in an epoch."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        """Draw an order."""
        total, wanted, source = len(self.data_source), self.num_samples, self._source()
        if not wanted:
            return iter(())
        if not total:
            raise ArgumentError(f"[RandomSampler] {wanted} of no samples; give a dataset that has some")
        if self.replacement:
            return _integers(source.integers(total, shape=(wanted,)))
        orders = [source.permutation(total) for _ in range(-(-wanted // total))]
        return itertools.islice(itertools.chain.from_iterable(map(_integers, orders)), wanted)

    def __len__(self) -> int:
        """Return the numbers in an epoch."""
        return self.num_samples


class SubsetRandomSampler(_Random):
    """Certain numbers in any order.

    Parameters
    ----------
    indices
        The numbers.
    generator
        Source of the order; the default one if None.

    """

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices, self.generator = indices, generator

    def __iter__(self) -> Iterator[int]:
        """Draw an order."""
        return map(self.indices.__getitem__, _integers(self._source().permutation(len(self.indices))))

    def __len__(self) -> int:
        """Return the number of numbers."""
        return len(self.indices)


class WeightedRandomSampler(_Random):
    """Numbers of samples, each as likely as its weight says.

    Without replacement the numbers are those of the largest ``log(u) / weight``, `u` evenly distributed
    (P. Efraimidis and P. Spirakis, "Weighted random sampling with a reservoir", 2006).

    Parameters
    ----------
    weights
        One for each sample, 0 or more; they need not add up to 1.
    num_samples
        How many to draw.
    replacement
        Whether a number may be drawn again.
    generator
        Source of the numbers; the default one if None.

    Raises
    ------
    ValueError
        If `num_samples` is no positive integer or, without replacement, more than there are positive weights;
        if a weight is negative or not finite, or all are 0.

    """

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
    ) -> None:
        if not _is_positive(num_samples):
            raise ArgumentError(f"[WeightedRandomSampler] num_samples={num_samples}; give a positive integer")
        self.weights = np.array(weights, np.float64)
        if self.weights.ndim != 1 or not np.isfinite(self.weights).all() or (self.weights < 0).any():
            raise ArgumentError("[WeightedRandomSampler] give a sequence of finite weights, 0 or more")
        positive = int((self.weights > 0).sum())
        if positive < (1 if replacement else num_samples):
            raise ArgumentError(
                f"[WeightedRandomSampler] {num_samples} numbers of {positive} with a positive weight; "
                "give more weights, or draw fewer"
            )
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator

    def __iter__(self) -> Iterator[int]:
        """Draw the numbers."""
        count = self.num_samples if self.replacement else len(self.weights)
        uniform = self._source().uniform((count,), "float64").numpy()
        if self.replacement:
            sums = np.cumsum(self.weights)
            # Rounding up to the whole sum would give a number behind the last positive weight.
            found = np.searchsorted(sums, np.minimum(uniform * sums[-1], np.nextafter(sums[-1], 0)), "right")
        else:
            keys = np.full(count, -np.inf)
            np.divide(np.log1p(-uniform), self.weights, out=keys, where=self.weights > 0)
            found = np.argsort(keys)[::-1][: self.num_samples]
        return _integers(found)

    def __len__(self) -> int:
        """Return how many are drawn."""
        return self.num_samples


class BatchSampler(Sampler[list[int]]):
    """Lists of the numbers that another sampler gives.

    Parameters
    ----------
    sampler
        Any iterable over numbers.
    batch_size
        Numbers in a list.
    drop_last
        Leave out the last list if it is shorter.

    Raises
    ------
    ValueError
        If `batch_size` is no positive integer.

    """

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool = False) -> None:
        if not _is_positive(batch_size):
            raise ArgumentError(f"[BatchSampler] batch_size={batch_size}; give a positive integer")
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        """Begin an epoch of the sampler."""
        return self._batches(iter(self.sampler))

    def _batches(self, numbers: Iterator[int]) -> Iterator[list[int]]:
        while batch := list(itertools.islice(numbers, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        """Return the number of lists."""
        total = len(self.sampler)  # type: ignore[arg-type]
        return total // self.batch_size if self.drop_last else -(-total // self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the sampler, if it has one."""
        return state_of(self.sampler)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give the sampler its state back."""
        give_state(self.sampler, state_dict)


class DistributedSampler(Sampler[int]):
    """Share that one of several processes takes of the samples; the shares have the same length.

    Parameters
    ----------
    dataset
        Dataset with a length.
    num_replicas
        Number of processes.
    rank
        Of this process, from 0.
    shuffle
        Take them in an order that depends on `seed` and the epoch alone, the same for all processes.
    seed
        The same for all processes.
    drop_last
        Leave out the samples that do not come out even; otherwise some samples come twice.

    Raises
    ------
    ValueError
        If `num_replicas` and `rank` are not given, or do not fit together.

    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas is None or rank is None or not 0 <= rank < num_replicas:
            raise ArgumentError(
                f"[DistributedSampler] num_replicas={num_replicas}, rank={rank}; "
                "give the number of processes, and that of this one, from 0"
            )
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, seed, drop_last, 0
        total = len(dataset)
        self.num_samples = total // num_replicas if drop_last else -(-total // num_replicas)
        self.total_size = self.num_samples * num_replicas

    def __iter__(self) -> Iterator[int]:
        """Begin the share of this process."""
        total = len(self.dataset)
        if self.shuffle:
            order = Generator(self.seed + self.epoch).permutation(total).numpy()
        else:
            order = np.arange(total)
        return _integers(np.resize(order, self.total_size)[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        """Return the number of samples of a share."""
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Let the next order be that of an epoch; call it before each, in all processes."""
        self.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch."""
        return {"epoch": self.epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set the epoch."""
        self.epoch = matching_state("load_state_dict", state_dict, self.state_dict())["epoch"]


def state_of(sampler: Any) -> dict[str, Any]:
    """State of anything that may be a sampler; empty if it has none."""
    found: dict[str, Any] = sampler.state_dict() if hasattr(sampler, "state_dict") else {}
    return found


def give_state(sampler: Any, state: dict[str, Any]) -> None:
    """Give anything that may be a sampler the state that `state_of` returned."""
    if state:
        sampler.load_state_dict(state)


def _is_positive(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number > 0


def _integers(numbers: Any) -> Iterator[int]:
    """Elements of a one-dimensional tensor or array as integers, made as they are needed."""
    pieces = (numbers[first : first + _PIECE].tolist() for first in range(0, len(numbers), _PIECE))
    return itertools.chain.from_iterable(pieces)
