"""Blocks between stores and devices: any order, converted on the way, in bounded pieces."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera.devices import Device, SimulatedDevice, get_device
from accelera.devices.torch_device import TorchDevice
from accelera.engine.staging import PIECE_BYTES, Mover, boxes_within
from accelera.plan._internal import BlockTable, Operand, OperandBlock
from accelera.stores import Store, open_store
from accelera.stores._internal import Region
from tests.threads import run_in_threads


class Watched(Store):
    """A store that notes how large each transfer is."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._store = open_store(array)
        self.shape, self.dtype, self.tier, self.name = array.shape, array.dtype, "disk", "watched"
        self.pieces: list[int] = []

    @property
    def layout(self) -> Any:
        return self._store.layout

    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        self.pieces.append(out.nbytes)
        return self._store.read(region, out)

    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        self.pieces.append(data.nbytes)
        return self._store.write(region, data)


def described(array: np.ndarray[Any, Any], held: Any, order: tuple[int, ...] = ()) -> Operand:
    return Operand("A", array.shape, array.dtype, np.dtype(held), "disk", order)


def block_of(operand: Operand, *bounds: tuple[int, int]) -> OperandBlock:
    return BlockTable((operand,)).block(0, bounds)


def moved_through(
    device: Device, array: np.ndarray[Any, Any], operand: Operand, block: OperandBlock
) -> tuple[np.ndarray[Any, Any], Watched, Watched]:
    """Read a block and write it into an empty array of the same shape; return that and both stores."""
    source, back = Watched(array), np.zeros_like(array)
    target = Watched(back)
    mover = Mover(device, 1)
    memory = device.allocate(block.held_bytes)
    assert mover.read(source, block, operand, memory) == block.moved_bytes
    assert mover.write(target, block, operand, memory) == block.moved_bytes
    device.release(memory)
    return back, source, target


CASES = [("f4", "f4"), ("f2", "f4"), (ml_dtypes.bfloat16, "f4"), ("i2", "i2"), ("c16", "c16")]


@pytest.mark.parametrize("device", [get_device("cpu"), SimulatedDevice("64MiB")], ids=["cpu", "sim"])
@pytest.mark.parametrize(("stored", "held"), CASES, ids=str)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_a_block_arrives_and_returns_in_any_order(
    device: Device, stored: Any, held: Any, order: tuple[int, ...]
) -> None:
    array = (
        np.arange(3 * 50 * 70).reshape(3, 50, 70).astype(stored)
        if stored == "i2"
        else (np.random.default_rng(0).standard_normal((3, 50, 70)).astype(stored))
    )
    operand = described(array, held, order)
    bounds = ((1, 3), (10, 45), (3, 70))
    back, _, _ = moved_through(device, array, operand, block_of(operand, *bounds))
    region = tuple(slice(*span) for span in bounds)
    np.testing.assert_array_equal(back[region], array[region])
    back[region] = 0
    assert (back == 0).all()


def test_the_block_holds_the_converted_values() -> None:
    device = get_device("cpu")
    array = np.array([[0.1, 65504, -0.0], [np.inf, np.nan, 6e-8]], np.float16)
    operand = described(array, "f4")
    block = block_of(operand, (0, 2), (0, 3))
    mover = Mover(device, 1)
    memory = device.allocate(block.held_bytes)
    mover.read(Watched(array), block, operand, memory)
    np.testing.assert_array_equal(mover.view(memory, block, operand), array.astype("f4"))
    device.release(memory)


def test_conversion_goes_through_pieces_of_one_buffer() -> None:
    array = np.random.default_rng(0).standard_normal((1500, 1100)).astype(np.float16)
    operand = described(array, "f4")
    back, source, target = moved_through(
        get_device("cpu"), array, operand, block_of(operand, (0, 1500), (0, 1100))
    )
    np.testing.assert_array_equal(back, array)
    for store in (source, target):
        assert max(store.pieces) <= PIECE_BYTES
        assert sum(store.pieces) == array.nbytes
        assert len(store.pieces) <= 5


def test_what_needs_no_conversion_on_the_host_moves_in_one_piece() -> None:
    array = np.random.default_rng(0).standard_normal((800, 900))
    operand = described(array, "f8")
    _, source, target = moved_through(
        get_device("cpu"), array, operand, block_of(operand, (0, 800), (0, 900))
    )
    assert source.pieces == target.pieces == [array.nbytes]


class Lending(Watched):
    """A store that notes whether what it fills and empties lies in memory that was lent, and when."""

    def __init__(self, array: np.ndarray[Any, Any], device: TorchDevice) -> None:
        super().__init__(array)
        self._lent = device._staging._lent
        self.most_lent = 0

    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        assert out.ctypes.data in self._lent
        return super().read(region, out)

    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        assert data.ctypes.data in self._lent
        self.most_lent = max(self.most_lent, len(self._lent))
        return super().write(region, data)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize(("stored", "held"), [("f4", "f4"), ("f2", "f4"), ("i8", "i8")])
def test_an_accelerator_lends_its_buffers(order: tuple[int, int], stored: str, held: str) -> None:
    """The store reads into them and writes from them, one piece while another travels."""
    device = TorchDevice("cpu")
    array = (np.arange(3000 * 1500) % 1000).reshape(3000, 1500).astype(stored)
    operand = described(array, held, order)
    block = block_of(operand, (0, 3000), (100, 1400))
    back = np.zeros_like(array)
    source, target = Lending(array, device), Lending(back, device)
    mover, memory = Mover(device, 1), device.allocate(block.held_bytes)
    assert mover.read(source, block, operand, memory) == block.moved_bytes
    assert mover.write(target, block, operand, memory) == block.moved_bytes
    np.testing.assert_array_equal(back[block.region], array[block.region])
    assert max(source.pieces) > PIECE_BYTES
    assert max(source.pieces + target.pieces) <= device.lent_bytes
    assert target.most_lent == 2
    assert not device._staging._lent
    device.release(memory)


def test_what_is_lent_comes_back_when_a_store_fails() -> None:
    device = TorchDevice("cpu")
    array = np.zeros((3000, 1500), np.float32)
    operand = described(array, "f4")
    block = block_of(operand, (0, 3000), (0, 1500))
    mover, memory = Mover(device, 1), device.allocate(block.held_bytes)

    class Full(Watched):
        def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
            raise OSError("bad sector")

        def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
            raise OSError("no space left")

    for _ in range(6):
        with pytest.raises(OSError, match="bad sector"):
            mover.read(Full(array), block, operand, memory)
        with pytest.raises(OSError, match="no space left"):
            mover.write(Full(array), block, operand, memory)
    assert mover.read(Watched(array), block, operand, memory) == array.nbytes
    device.release(memory)


def test_threads_share_fewer_buffers_than_they_are() -> None:
    """Four threads, one host buffer: they take turns, and none is lost when a store fails."""
    device = get_device("cpu")
    array = np.random.default_rng(0).standard_normal((400, 900)).astype(np.float16)
    operand, mover = described(array, "f4"), Mover(device, 1)
    results: list[bool] = []

    class Broken(Watched):
        def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
            raise OSError("bad sector")

    def work(number: int) -> None:
        block = block_of(operand, (100 * number, 100 * number + 100), (0, 900))
        memory = device.allocate(block.held_bytes)
        with pytest.raises(OSError, match="bad sector"):
            mover.read(Broken(array), block, operand, memory)
        mover.read(Watched(array), block, operand, memory)
        results.append(bool((mover.view(memory, block, operand) == array[block.region]).all()))
        device.release(memory)

    run_in_threads(*(partial(work, number) for number in range(4)))
    assert results == [True] * 4


@given(
    shape=st.lists(st.integers(0, 7), min_size=1, max_size=3),
    limit=st.integers(1, 60),
    turn=st.integers(0, 5),
    start=st.integers(0, 3),
)
def test_a_box_is_cut_into_pieces_that_cover_it_once(
    shape: list[int], limit: int, turn: int, start: int
) -> None:
    orders = list(itertools.permutations(range(len(shape))))
    order = orders[turn % len(orders)]
    spans = [(start, start + size) for size in shape]
    count = np.zeros([start + size for size in shape], int)
    for piece in boxes_within(spans, order, limit):
        region = tuple(slice(*span) for span in piece)
        assert 0 < count[region].size <= limit
        count[region] += 1
    assert (count[tuple(slice(*span) for span in spans)] == 1).all()
    assert count.sum() == np.prod(shape)
