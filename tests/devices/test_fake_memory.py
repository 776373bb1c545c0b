"""Memory and errors of the fakes, as PyTorch's CUDA allocator and CUDA itself have them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accelera import _native
from accelera.devices import get_device
from accelera.errors import DeviceError, DeviceMemoryError
from accelera.testing import FakeCuda, FakeGpu, sticky
from accelera.testing._internal import CachingAllocator

KIB, MIB = 1 << 10, 1 << 20


def reserved(memory: CachingAllocator) -> int:
    return memory.reserved.current


@pytest.mark.parametrize(
    ("asked", "taken", "segment"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (33 * MIB + 1, 34 * MIB, 34 * MIB),
    ],
)
def test_sizes_are_rounded_as_torch_does(asked: int, taken: int, segment: int) -> None:
    """A large block that would leave 1 MiB or less is not cut: the last one takes all of 34 MiB."""
    memory = CachingAllocator(1 << 30)
    block = memory.allocate(asked)
    assert (block.nbytes, reserved(memory)) == (taken, segment)
    assert (memory.allocated.current, memory.requested.current) == (taken, asked)
    memory.free(block)
    assert (memory.allocated.current, memory.requested.current, reserved(memory)) == (0, 0, segment)
    memory.empty_cache()
    assert reserved(memory) == 0
    assert memory.allocated.peak == taken


def test_what_is_free_in_pieces_is_not_free_in_one() -> None:
    memory = CachingAllocator(64 * MIB)
    blocks = [memory.allocate(12 * MIB) for _ in range(5)]
    for block in blocks[::2]:
        memory.free(block)
    assert memory.allocated.current == 24 * MIB
    block = memory.allocate(20 * MIB)
    assert memory.retries == 1, "whole segments were given back for it"
    memory.free(block)
    with pytest.raises(MemoryError, match=r"Tried to allocate 44\.0 MiB.*24\.0 MiB is allocated"):
        memory.allocate(44 * MIB)
    cut = CachingAllocator(40 * MIB)
    parts = [cut.allocate(4 * MIB) for _ in range(10)]
    for part in parts[::2]:
        cut.free(part)
    with pytest.raises(MemoryError):
        cut.allocate(8 * MIB)
    assert (cut.allocated.current, reserved(cut)) == (20 * MIB, 40 * MIB)


def test_streams_have_caches_of_their_own() -> None:
    memory = CachingAllocator(1 << 30)
    memory.free(memory.allocate(4 * MIB, stream=1))
    assert memory.allocate(4 * MIB, stream=2).segment == 1
    assert memory.allocate(4 * MIB, stream=1).segment == 0


def test_a_block_that_another_stream_uses_is_not_given_out_before_that_is_done() -> None:
    done: list[str] = []
    memory = CachingAllocator(1 << 30, recorded=lambda stream: f"work of {stream}", is_done=done.__contains__)
    block = memory.allocate(4 * MIB, stream=1)
    memory.record_stream(block, 2)
    memory.free(block)
    assert memory.allocate(4 * MIB, stream=1).start != block.start
    assert not memory.empty_cache()
    done.append("work of 2")
    assert memory.allocate(4 * MIB, stream=1).start == block.start


@given(
    st.lists(
        st.one_of(st.tuples(st.integers(1, 40 * MIB), st.integers(0, 1)), st.integers(0, 50)), max_size=60
    )
)
def test_blocks_never_overlap_and_nothing_is_lost(steps: list[Any]) -> None:
    memory, live = CachingAllocator(256 * MIB), list[Any]()
    for step in steps:
        if isinstance(step, tuple):
            try:
                live.append(memory.allocate(*step))
            except MemoryError:
                assert memory.free_bytes < step[0] + 20 * MIB
        elif live:
            memory.free(live.pop(step % len(live)))
        spans = sorted((each.segment, each.start, each.start + each.nbytes) for each in live)
        assert all(a[0] != b[0] or a[2] <= b[1] for a, b in itertools.pairwise(spans))
        assert memory.allocated.current == sum(each.nbytes for each in live)
        assert memory.allocated.current <= reserved(memory) <= 256 * MIB
    for block in live:
        memory.free(block)
    memory.empty_cache()
    assert (memory.allocated.current, reserved(memory)) == (0, 0)


def test_a_fake_gpu_runs_out_of_bytes() -> None:
    gpu = FakeGpu(memory=100 * MIB, task_bytes=lambda task: task * MIB)
    assert gpu.execute_batch([10, 20], abs) == [10, 20]
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        gpu.execute_batch([60, 60], abs)
    assert gpu.memory_available() == 100 * MIB
    gpu.empty_cache()
    assert gpu.memory.reserved.current == 0


def test_a_fake_gpu_stays_dead() -> None:
    gpu = FakeGpu(faults={1: sticky})
    assert gpu.execute_batch([1], abs) == [1]
    for _ in range(3):
        with pytest.raises(RuntimeError, match="illegal memory access") as caught:
            gpu.execute_batch([1], abs)
        assert type(caught.value) is getattr(torch, "AcceleratorError", RuntimeError)
    gpu.revive()
    assert gpu.execute_batch([1], abs) == [1]


@pytest.mark.parametrize(
    "use",
    [
        lambda device, buffer: device.allocate(64),
        lambda device, buffer: device.synchronize(),
        lambda device, buffer: device.empty_cache(),
        lambda device, buffer: device.admit(buffer),
        lambda device, buffer: device.available_bytes(),
    ],
    ids=["allocate", "synchronize", "empty_cache", "admit", "available_bytes"],
)
def test_a_dead_device_says_so_everywhere(use: Callable[[Any, Any], Any]) -> None:
    with FakeCuda("1GiB") as cuda:
        device: Any = get_device("cuda")
        buffer = device.allocate(4096)
        device.transfer(torch.zeros(4096, dtype=torch.uint8).pin_memory(), buffer)
        cuda.die()
        with pytest.raises(RuntimeError, match="illegal memory access"):
            use(device, buffer)


def test_memory_is_counted_as_torch_does() -> None:
    with FakeCuda("1GiB") as cuda:
        device = get_device("cuda")
        before = device.available_bytes()
        buffer = device.allocate(5 * MIB + 1)
        assert torch.cuda.memory_allocated() == 5 * MIB + 512
        stats = torch.cuda.memory_stats_as_nested_dict()
        assert stats["requested_bytes"]["all"]["current"] == 5 * MIB + 1
        assert before - device.available_bytes() == 5 * MIB + 512, "what torch keeps for reuse can be had"
        device.release(buffer)
        del buffer
        assert torch.cuda.memory_allocated() == 0
        assert torch.cuda.memory_reserved() == 20 * MIB
        cuda.memories[0].taken_by_others_bytes = 900 * MIB
        with pytest.raises(DeviceMemoryError, match="work in smaller blocks"):
            device.allocate(200 * MIB)
        device.empty_cache()
        assert torch.cuda.memory_reserved() == 0


def test_a_refusal_to_pin_is_raised_by_the_next_launch() -> None:
    with FakeCuda() as cuda:
        cuda.refuses_to_pin = 712
        memory = torch.zeros(4096, dtype=torch.uint8)
        assert torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), 4096, 1) == 712
        with pytest.raises(RuntimeError, match="712"):
            torch.zeros(1, device="cuda")
        torch.zeros(1, device="cuda")


def test_no_kernel_of_ours_is_launched_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the package was built for CUDA, too."""
    monkeypatch.setattr(_native, "cuda_compiled", lambda: True)
    with FakeCuda():
        assert not get_device("cuda").multiplies(np.dtype(np.int32))


def test_torch_is_itself_again_afterwards() -> None:
    before = torch.Stream, torch.empty, torch.cuda.is_available(), torch.accelerator.is_available()
    with FakeCuda():
        kept = torch.ones(3, device="cuda")
        assert torch.cuda.is_available()
    assert before == (torch.Stream, torch.empty, torch.cuda.is_available(), torch.accelerator.is_available())
    assert float(kept.sum()) == 3, "what outlives it is an ordinary tensor"
    assert torch.ones(2).to("cpu").device.type == "cpu"
    if not torch.cuda.is_available():
        with pytest.raises(DeviceError):
            get_device("cuda")
