"""Threads that are abandoned end at once, and whoever waits hears of it."""

from __future__ import annotations

import threading

import pytest

from accelera.memory.pool.transfers import TransferThreads


def test_what_is_not_begun_when_threads_are_abandoned_is_told():
    threads, begun, go_on = TransferThreads(1, "test"), threading.Event(), threading.Event()

    def slow() -> int:
        begun.set()
        go_on.wait()
        return 1

    first, second = threads.submit([slow]), threads.submit([lambda: 1])
    begun.wait()
    ending = threading.Thread(target=threads.abandon)
    ending.start()
    while not threads._abandoned:
        pass
    go_on.set()
    ending.join()
    first.wait()
    with pytest.raises(InterruptedError, match="the process ends"):
        second.wait()
    assert threads.bytes_moved == 1


def test_when_threads_are_drained_every_byte_is_counted():
    threads, go_on = TransferThreads(2, "test"), threading.Event()

    def fails() -> int:
        raise OSError("a disk that fails")

    def slow() -> int:
        go_on.wait()
        return 2

    moves = [threads.submit([slow] * 8), threads.submit([fails, fails])]
    go_on.set()
    threads.drain()
    assert all(transfer.over for transfer in moves)
    assert threads.bytes_moved == 16
    threads.drain()
    threads.close()
