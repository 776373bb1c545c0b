"""Spilled results are ordinary tensors: private after a fork, and resizable."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import accelera
from accelera.devices.torch_shim import shim_library
from tests.interceptor.forcing import counted, forced

has_shim = pytest.mark.skipif(shim_library() is None, reason="the library for this torch is not built")
has_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


def spilled(count: int = 6000) -> torch.Tensor:
    """Return the numbers from 1 to ``count``, in a file."""
    x = torch.arange(float(count))
    with forced("spilled"), counted() as seen:
        result = x + 1
    assert seen[0].spilled_now_bytes >= result.nbytes
    return result


def in_child(function: Callable[[], Any]) -> int:
    """Run ``function`` in a forked process; return its exit status."""
    pid = os.fork()
    if pid == 0:
        try:
            function()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(pid, 0)[1]


WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "fill": lambda x: x.fill_(-1),
    "view": lambda x: x[10:20].mul_(0),
    "out": lambda x: torch.add(torch.ones(6000), 1, out=x),
    "numpy": lambda x: x.numpy().__setitem__(slice(None), 3),
    "data": lambda x: x.data.zero_(),
    "copy": lambda x: x.copy_(torch.zeros(6000)),
}


@has_fork
@pytest.mark.parametrize("write", WRITES)
def test_writes_of_a_child_do_not_reach_the_parent(write: str) -> None:
    result = spilled()
    expected = torch.arange(1.0, 6001.0)
    for _ in range(2):
        assert in_child(lambda: WRITES[write](result)) == 0
        assert torch.equal(result, expected)


@has_fork
def test_writes_of_the_parent_do_not_reach_a_child() -> None:
    result = spilled()
    reader, writer = os.pipe()

    def read_later() -> None:
        os.close(writer)
        os.read(reader, 1)
        assert torch.equal(result, torch.arange(1.0, 6001.0))

    pid = os.fork()
    if pid == 0:
        try:
            read_later()
            os._exit(0)
        except BaseException:
            os._exit(1)
    result.zero_()
    os.write(writer, b"x")
    os.close(writer)
    os.close(reader)
    assert os.waitpid(pid, 0)[1] == 0
    assert not result.any()


@has_fork
def test_data_loader_workers_change_nothing() -> None:
    table = spilled(64 * 100).reshape(64, 100)
    before = table.clone()

    class Rows(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return len(table)

        def __getitem__(self, index: int) -> torch.Tensor:
            return table[index].sub_(table[index].mean()).sum()

    context = multiprocessing.get_context("fork")
    loader = torch.utils.data.DataLoader(
        Rows(), batch_size=None, num_workers=2, multiprocessing_context=context
    )
    assert sum(abs(float(value)) for value in loader) < 1
    assert torch.equal(table, before)


@has_fork
def test_a_result_spilled_in_a_child_is_its_own() -> None:
    kept = spilled()

    def compute() -> None:
        own = spilled(7000)
        assert own[-1] == 7000
        assert kept[-1] == 6000

    assert in_child(compute) == 0
    assert kept[-1] == 6000


RESIZES: dict[str, Callable[[torch.Tensor], Any]] = {
    "larger": lambda x: x.resize_(20_000),
    "smaller": lambda x: x.resize_(50),
    "two_axes": lambda x: x.resize_(100, 200),
    "as": lambda x: x.resize_as_(torch.empty(9000)),
    "out": lambda x: torch.cat([torch.ones(4000), torch.ones(6000)], out=x.resize_(0)),
    "storage": lambda x: x.untyped_storage().resize_(80_000),
}


@has_shim
@pytest.mark.parametrize("resize", RESIZES)
def test_resizing_is_that_of_a_tensor_in_memory(resize: str) -> None:
    result, plain = spilled(), torch.arange(1.0, 6001.0)
    RESIZES[resize](result)
    RESIZES[resize](plain)
    assert result.shape == plain.shape
    assert result.untyped_storage().nbytes() == plain.untyped_storage().nbytes()
    count = min(result.numel(), 6000)
    assert torch.equal(result.flatten()[:count], plain.flatten()[:count])
    result.add_(1)


@has_shim
def test_resizing_the_storage_to_nothing_ends_the_file(tmp_path: Path) -> None:
    x = torch.arange(5000.0)
    gc.collect()
    before = accelera.stats().spilled_now_bytes
    with accelera.intercepted(10_000, 0, 0, spill_dir=tmp_path):
        result = x + x
    assert accelera.stats().spilled_now_bytes == before + 20_000
    result.untyped_storage().resize_(0)
    gc.collect()
    assert accelera.stats().spilled_now_bytes == before
    result.untyped_storage().resize_(20_000)
    result.copy_(x)
    assert torch.equal(result, x)
