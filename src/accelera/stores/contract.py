"""Contract of a store: it holds one array's bytes and moves regions of it in and out.

A *region* is one slice per axis with ``0 <= start <= stop <= size`` and a positive step.
Every byte count returned is the logical payload (elements moved times item size): that is what a
plan predicts and what a report adds up.
"""

from __future__ import annotations

import abc
import math
import operator
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from accelera._result_html import result_html
from accelera.errors import BudgetExceededError, DTypeError, ShapeError, StoreError, StoreFormatError
from accelera.memory._internal import host_memory
from accelera.stores.arithmetic import RefusedByNumPy, StoreOperations
from accelera.stores.dtypes import as_bytes_of
from accelera.stores.regions import Region, check_transfer, parts, piece_shape, region_shape, whole
from accelera.stores.viewing import Key, Viewing
from accelera.units import format_bytes

AnyStore = TypeVar("AnyStore", bound="Store")

_ALWAYS_TRIED_BYTES = 1 << 20
"""Arrays up to this size are made without asking how much memory is free."""
_PIECE_BYTES = 1 << 20
"""Size of the buffer through which everything is read for a checksum."""


@dataclass(frozen=True)
class Layout:
    """Order and strides of an array in its store, as far as a cost model needs them."""

    order: tuple[int, ...]
    """Axes from the slowest varying to the fastest varying; repeated (broadcast) axes come first."""
    itemsize: int
    """Bytes between two neighbours along the fastest axis when it is dense (the item size)."""
    chunk: tuple[int, ...] | None = None
    """Chunk shape of a chunked store (Zarr); None for a flat one."""
    dense: bool = True
    """False when even neighbours along the fastest axis are not adjacent (a strided view)."""
    strides: tuple[int, ...] | None = None
    """Bytes between neighbours along each axis, negative for backwards; None for a chunked store."""

    @classmethod
    def of_strides(cls, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> Layout:
        """Describe a flat array by its byte strides."""
        distance = [abs(stride) if size > 1 else 0 for stride, size in zip(strides, shape, strict=True)]
        order = sorted(range(len(distance)), key=lambda axis: (distance[axis] != 0, -distance[axis], axis))
        dense = not order or distance[order[-1]] in (0, itemsize)
        return cls(tuple(order), itemsize, None, dense, tuple(strides))


class Store(StoreOperations, abc.ABC):
    """An n-dimensional array somewhere: RAM, an accelerator, a file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    tier: str
    """``"disk"``, ``"ram"`` or the name of the torch device that holds it (``"cuda:0"``)."""
    name: str
    """How messages and reports call it: its path, or ``"array"``."""

    @abc.abstractmethod
    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        """Fill ``out`` (the region's shape, the store's dtype, any strides); return bytes read."""

    @abc.abstractmethod
    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        """Store ``data`` (the region's shape, the store's dtype, any strides); return bytes written."""

    @property
    @abc.abstractmethod
    def layout(self) -> Layout:
        """How the bytes lie."""

    def resident(self) -> np.ndarray[Any, Any] | None:
        """Return the whole array without copying when it already lies in host RAM, else None."""
        return None

    def held(self) -> Any | None:
        """Return the whole tensor without copying when it lies on an accelerator, its ``tier``, else None."""
        return None

    def fingerprint(self) -> Mapping[str, Any] | None:
        """Return a JSON-able identity that changes when the contents may have (None: cannot say)."""
        return None

    def fingerprint_of(self, region: Region) -> Mapping[str, Any] | None:
        """Return the identity of a region; a store may leave out chunks that the region does not touch."""
        return self.fingerprint()

    def require_current(self) -> None:
        """Raise StoreChangedError when the file has another header, or metadata, than when it was opened."""
        for source in self.sources:
            if source is not self:
                source.require_current()

    def sample(self) -> int | None:
        """Return a checksum of a few kilobytes spread over the contents (None: cannot say)."""
        found = [each.sample() for each in self.sources if each is not self]
        return None if all(each is None for each in found) else zlib.crc32(repr(found).encode())

    def checksum(self) -> int:
        """Return a checksum of all elements, read through one small buffer or chunk by chunk."""
        checksum = 0
        for region in self._pieces():
            piece = np.empty(region_shape(region), self.dtype)
            self.read(region, piece)
            checksum = zlib.crc32(as_bytes_of(piece).data, checksum)
        return checksum

    def _pieces(self) -> Iterator[Region]:
        """Yield the parts that a checksum reads: chunks, else in C order whatever the layout."""
        piece = self.layout.chunk or piece_shape(self.shape, self.dtype.itemsize, _PIECE_BYTES)
        return (part for part, _ in parts(whole(self.shape), piece))

    def flush(self) -> None:
        """Make everything written so far durable."""

    def close(self) -> None:
        """Release handles; reading or writing afterwards is an error."""

    def use_direct(self, direct: bool | None) -> None:
        """Go around the page cache from now on: always, never, or (None) for what is not in it.

        A wish: stores that cannot do nothing.
        """

    @property
    def read_only(self) -> str | None:
        """Why nothing can be written here, after the store's name in messages; None where ``write`` works."""
        return None

    @property
    def scratch_bytes(self) -> int:
        """The most host memory one read or write takes beyond the buffer it is given."""
        return 0

    @property
    def cache_bytes(self) -> int:
        """Host memory that a library keeps of this store between transfers."""
        return sum(source.cache_bytes for source in self.sources if source is not self)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise DTypeError(f"[len] {self.name} has no axes, so it has no length; use its size")
        return self.shape[0]

    def __bool__(self) -> bool:
        """Return True, so that ``if store:`` asks for a store and not for its length."""
        return True

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """Chunk shape of a chunked store, which ``dask.array.from_array`` follows; None for a flat one."""
        return self.layout.chunk

    @property
    def nbytes(self) -> int:
        """Logical size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def sources(self) -> tuple[Store, ...]:
        """The stores that the elements come from: this one, unless it is made of others."""
        return (self,)

    def viewing(self) -> tuple[Store, Viewing]:
        """Return the store that holds the bytes, and which of its elements this one shows."""
        return self, Viewing.of(self.shape)

    def __getitem__(self, key: Key | tuple[Key, ...]) -> StoreView:
        """Return a view by integers, slices (any step), ``...`` and None; no bytes are read."""
        base, viewing = self.viewing()
        return StoreView(base, viewing.index(key))

    def transpose(self, axes: Sequence[int] | None = None) -> StoreView:
        """Return a view with permuted axes (reversed by default); no bytes are read."""
        base, viewing = self.viewing()
        return StoreView(base, viewing.transpose(axes))

    @property
    def T(self) -> StoreView:  # noqa: N802 - NumPy's name
        """The view with all axes reversed."""
        return self.transpose()

    def broadcast_to(self, shape: Sequence[int]) -> StoreView:
        """Return a read-only view that repeats axes of length one as NumPy does; no bytes are read."""
        base, viewing = self.viewing()
        return StoreView(base, viewing.broadcast_to(shape))

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """Return a new array with everything in it.

        Raises BudgetExceededError when the machine has not that much memory free.
        """
        free = host_memory().available_bytes
        if self.nbytes > max(free, _ALWAYS_TRIED_BYTES):
            raise BudgetExceededError(
                f"[to_numpy] {self.name} has {format_bytes(self.nbytes)}, and {format_bytes(free)} of memory "
                "are free: give it to the engine as it is, or read a part of it, such as store[:1000]",
                needed_bytes=self.nbytes,
                budget_bytes=free,
            )
        out = np.empty(self.shape, self.dtype)
        self.read(whole(self.shape), out)
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.resident()
        if array is None and copy is False:
            raise StoreFormatError(
                f"[asarray] {self.name} lies in no memory that an array could share; leave copy=False out"
            )
        if array is None:
            array, copy = self.to_numpy(), None
        if copy:
            return np.array(array, dtype, copy=True)
        if copy is False and dtype is not None and array.dtype != dtype:
            raise StoreFormatError(
                f"[asarray] {self.name} holds {array.dtype}, not {dtype}; leave copy=False out"
            )
        return np.asarray(array, dtype)

    __array_ufunc__ = RefusedByNumPy()

    def __enter__(self: AnyStore) -> AnyStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.dtype}{list(self.shape)} on {self.tier}>"

    def _repr_html_(self) -> str:
        chunk = "" if self.layout.chunk is None else f", in chunks of {list(self.layout.chunk)}"
        return result_html(repr(self), f"{format_bytes(self.nbytes)} on {self.tier}{chunk}")


class StoreView(Store):
    """A transposed, sliced, reversed or broadcast look at a store, without any bytes of its own.

    Regions are read from the base as they lie there. Closing a view does nothing: the base owns the
    handles.
    """

    def __init__(self, base: Store, viewing: Viewing) -> None:
        self._base = base
        self._viewing = viewing
        self.shape = viewing.shape
        self.dtype = base.dtype
        self.tier = base.tier
        self.name = base.name

    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        """Fill ``out``; repeated elements are read once and counted as often as they appear."""
        check_transfer("read", self.shape, self.dtype, region, out)
        if out.size:
            self._base.read(self._viewing.source_region(region), self._viewing.source_order(out))
            self._repeat(out)
        return out.nbytes

    def _repeat(self, out: np.ndarray[Any, Any]) -> None:
        key = [slice(0, 1) if axis is None else slice(None) for axis in self._viewing.axes]
        for axis, source in enumerate(self._viewing.axes):
            if source is None and out.shape[axis] > 1:
                first = out[tuple(key)]
                key[axis] = slice(1, None)
                np.copyto(out[tuple(key)], first)
                key[axis] = slice(None)

    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        """Store ``data`` through the view; a view that repeats elements cannot be written."""
        check_transfer("write", self.shape, self.dtype, region, data)
        if self._viewing.repeats:
            raise ShapeError(
                f"[write] {self.name} through a broadcast view of shape {self.shape}: elements would be "
                "written more than once; write the unrepeated view"
            )
        if data.size:
            self._base.write(self._viewing.source_region(region), self._viewing.source_order(data))
        return data.nbytes

    @property
    def layout(self) -> Layout:
        """The base's layout with axes permuted and steps counted in."""
        base, look = self._base.layout, self._viewing
        if base.strides is not None:
            strides = [0 if axis is None else base.strides[axis] * look.steps[axis] for axis in look.axes]
            return Layout.of_strides(self.shape, strides, base.itemsize)
        place = {axis: v for v, axis in enumerate(look.axes) if axis is not None}
        repeated = [v for v, axis in enumerate(look.axes) if axis is None]
        order = repeated + [place[axis] for axis in base.order if axis in place]
        return Layout(tuple(order), base.itemsize, self._chunk(base.chunk), self._dense(base))

    def _chunk(self, chunk: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if chunk is None:
            return None
        steps = self._viewing.steps
        return tuple(
            1 if axis is None else max(1, -(-chunk[axis] // abs(steps[axis]))) for axis in self._viewing.axes
        )

    def _dense(self, base: Layout) -> bool:
        if not base.order:
            return base.dense
        fastest = base.order[-1]
        return base.dense and fastest in self._viewing.axes and abs(self._viewing.steps[fastest]) == 1

    def resident(self) -> np.ndarray[Any, Any] | None:
        """Return the same view of the base's array when that lies in host RAM."""
        array = self._base.resident()
        return None if array is None else self._viewing.apply(array)

    def held(self) -> Any | None:
        """Return the same view of the base's tensor; None where torch has no such view."""
        tensor, look = self._base.held(), self._viewing
        if tensor is None or any(step < 0 for step in look.steps):
            return None
        steps = tensor.stride()
        offset = tensor.storage_offset() + sum(map(operator.mul, look.starts, steps))
        strides = [0 if axis is None else look.steps[axis] * steps[axis] for axis in look.axes]
        return tensor.as_strided(look.shape, strides, offset)

    def fingerprint(self) -> Mapping[str, Any] | None:
        """Return the base's identity together with what is shown of it."""
        look = self._viewing
        region = whole(self._base.shape) if 0 in look.shape else look.source_region(whole(look.shape))
        identity = self._base.fingerprint_of(region)
        if identity is None:
            return None
        shown = [list(look.shape), list(look.axes), list(look.starts), list(look.steps)]
        return {**identity, "view": shown}

    def sample(self) -> int | None:
        """Return the base's sample."""
        return self._base.sample()

    def flush(self) -> None:
        """Make everything written so far durable."""
        self._base.flush()

    def use_direct(self, direct: bool | None) -> None:
        """Pass the wish on to the base."""
        self._base.use_direct(direct)

    @property
    def sources(self) -> tuple[Store, ...]:
        """The view itself, or what the base is made of."""
        found = self._base.sources
        return (self,) if found == (self._base,) else found

    @property
    def read_only(self) -> str | None:
        """Why the base cannot be written, or this view of it."""
        if self._viewing.repeats:
            return "is a broadcast view, which would write elements more than once; give the unrepeated one"
        return self._base.read_only

    @property
    def scratch_bytes(self) -> int:
        """What the base takes."""
        return self._base.scratch_bytes

    @property
    def cache_bytes(self) -> int:
        """Host memory that a library keeps of the base."""
        return self._base.cache_bytes

    def require_current(self) -> None:
        """Check the base."""
        self._base.require_current()

    def viewing(self) -> tuple[Store, Viewing]:
        """Return the base and what is shown of it."""
        return self._base, self._viewing


class OutputStore(Store):
    """A store being written; its contents appear under their name only on ``commit``."""

    @property
    def partial(self) -> Path | None:
        """Where the bytes are until ``commit`` moves them; None where they do not move."""
        return None

    def __reduce__(self) -> Any:
        raise StoreError(f"[pickle] {self.name} is the result of a run; send the path of the complete result")

    @abc.abstractmethod
    def commit(self) -> None:
        """Make the result durable and visible under its final name, at once (atomic rename)."""

    @abc.abstractmethod
    def abort(self, *, keep_partial: bool = False) -> None:
        """Give up: remove the partial file, or keep it for a later ``resume``."""
