from types import SimpleNamespace

import numpy as np
import pytest
import torch

from accelera.errors import DeviceMemoryError, ShapeError
from accelera.memory import MemoryManager
from accelera.memory._internal import host_memory, itemsize_of
from accelera.memory_manager import MemoryManager as FrontDoor

MIB = 2**20


class Card:
    """A device with a memory of its own, as the manager sees one."""

    name = "card:0"
    host_memory = False

    def __init__(self, total_bytes, available_bytes):
        self.total, self.available, self.readings, self.emptied = total_bytes, available_bytes, 0, 0

    def total_bytes(self):
        return self.total

    def available_bytes(self):
        self.readings += 1
        return self.available

    def empty_cache(self):
        self.emptied += 1

    def allocate(self, nbytes):
        self.available -= nbytes
        return np.empty(nbytes, np.uint8)

    def release(self, buffer):
        self.available += buffer.nbytes

    def view(self, buffer, shape, dtype, order):
        return buffer.view(dtype).reshape(shape)

    def upload(self, host, target):
        target[...] = host


def test_front_door():
    assert FrontDoor is MemoryManager


def test_without_a_device_the_ram_is_the_budgeted_tier():
    manager = MemoryManager(threshold=1.0)
    assert manager.get_total_memory() == host_memory().limit_bytes
    assert 0 < manager.get_usable_memory() <= manager.get_total_memory()
    info = manager.get_memory_info()
    assert set(info) == {
        "gpu_allocated_gb",
        "gpu_cached_gb",
        "gpu_available_gb",
        "gpu_total_gb",
        "gpu_utilization",
        "cpu_available_gb",
        "cpu_total_gb",
        "cpu_utilization",
    }
    assert info["gpu_total_gb"] == info["cpu_total_gb"] == pytest.approx(manager.get_total_memory() / 1e9)
    assert 0 <= info["gpu_utilization"] <= 100
    assert info["gpu_allocated_gb"] > 0


def test_memory_info_of_a_card():
    info = MemoryManager(Card(4_000_000_000, 1_000_000_000)).get_memory_info()
    assert info["gpu_total_gb"] == 4
    assert info["gpu_available_gb"] == 1
    assert info["gpu_allocated_gb"] == 3
    assert info["gpu_utilization"] == 75


def test_the_threshold_keeps_a_share_for_others(monkeypatch):
    card = Card(1000 * MIB, 500 * MIB)
    assert MemoryManager(card, threshold=0.8).get_usable_memory() == 300 * MIB
    assert MemoryManager(card, threshold=0.3).get_usable_memory() == 0
    monkeypatch.setenv("ACCELERA_MEMORY_THRESHOLD", "0.6")
    assert MemoryManager(card).get_usable_memory() == 100 * MIB


def test_small_requests_are_granted_unseen_and_modest_ones_from_one_reading(monkeypatch):
    monkeypatch.setattr("accelera.memory.manager.time", SimpleNamespace(monotonic=lambda: 1.0))
    card = Card(1000 * MIB, 1000 * MIB)
    manager = MemoryManager(card, threshold=1.0)
    assert manager.can_allocate(MIB)
    assert card.readings == 0
    assert all(manager.can_allocate(10 * MIB) for _ in range(5))
    assert card.readings == 1
    assert not manager.can_allocate(1001 * MIB)


def test_grants_from_one_reading_add_up():
    card = Card(1000 * MIB, 100 * MIB)
    manager = MemoryManager(card, threshold=1.0)
    for _ in range(4):
        assert manager.can_allocate(24 * MIB)
        card.available -= 24 * MIB
    assert not manager.can_allocate(24 * MIB)


@pytest.mark.parametrize(
    ("m", "k", "n", "usable", "rows"),
    [
        (20_000, 15_000, 8_000, 4_000_000_000, 20_000),
        (10_000, 8_000, 12_000, 8_000_000_000, 10_000),
        (32_768, 32_768, 8_192, 8_000_000_000, 2**15),
        (32_768, 32_768, 8_192, 3_000_000_000, (3_000_000_000 - 2**30) // (4 * 40_960)),
        (32_768, 32_768, 32_768, 1_000_000_000, 1_000_000_000 // (8 * 32_768)),
        (100, 100, 100, 0, 1),
    ],
    ids=["one chunk", "one chunk too", "all fits", "what B leaves", "B streamed", "never below one row"],
)
def test_matmul_chunks_fill_the_memory_and_fit_in_it(m, k, n, usable, rows):
    manager = MemoryManager(Card(usable, usable), threshold=1.0)
    assert manager.get_optimal_chunk_size((m, k), (k, n), np.float32) == min(rows, m)


def test_chunk_size_knows_the_element_size_and_the_operation():
    manager = MemoryManager(Card(2**30, 2**30), threshold=1.0)
    f32, f64 = (
        manager.get_optimal_chunk_size((2**20, 512), None, dtype, "add")
        for dtype in ("float32", torch.float64)
    )
    assert f32 == 2 * f64 == 2**30 // (3 * 512 * 4)


def test_chunk_size_stays_within_the_variables(monkeypatch):
    manager = MemoryManager(Card(2**30, 2**30), threshold=1.0)
    monkeypatch.setenv("ACCELERA_MAX_CHUNK_SIZE", "50")
    assert manager.get_optimal_chunk_size((1000, 10), (10, 10)) == 50
    monkeypatch.delenv("ACCELERA_MAX_CHUNK_SIZE")
    monkeypatch.setenv("ACCELERA_MIN_CHUNK_SIZE", "300")
    full = MemoryManager(Card(2**30, 0), threshold=1.0)
    assert full.get_optimal_chunk_size((1000, 10), (10, 10)) == 300
    assert full.get_optimal_chunk_size((100, 10), (10, 10)) == 100


def test_matmul_chunks_need_shapes_that_fit():
    for other in (None, (3, 4), (4,)):
        with pytest.raises(ShapeError, match="both shapes"):
            MemoryManager().get_optimal_chunk_size((4, 4), other)


@pytest.mark.parametrize(
    ("dtype", "size"), [(np.float64, 8), ("float16", 2), (np.dtype("c8"), 8), (torch.bfloat16, 2)]
)
def test_estimate_size_takes_either_kind_of_dtype(dtype, size):
    assert itemsize_of(dtype) == size
    assert MemoryManager().estimate_size((3, 5), dtype) == 15 * size


def test_moves_check_first_and_give_the_memory_back():
    card = Card(10 * MIB, 10 * MIB)
    manager = MemoryManager(card, threshold=1.0)
    data = np.arange(2 * MIB, dtype=np.float32)
    moved = manager.move_to_gpu(data)
    np.testing.assert_array_equal(moved, data)
    assert card.available == 2 * MIB
    with pytest.raises(DeviceMemoryError, match=r"8\.0 MiB do not fit on card:0: 2\.0 MiB of 10\.0 MiB"):
        manager.move_to_gpu(data)
    del moved
    assert card.available == 10 * MIB


def test_tensors_go_to_a_torch_device_by_torch():
    class TorchCard(Card):
        name = "meta"

        def allocate(self, nbytes):
            return torch.empty(nbytes, dtype=torch.uint8, device="meta")

        def release(self, buffer):
            pass

    moved = MemoryManager(TorchCard(MIB, MIB), threshold=1.0).move_to_gpu(torch.ones(4, dtype=torch.bfloat16))
    assert (moved.device.type, moved.dtype) == ("meta", torch.bfloat16)


def test_a_move_that_fails_gives_the_memory_back():
    class Broken(Card):
        def upload(self, host, target):
            raise RuntimeError("the link is down")

    card = Broken(10 * MIB, 10 * MIB)
    with pytest.raises(RuntimeError, match="link"):
        MemoryManager(card, threshold=1.0).move_to_gpu(np.ones(MIB))
    assert card.available == 10 * MIB


def test_on_the_cpu_nothing_moves():
    manager = MemoryManager()
    data, tensor = np.ones(4), torch.ones(4)
    assert manager.move_to_gpu(data) is data
    assert manager.move_to_cpu(data) is data
    assert manager.move_to_gpu(tensor) is tensor
    assert manager.move_to_cpu(tensor) is tensor


def test_cleanup_empties_the_cache():
    card = Card(MIB, MIB)
    MemoryManager(card).cleanup()
    assert card.emptied == 1
