"""The events of a recording, column by column, as they come."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelera.capturing.storages import Storages
from accelera.trace import Kind, Trace

_FREE = int(Kind.FREE)


class Columns:
    """Grows by steps and events, and becomes a trace."""

    def __init__(self) -> None:
        self.ops: list[str] = []
        self.touched: set[int] = set()
        """Buffers that were accessed."""
        self._flops = array("d")
        self._buffer, self._kind = array("i"), array("B")
        self._step, self._stride = array("i"), array("q")

    def begin_step(self, op: str, flops: float) -> None:
        """Begin a step; later events are its own."""
        self.ops.append(op)
        self._flops.append(flops)

    def access(self, buffer: int, kind: int, stride: int) -> None:
        """Append a read or a write of the present step."""
        self.touched.add(buffer)
        self._append(buffer, kind, stride)

    def write_into(self, buffer: int, result: int) -> None:
        """Say that the present step wrote its ``result`` into ``buffer``."""
        place = len(self._buffer) - 1
        while place >= 0 and self._step[place] == len(self.ops) - 1:
            if self._buffer[place] == result:
                self._buffer[place] = buffer
            place -= 1

    def free(self, buffer: int) -> None:
        """Append the end of a buffer, unless nothing ever used it."""
        if buffer in self.touched:
            self._append(buffer, _FREE, 1)

    @property
    def events(self) -> int:
        """Number of events so far."""
        return len(self._buffer)

    def freed_since(self, begun: int) -> list[int]:
        """Return the buffers that ended after the first ``begun`` events."""
        ended = zip(self._buffer[begun:], self._kind[begun:], strict=True)
        return [buffer for buffer, kind in ended if kind == _FREE]

    def trace(self, storages: Storages, **more: Any) -> Trace:
        """Return the trace of what came so far; ``more`` goes to ``Trace.from_arrays``."""
        buffer, order = self._numbered()
        sizes = np.array(storages.sizes_bytes, dtype=np.int64)
        return Trace.from_arrays(
            buffer,
            sizes[buffer],
            kinds=np.array(self._kind, np.int64),
            steps=np.array(self._step, np.int64),
            strides=np.array(self._stride, np.int64),
            names=[storages.names[each] for each in order],
            roles=[storages.roles[each] for each in order],
            dtypes=[storages.dtypes[each] for each in order],
            ops=self.ops,
            flops=np.array(self._flops),
            **more,
        )

    def _append(self, buffer: int, kind: int, stride: int) -> None:
        self._buffer.append(buffer)
        self._kind.append(kind)
        self._step.append(max(0, len(self.ops) - 1))
        self._stride.append(stride)

    def _numbered(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the buffer per event, and the distinct ones in the order of first use."""
        buffer = np.array(self._buffer, dtype=np.int64)
        values, first = np.unique(buffer, return_index=True)
        return buffer, values[np.argsort(first, kind="stable")]
