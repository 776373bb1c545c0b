"""Reductions: running states that take in an array at a time until many elements are one.

A reducer works on *states*, arrays shaped like the result with reduced axes of length 1. It makes the
*partial* states of one small array and *merges* partial states into running ones, in a fixed order,
so that a result does not depend on how fast the threads were. Sums of real and complex numbers
run in float64 and carry what rounding cut off, so their error does not grow with the length.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
States = tuple[Array, ...]

_INT64: np.dtype[Any] = np.dtype(np.int64)
_UINT64: np.dtype[Any] = np.dtype(np.uint64)
_FLOAT64: np.dtype[Any] = np.dtype(np.float64)
_COMPLEX128: np.dtype[Any] = np.dtype(np.complex128)


@dataclass(frozen=True)
class ReductionPlace:
    """Where an array lies among all the elements that are reduced."""

    start: tuple[int, ...]
    """Index of its first element."""
    shape: tuple[int, ...]
    """Shape of the whole."""
    axes: tuple[int, ...]
    """Axes that are reduced."""


class RunningReduction(abc.ABC):
    """One kind of reduction."""

    dtypes: tuple[np.dtype[Any], ...]
    """Element types of the states; the first one ends as the result."""
    scratch_itemsize: int = 16
    """Bytes taken per element of an array while its partial states are made."""

    @property
    def state_itemsize(self) -> int:
        """Bytes of all states per element of the result."""
        return sum(dtype.itemsize for dtype in self.dtypes)

    @abc.abstractmethod
    def begin(self, states: States) -> None:
        """Set the states to those of no elements."""

    @abc.abstractmethod
    def partial(self, values: Array, place: ReductionPlace) -> States:
        """Return the states of ``values``."""

    @abc.abstractmethod
    def merge(self, states: States, others: States) -> None:
        """Take ``others`` into ``states``."""

    def end(self, states: States) -> Array:
        """Turn the first state into the result, in place, and return it."""
        return states[0]


@final
class FoldReduction(RunningReduction):
    """One operation over all elements, such as a maximum or a sum of integers."""

    def __init__(self, ufunc: np.ufunc, dtype: np.dtype[Any], identity: Any) -> None:
        self._ufunc = ufunc
        self._identity = identity
        self.dtypes = (dtype,)

    def begin(self, states: States) -> None:
        """Fill with the operation's neutral element."""
        states[0].fill(self._identity)

    def partial(self, values: Array, place: ReductionPlace) -> States:
        """Fold ``values`` along the reduced axes."""
        logical = self.dtypes[0] == np.bool_
        dtype = None if logical else self.dtypes[0]
        return (np.asarray(self._ufunc.reduce(values, axis=place.axes, dtype=dtype, keepdims=True)),)

    def merge(self, states: States, others: States) -> None:
        """Apply the operation to both."""
        self._ufunc(states[0], others[0], out=states[0])


@final
class SumReduction(RunningReduction):
    """A sum of real or complex numbers with its rounding errors."""

    def __init__(self, dtype: np.dtype[Any], finish: Callable[[Array], object] = lambda total: None) -> None:
        held = _COMPLEX128 if dtype.kind == "c" else _FLOAT64
        self.dtypes = (held, held)
        self.scratch_itemsize = 4 * held.itemsize
        self._finish = finish

    def begin(self, states: States) -> None:
        """Start at zero."""
        for each in states:
            each.fill(0)

    def partial(self, values: Array, place: ReductionPlace) -> States:
        """Add up ``values`` along the reduced axes."""
        held = self.dtypes[0]
        total = np.asarray(np.add.reduce(values, axis=place.axes, dtype=held, keepdims=True))
        return total, np.zeros((), held)

    def merge(self, states: States, others: States) -> None:
        """Add, and keep what rounding cuts off (Knuth's two-sum)."""
        (total, lost), (more, lost_before) = states, others
        before = total.copy()
        np.add(total, more, out=total)
        taken = total - before
        lost += more - taken
        np.subtract(total, taken, out=taken)
        np.subtract(before, taken, out=before)
        lost += before
        lost += lost_before

    def end(self, states: States) -> Array:
        """Put the rounding errors back where the sum is finite."""
        total, lost = states
        np.add(total, lost, out=total, where=np.isfinite(total))
        self._finish(total)
        return total


@final
class VarianceReduction(RunningReduction):
    """Variance or standard deviation: count, mean and squared deviations (Chan, Golub, LeVeque 1979)."""

    def __init__(self, dtype: np.dtype[Any], ddof: float, root: bool) -> None:
        self._held = _COMPLEX128 if dtype.kind == "c" else _FLOAT64
        self.dtypes = (_FLOAT64, self._held, _FLOAT64)
        self.scratch_itemsize = 4 * self._held.itemsize
        self._ddof = ddof
        self._root = root

    def begin(self, states: States) -> None:
        """Start with nothing."""
        for each in states:
            each.fill(0)

    def partial(self, values: Array, place: ReductionPlace) -> States:
        """Return squared deviations, mean and count of ``values``."""
        count = math.prod(values.shape[axis] for axis in place.axes)
        mean = np.asarray(np.add.reduce(values, axis=place.axes, dtype=self._held, keepdims=True) / count)
        apart = np.subtract(values, mean, dtype=self._held)
        squares = np.square(np.abs(apart)) if self._held.kind == "c" else np.square(apart, out=apart)
        spread = np.asarray(np.add.reduce(squares, axis=place.axes, keepdims=True))
        return spread, mean, np.full((), float(count))

    def merge(self, states: States, others: States) -> None:
        """Join two groups."""
        (spread, mean, count), (more, other, number) = states, others
        total = count + number
        share = np.divide(number, total, out=np.zeros_like(count), where=total > 0)
        apart = other - mean
        mean += apart * share
        spread += more
        spread += np.square(np.abs(apart * np.sqrt(count * share)))
        count[...] = total

    def end(self, states: States) -> Array:
        """Divide by the count less the degrees of freedom."""
        spread, _, count = states
        np.divide(spread, np.maximum(count - self._ddof, 0), out=spread)
        if self._root:
            np.sqrt(spread, out=spread)
        return spread


@final
class ArgReduction(RunningReduction):
    """Where the first extreme lies; the first NaN counts as one."""

    def __init__(self, dtype: np.dtype[Any], largest: bool) -> None:
        self.dtypes = (_INT64, dtype)
        self.scratch_itemsize = dtype.itemsize + 16
        self._find = np.argmax if largest else np.argmin
        self._ahead = np.greater if largest else np.less

    def begin(self, states: States) -> None:
        """Start before the first element."""
        states[0].fill(-1)
        states[1].fill(0)

    def partial(self, values: Array, place: ReductionPlace) -> States:
        """Return the index in the whole and the value of the extreme of ``values``."""
        if len(place.axes) == 1 and values.ndim > 1:
            (axis,) = place.axes
            index = np.asarray(self._find(values, axis=axis, keepdims=True), _INT64)
            return index + place.start[axis], np.take_along_axis(values, index, axis)
        inside = np.unravel_index(int(self._find(values)), values.shape)
        found = values[inside]
        whole = [first + offset for first, offset in zip(place.start, inside, strict=True)]
        flat = np.ravel_multi_index(tuple(whole), place.shape)
        one = (1,) * values.ndim
        return np.full(one, flat, _INT64), np.full(one, found, values.dtype)

    def merge(self, states: States, others: States) -> None:
        """Keep the extreme, of equal ones the first."""
        (index, value), (place, found) = states, others
        mine_nan, its_nan = value != value, found != found
        level = (value == found) | (mine_nan & its_nan)
        wins = (self._ahead(found, value) & ~mine_nan) | (its_nan & ~mine_nan) | (level & (place < index))
        wins |= index < 0
        wins &= place >= 0
        np.copyto(index, place, where=wins)
        np.copyto(value, found, where=wins)


@dataclass(frozen=True)
class ReductionRule:
    """How one reduction is done."""

    reducer: RunningReduction
    dtype: np.dtype[Any]
    """Element type of the result."""
    needs_elements: bool = False
    """Whether there is no result of no elements."""


def rule(op: str, dtype: np.dtype[Any], held: np.dtype[Any], count: int, ddof: float) -> ReductionRule:
    """Return how ``count`` elements of ``dtype``, computed in ``held``, become one, as NumPy types it.

    ``op`` is one of sum mean var std min max argmin argmax prod any all, or ``"root"``: the square root
    of the sum.
    """
    exact = dtype.kind in "biu"
    real = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
    if op in ("min", "max"):
        return ReductionRule(_extreme(held, op == "max"), dtype, needs_elements=True)
    if op in ("argmin", "argmax"):
        return ReductionRule(ArgReduction(held, op == "argmax"), _INT64, needs_elements=True)
    if op in ("any", "all"):
        return ReductionRule(
            FoldReduction(np.logical_or if op == "any" else np.logical_and, held, op == "all"), dtype
        )
    if op in ("var", "std"):
        return ReductionRule(VarianceReduction(held, ddof, op == "std"), _FLOAT64 if exact else real)
    if op == "mean":
        average = SumReduction(held, lambda total: np.divide(total, count, out=total))
        return ReductionRule(average, _FLOAT64 if exact else dtype)
    if op == "root":
        return ReductionRule(SumReduction(held, lambda total: np.sqrt(total, out=total)), dtype)
    wide = _UINT64 if dtype.kind == "u" else _INT64
    return ReductionRule(_folded_or_summed(op, held, wide), wide if exact else dtype)


def _folded_or_summed(op: str, held: np.dtype[Any], wide: np.dtype[Any]) -> RunningReduction:
    exact = held.kind in "biu"
    if op == "sum":
        return FoldReduction(np.add, wide, 0) if exact else SumReduction(held)
    return FoldReduction(np.multiply, wide if exact else _COMPLEX128 if held.kind == "c" else _FLOAT64, 1)


def _extreme(held: np.dtype[Any], largest: bool) -> FoldReduction:
    ufunc = np.maximum if largest else np.minimum
    if held.kind == "b":
        return FoldReduction(np.logical_or if largest else np.logical_and, held, not largest)
    if held.kind in "iu":
        limits = np.iinfo(held)
        return FoldReduction(ufunc, held, limits.min if largest else limits.max)
    edge = -math.inf if largest else math.inf
    return FoldReduction(ufunc, held, complex(edge, edge) if held.kind == "c" else edge)
