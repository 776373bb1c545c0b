"""PyTorch's memory snapshots, as ``torch.cuda.memory._dump_snapshot`` pickles them, or as JSON: read only.

They tell of allocations and frees, not of reads: the trace has one write per allocation, in a step of its
own, and one free at its end. What was allocated before the recording began is read once at the start. Of
several devices the one with the most events is taken.

A pickle can run any program when it is loaded. Here it cannot: only lists, dicts, sets, numbers and texts are
made of it, and one that names anything else is refused.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from accelera._json_values import shown
from accelera._native import find_oversized_opcode
from accelera.errors import TraceFormatError
from accelera.trace.access import Kind
from accelera.trace.columns import BadCell
from accelera.trace.formats.json import document_of
from accelera.trace.trace import Trace

_HARMLESS = {
    (module, kind.__name__): kind for module in ("builtins", "__builtin__") for kind in (set, frozenset)
}
_BEGINS, _ENDS, _ENDS_SOON = "alloc", "free_completed", "free_requested"


class _ContainersOnly(pickle.Unpickler):
    """Makes nothing but built-in containers."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a harmless type; raises UnpicklingError for any other name."""
        if (module, name) in _HARMLESS:
            return _HARMLESS[module, name]
        raise pickle.UnpicklingError(
            f"it asks for {module}.{name}, and a snapshot is made of lists, dicts, numbers and texts only; "
            "do not trust this file"
        )


class _SnapshotEvent(NamedTuple):
    """An allocation, or its end."""

    begins: bool
    address: int
    size_bytes: int
    op: str


def read(path: Path) -> Trace:
    """Read a snapshot; raises TraceFormatError naming the entry that is wrong."""
    snapshot = _contents(path)
    device, entries = _busiest(path, snapshot)
    moves = list(_moves(path, f"device_traces[{device}]", entries))
    active = list(_active_blocks(path, snapshot, device))
    before = [_SnapshotEvent(True, *block, "existing") for block in _existing(moves, active)]
    meta = {"source": path.name, "device": device, "existing": len(before)}
    try:
        return _trace([*before, *moves], len(before), meta)
    except BadCell as bad:
        raise TraceFormatError(
            f"[read_trace] {path}: allocation {bad.event} of device {device}: {bad.problem}"
        ) from None


def _contents(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        is_json = file.read(1) == b"{"
    found = document_of(path) if is_json else _unpickled(path, path.read_bytes())
    if not isinstance(found, dict) or not isinstance(found.get("device_traces"), list):
        raise TraceFormatError(
            f"[read_trace] {path} is no memory snapshot: it has no list of device_traces; record one with "
            "torch.cuda.memory._record_memory_history() and _dump_snapshot()"
        )
    return found


def _unpickled(path: Path, data: bytes) -> Any:
    position = find_oversized_opcode(data)
    if position >= 0:
        raise TraceFormatError(
            f"[read_trace] {path} is damaged or malicious: the opcode at byte {position} takes more "
            "memory or time than the file describes; record the snapshot again"
        )
    file = io.BytesIO(data)
    try:
        return _ContainersOnly(file).load()
    except Exception as error:
        # A damaged pickle raises almost anything.
        raise TraceFormatError(
            f"[read_trace] {path} is not a sound pickle, near byte {file.tell()}: {error}"
        ) from error


def _busiest(path: Path, snapshot: dict[str, Any]) -> tuple[int, list[Any]]:
    devices = snapshot["device_traces"]
    for device, entries in enumerate(devices):
        if not isinstance(entries, list):
            raise _bad(path, f"device_traces[{device}]", entries, "a list")
    if not any(devices):
        raise TraceFormatError(
            f"[read_trace] {path} holds no events; call torch.cuda.memory._record_memory_history() before "
            "the work that is to be seen"
        )
    device = max(range(len(devices)), key=lambda i: len(devices[i]))
    return device, devices[device]


def _moves(path: Path, place: str, entries: list[Any]) -> Iterator[_SnapshotEvent]:
    objects = list(_objects(path, place, entries))
    ends = _ENDS if any(each.get("action") == _ENDS for each in objects) else _ENDS_SOON
    for row, entry in enumerate(objects):
        if entry.get("action") in (_BEGINS, ends):
            address, size = (_number(path, f"{place}[{row}]", entry, name) for name in ("addr", "size"))
            yield _SnapshotEvent(entry["action"] == _BEGINS, address, size, _op(entry))


def _op(entry: dict[str, Any]) -> str:
    """Return the function that allocated, as far as stacks were recorded."""
    frames = entry.get("frames")
    first = frames[0] if isinstance(frames, list) and frames else None
    name = first.get("name", "") if isinstance(first, dict) else ""
    if not isinstance(name, str):  # a few bytes can describe a list that is written out in gigabytes
        return ""
    return name.encode("utf-8", "replace").decode("utf-8")


def _active_blocks(path: Path, snapshot: dict[str, Any], device: int) -> Iterator[tuple[int, int]]:
    """Yield address and size of what was allocated when the snapshot was taken."""
    for i, segment in enumerate(_objects(path, "segments", snapshot.get("segments") or [])):
        if segment.get("device", device) != device:
            continue
        address = _number(path, f"segments[{i}]", segment, "address")
        blocks = f"segments[{i}].blocks"
        for j, block in enumerate(_objects(path, blocks, segment.get("blocks") or [])):
            size = _number(path, f"{blocks}[{j}]", block, "size")
            start = _number(path, f"{blocks}[{j}]", {"address": address, **block}, "address")
            if block.get("state") == "active_allocated":
                yield start, size
            address += size


def _objects(path: Path, place: str, found: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(found, list):
        raise _bad(path, place, found, "a list")
    for i, each in enumerate(found):
        if not isinstance(each, dict):
            raise _bad(path, f"{place}[{i}]", each, "an object")
        yield each


def _existing(moves: list[_SnapshotEvent], active: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return what was there before the first event: freed or still there, but never seen allocated."""
    alive: set[int] = set()
    found: dict[int, int] = {}
    for move in moves:
        if move.begins:
            alive.add(move.address)
        elif move.address in alive:
            alive.remove(move.address)
        else:
            found.setdefault(move.address, move.size_bytes)
    ended = set(found)
    found.update((address, size) for address, size in active if address not in alive | ended)
    return list(found.items())


def _trace(moves: list[_SnapshotEvent], existing: int, meta: dict[str, Any]) -> Trace:
    buffers: list[int] = []
    kinds: list[Kind] = []
    steps: list[int] = []
    lives: list[_SnapshotEvent] = []
    life_of: dict[int, int] = {}
    for i, move in enumerate(moves):
        if move.begins:
            life_of[move.address] = len(lives)
            lives.append(move)
        elif move.address not in life_of:
            continue
        buffers.append(life_of[move.address] if move.begins else life_of.pop(move.address))
        kinds.append((Kind.READ if i < existing else Kind.WRITE) if move.begins else Kind.FREE)
        steps.append(len(lives) - 1)
    sizes = [lives[buffer].size_bytes for buffer in buffers]
    names = [f"b{life.address:x}_{number}" for number, life in enumerate(lives)]
    ops = [life.op for life in lives]
    return Trace.from_arrays(buffers, sizes, kinds=kinds, steps=steps, names=names, ops=ops, meta=meta)


def _number(path: Path, place: str, entry: Any, name: str) -> int:
    found = entry.get(name) if isinstance(entry, dict) else None
    if type(found) is not int or not 0 <= found < 2**63:
        raise _bad(path, f"{place}.{name}", found, "a whole number from 0")
    return found


def _bad(path: Path, place: str, found: Any, rule: str) -> TraceFormatError:
    return TraceFormatError(f"[read_trace] {path}: {place} is {shown(found, repr)}, not {rule}")
