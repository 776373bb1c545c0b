import threading

import numpy as np
import pytest
import torch

from accelera.chunking import AdaptiveChunking, ChunkIterator, RowChunking, TileChunking


class SlowStore:
    """Counts reads and lets the test decide when each may finish."""

    def __init__(self, data):
        self.data, self.shape, self.dtype = data, data.shape, data.dtype
        self.begun = threading.Semaphore(0)
        self.may_finish = threading.Semaphore(0)
        self.reads = 0

    def read(self, region, out):
        self.reads += 1
        self.begun.release()
        assert self.may_finish.acquire(timeout=300)
        out[...] = self.data[region]
        return out.nbytes


class Memory:
    def __init__(self, share=1.0):
        self.share = share
        self.moved = []

    def get_available_memory(self):
        return int(self.share * 1000)

    def get_total_memory(self):
        return 1000

    def move_to_gpu(self, tensor):
        self.moved.append(threading.current_thread().name)
        return tensor


DATA = np.arange(60, dtype=np.float32).reshape(12, 5)


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("wrap", [lambda x: x, torch.from_numpy], ids=["numpy", "torch"])
def test_chunks_come_in_order_as_views_of_the_same_kind(wrap, prefetch):
    tensor = wrap(DATA)
    chunks = list(ChunkIterator(tensor, RowChunking(), 5, Memory(), prefetch=prefetch))
    assert all(type(chunk) is type(tensor) for chunk in chunks)
    np.testing.assert_array_equal(np.concatenate([np.asarray(chunk) for chunk in chunks]), DATA)
    assert all(np.shares_memory(np.asarray(chunk), DATA) for chunk in chunks)


def test_it_may_be_iterated_again():
    iterator = ChunkIterator(DATA, TileChunking((4, 2)), 1)
    assert [chunk.shape for chunk in iterator] == [chunk.shape for chunk in iterator]


def test_the_next_chunk_really_loads_while_the_present_one_is_worked_on():
    store = SlowStore(DATA)
    store.may_finish.release()
    chunks = iter(ChunkIterator(store, RowChunking(), 3))
    np.testing.assert_array_equal(next(chunks), DATA[:3])
    assert store.begun.acquire(timeout=300)
    assert store.begun.acquire(timeout=300), "the second read has begun though nobody asked for it yet"
    assert store.reads == 2, "one chunk ahead, never more"
    store.may_finish.release(4)
    assert len(list(chunks)) == 3


def test_nothing_is_loaded_ahead_when_told_so(monkeypatch):
    for prefetch, variable in ((False, "true"), (True, "false")):
        monkeypatch.setenv("ACCELERA_ENABLE_PREFETCH", variable)
        store = SlowStore(DATA)
        store.may_finish.release(4)
        chunks = iter(ChunkIterator(store, RowChunking(), 3, prefetch=prefetch))
        next(chunks)
        assert store.reads == 1


def test_nothing_is_loaded_ahead_under_pressure():
    memory = Memory(share=0.25)
    assert len(list(ChunkIterator(DATA, RowChunking(), 3, memory))) == 4
    assert memory.moved == [threading.current_thread().name] * 4
    memory = Memory(share=0.9)
    list(ChunkIterator(DATA, RowChunking(), 3, memory))
    assert all(name.startswith("accelera-prefetch") for name in memory.moved)


def test_an_error_of_the_reader_is_raised_in_the_loop():
    class Torn(SlowStore):
        def read(self, region, out):
            if region[0].start == 6:
                raise OSError("short read")
            out[...] = self.data[region]

    seen = []
    with pytest.raises(OSError, match="short read"):
        for chunk in ChunkIterator(Torn(DATA), RowChunking(), 3):
            seen.append(chunk)
    assert len(seen) == 2
    assert not prefetch_threads()


def test_leaving_early_ends_the_thread():
    for _ in ChunkIterator(DATA, RowChunking(), 3):
        break
    assert not prefetch_threads()


def prefetch_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("accelera-prefetch")]


def test_a_chunk_that_found_no_room_ahead_is_loaded_when_asked_for():
    class Full(Memory):
        def move_to_gpu(self, tensor):
            super().move_to_gpu(tensor)
            if len(self.moved) == 2:
                raise MemoryError("no room for two chunks")
            return tensor

    memory, strategy = Full(), AdaptiveChunking()
    chunks = list(ChunkIterator(DATA, strategy, 4, memory))
    np.testing.assert_array_equal(np.concatenate(chunks), DATA)
    assert memory.moved.count(threading.current_thread().name) == 1
    assert [len(chunk) for chunk in chunks] == [4, 4, 2, 2], "the chunks after it are smaller"


def test_memory_maps_are_read_by_the_thread(tmp_path):
    np.save(tmp_path / "a.npy", DATA)
    chunks = list(ChunkIterator(np.load(tmp_path / "a.npy", mmap_mode="r"), RowChunking(), 5))
    assert not any(isinstance(chunk, np.memmap) for chunk in chunks)
    np.testing.assert_array_equal(np.concatenate(chunks), DATA)
