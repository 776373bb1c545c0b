"""Blocks of NumPy arrays that stream through a residence: no torch, contents right, memory within bounds."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest

from accelera.memory._internal import AsyncBuffers, BackingStore, BufferTable, Bytes, Prefetcher, Use

CAPACITY = 6


class ArrayHome:
    """Bytes in an array."""

    writable = True

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.array: Bytes = np.zeros(nbytes, np.uint8)

    def read(self, start: int, out: Bytes) -> int:
        out[:] = self.array[start : start + out.nbytes]
        return out.nbytes

    def write(self, start: int, data: Bytes) -> int:
        self.array[start : start + data.nbytes] = data
        return data.nbytes

    def resident(self) -> Bytes:
        return self.array

    def mapped(self) -> Bytes:
        return self.array

    def release(self) -> None:
        pass


class ArrayHomes:
    def create(self, nbytes: int) -> ArrayHome:
        return ArrayHome(nbytes)

    def close(self) -> None:
        pass


class ArrayPlace:
    """Arrays as memory; knows how much is out, and poisons what comes back."""

    def __init__(self) -> None:
        self.out_bytes = self.peak_bytes = 0
        self._lock = threading.Lock()

    def promise(self, nbytes: int) -> None:
        self.promised = getattr(self, "promised", 0) + nbytes

    def allocate(self, nbytes: int) -> tuple[Bytes, Bytes]:
        with self._lock:
            self.out_bytes += nbytes
            self.peak_bytes = max(self.peak_bytes, self.out_bytes)
        memory = np.full(nbytes, 0xEE, np.uint8)
        return memory, memory

    def release(self, memory: Bytes) -> None:
        memory[:] = 0xDD
        with self._lock:
            self.out_bytes -= memory.nbytes

    def load(self, home: BackingStore, memory: Any, start: int, stop: int) -> int:
        return home.read(start, memory[start:stop])

    def save(self, memory: Any, home: BackingStore, start: int, stop: int) -> int:
        return home.write(start, memory[start:stop])


@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("seed", range(3))
def test_contents_survive_and_memory_keeps_to_the_capacity(seed: int, window: int) -> None:
    rng = random.Random(seed)
    place = ArrayPlace()
    residence = AsyncBuffers(CAPACITY, place, ArrayHomes())
    stream = Prefetcher(BufferTable(CAPACITY, "loop", residence), window)
    blocks = [stream.create(1 + number % 3, "", f"b{number}") for number in range(8)]
    values: dict[int, int] = {}
    for turn in range(400):
        block = blocks[turn % 8] if rng.random() < 0.9 else rng.choice(blocks)
        write = rng.random() < 0.3
        pins = stream.begin([Use(block, True, write)], "")
        (slab,) = pins.given
        if write:
            slab.wait_saved()
        memory = slab.wait_loaded()
        if block.id in values:
            assert (memory == values[block.id]).all()
        if write or block.id not in values:
            values[block.id] = rng.randrange(256)
            memory[:] = values[block.id]
        stream.end(pins)
    residence.close()
    assert place.peak_bytes == residence.peak_allocated_bytes <= CAPACITY
    assert place.out_bytes == 0
    assert residence.bytes_read > 0
    assert residence.bytes_written > 0


class FailingHome(ArrayHome):
    """Takes nothing while it ``fails``; given away when it is released, as scratch space is."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.fails = False
        self.released = False

    def write(self, start: int, data: Bytes) -> int:
        if self.fails:
            raise OSError("a disk that is full")
        assert not self.released, "another block lives here now"
        return super().write(start, data)

    def release(self) -> None:
        self.released = True


def test_a_saving_that_failed_is_not_repeated_into_a_home_given_away() -> None:
    residence = AsyncBuffers(CAPACITY, ArrayPlace(), ArrayHomes())
    books = BufferTable(CAPACITY, "lru", residence)
    stream = Prefetcher(books, 0)
    block, other = (stream.create(CAPACITY, "", "") for _ in range(2))
    home = block.home = FailingHome(CAPACITY)
    stream.end(stream.begin([Use(block, read=False, write=True)], "write"))
    home.fails = True
    books.give_up(block, 0)
    residence.drain()
    assert stream.free(block)
    residence.vacate(block)
    residence.drain()
    home.fails = False
    pins = stream.begin([Use(other, read=False, write=True)], "write")
    pins.given[0].wait_loaded()
    stream.end(pins)
    residence.close()
    assert home.released
    assert not home.array.any()
