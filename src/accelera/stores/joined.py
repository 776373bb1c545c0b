"""Several stores seen as one: concatenated along an axis, without any bytes of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, final

import numpy as np

from accelera.errors import DTypeError, ShapeError, StoreError
from accelera.stores.contract import Layout, Store
from accelera.stores.regions import Region, check_shape, check_transfer, region_shape


@final
class JoinedStore(Store):
    """Stores of one element type, one after the other along ``axis``; it can only be read.

    Raises ShapeError when they differ in another axis, DTypeError when they differ in type. Closing it
    does nothing: the parts own their handles.
    """

    def __init__(self, parts: Sequence[Store], axis: int) -> None:
        self.parts, self.axis = tuple(parts), axis
        first = self.parts[0]
        self.shape = check_shape("concatenate", joined_shape([each.shape for each in parts], axis))
        if any(each.dtype != first.dtype for each in parts):
            kinds = ", ".join(dict.fromkeys(str(each.dtype) for each in parts))
            raise DTypeError(f"[concatenate] parts of {kinds}; convert them to one type")
        self.dtype = first.dtype
        self.tier = next((each.tier for each in parts if each.tier == "disk"), first.tier)
        self.name = f"{len(self.parts)} joined arrays"
        self._ends = list(accumulate(each.shape[axis] for each in self.parts))

    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        """Read what lies in each part; return its bytes."""
        check_transfer("read", self.shape, self.dtype, region, out)
        for part, inside, place in self._cut(region):
            part.read(inside, out[place])
        return out.nbytes

    def _cut(self, region: Region) -> Iterator[tuple[Store, Region, Region]]:
        """Yield for each part that a region touches: its own region, and the place in the buffer."""
        along, done = region[self.axis], 0
        indices = range(along.start, along.stop, along.step or 1)
        plain = [slice(0, size) for size in region_shape(region)]
        for part, end in zip(self.parts, self._ends, strict=True):
            count = len(range(indices[done], end, indices.step)) if done < len(indices) else 0
            here = indices[done : done + count]
            if here:
                start = end - part.shape[self.axis]
                inside, place = list(region), list(plain)
                inside[self.axis] = slice(here[0] - start, here[-1] - start + 1, indices.step)
                place[self.axis] = slice(done, done + len(here))
                yield part, tuple(inside), tuple(place)
                done += len(here)

    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        """Refuse."""
        raise StoreError(f"[write] {self.name} {self.read_only}")

    @property
    def read_only(self) -> str:
        """Why nothing can be written here."""
        return "are seen as one only to be read; write to each"

    @property
    def layout(self) -> Layout:
        """That of the first part, chunks where all have the same and end where parts do."""
        layouts = [each.layout for each in self.parts]
        first = layouts[0]
        chunk = first.chunk
        even = chunk is not None and all(
            each.shape[self.axis] % chunk[self.axis] == 0 for each in self.parts[:-1]
        )
        same = all(each.chunk == chunk for each in layouts)
        dense = all(each.dense for each in layouts)
        return Layout(first.order, first.itemsize, chunk if even and same else None, dense)

    @property
    def scratch_bytes(self) -> int:
        """The most that a part takes: they are read one after the other."""
        return max(each.scratch_bytes for each in self.parts)

    @property
    def sources(self) -> tuple[Store, ...]:
        """The stores that the parts come from."""
        return tuple(source for each in self.parts for source in each.sources)

    def fingerprint(self) -> Mapping[str, Any] | None:
        """Return those of the parts; None when one has none."""
        found = [each.fingerprint() for each in self.parts]
        if any(each is None for each in found):
            return None
        return {
            "kind": "joined",
            "axis": self.axis,
            "parts": [dict(each) for each in found if each is not None],
        }

    def use_direct(self, direct: bool | None) -> None:
        """Pass the wish on to the parts."""
        for each in self.parts:
            each.use_direct(direct)


def joined_shape(shapes: Sequence[tuple[int, ...]], axis: int) -> tuple[int, ...]:
    """Return the shape of arrays of ``shapes`` joined along ``axis``.

    Raises ShapeError when another axis differs.

    >>> joined_shape([(2, 3), (4, 3)], 0)
    (6, 3)
    """
    first = shapes[0]
    rests = {(*each[:axis], None, *each[axis + 1 :]) for each in shapes}
    if len(rests) > 1 or not first:
        raise ShapeError(
            f"[concatenate] shapes {', '.join(map(str, shapes))} along axis {axis}: they must have the "
            "same axes, of the same lengths but for that one"
        )
    return (*first[:axis], sum(each[axis] for each in shapes), *first[axis + 1 :])
