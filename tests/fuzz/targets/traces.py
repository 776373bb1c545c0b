"""Readers of trace files; a trace that is read must be written and read again as the same trace."""

from __future__ import annotations

from accelera._user_paths import user_path
from accelera.trace import read_trace, write_trace
from accelera.trace._internal import content_hash
from tests.fuzz.harness import fuzz_target, temporary_file, temporary_folder, text_of

MOST_EVENTS_IN_LAW = 2000


def _read(data: bytes, name: str) -> None:
    with temporary_file(data, name) as path:
        trace = read_trace(path)
        if len(trace.buffer) > MOST_EVENTS_IN_LAW or trace.step_count > MOST_EVENTS_IN_LAW:
            return
        copy = path.with_name("copy.json")
        write_trace(trace, copy)
        assert content_hash(read_trace(copy)) == content_hash(trace), "the copy of a trace is another trace"


@fuzz_target(examples=150)
def trace_json(data: bytes) -> None:
    _read(data, "t.json")


@fuzz_target(examples=80)
def trace_csv(data: bytes) -> None:
    _read(data, "t.csv")


@fuzz_target(examples=80)
def trace_libcachesim_csv(data: bytes) -> None:
    _read(data, "t.libcachesim.csv")


@fuzz_target(examples=100)
def trace_oracle_general(data: bytes) -> None:
    _read(data, "t.oracleGeneral")


@fuzz_target(examples=80)
def trace_parquet(data: bytes) -> None:
    _read(data, "t.parquet")


@fuzz_target(examples=100)
def trace_path(data: bytes) -> None:
    """What a user types as the name of a trace; no such file exists."""
    with temporary_folder({}) as folder:
        read_trace(f"{folder}/{text_of(data)}")
    user_path(text_of(data), "fuzz")


@fuzz_target(examples=150)
def trace_torch_pickle(data: bytes) -> None:
    _read(data, "t.pickle")


@fuzz_target(examples=100)
def trace_torch_json(data: bytes) -> None:
    _read(data, "t.snapshot.json")
