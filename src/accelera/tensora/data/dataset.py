"""Datasets: samples by number or as a stream, parts of them, and several as one."""

from __future__ import annotations

import bisect
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from accelera.errors import ArgumentError, IndexingError
from accelera.tensora import random
from accelera.tensora.random import Generator

Sample = TypeVar("Sample", covariant=True)


class Dataset(ABC, Generic[Sample]):
    """Samples by number.

    Subclasses have ``__getitem__`` and, for samplers, ``__len__``. One that has ``__getitems__`` too is asked
    for all samples of a batch at once.
    """

    @abstractmethod
    def __getitem__(self, index: Any) -> Sample:
        """Return a sample."""

    def __add__(self, other: Dataset[Any]) -> ConcatDataset:
        """Samples of this dataset, then those of another."""
        return ConcatDataset([self, other])


class IterableDataset(Dataset[Sample], ABC):
    """Samples as a stream.

    Each worker of a `DataLoader` iterates over its own copy: ``__iter__`` asks `get_worker_info` which share
    of the samples is its own, or all of them come as often as there are workers.
    """

    @abstractmethod
    def __iter__(self) -> Iterator[Sample]:
        """Begin the stream."""

    def __getitem__(self, index: Any) -> Sample:
        """Raise TypeError, as a stream has no numbers."""
        raise ArgumentError(
            f"[{type(self).__name__}] index {index!r}: its samples are a stream; iterate over it"
        )

    def __add__(self, other: Dataset[Any]) -> ChainDataset:  # type: ignore[override]
        """Samples of this stream, then those of another."""
        return ChainDataset([self, other])


class TensorDataset(Dataset[tuple[Any, ...]]):
    """Samples that are the rows of tensors with the same number of rows.

    Parameters
    ----------
    *tensors
        Of the same first extent.

    Raises
    ------
    ValueError
        If there is none, or the first extents differ.

    """

    def __init__(self, *tensors: Any) -> None:
        if not tensors:
            raise ArgumentError("[TensorDataset] no tensors; give at least one")
        rows = [each.shape[0] for each in tensors]
        if len(set(rows)) > 1:
            raise ArgumentError(f"[TensorDataset] tensors of {rows} rows; give tensors with as many")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        """Return a row of each tensor."""
        return tuple(each[index] for each in self.tensors)

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.tensors[0].shape[0])


class StackDataset(Dataset[Any]):
    """Samples that are put together of one sample of each dataset.

    Parameters
    ----------
    *args
        Datasets of the same length; samples are tuples.
    **kwargs
        The same by name; samples are dictionaries.

    Raises
    ------
    ValueError
        If none are given, both kinds are, or the lengths differ.

    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if bool(args) == bool(kwargs):
            raise ArgumentError("[StackDataset] give datasets either by position or by name")
        self.datasets: tuple[Any, ...] | dict[str, Any] = args or kwargs
        lengths = [len(each) for each in self._parts()]
        if len(set(lengths)) > 1:
            raise ArgumentError(f"[StackDataset] datasets of {lengths} samples; give datasets with as many")

    def _parts(self) -> list[Any]:
        return [*(self.datasets.values() if isinstance(self.datasets, dict) else self.datasets)]

    def __getitem__(self, index: Any) -> Any:
        """Return a sample of each dataset."""
        if isinstance(self.datasets, dict):
            return {name: each[index] for name, each in self.datasets.items()}
        return tuple(each[index] for each in self.datasets)

    def __len__(self) -> int:
        """Return the number of samples of each."""
        return len(self._parts()[0])


class ConcatDataset(Dataset[Any]):
    """Samples of several datasets, one dataset after the other.

    Parameters
    ----------
    datasets
        At least one, none of them a stream.

    Raises
    ------
    ValueError
        If there is none, or one is a stream.

    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ArgumentError("[ConcatDataset] no datasets; give at least one")
        if any(isinstance(each, IterableDataset) for each in self.datasets):
            raise ArgumentError("[ConcatDataset] a stream has no numbers; use ChainDataset")
        self.cumulative_sizes = list(itertools.accumulate(len(each) for each in self.datasets))

    def __len__(self) -> int:
        """Return the number of samples of all."""
        return self.cumulative_sizes[-1]

    def __getitem__(self, index: int) -> Any:
        """Return the sample of the dataset that has this number; negative ones count from the end."""
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexingError(f"[ConcatDataset] index {index}: there are {len(self)} samples")
        which = bisect.bisect_right(self.cumulative_sizes, number)
        return self.datasets[which][number - (self.cumulative_sizes[which - 1] if which else 0)]


class ChainDataset(IterableDataset[Any]):
    """Samples of several streams, one after the other.

    Parameters
    ----------
    datasets
        Streams; the next one begins when the one before has ended.

    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        for each in self.datasets:
            if not isinstance(each, IterableDataset):
                raise ArgumentError(
                    f"[ChainDataset] a {type(each).__name__} is no IterableDataset; give streams"
                )

    def __iter__(self) -> Iterator[Any]:
        """Begin with the first stream."""
        return itertools.chain.from_iterable(self.datasets)

    def __len__(self) -> int:
        """Return the number of samples of all, which have lengths then."""
        return sum(len(each) for each in self.datasets)


class Subset(Dataset[Any]):
    """Samples of a dataset that have certain numbers.

    Parameters
    ----------
    dataset
        Dataset with numbers.
    indices
        Numbers of the samples, in their order here.

    """

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index: Any) -> Any:
        """Return a sample."""
        if isinstance(index, list):
            return self.dataset[[self.indices[each] for each in index]]
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        """Return the number of numbers."""
        return len(self.indices)


def random_split(
    dataset: Any, lengths: Sequence[int | float], generator: Generator | None = None
) -> list[Subset]:
    """Split a dataset at random into parts that have no sample in common.

    Parameters
    ----------
    dataset
        Dataset with a length.
    lengths
        Numbers of samples, or shares of them that add up to 1; what is left over by rounding down goes to the
        first parts, one sample each.
    generator
        Source of the order; the default one if None.

    Returns
    -------
    list of Subset
        As many as lengths.

    Raises
    ------
    ValueError
        If the lengths do not add up.

    """
    counts = _counts(len(dataset), lengths)
    order = (generator or random.default_generator).permutation(sum(counts)).tolist()
    ends = list(itertools.accumulate(counts))
    return [Subset(dataset, order[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def _counts(total: int, lengths: Sequence[int | float]) -> list[int]:
    if math.isclose(sum(lengths), 1) and all(0 <= each <= 1 for each in lengths):
        counts = [math.floor(total * each) for each in lengths]
        for i in range(total - sum(counts)):
            counts[i % len(counts)] += 1
        return counts
    if sum(lengths) != total or any(each < 0 or each != int(each) for each in lengths):
        raise ArgumentError(
            f"[random_split] lengths {[*lengths]} of {total} samples; give numbers that add up to {total}, "
            "or shares that add up to 1"
        )
    return [int(each) for each in lengths]
