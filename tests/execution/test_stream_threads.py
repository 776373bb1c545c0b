"""Streams whose source belongs to one thread, that are closed while they start, or that have a deadline."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from accelera.errors import UnfinishedError
from accelera.execution import Observer, StrategyManager

COUNT = 300
THREAD_VALUES = threading.local()


def cursor() -> sqlite3.Cursor:
    connection = sqlite3.connect(":memory:")
    connection.execute("create table word(number integer)")
    connection.executemany("insert into word values (?)", [(number,) for number in range(COUNT)])
    return connection.execute("select number from word order by number")


def generator() -> Iterator[Any]:
    rows = cursor()
    return (row for row in rows)


def local_values() -> Iterator[tuple[int]]:
    for number in range(COUNT):
        yield (number + THREAD_VALUES.start,)


class Result:
    def __init__(self) -> None:
        self.rows = cursor()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self.rows)


SOURCES: dict[str, Callable[[], Any]] = {
    "cursor": cursor,
    "generator": generator,
    "map": lambda: map(tuple, cursor()),
    "filter": lambda: filter(None, generator()),
    "object": Result,
    "local": local_values,
}


def first(row: tuple[int, ...]) -> int:
    return row[0]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("window", [1, 7, None, "1MiB"])
def test_stream_reads_thread_bound_sources(source: str, window: Any) -> None:
    THREAD_VALUES.start = 0
    manager = StrategyManager.cpu_only()
    stream = manager.stream(SOURCES[source](), first, window=window)
    assert [output for _, output in stream] == list(range(COUNT))
    unordered = manager.stream(SOURCES[source](), first, window=window, ordered=False)
    assert sorted(output for _, output in unordered) == list(range(COUNT))


@pytest.mark.parametrize("source", SOURCES)
def test_map_reads_thread_bound_sources(source: str) -> None:
    THREAD_VALUES.start = 0
    manager, make = StrategyManager.cpu_only(), SOURCES[source]
    assert list(manager.map(first, make())) == list(range(COUNT))
    assert list(manager.map(lambda row, number: row[0] - number, make(), range(COUNT))) == [0] * COUNT
    assert list(manager.as_executor(2).map(first, make(), buffersize=8)) == list(range(COUNT))
    assert asyncio.run(manager.aexecute(make(), first)).outputs == list(range(COUNT))


def test_thread_bound_source_raises_its_error_after_the_outputs() -> None:
    THREAD_VALUES.start = 0

    def fails() -> Iterator[tuple[int]]:
        yield from local_values()
        raise LookupError("no more rows")

    outputs = []
    with pytest.raises(LookupError, match="no more rows"):
        for output in StrategyManager.cpu_only().map(first, fails(), window=5):
            outputs.append(output)
    assert outputs == list(range(COUNT))


class SlowStart(Observer):
    def on_stream(self, number: int, decision: Any) -> None:
        time.sleep(0.05)


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.03, 0.05, 0.07])
@pytest.mark.parametrize("ordered", [True, False])
def test_stream_closes_while_it_starts(delay_s: float, ordered: bool) -> None:
    stream = StrategyManager(observers=[SlowStart()]).stream(
        (str(n) for n in range(20)), len, ordered=ordered
    )
    errors: list[BaseException] = []

    def read() -> None:
        try:
            list(stream)
        except BaseException as error:
            errors.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    time.sleep(delay_s)
    stream.close()
    reader.join(30)
    assert not reader.is_alive()
    assert not errors


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("leaves", ["task error", "end of the block", "source error"])
def test_stream_timeout_holds_after_an_error(leaves: str, ordered: bool) -> None:
    released = threading.Event()

    def work(name: str) -> str:
        if name == "stuck":
            released.wait()
        if name == "bad":
            raise LookupError(name)
        return name

    def source() -> Iterator[str]:
        yield "bad" if leaves == "task error" else "good"
        yield "stuck"
        if leaves == "source error":
            raise OSError("source")

    manager = StrategyManager.cpu_only()
    began_s = time.monotonic()
    try:
        with manager.stream(source(), work, ordered=ordered, timeout=1) as stream:
            next(stream)
            if leaves == "source error":
                next(stream)
    except (LookupError, OSError, UnfinishedError):
        pass
    finally:
        seconds = time.monotonic() - began_s
        released.set()
    assert seconds < 20
