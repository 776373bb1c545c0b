"""PyTorch's memory snapshots: what is made of them, and pickles that are more than data."""

from __future__ import annotations

import json
import os
import pickle
import pickletools
import resource
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies

from accelera import TraceFormatError
from accelera._native import find_oversized_opcode
from accelera.trace import Kind, Occupancy, read_trace

FRAMES = [{"name": "forward", "filename": "model.py", "line": 7}]


def entry(action: str, addr: int, size: int, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": 1, **more}


def snapshot(*entries: dict[str, Any], blocks: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    segments = [{"device": 0, "address": 4096, "total_size": 4096, "blocks": list(blocks)}]
    return {"segments": segments, "device_traces": [list(entries), []]}


EVENTS = (
    entry("segment_alloc", 4096, 4096),
    entry("alloc", 4096, 512, frames=FRAMES),
    entry("alloc", 5120, 100),
    entry("free_requested", 4096, 512),
    entry("free_completed", 4096, 512),
    entry("free_completed", 9000, 64),
    entry("alloc", 4096, 256),
)
BLOCKS = (
    {"size": 256, "state": "active_allocated"},
    {"size": 768, "state": "inactive"},
    {"size": 100, "state": "active_allocated"},
    {"size": 2048, "state": "active_allocated"},
)


@pytest.mark.parametrize("kind", ["pickle", "snapshot.json"])
def test_lives_of_allocations(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"dump.{kind}"
    whole = snapshot(*EVENTS, blocks=BLOCKS)
    path.write_bytes(pickle.dumps(whole) if kind == "pickle" else json.dumps(whole).encode())
    trace = read_trace(path)
    assert [Kind(kind).name for kind in trace.kind] == [
        "READ",
        "READ",
        "WRITE",
        "WRITE",
        "FREE",
        "FREE",
        "WRITE",
    ]
    assert trace.buffer.tolist() == [0, 1, 2, 3, 2, 0, 4]
    assert trace.size_bytes.tolist() == [64, 2048, 512, 100, 256]
    assert trace.ops == ("existing", "existing", "forward", "", "")
    assert trace.names[2] == "b1000_2"
    assert trace.meta == {"source": path.name, "device": 0, "existing": 2}
    assert Occupancy(trace).peak_bytes == 64 + 2048 + 512 + 100


def test_frees_that_were_only_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "dump.pickle"
    path.write_bytes(pickle.dumps(snapshot(entry("alloc", 1, 8), entry("free_requested", 1, 8))))
    assert read_trace(path).kind.tolist() == [Kind.WRITE, Kind.FREE]


def test_the_device_with_the_most_events(tmp_path: Path) -> None:
    path = tmp_path / "dump.pickle"
    busy = [entry("alloc", 1, 8), entry("alloc", 2, 8)]
    path.write_bytes(pickle.dumps({"device_traces": [[entry("alloc", 1, 9)], busy]}))
    trace = read_trace(path)
    assert trace.meta["device"] == 1
    assert trace.size_bytes.tolist() == [8, 8]


class Bomb:
    """What a malicious file holds: a program that runs when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dump.pickle").write_bytes(pickle.dumps(snapshot(entry("alloc", 1, 8), {"x": Bomb()}), protocol))
    with pytest.raises(TraceFormatError, match=r"it asks for \w+\.mkdir, .* do not trust this file"):
        read_trace("dump.pickle")
    assert os.listdir() == ["dump.pickle"]


@pytest.mark.parametrize(
    "name", [b"builtins\neval", b"builtins\ngetattr", b"builtins\nset.__class__", b"os\nsystem"]
)
def test_no_name_but_of_containers(tmp_path: Path, name: bytes) -> None:
    path = tmp_path / "dump.pickle"
    path.write_bytes(b"c" + name + b"\n.")
    with pytest.raises(TraceFormatError, match="it asks for"):
        read_trace(path)


def test_sets_are_harmless(tmp_path: Path) -> None:
    path = tmp_path / "dump.pickle"
    path.write_bytes(pickle.dumps({**snapshot(entry("alloc", 1, 8)), "settings": {1, 2}}, protocol=2))
    assert len(read_trace(path)) == 1


def test_a_pickle_cut_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "dump.pickle"
    whole = pickle.dumps(snapshot(*EVENTS, blocks=BLOCKS))
    for size in range(1, len(whole), 11):
        path.write_bytes(whole[:size])
        with pytest.raises(TraceFormatError):
            read_trace(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([1, 2], "it has no list of device_traces"),
        ({"device_traces": 3}, "it has no list of device_traces"),
        ({"device_traces": []}, "holds no events"),
        ({"device_traces": [[], []]}, "holds no events"),
        ({"device_traces": [[], 5]}, r"device_traces\[1\] is 5, not a list"),
        (snapshot(entry("alloc", 1, 8), 7), r"device_traces\[0\]\[1\] is 7, not an object"),  # type: ignore[arg-type]
        (snapshot(entry("alloc", 1, -8)), r"device_traces\[0\]\[0\].size is -8, not a whole number from 0"),
        (snapshot({"action": "alloc", "size": 1}), r"device_traces\[0\]\[0\].addr is None"),
        (snapshot(entry("alloc", 1, 1), blocks=({"size": "x"},)), r"segments\[0\].blocks\[0\].size is 'x'"),
        (snapshot(entry("alloc", 1, 1), blocks=(7,)), r"segments\[0\].blocks\[0\] is 7, not an object"),  # type: ignore[arg-type]
        (
            snapshot(entry("alloc", 1, 1), blocks=({"size": 1, "address": "x"},)),
            r"blocks\[0\].address is 'x'",
        ),
        ({"device_traces": [[entry("alloc", 1, 1)]], "segments": 5}, "segments is 5, not a list"),
    ],
)
def test_a_malformed_snapshot(tmp_path: Path, content: Any, said: str) -> None:
    path = tmp_path / "dump.pickle"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(TraceFormatError, match=said):
        read_trace(path)


def test_a_container_that_holds_itself_over_and_over_is_refused_at_once(tmp_path: Path) -> None:
    """Few bytes of a pickle tell of 2**200 lists; to write them out for a message would never end."""
    nested: Any = []
    for _ in range(200):
        nested = [nested, nested]
    path = tmp_path / "laughing.pickle"
    path.write_bytes(pickle.dumps({"device_traces": [nested]}))
    with pytest.raises(TraceFormatError, match="not an object"):
        read_trace(path)


@pytest.mark.parametrize("place", [300, 2**20, 2**26, 2**31, 2**32 - 1])
@pytest.mark.parametrize("form", ["LONG_BINPUT", "PUT", "BYTEARRAY8", "BINUNICODE8", "BINBYTES"])
def test_snapshot_of_few_bytes_needs_little_memory(tmp_path: Path, place: int, form: str) -> None:
    codes = {
        "LONG_BINPUT": b"}r" + place.to_bytes(4, "little"),
        "PUT": b"}p%d\n" % place,
        "BYTEARRAY8": b"\x96" + place.to_bytes(8, "little"),
        "BINUNICODE8": b"\x8d" + place.to_bytes(8, "little"),
        "BINBYTES": b"B" + place.to_bytes(4, "little"),
    }
    path = tmp_path / "memory.pickle"
    path.write_bytes(b"\x80\x05" + codes[form] + b".")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TraceFormatError, match="memory or time than the file"):
        read_trace(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10


SCALARS = strategies.none() | strategies.integers() | strategies.floats() | strategies.text()
VALUES = strategies.recursive(
    SCALARS | strategies.binary(),
    lambda inner: strategies.lists(inner) | strategies.dictionaries(strategies.text(), inner),
)


@given(VALUES, strategies.integers(0, pickle.HIGHEST_PROTOCOL))
def test_sound_pickles_pass_the_scan(value: object, protocol: int) -> None:
    data = pickle.dumps([value, value], protocol)
    assert find_oversized_opcode(data) == -1
    assert find_oversized_opcode(pickletools.optimize(data)) == -1
