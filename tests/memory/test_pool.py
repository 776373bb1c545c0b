"""The buffer pool: pins, loads, write-back and threads, inside one hard capacity."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from accelera.errors import BudgetExceededError, DeviceMemoryError
from accelera.memory._internal import BufferPool
from accelera.policy import create_policy
from accelera.trace import Kind, TraceLog

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
SIZE = 64


class Heap:
    """An allocator that knows what is out, never gives more than it has, and poisons what comes back."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.out_bytes = self.peak_bytes = 0
        self._lock = threading.Lock()

    def allocate(self, nbytes: int) -> Bytes:
        with self._lock:
            if self.out_bytes + nbytes > self.most_bytes:
                raise DeviceMemoryError(f"[allocate] {nbytes} bytes of {self.most_bytes - self.out_bytes}")
            self.out_bytes += nbytes
            self.peak_bytes = max(self.peak_bytes, self.out_bytes)
        return np.full(nbytes, 0xEE, np.uint8)

    def release(self, buffer: Bytes) -> None:
        buffer[:] = 0xDD
        with self._lock:
            self.out_bytes -= buffer.nbytes


class Disk:
    """What buffers are loaded from and saved to: a signature for each id until something is saved."""

    def __init__(self) -> None:
        self.saved: dict[int, bytes] = {}
        self.order: list[int] = []
        self.loads: list[int] = []

    def contents(self, buffer: int, nbytes: int) -> bytes:
        return self.saved.get(buffer, bytes([buffer % 251]) * nbytes)

    def load(self, buffer: int) -> Any:
        def fill(memory: Bytes) -> int:
            self.loads.append(buffer)
            memory[:] = np.frombuffer(self.contents(buffer, memory.nbytes), np.uint8)
            return memory.nbytes

        return fill

    def save(self, buffer: int) -> Any:
        def store(memory: Bytes) -> int:
            self.order.append(buffer)
            self.saved[buffer] = memory.tobytes()
            return memory.nbytes

        return store


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def readers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2, "test-read") as executor:
        yield executor


def pool_of(count: int, **options: Any) -> tuple[BufferPool, Heap]:
    """Return a pool with room for ``count`` buffers, and its allocator, which has no more either."""
    heap = Heap(count * SIZE)
    return BufferPool(count * SIZE, create_policy("lru"), heap, **options), heap


def test_a_pinned_buffer_holds_what_was_loaded(disk: Disk) -> None:
    pool, _ = pool_of(2)
    assert pool.pin(7, SIZE, disk.load(7)).wait().tobytes() == bytes([7]) * SIZE
    assert pool.bytes_loaded == SIZE
    assert 7 in pool


def test_a_hit_loads_nothing(disk: Disk) -> None:
    pool, _ = pool_of(2)
    first = pool.pin(7, SIZE, disk.load(7))
    assert pool.pin(7, SIZE, disk.load(7)) is first
    assert disk.loads == [7]
    assert (pool.stats.hits, pool.stats.misses) == (1, 1)


def test_evicted_buffers_are_loaded_again(disk: Disk) -> None:
    pool, heap = pool_of(1)
    for buffer in (1, 2, 1):
        pool.pin(buffer, SIZE, disk.load(buffer))
        pool.unpin(buffer)
    assert disk.loads == [1, 2, 1]
    assert heap.peak_bytes == SIZE


def test_dirty_buffers_are_saved_when_evicted_and_clean_ones_are_not(disk: Disk) -> None:
    pool, _ = pool_of(2)
    pool.pin(1, SIZE, write=True).wait()[:] = 11
    pool.unpin(1, save=disk.save(1))
    pool.pin(2, SIZE, disk.load(2))
    pool.unpin(2, save=disk.save(2))
    for buffer in (3, 4):
        pool.pin(buffer, SIZE, disk.load(buffer))
    assert disk.saved == {1: bytes([11]) * SIZE}
    assert pool.bytes_saved == SIZE


def test_dirty_buffers_are_saved_in_the_order_in_which_they_leave(disk: Disk) -> None:
    pool, _ = pool_of(3)
    for buffer in (1, 2, 3):
        pool.pin(buffer, SIZE, write=True)
        pool.unpin(buffer, save=disk.save(buffer))
    pool.pin(1, SIZE)
    pool.unpin(1)
    pool.pin(4, 3 * SIZE)
    assert disk.order == [2, 3, 1]


def test_write_back_saves_once_and_only_what_changed_since(disk: Disk) -> None:
    pool, _ = pool_of(1)
    pool.pin(1, SIZE, write=True)
    pool.unpin(1, save=disk.save(1))
    assert pool.write_back(1) == SIZE
    assert pool.write_back(1) == 0
    pool.pin(2, SIZE)
    assert disk.order == [1]


def test_write_back_of_a_buffer_that_has_left_moves_nothing(disk: Disk) -> None:
    pool, _ = pool_of(1)
    assert pool.write_back(5) == 0


def test_flush_saves_every_dirty_buffer_and_keeps_it(disk: Disk) -> None:
    pool, _ = pool_of(3)
    for buffer in (1, 2):
        pool.pin(buffer, SIZE, write=True).wait()[:] = buffer
        pool.unpin(buffer, save=disk.save(buffer))
    pool.flush()
    assert sorted(disk.order) == [1, 2]
    assert 1 in pool
    assert 2 in pool


def test_evict_saves_and_makes_room(disk: Disk) -> None:
    pool, _ = pool_of(1)
    pool.pin(1, SIZE, write=True).wait()[:] = 9
    pool.unpin(1, save=disk.save(1))
    pool.evict(1)
    assert 1 not in pool
    assert pool.resident_bytes == 0
    assert disk.saved[1] == bytes([9]) * SIZE


def test_evicting_a_pinned_buffer_is_refused(disk: Disk) -> None:
    pool, _ = pool_of(1)
    pool.pin(1, SIZE, disk.load(1))
    with pytest.raises(ValueError, match="pinned"):
        pool.evict(1)
    assert pool.pin(1, SIZE).wait().tobytes() == bytes([1]) * SIZE


def test_free_saves_nothing_and_makes_room(disk: Disk) -> None:
    pool, _ = pool_of(1)
    pool.pin(1, SIZE, write=True)
    pool.unpin(1, save=disk.save(1))
    pool.free(1)
    pool.pin(2, SIZE, write=True)
    pool.free(2)
    assert disk.order == []
    assert pool.resident_bytes == 0


def test_pins_beyond_the_capacity_are_refused_and_change_nothing(disk: Disk) -> None:
    pool, heap = pool_of(2)
    pool.pin(1, SIZE)
    pool.pin(2, SIZE, write=True).wait()[:] = 5
    pool.unpin(2, save=disk.save(2))
    with pytest.raises(BudgetExceededError):
        pool.pin(3, 2 * SIZE)
    assert 2 in pool
    assert 3 not in pool
    assert pool.pin(2, SIZE).wait().tobytes() == bytes([5]) * SIZE
    assert heap.peak_bytes == 2 * SIZE


def test_prefetch_loads_ahead_without_holding(disk: Disk) -> None:
    pool, _ = pool_of(1)
    assert pool.prefetch(1, SIZE, disk.load(1))
    pool.pin(1, SIZE, disk.load(1))
    assert disk.loads == [1]
    assert pool.stats.hits == 1


def test_prefetch_that_does_not_fit_evicts_nobody(disk: Disk) -> None:
    pool, _ = pool_of(2)
    pool.pin(1, SIZE)
    pool.pin(2, SIZE, write=True).wait()[:] = 5
    pool.unpin(2, save=disk.save(2))
    assert not pool.prefetch(3, 2 * SIZE, disk.load(3))
    assert disk.order == disk.loads == []
    assert pool.pin(2, SIZE, disk.load(2)).wait().tobytes() == bytes([5]) * SIZE


def test_loads_run_on_the_readers(disk: Disk, readers: ThreadPoolExecutor) -> None:
    pool, _ = pool_of(1, readers=readers)
    go = threading.Event()
    names: list[str] = []

    def load(memory: Bytes) -> int:
        names.append(threading.current_thread().name)
        assert go.wait(300)
        return disk.load(1)(memory)

    found = pool.pin(1, SIZE, load)
    go.set()
    assert found.wait().tobytes() == bytes([1]) * SIZE
    assert names[0].startswith("test-read")


def test_a_loader_that_fails_at_once_leaves_no_trace(disk: Disk) -> None:
    pool, heap = pool_of(1)

    def broken(memory: Bytes) -> int:
        raise OSError("bad sector")

    with pytest.raises(OSError, match="bad sector"):
        pool.pin(1, SIZE, broken)
    assert 1 not in pool
    assert pool.resident_bytes == 0
    assert pool.pin(2, SIZE, disk.load(2)).wait().tobytes() == bytes([2]) * SIZE
    pool.close()
    assert heap.out_bytes == 0


def test_a_loader_that_fails_later_tells_whoever_waits_and_can_be_tried_again(
    disk: Disk, readers: ThreadPoolExecutor
) -> None:
    pool, heap = pool_of(1, readers=readers)

    def broken(memory: Bytes) -> int:
        raise OSError("bad sector")

    for _ in range(2):
        with pytest.raises(OSError, match="bad sector"):
            pool.pin(1, SIZE, broken).wait()
        pool.unpin(1)
    pool.evict(1)
    assert pool.pin(1, SIZE, disk.load(1)).wait().tobytes() == bytes([1]) * SIZE
    pool.close()
    assert heap.out_bytes == 0


def test_what_failed_to_load_is_not_saved_when_it_leaves(disk: Disk, readers: ThreadPoolExecutor) -> None:
    pool, _ = pool_of(1, readers=readers)

    def broken(memory: Bytes) -> int:
        raise OSError("bad sector")

    pool.pin(1, SIZE, broken, write=True)
    pool.unpin(1, save=disk.save(1))
    assert pool.pin(2, SIZE, disk.load(2)).wait().tobytes() == bytes([2]) * SIZE
    assert disk.order == []


def test_a_saver_that_fails_loses_nothing(disk: Disk) -> None:
    """Disk full on write-back: the new pin is refused, the old contents stay and can be saved later."""
    pool, heap = pool_of(1)
    pool.pin(1, SIZE, write=True).wait()[:] = 5

    def full(memory: Bytes) -> int:
        raise OSError("disk full")

    pool.unpin(1, save=full)
    with pytest.raises(OSError, match="disk full"):
        pool.pin(2, SIZE, disk.load(2))
    with pytest.raises(OSError, match="disk full"):
        pool.evict(1)
    assert 2 not in pool
    assert pool.pin(1, SIZE).wait().tobytes() == bytes([5]) * SIZE
    pool.unpin(1, save=disk.save(1))
    assert pool.pin(2, SIZE, disk.load(2)).wait().tobytes() == bytes([2]) * SIZE
    assert disk.saved[1] == bytes([5]) * SIZE
    pool.close()
    assert heap.out_bytes == 0


def test_an_allocator_that_fails_leaves_no_trace(disk: Disk) -> None:
    heap = Heap(SIZE)
    pool = BufferPool(3 * SIZE, create_policy("lru"), heap)
    pool.pin(1, SIZE, disk.load(1))
    with pytest.raises(DeviceMemoryError):
        pool.pin(2, SIZE, disk.load(2))
    assert 2 not in pool
    pool.free(1)
    assert pool.pin(2, SIZE, disk.load(2)).wait().tobytes() == bytes([2]) * SIZE
    pool.close()
    assert heap.out_bytes == 0


def test_close_returns_all_memory_whatever_is_pinned_loading_or_broken(
    disk: Disk, readers: ThreadPoolExecutor
) -> None:
    pool, heap = pool_of(8, readers=readers)

    def broken(memory: Bytes) -> int:
        raise OSError("bad sector")

    def slow(memory: Bytes) -> int:
        time.sleep(0.05)
        return memory.nbytes

    pool.pin(1, SIZE, disk.load(1))
    pool.pin(2, SIZE, broken)
    for buffer in (3, 4, 5):
        pool.pin(buffer, SIZE, slow)
    pool.pin(6, SIZE)
    pool.free(6)
    pool.close()
    assert heap.out_bytes == 0


def test_memory_is_used_again_for_buffers_of_the_same_size() -> None:
    pool, _ = pool_of(1)
    first = pool.pin(1, SIZE).wait()
    pool.free(1)
    assert pool.pin(2, SIZE).wait() is first


def test_spare_memory_counts_towards_the_capacity() -> None:
    """Departed buffers of many sizes are kept for reuse, but never beyond the capacity."""
    heap = Heap(10 * SIZE)
    pool = BufferPool(10 * SIZE, create_policy("lru"), heap)
    for nbytes in (3 * SIZE, 5 * SIZE, 7 * SIZE, 2 * SIZE, 10 * SIZE, SIZE):
        pool.pin(nbytes, nbytes)
        pool.free(nbytes)
    assert heap.peak_bytes <= 10 * SIZE
    assert pool.peak_allocated_bytes == heap.peak_bytes


def test_spare_memory_does_not_raise_the_peak_above_that_of_the_buffers() -> None:
    """What a forecast says of the buffers is what the process will hold, spares included."""
    pool, heap = pool_of(100)
    for buffer, nbytes in enumerate((3 * SIZE, 5 * SIZE, 4 * SIZE, 2 * SIZE)):
        pool.pin(buffer, nbytes)
        pool.free(buffer)
    assert heap.peak_bytes == pool.peak_allocated_bytes == pool.stats.peak_bytes == 5 * SIZE


def test_the_recorder_hears_every_pin_and_free_in_order(disk: Disk) -> None:
    log = TraceLog()
    pool, _ = pool_of(2, recorder=log, op="matmul")
    pool.pin(1, SIZE, disk.load(1), step=0, role="tile", dtype="float32")
    pool.pin(2, SIZE, step=0, write=True)
    pool.pin(1, SIZE, disk.load(1), step=1)
    pool.free(2, step=1)
    heard = [(each.buffer, each.nbytes, each.step, each.kind) for each in log]
    assert heard == [
        (1, SIZE, 0, Kind.READ),
        (2, SIZE, 0, Kind.WRITE),
        (1, SIZE, 1, Kind.READ),
        (2, SIZE, 1, Kind.FREE),
    ]
    assert {each.op for each in log} == {"matmul"}
    assert (log[0].role, log[0].dtype) == ("tile", "float32")


def test_the_recorder_does_not_hear_of_pins_that_were_refused(disk: Disk) -> None:
    log = TraceLog()
    pool, _ = pool_of(1, recorder=log)
    pool.pin(1, SIZE)
    assert not pool.prefetch(2, SIZE, disk.load(2))
    assert log.buffers() == [1]


@pytest.mark.parametrize("seed", range(3))
def test_many_threads_share_a_pool(seed: int, readers: ThreadPoolExecutor) -> None:
    """Whatever is pinned holds its own contents, and memory never exceeds the capacity.

    Every thread owns the buffers whose id it divides, and changes them; the others only look at what
    nobody changes.
    """
    disk, threads, turns = Disk(), 6, 500
    sizes = {buffer: SIZE * (1 + buffer % 3) for buffer in range(30)}
    heap = Heap(sum(sorted(sizes.values())[-2 * threads :]))
    pool = BufferPool(heap.most_bytes, create_policy("lru"), heap, readers=readers)
    written = {buffer: 0 for buffer in sizes if buffer % 2}
    problems: list[str] = []

    def look(rng: random.Random) -> None:
        buffer = rng.choice([each for each in sizes if each % 2 == 0])
        memory = pool.pin(buffer, sizes[buffer], disk.load(buffer)).wait()
        if memory.tobytes() != bytes([buffer % 251]) * sizes[buffer]:
            problems.append(f"{buffer} holds {memory[:4]}")
        pool.unpin(buffer)

    def change(rng: random.Random, mine: list[int]) -> None:
        buffer = rng.choice(mine)
        memory = pool.pin(buffer, sizes[buffer], disk.load(buffer), write=True).wait()
        expected = written[buffer] or buffer % 251
        if (memory != expected).any():
            problems.append(f"{buffer} holds {memory[:4]}, not {expected}")
        written[buffer] = rng.randrange(1, 250)
        memory[:] = written[buffer]
        pool.unpin(buffer, save=disk.save(buffer))

    def work(number: int) -> None:
        rng = random.Random(1000 * seed + number)
        mine = [buffer for buffer in written if buffer // 2 % threads == number]
        for _ in range(turns):
            action = rng.random()
            if action < 0.45:
                look(rng)
            elif action < 0.8:
                change(rng, mine)
            elif action < 0.95:
                ahead = rng.choice([each for each in sizes if each % 2 == 0])
                pool.prefetch(ahead, sizes[ahead], disk.load(ahead))
            else:
                pool.write_back(rng.choice(mine))

    with ThreadPoolExecutor(threads) as executor:
        for each in [executor.submit(work, number) for number in range(threads)]:
            each.result(timeout=840)
    pool.flush()
    assert problems == []
    assert heap.peak_bytes <= heap.most_bytes
    for buffer, value in written.items():
        assert set(disk.contents(buffer, sizes[buffer])) == {value or buffer % 251}
    pool.close()
    assert heap.out_bytes == 0


def test_write_back_while_others_need_the_room(disk: Disk) -> None:
    """A buffer that is being saved is not given to somebody else meanwhile."""
    pool, _ = pool_of(2)
    pool.pin(1, SIZE, write=True).wait()[:] = 5
    saving, go = threading.Event(), threading.Event()

    def slow(memory: Bytes) -> int:
        saving.set()
        assert go.wait(300)
        return disk.save(1)(memory)

    pool.unpin(1, save=slow)
    with ThreadPoolExecutor(1) as executor:
        saved = executor.submit(pool.write_back, 1)
        assert saving.wait(300)
        pool.pin(2, SIZE).wait()[:] = 7
        with pytest.raises(BudgetExceededError):
            pool.pin(3, SIZE)
        go.set()
        assert saved.result(timeout=300) == SIZE
    assert disk.saved[1] == bytes([5]) * SIZE
    pool.pin(3, SIZE)
    assert 1 not in pool
