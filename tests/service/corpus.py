"""Uploads with something wrong in them, the same ones every time: good files of every format, damaged.

``uploads()`` are small; ``bombs()`` ask their reader for more memory or time than it has, or than is sane.
Some damages leave a sound file, which is then stored like any other.
"""

from __future__ import annotations

import copy
import gzip
import io
import json
import pickle
import random
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
from pyarrow import parquet

from accelera.simulator import generate_synthetic_trace
from accelera.trace import write_trace
from tests.trace.damage import COLUMNS, IMPOSSIBLE, ROWS, SNAPSHOT, places_of
from tests.trace.examples import step_by_step

SEED = 20_240_607
ENDS = (".parquet", ".csv", ".json", ".libcachesim.csv", ".oracleGeneral", ".snapshot.json", ".pickle")
WEIGHTS = ("cut", "flip", "insert", "repeat", "zero")


class Upload(NamedTuple):
    """What is sent, under which name."""

    name: str
    content: bytes


def good() -> dict[str, bytes]:
    """Return a sound file of every format by the end of its name."""
    with tempfile.TemporaryDirectory() as folder:
        files = {".rows.json": json.dumps(ROWS).encode(), ".snapshot.json": json.dumps(SNAPSHOT).encode()}
        files[".pickle"] = pickle.dumps(SNAPSHOT)
        for end in ENDS[:5]:
            path = Path(folder) / f"good{end}"
            write_trace(step_by_step(), path)
            files[end] = path.read_bytes()
        path = Path(folder) / "model.parquet"
        write_trace(generate_synthetic_trace(num_layers=1), path)
        files[".model.parquet"] = path.read_bytes()
    return files


def uploads() -> list[Upload]:
    """Return all small ones."""
    dice = random.Random(SEED)
    files = good()
    found = [
        Upload(f"damaged-{n}{end}", made) for end in files for n, made in enumerate(_bytes(dice, files[end]))
    ]
    found += [Upload(f"tree-{n}.json", made) for n, made in enumerate(_trees(dice, files))]
    found += [Upload(f"snapshot-{n}.pickle", made) for n, made in enumerate(_pickles(dice))]
    found += [
        Upload(f"cells-{n}{end}", made)
        for end in (".csv", ".libcachesim.csv")
        for n, made in enumerate(_cells(dice, files[end], 45))
    ]
    found += [
        Upload(f"columns-{n}.parquet", made) for n, made in enumerate(_columns(dice, files[".parquet"]))
    ]
    found += [Upload(f"other{n}{end}", content) for n, content in enumerate(files.values()) for end in ENDS]
    found += [Upload(f"odd-{n}{end}", content) for n, content in enumerate(_ODD) for end in ENDS]
    found += [Upload(f"records-{n}.oracleGeneral", made) for n, made in enumerate(_records())]
    return found


def _bytes(dice: random.Random, whole: bytes) -> Iterator[bytes]:
    """Cut the file, or change some of its bytes, four times each."""
    for change in WEIGHTS * 4:
        at = dice.randrange(1, len(whole))
        if change == "cut":
            yield whole[:at]
        elif change == "flip":
            found = bytearray(whole)
            for _ in range(dice.randrange(1, 4)):
                found[dice.randrange(len(found))] ^= 1 << dice.randrange(8)
            yield bytes(found)
        elif change == "insert":
            yield whole[:at] + dice.randbytes(dice.randrange(1, 9)) + whole[at:]
        elif change == "repeat":
            yield whole + whole[at:]
        else:
            yield whole[:at] + bytes(min(8, len(whole) - at)) + whole[at + 8 :]


def _trees(dice: random.Random, files: dict[str, bytes]) -> Iterator[bytes]:
    for end in (".json", ".rows.json", ".snapshot.json"):
        for _ in range(30):
            yield json.dumps(_changed(dice, json.loads(files[end]))).encode()


def _changed(dice: random.Random, document: Any) -> Any:
    """Change or take out one or two parts of a JSON-like document."""
    document = copy.deepcopy(document)
    for _ in range(dice.randrange(1, 3)):
        places = list(places_of(document))
        if places:
            holder, key = dice.choice(places)
            if dice.randrange(6):
                holder[key] = dice.choice(IMPOSSIBLE)
            else:
                del holder[key]
    return document


class _Calls:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def _pickles(dice: random.Random) -> Iterator[bytes]:
    """Yield programs, and lies about how much follows."""
    import os
    import subprocess

    for function, *arguments in (
        (os.system, "touch EXECUTED"),
        (eval, "open('EXECUTED', 'w')"),
        (exec, "open('EXECUTED', 'w').close()"),
        (subprocess.check_call, ["touch", "EXECUTED"]),
        (getattr, [], "append"),
        (bytearray, 1 << 40),
        (set, [[1]]),
        (open, "EXECUTED", "w"),
    ):
        for protocol in (0, 2, 4):
            yield pickle.dumps({**SNAPSHOT, "more": _Calls(function, *arguments)}, protocol)
    yield b"\x80\x04cposix\nsystem\nX\x0e\x00\x00\x00touch EXECUTED\x85R."
    yield b"\x80\x04c__builtin__\nset\n]]a\x85R."  # a set of a list
    yield b"\x80\x04cbuiltins\nset\n)R}X\x01\x00\x00\x00a]sb."  # a state for a set
    yield b"\x80\x02(i__builtin__\nset\n."
    yield b"\x80\x02\x82\x01."  # an extension's code
    yield b"\x80\x02Ppersistent\n."
    yield b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"N."
    for code in (b"\x8e", b"\x8d", b"\x96"):  # bytes, text, bytearray of 2**62
        yield b"\x80\x05" + code + struct.pack("<Q", 1 << 62) + b"x."
    for code in (b"B", b"X", b"\x8b"):  # bytes, text, integer of 2 GiB
        yield b"\x80\x03" + code + struct.pack("<I", 0x7FFFFFFF) + b"x."
    yield b"\x80\x03]r" + struct.pack("<I", 0x7FFFFFFF) + b"."  # a memo's index of 2**31
    yield b"\x80\x03]j" + struct.pack("<I", 0x7FFFFFFF) + b"."
    yield b"\x80\x03" + b"(" * 1000 + b"."
    yield b"\x80\x03." * 10
    yield pickle.dumps({"device_traces": [_laughing(40)]})
    for _ in range(20):
        yield pickle.dumps(_changed(dice, SNAPSHOT))


def _laughing(depth: int) -> Any:
    """Return a list that holds itself twice, over and over: 2**depth of them, told in a few bytes."""
    found: Any = []
    for _ in range(depth):
        found = [found, found]
    return found


def _cells(dice: random.Random, whole: bytes, count: int) -> Iterator[bytes]:
    """Put something else into a cell or two of a CSV file."""
    for _ in range(count):
        lines = [line.split(",") for line in whole.decode().splitlines()]
        for _ in range(dice.randrange(1, 3)):
            line = dice.choice(lines)
            line[dice.randrange(len(line))] = str(dice.choice(IMPOSSIBLE))
        yield "\n".join(map(",".join, lines)).encode("utf-8", "surrogatepass")


def _columns(dice: random.Random, whole: bytes) -> Iterator[bytes]:
    """Replace, repeat or leave out a column of a Parquet file, or change the facts beside the table."""
    given = parquet.read_table(pyarrow.BufferReader(whole))
    facts = given.schema.metadata
    for make in COLUMNS:
        for at in dice.sample(range(given.num_columns), 4):
            table = given.set_column(at, given.column_names[at], make(given.num_rows))
            yield _parquet(table.replace_schema_metadata(dice.choice([facts, None])))
    for at in range(given.num_columns):
        yield _parquet(given.append_column(given.column_names[at], given.column(at)))
        yield _parquet(given.remove_column(at))
    for _ in range(20):
        told = json.dumps(_changed(dice, json.loads(facts[b"accelera.trace"])))
        yield _parquet(given.replace_schema_metadata({"accelera.trace": told}))
    yield _parquet(given.slice(0, 0))
    yield _parquet(pyarrow.table({f"c{number}": [1] for number in range(3000)}))


def _parquet(table: pyarrow.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(table, sink, **options)
    return sink.getvalue()


def _records() -> Iterator[bytes]:
    """Yield oracleGeneral records with the absurd in one of their fields."""
    for time, id, size, following in (
        (0, 0, 0, 0),
        (2**32 - 1, 2**64 - 1, 2**32 - 1, 2**63 - 1),
        (0, 1, 1, -(2**63)),
        (0, 2**63, 0, -1),
        (1, 1, 2**32 - 1, 1),
    ):
        record = struct.pack("<IQIq", time, id, size, following)
        yield from (record, record * 3, record[:-1], record + b"\0")


def _zipped(content: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("trace.csv", content)
    return sink.getvalue()


_ODD = (
    *(b"", b"\0", b"\n", b"{", b"[]", b"{}", b"[{}]", b"null", b"NaN", b"\xff\xfe", b"\xef\xbb\xbf[]", b'"'),
    b"PAR1" * 4,
    b"PAR1" + b"\xff" * 8 + b"PAR1",
    b"PAR1" + struct.pack("<I", 0x7FFFFFFF) + b"PAR1",
    b"PK\x03\x04" + bytes(64),
    b"#!/bin/sh\ntouch EXECUTED\n",
    b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>",
    b"tensor_id,size_mb\n=cmd|'/c calc'!A1,1\n../../etc/passwd,1\n",
    b"tensor_id,size_mb,step\na,1,4611686018427387904\n",
    b"tensor_id,size_mb\n" + b"a," * 2000 + b"\n",
    b'tensor_id,size_mb\n"' + b"a" * 5000,
    b'{"device_traces": 1}',
    b'[{"tensor_id": "a", "size_mb": 1e308}, {"tensor_id": "a", "size_mb": -1}]',
    b'{"format": "accelera.trace", "version": 1, "columns": {"buffer": [9e18], "size_bytes": [1]}}',
    b"[" * 3000,
    b'{"a":' * 3000,
    gzip.compress(bytes(1 << 20)),
    _zipped(bytes(1 << 20)),
)


def bombs() -> Iterator[tuple[str, Callable[[], Upload]]]:
    """Yield each by name, and what makes it."""
    yield "8 million rows of long strings", lambda: Upload("rows.parquet", _strings(8_000_000))
    yield "2 million rows of long strings", lambda: Upload("strings.parquet", _strings(2_000_000))
    yield "a dictionary that expands", lambda: Upload("dictionary.parquet", _strings(1_000_000, kept=True))
    yield "nested a million deep", lambda: Upload("deep.json", b"[" * 1_000_000 + b"]" * 1_000_000)
    yield "objects a million deep", lambda: Upload("deep.snapshot.json", b'{"device_traces":' * 1_000_000)
    yield "2 million empty lists", lambda: Upload("lists.json", b"[" + b"[]," * 2_000_000 + b"[]]")
    yield (
        "an integer of 10 million digits",
        lambda: Upload("digits.json", b'[{"size_mb":' + b"9" * 10**7 + b"}]"),
    )
    yield "a line of 60 MB", lambda: Upload("line.csv", b"tensor_id,size_mb\n" + b"a" * 60_000_000)
    yield "a line of 100 MB", lambda: Upload("long.csv", b"tensor_id,size_mb\n" + b"a" * 100_000_000)
    yield "3 million columns", lambda: Upload("wide.csv", b",".join(b"c%d" % n for n in range(3_000_000)))
    yield "zeros, gzipped", lambda: Upload("zeros.csv", gzip.compress(bytes(1 << 28), 1))
    yield "zeros, zipped", lambda: Upload("zeros.parquet", _zipped(bytes(1 << 27)))
    yield "billion laughs", lambda: Upload("laugh.pickle", pickle.dumps(_laughing(60)))
    yield "500 thousand largest sizes", lambda: Upload("sizes.oracleGeneral", _sizes(500_000))
    yield (
        "a pickle of 25 million lists",
        lambda: Upload("lists.pickle", b"\x80\x03](" + b"]" * 25_000_000 + b"e."),
    )
    yield "a step of 2**31", lambda: Upload("step.csv", b"tensor_id,size_mb,step\na,1,2147483647\n")


def _strings(rows: int, *, kept: bool = False) -> bytes:
    """Return rows of one text of 1000 characters; read without its dictionary unless that is ``kept``."""
    codes = pyarrow.array(np.zeros(rows, np.int32))
    column = pyarrow.DictionaryArray.from_arrays(codes, ["a" * 1000])
    return _parquet(pyarrow.table({"tensor_id": column, "name": column, "size_mb": codes}), store_schema=kept)


def _sizes(count: int) -> bytes:
    record = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])
    found = np.zeros(count, record)
    found["id"], found["size"], found["next"] = np.arange(count), 2**32 - 1, -1
    return found.tobytes()
