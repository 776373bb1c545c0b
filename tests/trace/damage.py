"""Trace files with something wrong in them: good files of every format, damaged in one or two places."""

from __future__ import annotations

import copy
import io
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
from hypothesis import strategies as st
from pyarrow import parquet

from accelera.trace import write_trace
from tests.trace.examples import step_by_step

Draw = st.DrawFn
Damage = Callable[[Draw, bytes], bytes]

IMPOSSIBLE: tuple[Any, ...] = (
    *(-1, 2**31, 2**53 + 1, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**30),
    *(1.5, -0.5, float("nan"), float("inf"), float("-inf"), 1e300),
    *("", "x", "nan", "1e999", "9" * 5000, "\ud800", "\x00", None, True, [], [1], {"a": 1}),
)
"""Values that no cell, or hardly any, may have."""

COLUMNS: tuple[Callable[[int], pyarrow.Array], ...] = (
    lambda n: pyarrow.array([2**64 - 1] * n, pyarrow.uint64()),
    lambda n: pyarrow.array([2**63, *[None] * (n - 1)], pyarrow.uint64()),
    lambda n: pyarrow.array([2**62] * n),
    lambda n: pyarrow.array([-1] * n),
    lambda n: pyarrow.array([float("nan")] * n),
    lambda n: pyarrow.array([float("inf")] * n),
    lambda n: pyarrow.array([1.5] * n),
    lambda n: pyarrow.array(["x"] * n).dictionary_encode(),
    lambda n: pyarrow.nulls(n),
    lambda n: pyarrow.array([True] * n),
    lambda n: pyarrow.array([[1]] * n),
    lambda n: pyarrow.array([{"a": 1}] * n),
    lambda n: pyarrow.array([b"\xff"] * n),
    lambda n: pyarrow.array(range(n), pyarrow.timestamp("s")),
    lambda n: pyarrow.array([1] * n, pyarrow.decimal128(20, 3)),
)
"""Columns of types and values that a table of this kind has not."""

SNAPSHOT = {
    "device_traces": [
        [
            {"action": "alloc", "addr": 1000, "size": 512, "frames": [{"name": "forward"}]},
            {"action": "alloc", "addr": 2000, "size": 1024, "frames": []},
            {"action": "free_completed", "addr": 1000, "size": 512},
            {"action": "alloc", "addr": 1000, "size": 256},
        ]
    ],
    "segments": [
        {
            "address": 1000,
            "device": 0,
            "blocks": [
                {"size": 256, "state": "active_allocated"},
                {"size": 744, "state": "inactive"},
                {"size": 1024, "state": "active_allocated"},
            ],
        }
    ],
}

ROWS = [
    {"buffer": 7, "size_bytes": 100, "kind": "read", "step": 0, "stride": 1, "op": "mm", "seconds": 0.5},
    {"buffer": 8, "size_bytes": 50, "kind": "write", "step": 0, "stride": 2, "op": "mm", "seconds": 0.5},
    {"buffer": 7, "size_bytes": 100, "kind": "free", "step": 1, "stride": 1, "op": "", "seconds": None},
]


@st.composite
def damaged_files(draw: Draw, folder: Path) -> Path:
    """Draw a damaged file and write it; some damages leave a sound one."""
    suffix = draw(st.sampled_from(sorted(_FORMATS)))
    content, damage = _FORMATS[suffix]
    path = folder / f"damaged{suffix}"
    whole = content(path)
    path.write_bytes((_bytes if draw(st.integers(0, 3)) == 0 else damage)(draw, whole))
    return path


def _written(path: Path) -> bytes:
    write_trace(step_by_step(), path)
    return path.read_bytes()


def _bytes(draw: Draw, whole: bytes) -> bytes:
    """Cut the file, or change some of its bytes."""
    if draw(st.booleans()):
        return whole[: draw(st.integers(1, len(whole) - 1))]
    found = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        found[draw(st.integers(0, len(found) - 1))] = draw(st.integers(0, 255))
    return bytes(found)


def _tree(draw: Draw, document: Any) -> Any:
    """Change or take out one or two parts of a JSON-like document."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 2))):
        places = list(places_of(document))
        if not places:
            return document
        holder, key = places[draw(st.integers(0, len(places) - 1))]
        if draw(st.integers(0, 5)) == 0:
            del holder[key]
        else:
            holder[key] = draw(st.sampled_from(IMPOSSIBLE))
    return document


def places_of(part: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place of a JSON-like document: what holds it, and its key there."""
    pairs = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, value in pairs:
        yield part, key
        yield from places_of(value)


def _json(draw: Draw, whole: bytes) -> bytes:
    return json.dumps(_tree(draw, json.loads(whole))).encode()


def _pickle(draw: Draw, whole: bytes) -> bytes:
    return pickle.dumps(_tree(draw, pickle.loads(whole)))


def _cells(draw: Draw, whole: bytes) -> bytes:
    """Put something else into a cell or two of a CSV file."""
    lines = [line.split(",") for line in whole.decode().splitlines()]
    for _ in range(draw(st.integers(1, 2))):
        line = lines[draw(st.integers(0, len(lines) - 1))]
        line[draw(st.integers(0, len(line) - 1))] = str(draw(st.sampled_from(IMPOSSIBLE)))
    return "\n".join(map(",".join, lines)).encode("utf-8", "surrogatepass")


def _column(draw: Draw, whole: bytes) -> bytes:
    """Replace, repeat or leave out a column of a Parquet file, or change the facts beside the table."""
    table = parquet.read_table(pyarrow.BufferReader(whole))
    facts = table.schema.metadata or {}
    at = draw(st.integers(0, table.num_columns - 1))
    name = table.column_names[at]
    change = draw(st.sampled_from(["replace", "replace", "replace", "repeat", "leave out", "facts"]))
    if change == "replace":
        table = table.set_column(at, name, draw(st.sampled_from(COLUMNS))(table.num_rows))
    elif change == "repeat":
        table = table.append_column(name, table.column(at))
    elif change == "leave out":
        table = table.remove_column(at)
    else:
        facts = {key: _json(draw, value) for key, value in facts.items() if key == b"accelera.trace"}
    sink = io.BytesIO()
    kept = facts if change == "facts" or draw(st.booleans()) else None
    parquet.write_table(table.replace_schema_metadata(kept), sink)
    return sink.getvalue()


_FORMATS: dict[str, tuple[Callable[[Path], bytes], Damage]] = {
    ".json": (_written, _json),
    ".rows.json": (lambda _: json.dumps(ROWS).encode(), _json),
    ".csv": (_written, _cells),
    ".libcachesim.csv": (_written, _cells),
    ".parquet": (_written, _column),
    ".oracleGeneral": (_written, _bytes),
    ".snapshot.json": (lambda _: json.dumps(SNAPSHOT).encode(), _json),
    ".pickle": (lambda _: pickle.dumps(SNAPSHOT), _pickle),
}
