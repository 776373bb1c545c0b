"""Blocks saved, and shared by threads, while uses of them are expected or under way: nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from accelera.memory._internal import Use
from accelera.offload.block_cache import BlockCache
from accelera.offload.config import OffloadConfig
from accelera.offload.module import offloaded_tensors, swap_in
from tests.children import answer_of
from tests.offload.pools import values
from tests.threads import run_in_threads


def _flush(model: nn.Module, cache: BlockCache) -> None:
    cache.flush()


def _mapped(model: nn.Module, cache: BlockCache) -> None:
    for tensor in offloaded_tensors(model):
        tensor.block_storage.mapped()


@pytest.mark.parametrize("save", [_flush, _mapped])
def test_a_change_that_was_expected_while_blocks_were_saved_is_kept(
    save: Callable[[nn.Module, BlockCache], None], tmp_path: Path
) -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    cache = BlockCache(48 << 10, OffloadConfig(least_bytes=64, block_bytes=16 << 10, store=tmp_path))
    swap_in(model, cache)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for step in range(6):
            for number, parameter in enumerate(model.parameters()):
                parameter.add_(step + 1)
                if number % 2 == 0:
                    save(model, cache)
    assert [values(each).unique().tolist() for each in model.parameters()] == [[21.0]] * 8


def test_a_change_under_way_while_another_thread_saves_is_kept(tmp_path: Path) -> None:
    cache = BlockCache(100, OffloadConfig(block_bytes=100, store=tmp_path))
    block, other = cache.create(100), cache.create(100)
    with cache.use([Use(block, False, True)]) as (memory,):
        memory.fill_(1)
        run_in_threads(cache.flush)
        memory.fill_(2)
    with cache.use([Use(other, False, True)]):
        pass
    with cache.use([Use(block)]) as (memory,):
        assert memory.tolist() == [2] * 100
    cache.close()


@pytest.mark.parametrize("block_bytes", [64 << 10, 4 << 10], ids=["one block", "several blocks"])
def test_threads_that_use_one_model_at_once_stay_within_the_capacity(
    block_bytes: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(96, 96), nn.Tanh())))
    inputs = [torch.randn(3, 96) for _ in range(2)]
    with torch.no_grad():
        expected = [model(each) for each in inputs]
    cache = BlockCache(160 << 10, OffloadConfig(least_bytes=64, block_bytes=block_bytes, store=tmp_path))
    swap_in(model, cache)

    def passes(number: int) -> list[torch.Tensor]:
        with torch.no_grad():
            return [model(inputs[number]) for _ in range(20)]

    with ThreadPoolExecutor(2) as threads:
        for number, results in enumerate(threads.map(passes, range(2))):
            for result in results:
                torch.testing.assert_close(result, expected[number], rtol=1e-5, atol=1e-6)
    report = cache.report()
    assert report.evictions > 0, "the model must not fit the pool"
    assert report.peak_bytes <= cache.capacity_bytes
    assert cache.peak_allocated_bytes <= cache.capacity_bytes


PROGRAM = """
import json, gc, torch
from concurrent.futures import ThreadPoolExecutor
from torch import nn
from accelera import offload, offloaded
from accelera.memory import process_memory, reset_peak

torch.set_num_threads(1)
BUDGET = 48 << 20

def passes(model, number):
    x = torch.randn(128, 1024, generator=torch.Generator().manual_seed(number))
    with torch.no_grad():
        return [model(x) for _ in range(3)][-1]

warm = offload(nn.Sequential(nn.Linear(1024, 64), nn.Linear(64, 8)).eval(), BUDGET)
passes(warm, 0)
del warm
torch.manual_seed(9)
model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(20))).eval()
with ThreadPoolExecutor(2) as threads:
    expected = list(threads.map(lambda number: passes(model, number), range(2)))
    offload(model, BUDGET)
    gc.collect()
    before = process_memory()
    reset_peak()
    found = list(threads.map(lambda number: passes(model, number), range(2)))
after = process_memory()
files = max(0, after.file_bytes - before.file_bytes)
print(json.dumps({
    "peak": after.peak_bytes - before.rss_bytes - files,
    "equal": all(map(torch.equal, found, expected)),
    "evictions": offloaded(model).report().evictions,
}))
"""


def test_the_process_of_threads_that_use_one_model_stays_within_the_budget() -> None:
    told = answer_of("-c", PROGRAM)
    assert told["equal"]
    assert told["evictions"] > 0, "the model must not fit the pool"
    assert told["peak"] <= 48 << 20
