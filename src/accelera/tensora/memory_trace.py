"""Recording of the memory accesses of operations, as a trace for the simulator and the advisor."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from accelera.errors import StateError
from accelera.tensora.core import Tensor, native
from accelera.trace import Trace

_ROLES = {
    "parameter": "weight",
    "activation": "activation",
    "gradient": "gradient",
    "optimizer": "optimizer_state",
    "workspace": "workspace",
    "other": "",
}
"""Roles of a trace, by those of `memory_stats`."""


class Recording:
    """Record of the operations that run inside its ``with`` block, in all threads.

    Each operation is one step, and so is a chain of elementwise operations that run together. It reads its
    inputs and writes its results; a buffer is freed when its last tensor is gone. Buffers have the size of
    their blocks, so that the most bytes alive in the trace are the peak of `memory_stats`. Memory of other
    libraries is part of it, with the bytes that tensors have of it.

    >>> import accelera.tensora as ts
    >>> with ts.Recording() as recording:
    ...     y = ts.sum(ts.ones((1000, 1000)) * 2)
    >>> trace = recording.trace()

    Raises
    ------
    RuntimeError
        On entering, if another one is open.

    """

    def __init__(self) -> None:
        self._columns: tuple[Any, ...] | None = None

    def __enter__(self) -> Recording:
        native.begin_record()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._columns = native.end_record()

    def name(self, tensor: Tensor, name: str) -> None:
        """Call the memory of a tensor by this name, while the recording is open."""
        native.name_in_record(tensor, name)

    def trace(self, *, model_type: str = "", **meta: Any) -> Trace:
        """Return what was recorded.

        Parameters
        ----------
        model_type
            "Transformer", "CNN" and so on.
        **meta
            More facts, which JSON can hold.

        Raises
        ------
        RuntimeError
            If the ``with`` block has not ended.

        """
        if self._columns is None:
            raise StateError("[Recording] the with block has not ended; take the trace behind it")
        buffers, kinds, steps, sizes, roles, names, ops, flops, seconds = self._columns
        return Trace.from_arrays(
            buffers,
            [sizes[buffer] for buffer in buffers],
            kinds=kinds,
            steps=steps,
            names=[name or f"tensor{i}" for i, name in enumerate(names)],
            roles=[_ROLES[role] for role in roles],
            ops=ops,
            flops=flops,
            seconds=seconds,
            model_type=model_type,
            meta={"library": "tensora", **meta},
        )
