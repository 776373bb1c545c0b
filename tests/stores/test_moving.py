"""Regions and views of flat files against NumPy, through every path of the compiled mover."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera import _native
from accelera.stores import open_store
from accelera.stores._internal import STAGING_BYTES_PER_THREAD, FlatFile, Placement, create_store, whole
from accelera.stores.flatfile import open_descriptor

MODES: list[bool | None] = [False, True, None]
PAD = 11


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("moving")


@pytest.fixture(scope="module")
def noise() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 256, 6 << 20, np.uint8)


@pytest.fixture(scope="module")
def noise_file(folder: Path, noise: np.ndarray[Any, Any]) -> Path:
    noise.tofile(folder / "noise.bin")
    return folder / "noise.bin"


def slices(size: int, *, negative: bool) -> st.SearchStrategy[slice]:
    steps = st.integers(-3, 3).filter(bool) if negative else st.integers(1, 3)
    edges = st.integers(0, size)
    if negative:
        return st.builds(
            slice, st.none() | st.integers(-size - 1, size), st.none() | st.integers(-size - 1, size), steps
        )
    return st.builds(lambda a, b, step: slice(min(a, b), max(a, b), step), edges, edges, steps)


@st.composite
def looks(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """Up to three chained views, as a function of an array or a store."""
    steps = []
    probe = np.empty(shape, np.uint8)
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            axes = tuple(draw(st.permutations(range(probe.ndim))))
            steps.append(lambda x, axes=axes: x.transpose(axes))
        else:
            key: Any = tuple(
                draw(slices(size, negative=True) | (st.integers(-size, size - 1) if size else st.nothing()))
                for size in probe.shape
            )
            key = (*key[: draw(st.integers(0, probe.ndim))], ..., *([None] if draw(st.booleans()) else []))
            steps.append(lambda x, key=key: x[key])
        probe = steps[-1](probe)

    def look(x: Any) -> Any:
        for step in steps:
            x = step(x)
        return x

    return look


@st.composite
def buffers(draw: st.DrawFn, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """A buffer of any order, padding and direction, inside memory that must not change."""
    axes = draw(st.permutations(range(len(shape))))
    pads = [draw(st.sampled_from([0, 0, 1, PAD])) for _ in shape]
    memory = np.zeros([shape[a] + pads[a] for a in axes], dtype)
    inside: Any = (*(slice(0, shape[a]) for a in axes), ...)
    directions: Any = (*(slice(None, None, draw(st.sampled_from([1, -1]))) for _ in shape), ...)
    return memory[inside].transpose(np.argsort(axes))[directions]


SHAPE = (9, 10, 11)


@given(data=st.data())
@pytest.mark.parametrize("direct", MODES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_views_of_files_read_as_numpy_does(
    folder: Path, data: st.DataObject, direct: bool | None, order: str
) -> None:
    path = folder / f"small{order}.npy"
    array = np.arange(990, dtype=np.float32).reshape(SHAPE)
    if not path.exists():
        np.save(path, np.array(array, order="C" if order == "C" else "F"))
    look = data.draw(looks(SHAPE))
    with open_store(path, direct=direct) as store:
        view, expected = look(store), look(array)
        region = tuple(data.draw(slices(size, negative=False)) for size in expected.shape)
        index: Any = (*region, ...)
        out = data.draw(buffers(expected[index].shape, np.float32))
        assert view.read(region, out) == out.nbytes
        np.testing.assert_array_equal(out, expected[index])
        if out.base is not None:
            assert (np.count_nonzero(out.base)) == np.count_nonzero(out)
        resident = look(open_store(array)).resident()
        np.testing.assert_array_equal(resident, expected)
        assert resident.size == 0 or np.shares_memory(resident, array)


@given(data=st.data())
@pytest.mark.parametrize("direct", MODES)
def test_views_of_files_are_written_as_numpy_does(
    folder: Path, data: st.DataObject, direct: bool | None
) -> None:
    expected = np.zeros(SHAPE, np.int16)
    look = data.draw(looks(SHAPE))
    output = create_store(folder / "written.npy", SHAPE, "int16", direct=direct)
    output.write(whole(SHAPE), expected)
    region = tuple(data.draw(slices(size, negative=False)) for size in look(expected).shape)
    index: Any = (*region, ...)
    target = look(expected)[index]
    values = data.draw(buffers(target.shape, np.int16))
    values[...] = np.arange(1, target.size + 1, dtype=np.int16).reshape(target.shape)
    look(output).write(region, values)
    target[...] = values
    np.testing.assert_array_equal(output.to_numpy(), expected)
    output.abort()


# (offset, shape, file strides): every way a region can lie with respect to pages and staging slots
PLACES: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = [
    (0, (4 << 20,), (1,)),  # one aligned run, longer than all staging
    (4096, (3, 1 << 20), (1 << 20, 1)),
    (513, (3 << 20,), (1,)),  # one run at an odd place
    (5, (100, 4096), (32768, 1)),  # small pieces, far apart
    (512, (40, 16384), (65536, 1)),  # aligned pieces
    (100, (60, 5000), (9000, 1)),  # small gaps: joined
    (100, (20, 70000), (75000, 1)),  # long pieces with small gaps
    (1, (300, 9), (20001, 1)),  # a narrow column
    (64, (1000, 500), (4000, 8)),  # every eighth element
    (17, (3, 40, 1000), (1 << 20, 20000, 1)),
    ((6 << 20) - 5, (5,), (1,)),  # the end of the file
    (4 << 20, (30, 40), (-100000, 3000)),  # backwards
]


@pytest.mark.parametrize("direct", MODES)
@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize(("offset", "shape", "strides"), PLACES)
@pytest.mark.parametrize("memory", ["C", "F", "padded", "odd"])
def test_every_way_to_lie_is_read(
    noise_file: Path,
    noise: np.ndarray[Any, Any],
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    memory: str,
    cold: bool,
    direct: bool | None,
) -> None:
    placement = Placement(shape, np.dtype(np.uint8), offset, strides)
    store = FlatFile(noise_file, open_descriptor(noise_file), placement, direct=direct)
    expected = np.lib.stride_tricks.as_strided(noise[offset:], shape, strides)
    if cold:
        drop_cache(noise_file)
    out = buffer_like(shape, memory)
    assert store.read(whole(shape), out) == expected.size
    assert (out == expected).all()
    store.close()


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(("offset", "shape", "strides"), PLACES[:-1])
@pytest.mark.parametrize("memory", ["C", "F", "padded", "odd"])
def test_every_way_to_lie_is_written(
    folder: Path,
    noise: np.ndarray[Any, Any],
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    memory: str,
    direct: bool,
) -> None:
    if strides[-1] != 1:
        shape = tuple(min(size, 50) for size in shape)
    expected = np.zeros(noise.size, np.uint8)
    expected.tofile(folder / "target.bin")
    data = buffer_like(shape, memory)
    data[...] = noise[: data.size].reshape(shape)
    placement = Placement(shape, np.dtype(np.uint8), offset, strides)
    descriptor = open_descriptor(folder / "target.bin", os.O_RDWR)
    store = FlatFile(folder / "target.bin", descriptor, placement, writable=True, direct=direct)
    assert store.write(whole(shape), data) == data.size
    store.close()
    np.lib.stride_tricks.as_strided(expected[offset:], shape, strides)[...] = data
    assert (np.fromfile(folder / "target.bin", np.uint8) == expected).all()


def buffer_like(shape: tuple[int, ...], memory: str) -> np.ndarray[Any, Any]:
    if memory == "odd":
        return np.zeros(int(np.prod(shape)) + 3, np.uint8)[3:].reshape(shape)
    if memory == "padded":
        return np.zeros((*shape[:-1], shape[-1] + 64), np.uint8)[..., : shape[-1]]
    return np.zeros(shape, np.uint8, order="F" if memory == "F" else "C")


def drop_cache(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


@pytest.mark.parametrize("dtype", ["int8", "int16", "float32", "float64", "complex128"])
def test_transposing_reads_of_every_width(folder: Path, dtype: str) -> None:
    array = np.arange(70 * 90).reshape(70, 90).astype(dtype)
    np.save(folder / "wide.npy", array)
    out = np.empty((70, 90), dtype, order="F")
    open_store(folder / "wide.npy").read(whole((70, 90)), out)
    np.testing.assert_array_equal(out, array)


def test_neighbouring_tiles_written_at_once_do_not_disturb_each_other(folder: Path) -> None:
    """Unaligned tiles share pages; some parts go around the page cache, some through it."""
    from concurrent.futures import ThreadPoolExecutor

    array = np.random.default_rng(1).integers(0, 1 << 30, (300, 5003), np.int32)
    for direct in (True, None):
        output = create_store(folder / "shared.npy", array.shape, "int32", direct=direct)

        def put(i: int, output: Any = output) -> None:
            rows = (slice(i, min(i + 7, 300), 1), slice(0, 5003, 1))
            output.write(rows, array[rows])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(put, range(0, 300, 7)))
        output.commit()
        assert (np.load(folder / "shared.npy") == array).all()


def test_the_staging_buffer_is_what_is_said(folder: Path) -> None:
    assert STAGING_BYTES_PER_THREAD == 2 << 20
    np.save(folder / "a.npy", np.ones(3))
    assert open_store(folder / "a.npy").scratch_bytes == STAGING_BYTES_PER_THREAD


def test_the_compiled_mover_checks_its_memory(noise_file: Path) -> None:
    descriptor = os.open(noise_file, os.O_RDONLY)
    with pytest.raises(ValueError, match="stride per axis"):
        _native.read_region(descriptor, 0, [1, 1], np.zeros(3, np.uint8))
    frozen = np.zeros(3, np.uint8)
    frozen.flags.writeable = False
    with pytest.raises((BufferError, ValueError)):
        _native.read_region(descriptor, 0, [1], frozen)
    os.close(descriptor)
    assert _native.read_region(-1, 0, [1], np.zeros(3, np.uint8)) == (errno.EBADF, 0, 3, 0)
