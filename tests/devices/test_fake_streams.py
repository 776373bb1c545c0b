"""The torch device, lanes and transfers on a fake GPU: every race is found, every copy comes late."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from accelera.devices import get_device
from accelera.devices.torch_device import TorchDevice
from accelera.devices.torch_streams import Lanes
from accelera.testing import FakeCuda
from accelera.testing._internal import DataRaceError
from tests.threads import run_in_threads

F32 = np.dtype(np.float32)
RNG = np.random.default_rng(0)


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    with FakeCuda("1GiB") as fake:
        yield fake


def device_of(name: str = "cuda") -> TorchDevice:
    device = get_device(name)
    assert isinstance(device, TorchDevice)
    return device


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_host_memory_may_be_used_again_at_once(kind: str) -> None:
    """Copies that go on are waited for before their buffers are filled anew, with streams and without."""
    with FakeCuda("1GiB", kind=kind):
        device = device_of(kind)
        host = RNG.standard_normal((1500, 6000)).astype(F32)
        expected = host.copy()
        buffer = device.allocate(host.nbytes)
        for order in ((0, 1), (1, 0)):
            view = device.view(buffer, host.shape, F32, order)
            device.upload(host, view)
            host[:] = 0
            device.download(view, host)
            np.testing.assert_array_equal(host, expected)
        device.release(buffer)


def test_tiles_are_filled_used_and_fetched_in_order(cuda: FakeCuda) -> None:
    """Uploads, products and downloads of the same buffers from several threads, without a race."""
    device = device_of()
    hosts = [RNG.standard_normal((300, 300)).astype(F32) for _ in range(6)]
    buffers = [device.allocate(hosts[0].nbytes) for _ in range(3)]
    left, right, out = (device.view(each, (300, 300), F32, (0, 1)) for each in buffers)
    found, total = np.empty((300, 300), F32), np.zeros((300, 300))
    with ThreadPoolExecutor(2) as readers:
        for index in range(0, 6, 2):
            loads = [readers.submit(device.upload, hosts[index + i], (left, right)[i]) for i in range(2)]
            for load in loads:
                load.result()
            device.gemm(left, right, out, accumulate=index > 0)
            total += hosts[index].astype(float) @ hosts[index + 1]
        readers.submit(device.download, out, found).result()
    np.testing.assert_allclose(found, total, atol=1e-3)
    for each in buffers:
        device.release(each)


def test_memory_that_served_another_product_is_waited_for(cuda: FakeCuda) -> None:
    """A buffer from torch's cache may still be read by work of the stream that had it before."""
    device = device_of()
    warm = device.allocate(4096)
    device.upload(np.zeros(1024, F32), device.view(warm, (1024,), F32, (0,)))
    big = torch.ones(1 << 20, device="cuda")
    kept = big * 2
    del big
    buffer = device.allocate(4 << 20)
    view = device.view(buffer, (1 << 20,), F32, (0,))
    device.upload(np.zeros(1 << 20, F32), view)
    assert float(kept.sum()) == 2 << 20
    device.release(buffer)
    device.release(warm)


def test_two_streams_that_read_one_slab_are_both_waited_for(cuda: FakeCuda) -> None:
    """Whoever computed first must not be overtaken by the next contents."""
    device = device_of()
    buffer = device.allocate(4096)
    device.transfer(torch.zeros(4096, dtype=torch.uint8).pin_memory(), buffer)
    streams, found = [torch.Stream("cuda") for _ in range(2)], []
    for stream in streams:
        with stream:
            device.admit(buffer)
    for stream in streams:
        with stream:
            found.append(buffer.to(torch.int32).sum())
            device.used(buffer)
    device.transfer(torch.ones(4096, dtype=torch.uint8).pin_memory(), buffer)
    cuda.synchronize()
    assert [int(each) for each in found] == [0, 0]
    device.release(buffer)


def test_work_waits_for_its_own_buffers_only(cuda: FakeCuda) -> None:
    lanes = Lanes(torch.device("cuda:0"))
    a, b, c, other = (torch.empty(16, device="cuda") for _ in range(4))
    usual, up, down = cuda.current_stream(), lanes.up, lanes.down
    before = cuda.order.record(usual.key)
    lanes.born(a)
    with lanes.working(up, reads=(), writes=(a[4:],)):
        assert cuda.current_stream() is up
        a[4:].fill_(1)
    assert cuda.current_stream() is usual
    assert cuda.order.follows(up.key, before), "the memory may have served a product before"
    loaded = cuda.order.record(up.key)
    with lanes.working(up, reads=(), writes=(other,)):
        other.fill_(1)
    loaded_too = cuda.order.record(up.key)
    with lanes.computing(reads=(a, b), writes=(c,)):
        torch.add(a, b, out=c)
    assert cuda.order.follows(usual.key, loaded)
    assert not cuda.order.follows(usual.key, loaded_too), "one upload, not the other"
    computed = cuda.order.record(usual.key)
    assert not cuda.order.follows(up.key, computed)
    with lanes.working(up, reads=(), writes=(a,)):
        a.fill_(2)
    assert cuda.order.follows(up.key, computed), "not before the product has read it"
    with lanes.working(down, reads=(c,), writes=()):
        c.clone()
    fetched = cuda.order.record(down.key)
    assert cuda.order.follows(down.key, computed)
    with lanes.computing(reads=(b,), writes=(c,)):
        c.copy_(b)
    assert cuda.order.follows(usual.key, fetched)
    latest = cuda.order.record(usual.key)
    assert not cuda.order.is_known_done(latest)
    lanes.forget(lanes.key(c))
    assert cuda.order.is_known_done(latest)


def test_failed_work_is_waited_for_too(cuda: FakeCuda) -> None:
    lanes = Lanes(torch.device("cuda:0"))
    a = torch.empty(16, device="cuda")
    with pytest.raises(ValueError, match="in between"), lanes.working(lanes.up, reads=(), writes=(a,)):
        a.fill_(1)
        raise ValueError("in between")
    assert cuda.current_stream() == cuda.default_stream()
    with lanes.computing(reads=(a,), writes=()):
        assert cuda.order.follows(cuda.current_stream().key, cuda.order.record(lanes.up.key))
        a.clone()
    lanes.synchronize()
    assert cuda.order.is_known_done(cuda.order.record(lanes.up.key))


def test_copies_have_urgent_streams(cuda: FakeCuda) -> None:
    lanes = Lanes(torch.device("cuda:0"))
    assert (lanes.up.priority, lanes.down.priority) == (-1, -1)


def test_a_race_is_found_and_named() -> None:
    with pytest.raises(DataRaceError, match=r"add_ on stream .* nothing orders it after ones"), FakeCuda():
        shared = torch.ones(100, device="cuda")
        with torch.Stream("cuda"):
            shared.add_(1)


def test_work_on_another_card_makes_no_context_on_the_first() -> None:
    with FakeCuda("1GiB", devices=2) as cuda:
        found: list[int] = []

        def work() -> None:
            device = device_of("cuda:1")
            buffer = device.allocate(4096)
            device.upload(np.ones(1024, F32), device.view(buffer, (1024,), F32, (0,)))
            device.release(buffer)
            found.append(cuda.device)

        run_in_threads(work)
        assert (cuda.contexts, found) == ({1}, [0])
