"""Columns of a trace, checked and with buffers numbered densely."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accelera._json_values import shown
from accelera.errors import ArgumentError, DTypeError, ShapeError
from accelera.trace.access import ROLES, Access, Kind

Columns = Mapping[str, Any]

MOST_STEPS = 1 << 27
"""Every step up to the last one takes room, those without events too."""

IDLE_STEPS = 1 << 20
STEPS_PER_EVENT = 64
"""What a trace may have of steps of which nothing tells: more is a slip of the pen, and is refused."""


MOST_BYTES = 1 << 62
"""What all events of a trace may come to: whatever moves then fits in 64 bits, there and back."""


class BadCell(ValueError):
    """One value that cannot be: where it is, and the rule that it breaks."""

    def __init__(self, event: int, column: str, problem: str) -> None:
        super().__init__(f"[trace] event {event}, {column}: {problem}")
        self.event = event
        """Index of the event, from 0."""
        self.column = column
        """The argument of ``Trace.from_arrays`` that holds it."""
        self.problem = problem
        """What is there, the rule, and what to do."""


def checked_columns(
    buffer_ids: ArrayLike,
    sizes_bytes: ArrayLike,
    *,
    event: Columns,
    buffer: Columns,
    step: Columns,
    idle_steps: int = 0,
) -> dict[str, Any]:
    """Return a trace's columns from raw ones, checked; see ``Trace.from_arrays``.

    ``idle_steps`` are known besides those that have events.
    """
    given = _integers("buffer_ids", buffer_ids)
    count = len(given)
    ids, originals, first = _densely(given)
    sizes = _sizes(sizes_bytes, ids, first)
    kinds = _per_event("kinds", event["kind"], count, np.zeros(count, np.uint8))
    _require((kinds >= 0) & (kinds <= max(Kind)), "kinds", kinds, f"a kind from 0 to {max(Kind):d}")
    steps = _per_event("steps", event["step"], count, np.arange(count, dtype=np.int32))
    most = most_steps(count, max(idle_steps, 0 if step["ops"] is None else len(step["ops"])))
    _require((steps >= 0) & (steps < most), "steps", steps, f"an index from 0 to {most - 1}")
    _require_order(steps, kinds)
    buffers = len(originals)
    step_count = int(steps.max()) + 1 if count else 0
    if step["ops"] is not None:
        step_count = max(step_count, len(step["ops"]))
    return {
        "buffer": ids,
        "kind": kinds.astype(np.uint8),
        "step": steps.astype(np.int32),
        "stride": _per_event("strides", event["stride"], count, np.ones(count, np.int64)).astype(np.int64),
        "size_bytes": sizes,
        "names": _texts("names", buffer["names"], buffers, map(str, originals.tolist())),
        "roles": _roles(_texts("roles", buffer["roles"], buffers, [""] * buffers)),
        "dtypes": _texts("dtypes", buffer["dtypes"], buffers, [""] * buffers),
        "ops": _texts("ops", step["ops"], step_count, [""] * step_count),
        "flops": _numbers("flops", step["flops"], step_count, 0.0),
        "seconds": _numbers("seconds", step["seconds"], step_count, np.nan),
    }


def most_steps(events: int, listed: int = 0) -> int:
    """Return how many steps a trace may have, where ``listed`` steps are described one by one."""
    return min(MOST_STEPS, IDLE_STEPS + STEPS_PER_EVENT * events + listed)


def arguments_of(accesses: Iterable[Access]) -> dict[str, Any]:
    """Return the arguments of ``Trace.from_arrays`` that stand for recorded events."""
    events = list(accesses)
    ids = _integers("buffer_ids", [each.buffer for each in events])
    _, _originals, first = _densely(ids)
    steps = _integers("steps", [each.step for each in events])
    ops = [""] * (int(steps.max()) + 1 if events else 0)
    for each in events:
        ops[each.step] = each.op or ops[each.step]
    described = [events[int(index)] for index in first]
    return {
        "buffer_ids": ids,
        "sizes_bytes": [each.nbytes for each in events],
        "kinds": [each.kind for each in events],
        "steps": steps,
        "names": [each.name or str(each.buffer) for each in described],
        "roles": [each.role for each in described],
        "dtypes": [each.dtype for each in described],
        "ops": ops,
    }


def _integers(what: str, values: ArrayLike) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1:
        raise ShapeError(f"[trace] {what} has shape {array.shape}; one dimension is needed")
    if array.dtype.kind not in "iu":
        given = np.asarray(values, dtype=object)
        if not all(isinstance(each, int) and not isinstance(each, bool) for each in given):
            raise DTypeError(f"[trace] {what} holds {array.dtype}; integers are needed")
        array = given
    if array.dtype.kind in "uO":
        lowest, highest = -(2**63), 2**63 - 1
        _require((array >= lowest) & (array <= highest), what, array, "a whole number of 64 bits, with sign")
    return array.astype(np.int64)


def _densely(ids: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Return ids numbered by first use, the original id and the first event per number."""
    if len(ids) and ids.min() >= 0 and ids.max() < len(ids):
        new = np.diff(np.maximum.accumulate(ids), prepend=-1)
        if new.max() <= 1:
            first = np.flatnonzero(new)
            return ids.astype(np.int32), ids[first], first
    values, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(values), dtype=np.int32)
    rank[order] = np.arange(len(values), dtype=np.int32)
    return rank[inverse], values[order], first[order]


def _sizes(values: ArrayLike, ids: NDArray[np.int32], first: NDArray[np.int64]) -> NDArray[np.int64]:
    raw = np.asarray(values)
    given = _integers("sizes_bytes", np.full(len(ids), raw) if raw.ndim == 0 else raw)
    if len(given) != len(ids):
        raise ShapeError(f"[trace] sizes_bytes has {len(given)} entries for {len(ids)} events")
    _require(given >= 0, "sizes_bytes", given, "a size of at least 0 bytes")
    sizes = given[first]
    changed = np.flatnonzero(sizes[ids] != given)
    if len(changed):
        event = int(changed[0])
        raise BadCell(
            event,
            "sizes_bytes",
            f"the buffer had {sizes[ids[event]]} bytes before and has {given[event]} now; a buffer keeps "
            "one size, so give the larger one another id",
        )
    _require_countable(given)
    return sizes


def _require_countable(sizes: NDArray[np.int64]) -> None:
    """Refuse sizes whose sum over all events says nothing but that they are wrong."""
    if len(sizes) * int(sizes.max(initial=0)) <= MOST_BYTES:
        return
    # Up to the first sum that is too large, none has passed 2**64.
    over = np.flatnonzero(np.cumsum(sizes, dtype=np.uint64) > MOST_BYTES)
    if len(over):
        event = int(over[0])
        raise BadCell(
            event,
            "sizes_bytes",
            f"with {sizes[event]} bytes the events up to here come to more than 2**62 bytes, 4096 PiB, which "
            "cannot be counted; give sizes in bytes",
        )


def _per_event(what: str, values: ArrayLike | None, count: int, default: NDArray[Any]) -> NDArray[Any]:
    if values is None:
        return default
    given = _integers(what, np.asarray(values, dtype=np.int64) if np.size(values) == 0 else values)
    if len(given) != count:
        raise ShapeError(f"[trace] {what} has {len(given)} entries for {count} events")
    return given


def _require(good: NDArray[np.bool_], what: str, values: NDArray[Any], rule: str) -> None:
    bad = np.flatnonzero(~good)
    if len(bad):
        raise BadCell(int(bad[0]), what, f"{shown(values[bad[0]])} is not {rule}")


def _require_order(steps: NDArray[Any], kinds: NDArray[Any]) -> None:
    rows = np.flatnonzero(kinds <= Kind.WRITE)
    back = np.flatnonzero(np.diff(steps[rows]) < 0)
    if len(back):
        row = int(rows[back[0] + 1])
        raise BadCell(
            row,
            "steps",
            f"an access of step {steps[row]} comes after one of step {steps[rows[back[0]]]}; sort accesses "
            "by step",
        )


def _texts(what: str, values: Sequence[str] | None, count: int, default: Iterable[str]) -> tuple[str, ...]:
    given = tuple(default) if values is None else tuple(map(str, values))
    if len(given) != count:
        raise ShapeError(f"[trace] {what} has {len(given)} entries where {count} are needed")
    return given


def _roles(roles: tuple[str, ...]) -> tuple[str, ...]:
    unknown = set(roles) - set(ROLES)
    if unknown:
        raise ArgumentError(f"[trace] roles: {min(unknown)!r} is none of {', '.join(filter(None, ROLES))}")
    return roles


def _numbers(what: str, values: ArrayLike | None, count: int, default: float) -> NDArray[np.float64]:
    given: NDArray[np.float64] = np.full(count, default) if values is None else np.array(values, np.float64)
    if given.shape != (count,):
        raise ShapeError(f"[trace] {what} has shape {given.shape} for {count} steps")
    bad = np.flatnonzero(~is_amount(given) & ~(np.isnan(given) & np.isnan(default)))
    if len(bad):
        raise ArgumentError(f"[trace] {what} of step {bad[0]} is {given[bad[0]]:g}, not {AN_AMOUNT}")
    return given


AN_AMOUNT = "a finite number from 0"
"""The rule that ``is_amount`` checks."""


def is_amount(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return whether each of these can be operations or seconds."""
    return np.isfinite(values) & (values >= 0)
