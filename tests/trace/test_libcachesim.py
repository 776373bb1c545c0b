"""libCacheSim's formats: written as it reads them, read as it writes them."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings

from accelera import Trace, TraceFormatError
from accelera.trace import Kind, read_trace, write_trace
from tests.trace.examples import traces

BOTH = pytest.mark.parametrize("suffix", [".oracleGeneral", ".libcachesim.csv"])


@BOTH
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=30)
@given(trace=traces(kinds=(Kind.READ, Kind.WRITE, Kind.FREE)))
def test_accesses_come_back(tmp_path: Path, suffix: str, trace: Trace) -> None:
    path = tmp_path / f"trace{suffix}"
    write_trace(trace, path)
    if path.stat().st_size == 0:
        return
    again = read_trace(path)
    np.testing.assert_array_equal(again.size_bytes[again.buffer], trace.size_bytes[trace.accessed])
    np.testing.assert_array_equal(again.next_use, trace.next_use)
    assert again.step.tolist() == list(range(trace.access_count))


def test_a_record_is_24_bytes_and_counts_from_one(tmp_path: Path) -> None:
    path = tmp_path / "trace.oracleGeneral.bin"
    write_trace(Trace.from_arrays([7, 8, 7], [10, 2**32 - 1, 10], steps=[0, 0, 5]), path)
    records = list(struct.iter_unpack("<IQIq", path.read_bytes()))
    assert records == [(0, 0, 10, 3), (0, 1, 2**32 - 1, -1), (5, 0, 10, -1)]


def test_a_size_over_four_gib(tmp_path: Path) -> None:
    large = Trace.from_arrays([0], [2**32], names=["embedding"])
    with pytest.raises(TraceFormatError, match=r"'embedding' has 4294967296 bytes .*libcachesim_csv"):
        write_trace(large, tmp_path / "trace.oracleGeneral")
    assert not list(tmp_path.iterdir())
    write_trace(large, tmp_path / "trace.libcachesim.csv")
    assert read_trace(tmp_path / "trace.libcachesim.csv").size_bytes.tolist() == [2**32]


def test_objects_that_grow_have_their_largest_size(tmp_path: Path) -> None:
    rows = [(0, 5, 10, 3), (1, 6, 1, -1), (2, 5, 30, -1)]
    (tmp_path / "a.oracleGeneral").write_bytes(b"".join(struct.pack("<IQIq", *row) for row in rows))
    (tmp_path / "a.csv").write_text("".join(f"{','.join(map(str, row))}\n" for row in rows))
    for name, format_name in (("a.oracleGeneral", None), ("a.csv", "libcachesim_csv")):
        trace = read_trace(tmp_path / name, format_name)
        assert trace.names == ("5", "6")
        assert trace.size_bytes.tolist() == [30, 1]


@pytest.mark.parametrize(
    "text",
    [
        "0,a,10\n1,b,20\n",
        "time,obj_id,obj_size,next_access_vtime\n0,a,10,-1\n1,b,20,-1\n",
        "# time, object, size, next_access_vtime\n0,a,10,-1\n1,b,20,-1\n",
        "obj_size,id\n10,a\n20,b\n",
    ],
)
def test_headers_of_several_kinds(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.libcachesim.csv").write_text(text)
    trace = read_trace(tmp_path / "a.libcachesim.csv")
    assert (trace.names, trace.size_bytes.tolist()) == (("a", "b"), [10, 20])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.oracleGeneral", b"x" * 50, "ends at byte 50, inside record 2, which begins at byte 48"),
        (
            "a.oracleGeneral",
            struct.pack("<IQIq", 0, 1, 2, 2) + struct.pack("<IQIq", 0, 1, 2, 1),
            "record 1 (byte 24), next access: 1 is not after the record itself",
        ),
        ("a.libcachesim.csv", b"time,obj_id,obj_size\n0,a,1\n1,b,big\n", "line 3, column obj_size: 'big'"),
        ("a.libcachesim.csv", b"0,a,1\n1,b,big\n", "line 2, column obj_size: 'big' is not a number"),
        ("a.libcachesim.csv", b"time,who,obj_size\n0,a,1\n", "none is called obj_id or object"),
    ],
)
def test_a_malformed_file(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceFormatError) as raised:
        read_trace(tmp_path / name)
    assert said in str(raised.value)


@pytest.mark.parametrize("name", ["t.oracleGeneral.zst", "t.csv.zst", "t.parquet.ZST", "t.json.zst"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=8)
@given(trace=traces(kinds=(Kind.READ, Kind.WRITE)))
def test_compressed_trace_equals_the_plain_one(tmp_path: Path, name: str, trace: Trace) -> None:
    if not trace.access_count:
        return
    compressed, uncompressed = tmp_path / name, tmp_path / name[: -len(".zst")]
    write_trace(trace, compressed)
    write_trace(trace, uncompressed)
    assert compressed.read_bytes()[:4] == b"\x28\xb5\x2f\xfd"
    expected, actual = read_trace(uncompressed), read_trace(compressed)
    np.testing.assert_array_equal(actual.buffer, expected.buffer)
    np.testing.assert_array_equal(actual.size_bytes, expected.size_bytes)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([compressed.name, uncompressed.name])


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_damaged_compressed_trace_names_the_file(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "t.oracleGeneral.zst"
    write_trace(Trace.from_arrays(np.arange(500) % 37, np.arange(500) % 37 + 1), path)
    content = path.read_bytes()
    for damaged in (content[:-cut], b"x" * cut + content):
        path.write_bytes(damaged)
        with pytest.raises(TraceFormatError, match=r"t\.oracleGeneral\.zst is no complete Zstandard file"):
            read_trace(path)


def test_error_in_compressed_trace_names_the_compressed_file(tmp_path: Path) -> None:
    path = tmp_path / "t.oracleGeneral.zst"
    with pyarrow.output_stream(path, compression="zstd") as stream:
        stream.write(bytes(30))
    with pytest.raises(TraceFormatError) as failure:
        read_trace(path)
    assert str(path) in str(failure.value)
    assert "accelera-trace-" not in str(failure.value)
