"""Trace in columns: every event of every buffer, with a log that records one and a hash of its contents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accelera._result_html import result_html
from accelera.trace.access import Access, Kind
from accelera.trace.columns import arguments_of, checked_columns
from accelera.trace.dataframe import columns_of_frame, frame_of, model_type_of
from accelera.trace.reuse import next_uses
from accelera.units import format_bytes

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Trace:
    """An ordered record of tensor accesses.

    Build one with ``from_arrays``, ``from_accesses`` or ``from_pandas``; read one with
    ``accelera.trace.read_trace``. Columns are read-only NumPy arrays.
    """

    buffer: NDArray[np.int32]
    """Dense buffer id per event, shape (events,)."""
    kind: NDArray[np.uint8]
    """``Kind`` per event, shape (events,)."""
    step: NDArray[np.int32]
    """Index of the step (op) per event, shape (events,). Accesses come in the order of their steps."""
    stride: NDArray[np.int64]
    """Distance of neighbours in memory, in elements, per event; 1 is contiguous."""
    size_bytes: NDArray[np.int64]
    """Bytes per buffer, shape (buffers,)."""
    names: tuple[str, ...]
    """Name per buffer."""
    roles: tuple[str, ...]
    """Role per buffer, of ``ROLES``."""
    dtypes: tuple[str, ...]
    """NumPy name of the element type per buffer; ``""`` when unknown."""
    ops: tuple[str, ...]
    """Name of the operation per step."""
    flops: NDArray[np.float64]
    """Floating-point operations per step; 0 when unknown."""
    seconds: NDArray[np.float64]
    """Seconds of arithmetic per step, where measured or planned; NaN where unknown."""
    model_type: str = ""
    """``"Transformer"``, ``"CNN"`` … or what the trace was recorded from."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """JSON-able facts about the recording: capacity, policy, window, iteration boundaries …"""
    scores: NDArray[np.float64] | None = None
    """Eviction score per access, where somebody gave one; the highest goes first. Shape (accesses,)."""

    def __post_init__(self) -> None:
        for column in (
            self.buffer,
            self.kind,
            self.step,
            self.stride,
            self.size_bytes,
            self.flops,
            self.seconds,
        ):
            column.setflags(write=False)

    @classmethod
    def from_arrays(
        cls,
        buffer_ids: ArrayLike,
        sizes_bytes: ArrayLike,
        *,
        kinds: ArrayLike | None = None,
        steps: ArrayLike | None = None,
        strides: ArrayLike | None = None,
        names: Sequence[str] | None = None,
        roles: Sequence[str] | None = None,
        dtypes: Sequence[str] | None = None,
        ops: Sequence[str] | None = None,
        flops: ArrayLike | None = None,
        seconds: ArrayLike | None = None,
        model_type: str = "",
        meta: Mapping[str, Any] | None = None,
    ) -> Trace:
        """Build a trace from columns.

        Parameters
        ----------
        buffer_ids
            Any integers, shape (events,). They are renumbered from 0 in the order of first use; the
            given ones become names where ``names`` is absent.
        sizes_bytes
            Bytes, shape (events,) or one number for all. A buffer keeps one size.
        kinds
            ``Kind`` per event; reads by default.
        steps
            Step per event, from 0; by default each event is a step of its own.
        strides
            In elements; 1 by default.
        names, roles, dtypes
            Per buffer, in the order of first use.
        ops, flops, seconds
            Per step; seconds are NaN, flops 0 where unknown.

        Raises
        ------
        ShapeError
            Columns of different lengths.
        ValueError
            A negative size, step or id out of range, an unknown kind or role, or a buffer whose size
            changes: the message names the event.
        """
        columns = checked_columns(
            buffer_ids,
            sizes_bytes,
            event={"kind": kinds, "step": steps, "stride": strides},
            buffer={"names": names, "roles": roles, "dtypes": dtypes},
            step={"ops": ops, "flops": flops, "seconds": seconds},
        )
        return cls(**columns, model_type=model_type, meta=dict(meta or {}))

    @classmethod
    def from_accesses(cls, accesses: Iterable[Access], **more: Any) -> Trace:
        """Build a trace from recorded events; ``more`` goes to ``from_arrays``."""
        return cls.from_arrays(**{**arguments_of(accesses), **more})

    @classmethod
    def from_pandas(
        cls, frame: pd.DataFrame, *, model_type: str | None = None, meta: Mapping[str, Any] | None = None
    ) -> Trace:
        """Build a trace from a table with one row per event, as ``to_pandas`` gives.

        ``tensor_id`` and ``size_mb`` are enough; ``buffer`` (numbers) and ``size_bytes`` go before them. Of
        the other columns those that can be worked out again are not looked at.

        Raises TraceFormatError naming the row (from 0) and the column that cannot be read.
        """
        columns = columns_of_frame(frame)
        model_type = model_type_of(frame) if model_type is None else model_type
        return cls(**columns, model_type=model_type, meta=dict(meta or {}))

    def to_pandas(self, *, scores: ArrayLike | None = None) -> pd.DataFrame:
        """Return one row per event.

        Columns: the seed's ``tensor_id`` (unique), ``size_mb`` (of 2**20 bytes), ``reuse_distance`` (distinct
        other buffers since the last use, NA for a first use), ``stride`` (elements), ``op``, ``model_type``
        and, where there are scores, ``eviction_score``; ``reuse_distance_bytes``; and what a trace is built
        from again: ``buffer``, ``size_bytes``, ``kind``, ``step``, ``name``, ``role``, ``dtype``, ``flops``,
        ``seconds``.

        Parameters
        ----------
        scores
            Eviction scores, shape (accesses,), instead of the trace's own.
        """
        return frame_of(self, scores)

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.buffer)

    def __repr__(self) -> str:
        what = f"{self.model_type}, " if self.model_type else ""
        counts = f"{self.access_count} accesses of {self.buffer_count} buffers in {self.step_count} steps"
        return f"Trace({what}{counts})"

    def _repr_html_(self) -> str:
        text = f"footprint {format_bytes(self.footprint_bytes)}"
        return result_html(repr(self), text)

    @property
    def buffer_count(self) -> int:
        """Number of distinct buffers."""
        return len(self.size_bytes)

    @property
    def step_count(self) -> int:
        """Number of steps."""
        return len(self.ops)

    @property
    def access_count(self) -> int:
        """Number of accesses: reads and writes."""
        return int(np.count_nonzero(self.is_access))

    @cached_property
    def is_access(self) -> NDArray[np.bool_]:
        """Whether each event is a read or a write, shape (events,)."""
        return self.kind <= Kind.WRITE

    @cached_property
    def accessed(self) -> NDArray[np.int32]:
        """Buffer id per access, shape (accesses,): what policies call the sequence."""
        return self.buffer if self.is_access.all() else self.buffer[self.is_access]

    @cached_property
    def next_use(self) -> NDArray[np.int32]:
        """Per access, the index of the same buffer's next access, ``NEVER`` after the last; (accesses,)."""
        return next_uses(self.accessed)

    @property
    def footprint_bytes(self) -> int:
        """Bytes of all distinct buffers together."""
        return int(self.size_bytes.sum())

    def with_meta(self, **facts: Any) -> Trace:
        """Return the same trace with more facts in ``meta``."""
        return replace(self, meta={**self.meta, **facts})


class TraceLog:
    """An ordered list of events, and what the run said of itself; of the latest run, if there were several.

    >>> log = TraceLog()
    >>> log.record(Access(buffer=0, nbytes=64, step=0))
    >>> len(log), log.moved_distinct_bytes(), log.trace()
    (1, 64, Trace(1 accesses of 1 buffers in 1 steps))
    """

    def __init__(self) -> None:
        self._accesses: list[Access] = []
        self._facts: dict[str, Any] = {}
        self._arithmetic: dict[int, tuple[float, float]] = {}

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Forget what was heard before: a run begins, described by ``facts``."""
        self._accesses.clear()
        self._arithmetic.clear()
        self._facts = dict(facts)

    def took(self, step: int, seconds: float, flops: float) -> None:
        """Record a step's floating-point operations and its seconds."""
        self._arithmetic[step] = seconds, flops

    def record(self, access: Access) -> None:
        """Append ``access``."""
        self._accesses.append(access)

    def __len__(self) -> int:
        return len(self._accesses)

    def __iter__(self) -> Iterator[Access]:
        return iter(self._accesses)

    def __getitem__(self, index: int) -> Access:
        return self._accesses[index]

    def trace(self, **more: Any) -> Trace:
        """Return what was recorded, in columns; ``more`` goes to ``Trace.from_arrays``.

        A run of the engine is described in ``meta``: operation, policy, capacity, window, device.
        """
        last = max((access.step for access in self._accesses), default=-1)
        count = max(last, *self._arithmetic, -1) + 1
        operation = self._facts.get("operation", "")
        ops = [operation] * count
        for access in self._accesses:
            ops[access.step] = access.op or ops[access.step]
        arithmetic = [self._arithmetic.get(step, (np.nan, 0.0)) for step in range(count)]
        seconds, flops = zip(*arithmetic, strict=True) if arithmetic else ((), ())
        return Trace.from_accesses(
            self._accesses,
            **{
                "ops": ops,
                "seconds": seconds,
                "flops": flops,
                "model_type": operation,
                **more,
                "meta": {**self._facts, **more.get("meta", {})},
            },
        )

    def buffers(self) -> list[int]:
        """Return the buffer ids in order of access, other events left out."""
        return [access.buffer for access in self._accesses if access.counts]

    def moved_distinct_bytes(self) -> int:
        """Return the bytes of all distinct buffers: the least any policy must move."""
        sizes = {access.buffer: access.nbytes for access in self._accesses}
        return sum(sizes.values())


def content_hash(trace: Trace) -> str:
    """Return the SHA-256 of everything in ``trace`` but ``meta``, in hexadecimal.

    Parameters
    ----------
    trace
        The trace to identify.
    """
    digest = hashlib.sha256()
    arrays = (
        trace.buffer,
        trace.kind,
        trace.step,
        trace.stride,
        trace.size_bytes,
        trace.flops,
        trace.seconds,
    )
    for array in (*arrays, np.zeros(0) if trace.scores is None else trace.scores):
        # NaN has many bit patterns; one stands for all.
        values = np.where(array != array, np.nan, array) if array.dtype.kind == "f" else array
        digest.update(values.astype(values.dtype.newbyteorder("<")).tobytes())
    for texts in (trace.names, trace.roles, trace.dtypes, trace.ops, (trace.model_type,)):
        digest.update(json.dumps(texts).encode())
    return digest.hexdigest()
