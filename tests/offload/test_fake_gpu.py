"""The cache and its places on a fake GPU: streams, and pinned homes."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import accelera as acc
from accelera.devices import get_device
from accelera.devices.torch_staging import PIECE_BYTES, SLOTS
from accelera.errors import BudgetExceededError
from accelera.memory._internal import Use
from accelera.offload import block_cache as keeping
from accelera.offload.api import hand_over
from accelera.offload.backing import RamBacking, ScratchBacking
from accelera.offload.block_cache import BlockCache
from accelera.offload.budgets import require_floor, reserved_on
from accelera.offload.device_memory import AcceleratorMemory
from accelera.offload.memory_guard import held_on
from accelera.testing import FakeCuda
from tests.laws.test_offload_replay import LOOP, assert_law
from tests.offload.streamed import BLOCK_BYTES, Run, Step

GPU = torch.device("cuda:0")


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    with FakeCuda("1GiB") as fake:
        yield fake


@pytest.fixture(params=["ram", "disk"])
def options(request: pytest.FixtureRequest, tmp_path: Path, cuda: FakeCuda) -> dict[str, Any]:
    backing = RamBacking(pinned_for=GPU) if request.param == "ram" else ScratchBacking(tmp_path)
    return {"memory": AcceleratorMemory("cuda:0"), "backing": backing}


@pytest.mark.parametrize("nbytes", [BLOCK_BYTES, 70 * BLOCK_BYTES + 5])
def test_blocks_stream_without_a_race(options: dict[str, Any], nbytes: int) -> None:
    run = Run([nbytes] * 25, 9 * nbytes, **options)
    for step in LOOP * 2:
        run.step(step)
    assert_law(run.cache)
    run.check_homes()
    run.cache.close()


def test_two_streams_compute_with_the_same_blocks(options: dict[str, Any]) -> None:
    """Uses that overlap: what comes next into a slab waits for both."""
    nbytes = 64 * BLOCK_BYTES
    run = Run([nbytes] * 6, 3 * nbytes, **options)
    streams = [torch.Stream("cuda") for _ in range(2)]
    sums, expected = [], []
    for turn in range(4):
        for number in range(0, 6, 2):
            uses = [Use(run.blocks[number], True, False)]
            first, second = (run.cache.use(uses, "read") for _ in range(2))
            with streams[0], first as (one,), streams[1], second as (other,):
                sums.append(other.to(torch.int64).sum())
                with streams[0]:
                    sums.append(one.to(torch.int64).sum())
            expected += [nbytes * (run.values[number] % 251)] * 2
            with streams[turn % 2]:
                run.step(Step(reads=(number,), changes=((number + 1) % 6,)))
    torch.accelerator.synchronize()
    assert [int(each) for each in sums] == expected
    run.cache.close()


def test_pinned_memory_is_unpinned_however_it_goes(cuda: FakeCuda) -> None:
    backing = RamBacking(pinned_for=GPU)
    kept = [backing.create(5000) for _ in range(6)]
    assert [(each.nbytes, each.flags) for each in cuda.registered.values()] == [(5000, 1)] * 6
    kept.pop().release()
    assert len(cuda.registered) == 5
    view = torch.from_numpy(kept[-1].resident()[100:200])
    del kept[-2:]
    gc.collect()
    assert len(cuda.registered) == 4, "a view holds the memory"
    del view
    gc.collect()
    assert len(cuda.registered) == 3
    backing.close()
    assert not cuda.registered
    kept[0].release()
    backing.create(5000)
    backing.create(0)
    gc.collect()
    assert not cuda.registered


def test_a_keeper_leaves_nothing_pinned(cuda: FakeCuda) -> None:
    cache = BlockCache(1 << 20, device="cuda:0")
    for number in range(8):
        cache.adopt(torch.full((4096,), number, dtype=torch.uint8))
    assert len(cuda.registered) == 8
    cache.close()
    assert not cuda.registered
    cache = BlockCache(1 << 20, device="cuda:0")
    blocks = [cache.adopt(torch.ones(4096, dtype=torch.uint8))[0] for _ in range(3)]
    for block in blocks:
        cache.free(block)
    cache.reap()
    assert not cuda.registered
    cache.close()
    dropped = BlockCache(1 << 20, device="cuda:0")
    (block,) = dropped.adopt(torch.ones(4096, dtype=torch.uint8))
    with dropped.use([Use(block, True, True)]) as (memory,):
        memory.fill_(1)
    assert cuda.registered
    del dropped, block, memory
    gc.collect()
    assert not cuda.registered


def test_a_restored_model_leaves_nothing_pinned(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one that is closed; its homes are let go of, not when something else happens to be moved."""
    monkeypatch.setattr(keeping, "_backing_for", lambda *_: RamBacking(pinned_for=GPU))
    for end in ("restore", "close"):
        model = acc.offload(torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]), device="cpu")
        assert cuda.registered
        getattr(acc.offloaded(model), end)()
        assert not cuda.registered, end


def test_memory_is_pinned_by_the_device_that_uses_it() -> None:
    with FakeCuda("1GiB", devices=2) as cuda:
        backing = RamBacking(pinned_for=torch.device("cuda:1"))
        home = backing.create(4096)
        assert [each.device for each in cuda.registered.values()] == [1]
        assert (cuda.contexts, cuda.device) == ({1}, 0)
        home.release()


def test_memory_that_cuda_does_not_pin_is_used_as_it_is(
    cuda: FakeCuda, caplog: pytest.LogCaptureFixture
) -> None:
    """The refusal does not come up again as the error of the next kernel, and is told once."""
    cuda.refuses_to_pin = 712
    with caplog.at_level(logging.WARNING, "accelera.offload"):
        run = Run([BLOCK_BYTES] * 6, 3 * BLOCK_BYTES, device="cuda:0")
        torch.zeros(1, device="cuda")
        for step in LOOP[:6]:
            run.step(Step(reads=tuple(each % 6 for each in step.reads)))
    run.cache.close()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert told[0].startswith("CUDA does not pin 4.0 KiB of RAM (error 712)")


def test_what_a_device_holds_is_counted_as_it_was_asked_for(cuda: FakeCuda) -> None:
    """A slab of 11 MiB takes a segment of 12; a budget of 11 holds it."""
    held = held_on(GPU)
    slab = torch.empty(11 << 20, dtype=torch.uint8, device="cuda")
    assert (held(), torch.cuda.memory_allocated()) == (11 << 20, 12 << 20)
    del slab
    assert held() == 0


def test_weights_that_were_handed_over_leave_no_memory_reserved(cuda: FakeCuda) -> None:
    weights = torch.ones(30 << 20, dtype=torch.uint8, device="cuda")
    cache = BlockCache(1 << 20, device="cuda:0")
    del weights
    assert torch.cuda.memory_reserved() == 30 << 20
    hand_over(torch.nn.Linear(2, 2), cache, None, "auto")
    assert torch.cuda.memory_reserved() == 0
    cache.close()


def test_the_reserve_has_what_products_and_transfers_keep(cuda: FakeCuda) -> None:
    """cuBLAS and cuBLASLt 32 MiB each on this card, and four buffers."""
    reserved = reserved_on(get_device("cuda"))
    assert reserved["arithmetic"] == (64 << 20) + SLOTS * PIECE_BYTES
    with pytest.raises(BudgetExceededError, match="raise it to at least"):
        require_floor("offload", 64 << 20, [torch.zeros(10)], get_device("cuda"), train=False)


def test_a_home_is_written_where_it_is_pinned(cuda: FakeCuda) -> None:
    backing = RamBacking(pinned_for=GPU)
    home = backing.create(1000)
    home.write(10, np.arange(5, dtype=np.uint8))
    assert home.mapped()[10:15].tolist() == [0, 1, 2, 3, 4]
    backing.close()
