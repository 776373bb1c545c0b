"""The CPU device's memory: pages of its own, nothing hidden, refusals that say what is there."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from accelera.devices import CpuDevice, cpu
from accelera.errors import DeviceError, DeviceMemoryError, DTypeError
from accelera.memory import process_memory, reset_peak
from accelera.memory._internal import HostMemory
from tests.threads import run_in_threads

MIB = 1 << 20
SLACK = 4 * MIB
"""The kernel counts pages in batches, and Python allocates a little."""

DEVICE = CpuDevice()


def growth(work: Callable[[], object]) -> int:
    """Return by how many bytes ``work`` raised the process's memory at its peak, code it loaded aside."""
    if not reset_peak():
        pytest.skip("the system does not let a process reset its peak")
    before = process_memory()
    work()
    after = process_memory()
    return after.peak_bytes - before.rss_bytes - max(0, after.file_bytes - before.file_bytes)


def test_buffers_begin_on_a_page_and_are_writable() -> None:
    for nbytes in (1, 4095, 4097, 5 * MIB + 3):
        buffer = DEVICE.allocate(nbytes)
        assert (buffer.nbytes, buffer.dtype, buffer.ctypes.data % 4096) == (nbytes, np.uint8, 0)
        buffer[:] = 7
        DEVICE.release(buffer)


def test_a_released_buffer_returns_its_pages_even_while_views_live() -> None:
    buffer = DEVICE.allocate(64 * MIB)
    view = DEVICE.view(buffer, (4 * MIB, 2), np.dtype(np.float64), (1, 0))
    view[...] = 1
    held = process_memory().rss_bytes
    DEVICE.release(buffer)
    assert held - process_memory().rss_bytes > 60 * MIB
    assert not view.any(), "a view that outlives its buffer reads zeros"


def test_memory_is_backed_only_as_far_as_it_is_written() -> None:
    buffer = DEVICE.allocate(64 * MIB)
    assert growth(lambda: buffer[: 4 * MIB].fill(1)) < 4 * MIB + 2 * MIB + SLACK, "and at most one huge page"
    DEVICE.release(buffer)


def test_books_are_kept() -> None:
    device = CpuDevice()
    first, second = device.allocate(100), device.allocate(200)
    assert device.allocated_bytes == 300
    device.release(first)
    device.release(second)
    assert device.allocated_bytes == 0
    with pytest.raises(DeviceError, match=r"\[release\] a buffer of 200 B"):
        device.release(second)
    with pytest.raises(DeviceError, match="never allocated on cpu"):
        device.release(np.zeros(8, np.uint8))


def test_more_than_is_available_is_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "host_memory", lambda: HostMemory(64 * MIB, 3 * MIB, 32 * MIB))
    assert (DEVICE.total_bytes(), DEVICE.available_bytes()) == (32 * MIB, 3 * MIB)
    with pytest.raises(DeviceMemoryError, match=r"4\.0 MiB on cpu: 3\.0 MiB are available"):
        DEVICE.allocate(4 * MIB)


def test_a_refusal_of_the_system_is_a_device_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(DeviceMemoryError, match="the system refused") as caught:
        DEVICE.allocate(4096)
    assert isinstance(caught.value.__cause__, OSError)


def test_allocation_from_many_threads_keeps_the_books() -> None:
    device = CpuDevice()

    def work() -> None:
        for _ in range(50):
            device.release(device.allocate(10_000))

    run_in_threads(*[work] * 8)
    assert device.allocated_bytes == 0


def _big(shape: tuple[int, int], order: str = "C") -> np.ndarray[Any, Any]:
    return np.ones(shape, np.float32, order="F" if order == "F" else "C")


@pytest.fixture(scope="module")
def arithmetic_is_warm() -> int:
    """Use the library once in every way; return by how much that grew the process."""
    shapes = (1100, 1100, 900), (64, 6000, 600), (6000, 64, 600)

    def use() -> None:
        for m, n, k in shapes:
            for order in "CF":
                DEVICE.gemm(_big((m, k)), _big((k, n)), _big((m, n), order), accumulate=True)

    return growth(use)


def test_the_workspace_is_bounded(arithmetic_is_warm: int) -> None:
    operands = 4 * max(1100 * 1100 + 2 * 1100 * 900, 6000 * 64 + 600 * 6064)
    assert arithmetic_is_warm <= DEVICE.workspace_bytes() + operands + SLACK


TURNED_AND_CUT = {
    "as they lie": lambda a, b, c: (a, b, c),
    "all turned": lambda a, b, c: (b.T, a.T, c.T),
    "column-major result": lambda a, b, c: (a, b, np.asfortranarray(c)),
    "cut from larger ones": lambda a, b, c: (a[100:, 7:], b[7:, 9:], c[100:, 9:]),
}


@pytest.mark.usefixtures("arithmetic_is_warm")
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("how", TURNED_AND_CUT)
def test_operands_of_any_order_are_taken_without_a_copy(how: str, accumulate: bool) -> None:
    a, b, c = TURNED_AND_CUT[how](_big((2500, 1200)), _big((1200, 2500)), _big((2500, 2500)))
    assert all(map(DEVICE.can_take, (a, b, c)))
    assert growth(lambda: DEVICE.gemm(a, b, c, accumulate=accumulate)) <= SLACK
    assert c[0, 0] == a.shape[1] + accumulate


@pytest.mark.usefixtures("arithmetic_is_warm")
def test_a_gram_matrix_and_its_mirror_copy_nothing() -> None:
    a, c = _big((1200, 2500)), _big((2500, 2500))

    def both() -> None:
        DEVICE.gram(a, c, accumulate=False)
        DEVICE.symmetrize(c)

    assert growth(both) <= SLACK
    assert (c == 1200).all()


@pytest.mark.usefixtures("arithmetic_is_warm")
def test_other_operands_are_packed_within_the_stated_bytes() -> None:
    a, b = _big((2500, 2400))[:, ::2], _big((2400, 2500))[::-2]
    c = _big((2500, 5000))[:, ::2]
    assert not any(map(DEVICE.can_take, (a, c)))
    assert growth(lambda: DEVICE.gemm(a, b, c, accumulate=False)) <= DEVICE.packing_bytes() + SLACK
    assert (c == 1200).all()


def test_conversions_take_no_memory() -> None:
    half, single = np.ones((3000, 3000), np.float16), np.ones((3000, 3000), np.float32)
    assert growth(lambda: DEVICE.upload(half.T, single)) <= SLACK
    assert growth(lambda: DEVICE.download(single.T, half)) <= SLACK


def test_too_large_values_become_infinite_without_a_warning() -> None:
    half = np.zeros(1, np.float16)
    DEVICE.download(np.array([1e30], np.float32), half)
    assert np.isinf(half[0])


@pytest.mark.parametrize("dtype", [np.float16, np.bool_, ">f4", np.longdouble])
def test_element_types_without_a_product_are_refused(dtype: Any) -> None:
    x = np.zeros((2, 2), dtype)
    assert not DEVICE.can_take(x)
    with pytest.raises(DTypeError, match=r"\[gemm\].*hold half types in float32"):
        DEVICE.gemm(x, x, x.copy(), accumulate=False)


def test_python_runs_while_a_product_does() -> None:
    """Seen in the result: one call of the library adds it up in several goes."""
    edge, attempts, halfway = 1500, 200, False
    a = _big((edge, edge))
    for _ in range(attempts):
        c = np.zeros_like(a)
        worker = threading.Thread(target=lambda c=c: DEVICE.gemm(a, a, c, accumulate=True))
        worker.start()
        while worker.is_alive():
            halfway = halfway or bool(0 < c[0, 0] < edge)
        if halfway:
            return
    pytest.fail("no thread came to its turn during a product")
