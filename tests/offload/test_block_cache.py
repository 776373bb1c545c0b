"""The cache: blocks resident when they are used, right whatever fails, inside what it may take."""

from __future__ import annotations

import errno
import gc
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from accelera.errors import BudgetExceededError, StoreError
from accelera.memory._internal import Use
from accelera.offload.backing import FileRegion, OpenFile, RamBacking, RamRegion
from accelera.offload.block_cache import BlockCache
from accelera.offload.config import OffloadConfig
from accelera.offload.device_memory import AcceleratorMemory
from tests.laws.test_offload_replay import LOOP, assert_law
from tests.offload.streamed import BLOCK_BYTES, Run, Step
from tests.threads import run_in_threads

PLACES: dict[str, Callable[[], dict[str, Any]]] = {
    "cpu": dict,
    "accelerator and ram": lambda: {"memory": AcceleratorMemory("cpu"), "backing": RamBacking()},
    "accelerator and disk": lambda: {"memory": AcceleratorMemory("cpu")},
}
"""``AcceleratorPlace("cpu")`` runs the code of accelerators without streams."""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("nbytes", [BLOCK_BYTES, 3 * BLOCK_BYTES + 5, 70 * BLOCK_BYTES])
def test_training_in_every_place(place: str, nbytes: int) -> None:
    run = Run([nbytes] * 25, 9 * nbytes, **PLACES[place]())
    for step in LOOP * 3:
        run.step(step)
    assert_law(run.cache)
    run.check_homes()
    run.cache.close()


def test_blocks_of_many_sizes_never_take_more_than_the_capacity() -> None:
    sizes = [(1 + 7 * number % 11) * BLOCK_BYTES + number for number in range(12)]
    run = Run(sizes, 30 * BLOCK_BYTES, prefetch_bytes=4 * BLOCK_BYTES)
    for _ in range(6):
        for number in range(12):
            run.step(Step(reads=(number,), changes=((5 * number + 1) % 12,)))
    assert run.cache.peak_allocated_bytes <= 30 * BLOCK_BYTES
    assert_law(run.cache)
    run.cache.close()


def test_a_tensor_is_cut_by_rows() -> None:
    cache = BlockCache(1 << 20, OffloadConfig(block_bytes=1000))
    content = torch.arange(7 * 100, dtype=torch.float32).view(7, 100)
    blocks = cache.adopt(content.t().contiguous().t(), "w", "weight")
    assert [(block.name, block.nbytes) for block in blocks] == [
        ("w[0:2]", 800),
        ("w[2:4]", 800),
        ("w[4:6]", 800),
        ("w[6:7]", 400),
    ]
    with cache.use([Use(block) for block in blocks]) as parts:
        assert torch.equal(torch.cat(parts).view(torch.float32).view(7, 100), content)
    cache.close()


@pytest.mark.parametrize("place", PLACES)
def test_room_for_joined_blocks_is_given_back_with_the_tensor(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[int] = []
    for kind in (FileRegion, RamRegion):
        monkeypatch.setattr(kind, "release", lambda home: released.append(home.nbytes))
    cache = BlockCache(1 << 20, OffloadConfig(block_bytes=1000), **PLACES[place]())
    content = torch.arange(700, dtype=torch.float32).view(7, 100)
    blocks = cache.adopt(content, "w", "weight")
    joined = cache.joined(blocks)
    assert torch.equal(joined.view(torch.float32).view(7, 100), content)
    assert not released
    del joined
    gc.collect()
    assert released == [2800]
    cache.close()


def test_a_saving_under_way_never_lands_in_what_took_the_home_of_the_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, write = threading.Event(), FileRegion.write

    def late(home: FileRegion, start: int, data: Any) -> int:
        if threading.current_thread().name == "accelera-write":
            go.wait(300)
        return write(home, start, data)

    monkeypatch.setattr(FileRegion, "write", late)
    cache = BlockCache(150, OffloadConfig(block_bytes=150, prefetch_bytes=150, store=tmp_path))
    block, other = cache.create(100), cache.create(10)
    for each in (block, other):
        with cache.use([Use(each, False, True)]) as (memory,):
            memory.fill_(1)
    cache.free(block)
    cache.report()
    (wrap,) = cache.adopt(torch.full((100,), 7, dtype=torch.uint8))
    go.set()
    cache.flush()
    assert cache.mapped(wrap).tolist() == [7] * 100
    cache.close()


def test_what_is_attached_is_read_and_saved_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(bytes(range(200)))
    home = FileRegion(OpenFile.existing(tmp_path / "weights"), 10, 100)
    cache = BlockCache(100, OffloadConfig(store=tmp_path))
    block, other = cache.attach(home, 100, "w"), cache.create(100)
    with cache.use([Use(block, True, True)]) as (memory,):
        assert memory.tolist() == list(range(10, 110))
        memory += 1
    with cache.use([Use(other, False, True)]) as (memory,):
        memory.zero_()
    with cache.use([Use(block)]) as (memory,):
        assert memory.tolist() == list(range(11, 111))
    assert (tmp_path / "weights").read_bytes() == bytes(range(200))
    assert cache.mapped(block).tolist() == list(range(11, 111))
    cache.close()


def test_one_use_of_too_much_is_refused_and_says_what_would_do() -> None:
    cache = BlockCache(1000)
    blocks = [cache.create(600), cache.create(600)]
    with pytest.raises(BudgetExceededError) as caught, cache.use([Use(each) for each in blocks]):
        pass
    assert caught.value.needed_bytes == 1200
    with cache.use([Use(blocks[1], False, True)]):
        pass
    cache.close()


class Failing:
    """A home that works when it is told to."""

    writable = True

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.content = torch.zeros(nbytes, dtype=torch.uint8).numpy()
        self.fails = False

    def read(self, start: int, out: Any) -> int:
        self._check()
        out[:] = self.content[start : start + out.nbytes]
        return int(out.nbytes)

    def write(self, start: int, data: Any) -> int:
        self._check()
        self.content[start : start + data.nbytes] = data
        return int(data.nbytes)

    def resident(self) -> None:
        pass

    def mapped(self) -> Any:
        return self.content

    def release(self) -> None:
        pass

    def _check(self) -> None:
        if self.fails:
            raise StoreError(errno.ENOSPC, "disk full")


def test_what_cannot_be_read_is_told_and_read_again_later() -> None:
    cache, home = BlockCache(200, OffloadConfig(record=True)), Failing(100)
    block, other = cache.attach(home, 100, "w"), cache.create(100)
    home.fails = True
    for _ in range(2):
        with pytest.raises(StoreError, match="disk full"), cache.use([Use(other, False, True), Use(block)]):
            pass
    home.fails = False
    with cache.use([Use(other), Use(block)]) as (_, memory):
        assert memory.tolist() == [0] * 100
    cache.close()


def test_nothing_is_lost_when_the_disk_is_full() -> None:
    cache, home = BlockCache(100, OffloadConfig(record=True)), Failing(100)
    block, other = cache.attach(home, 100, "w"), cache.create(100, "other")
    with cache.use([Use(block, False, True)]) as (memory,):
        memory.fill_(7)
    home.fails = True
    for _ in range(2):
        with pytest.raises(StoreError, match="disk full"), cache.use([Use(other, False, True)]):
            pass
    home.fails = False
    with cache.use([Use(other, False, True)]) as (memory,):
        memory.fill_(9)
    with cache.use([Use(block)]) as (memory,):
        assert memory.tolist() == [7] * 100
    cache.close()


def test_an_operation_that_raises_lets_go() -> None:
    cache = BlockCache(100)
    block, other = cache.create(100), cache.create(100)
    with pytest.raises(KeyError), cache.use([Use(block, False, True)]):
        raise KeyError
    with cache.use([Use(other, False, True)]):
        pass
    cache.close()


def test_blocks_freed_while_they_are_used_go_afterwards() -> None:
    cache = BlockCache(100, OffloadConfig(record=True))
    block = cache.create(100)
    with cache.use([Use(block, False, True)]) as (memory,):
        cache.free(block)
        cache.report()
        memory.zero_()
    other = cache.create(100)
    assert other.id == block.id
    with cache.use([Use(other, False, True)]):
        pass
    assert_law(cache)
    cache.close()


def test_several_threads() -> None:
    run = Run([BLOCK_BYTES] * 20, 12 * BLOCK_BYTES)
    raised: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for each in range(60):
                run.step(Step(reads=((first + each) % 10,), changes=(10 + first,)))
        except BaseException as error:
            raised.append(error)

    run_in_threads(*(partial(work, first) for first in range(4)))
    assert not raised
    assert_law(run.cache)
    run.check_homes()
    run.cache.close()


def test_without_a_recorder_there_is_no_trace() -> None:
    with pytest.raises(ValueError, match=r"offload with record=True"):
        BlockCache(100).trace()


def test_a_report() -> None:
    run = Run([BLOCK_BYTES] * 6, 3 * BLOCK_BYTES)
    for number in (*range(6), *range(6)):
        run.step(Step(reads=(number,)))
    report = run.cache.report()
    assert report.uses == 12
    assert report.peak_bytes == report.capacity_bytes == 3 * BLOCK_BYTES
    assert report.hits + report.misses >= 12
    assert report.stall_s > 0 < report.compute_s
    run.cache.close()
