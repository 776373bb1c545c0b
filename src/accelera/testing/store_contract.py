"""Contract of stores as tests to inherit.

A store's own test file says how to make one::

    class TestMyStore(StoreContract):
        def make(self, array):
            path = self.folder / "array.mine"
            ...
            return MyStore(path)

Stores that are also written inherit ``OutputContract`` and name ``begin``; those whose results appear
under a name when they are complete inherit ``PublishedContract`` and name ``reopen``.
"""

# ruff: noqa: D102 - a test's name says what it asks
from __future__ import annotations

import abc
import json
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accelera.errors import DTypeError, ShapeError, StoreError
from accelera.stores import Store
from accelera.stores._internal import OutputStore, parse_dtype, whole

_SHAPE = (7, 12, 9)
_REGIONS = [
    (slice(0, 7, 1), slice(0, 12, 1), slice(0, 9, 1)),
    (slice(2, 3, 1), slice(0, 12, 1), slice(0, 9, 1)),
    (slice(0, 7, 1), slice(3, 8, 1), slice(4, 9, 1)),
    (slice(1, 7, 2), slice(0, 11, 3), slice(0, 9, 4)),
    (slice(0, 7), slice(5, 6), slice(8, 9)),
    (slice(3, 3, 1), slice(0, 12, 1), slice(0, 9, 1)),
]
_LOOKS: list[Callable[[Any], Any]] = [
    lambda x: x.T,
    lambda x: x.transpose((1, 2, 0)),
    lambda x: x[::-1],
    lambda x: x[:, ::-2, 1:],
    lambda x: x[3],
    lambda x: x[-1, ..., 2],
    lambda x: x[2, 3, 4, ...],
    lambda x: x[:, None, 4:9:2, ::-1].T,
    lambda x: x.T[2:8, ::-3][..., 1:],
    lambda x: x[4:4],
]
_SLACK_BYTES = 256 << 10


def sample(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """Return an array of ``shape`` in which elements differ, negative and fractional ones included."""
    count = int(np.prod(shape, dtype=np.int64))
    values = (np.arange(count) * 37 % 251 - 101) / 4
    element = parse_dtype(dtype)
    return (values + 1j * values[::-1] if element.kind == "c" else values).astype(element).reshape(shape)


class StoreContract(abc.ABC):
    """Reading: inherit and name ``make``."""

    dtypes: tuple[str, ...] = ("bool", "int16", "float16", "float32", "float64", "complex64")
    """Element types to try."""
    folder: Path
    """An empty folder, new for each test."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    @abc.abstractmethod
    def make(self, array: np.ndarray[Any, Any]) -> Store:
        """Return an open store that holds a copy of ``array``."""

    @pytest.mark.parametrize("region", _REGIONS)
    def test_regions_are_read_and_counted(self, region: tuple[slice, ...]) -> None:
        array = sample(_SHAPE, "float32")
        out = np.full(array[region].shape, np.nan, array.dtype)
        assert self.make(array).read(region, out) == out.nbytes
        np.testing.assert_array_equal(out, array[region])

    @pytest.mark.parametrize("shape", [(), (1,), (5,), (0,), (3, 0, 2), (1, 1), (2, 3, 4, 5)])
    def test_any_number_of_axes(self, shape: tuple[int, ...]) -> None:
        array = sample(shape, "float64")
        store = self.make(array)
        assert (store.shape, store.ndim, store.nbytes) == (shape, len(shape), array.nbytes)
        np.testing.assert_array_equal(store.to_numpy(), array)

    def test_every_dtype_comes_back_bit_for_bit(self) -> None:
        for dtype in self.dtypes:
            array = sample((6, 5), dtype)
            store = self.make(array)
            assert store.dtype == array.dtype
            assert store.to_numpy().tobytes() == array.tobytes()

    def test_buffers_of_any_strides(self) -> None:
        array = sample(_SHAPE, "float32")
        store = self.make(array)
        wide = np.zeros((14, 24, 18), np.float32)
        for out in (np.empty(_SHAPE, np.float32, order="F"), wide[::2, :12, 9:], wide[7:, ::-2, ::-2]):
            assert store.read(whole(_SHAPE), out) == array.nbytes
            np.testing.assert_array_equal(out, array)

    def test_a_buffer_is_written_nowhere_else(self) -> None:
        wide = np.zeros((20, 30), np.float32)
        self.make(np.ones((4, 5), np.float32)).read(whole((4, 5)), wide[3:7, 10:20:2])
        assert wide.sum() == wide[3:7, 10:20:2].sum() == 20

    @pytest.mark.parametrize("look", _LOOKS)
    def test_views_show_what_numpy_shows(self, look: Callable[[Any], Any]) -> None:
        array = sample(_SHAPE, "float32")
        view, expected = look(self.make(array)), look(array)
        assert view.shape == expected.shape
        np.testing.assert_array_equal(view.to_numpy(), expected)
        backwards = np.empty(expected.shape[::-1], np.float32).T
        view.read(whole(view.shape), backwards)
        np.testing.assert_array_equal(backwards, expected)

    def test_broadcast_views_repeat(self) -> None:
        array = sample((4, 1, 3), "float32")
        view = self.make(array).broadcast_to((2, 4, 5, 3))
        out = np.empty((2, 4, 5, 3), np.float32)
        assert view.read(whole(view.shape), out) == out.nbytes
        np.testing.assert_array_equal(out, np.broadcast_to(array, out.shape))
        with pytest.raises(ShapeError, match="broadcast"):
            view.write(whole(view.shape), out)

    def test_the_layout_names_every_axis_once(self) -> None:
        store = self.make(sample(_SHAPE, "float32"))
        for view in (store, store.T, store[1], store[None, ::2], store.T[:, :1].broadcast_to((9, 4, 7))):
            assert sorted(view.layout.order) == list(range(view.ndim))
            assert view.layout.itemsize == 4
            assert view.layout.chunk is None or len(view.layout.chunk) == view.ndim
        assert self.make(sample((), "float32"))[None].to_numpy().shape == (1,)
        assert store.T.layout.order == tuple(2 - axis for axis in store.layout.order)

    def test_wrong_regions_and_buffers_are_refused(self) -> None:
        store = self.make(sample((4, 5), "float32"))
        out = np.full((4, 5), 7, np.float32)
        for region in ((slice(0, 4),), (slice(0, 5), slice(0, 5)), (slice(0, 4, -1), slice(0, 5))):
            with pytest.raises(ShapeError):
                store.read(region, out)
        with pytest.raises(ShapeError, match=r"\(4, 4\)"):
            store.read(whole((4, 5)), out[:, :4])
        with pytest.raises(DTypeError, match="int32"):
            store.read(whole((4, 5)), out.view(np.int32))
        assert (out == 7).all()

    def test_wrong_views_are_refused(self) -> None:
        store = self.make(sample((4, 5), "float32"))
        for key in ((9,), (0, 0, 0), (..., ...)):
            with pytest.raises(IndexError):
                store[key]
        with pytest.raises(TypeError):
            store[[0, 1]]  # type: ignore[index]
        with pytest.raises(ShapeError):
            store.transpose((0, 0))
        with pytest.raises(ShapeError):
            store.broadcast_to((4, 6))

    def test_a_closed_store_says_so(self) -> None:
        store = self.make(sample((4, 5), "float32"))
        view = store.T
        store.close()
        store.close()
        for closed in (store, view):
            with pytest.raises(StoreError, match="closed"):
                closed.to_numpy()

    def test_many_threads_may_read(self) -> None:
        array = sample((64, 50), "float32")
        store = self.make(array)
        found: list[np.ndarray[Any, Any]] = [np.empty((8, 50), np.float32) for _ in range(8)]
        regions = [(slice(8 * i, 8 * i + 8, 1), slice(0, 50, 1)) for i in range(8)]
        readers = [
            threading.Thread(target=store.read, args=pair) for pair in zip(regions, found, strict=True)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        np.testing.assert_array_equal(np.concatenate(found), array)

    def test_a_read_takes_no_more_memory_than_it_says(self) -> None:
        store = self.make(sample((1024, 1024), "float32"))
        out = np.empty((1024, 1000), np.float32)
        region = (slice(0, 1024, 1), slice(24, 1024, 1))
        store.read(region, out)
        tracemalloc.start()
        try:
            store.read(region, out)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak <= store.scratch_bytes + _SLACK_BYTES

    def test_resident_memory_is_the_store_itself(self) -> None:
        array = sample(_SHAPE, "float32")
        store = self.make(array)
        for view, expected in ((store, array), (store.T[::2], array.T[::2])):
            resident = view.resident()
            if resident is not None:
                np.testing.assert_array_equal(resident, expected)
        assert (store.resident() is None) == (store.T.resident() is None)

    def test_the_fingerprint_is_plain_and_stable(self) -> None:
        store = self.make(sample(_SHAPE, "float32"))
        identity = store.fingerprint()
        assert (identity is None) == (store.T.fingerprint() is None)
        if identity is not None:
            assert json.loads(json.dumps(identity)) == dict(identity)
            assert store.fingerprint() == identity != store.T.fingerprint()


class OutputContract(StoreContract):
    """Reading and writing: name ``begin`` as well."""

    @abc.abstractmethod
    def begin(self, shape: tuple[int, ...], dtype: str, *, resume: bool = False) -> OutputStore:
        """Begin a result, always under the same name where it has one."""

    @pytest.mark.parametrize("edge", [3, 4, 20])
    def test_what_is_written_in_tiles_is_there(self, edge: int) -> None:
        array = sample((13, 17), "float32")
        output = self.begin(array.shape, "float32")
        for i in range(0, 13, edge):
            for j in range(0, 17, edge):
                tile = array[i : i + edge, j : j + edge]
                region = (slice(i, min(i + edge, 13), 1), slice(j, min(j + edge, 17), 1))
                assert output.write(region, tile) == tile.nbytes
        output.flush()
        np.testing.assert_array_equal(output.to_numpy(), array)

    def test_every_dtype_is_written_bit_for_bit(self) -> None:
        for dtype in self.dtypes:
            array = sample((6, 5), dtype)
            output = self.begin(array.shape, dtype)
            output.write(whole(array.shape), array)
            assert output.to_numpy().tobytes() == array.tobytes()
            output.abort()

    def test_data_of_any_strides_and_read_only(self) -> None:
        array = sample(_SHAPE, "float32")
        wide = np.zeros((14, 24, 9), np.float32)
        wide[::2, ::-2] = array
        frozen = array.copy()
        frozen.flags.writeable = False
        for data in (np.asfortranarray(array), wide[::2, ::-2], frozen):
            output = self.begin(_SHAPE, "float32")
            output.write(whole(_SHAPE), data)
            np.testing.assert_array_equal(output.to_numpy(), array)
            output.abort()

    @pytest.mark.parametrize("look", _LOOKS)
    def test_views_are_written_where_numpy_writes(self, look: Callable[[Any], Any]) -> None:
        expected = sample(_SHAPE, "float32")
        output = self.begin(_SHAPE, "float32")
        output.write(whole(_SHAPE), expected)
        values = -1 - sample(look(expected).shape, "float32")
        look(output).write(whole(values.shape), values)
        look(expected)[...] = values
        np.testing.assert_array_equal(output.to_numpy(), expected)

    def test_wrong_data_is_refused(self) -> None:
        output = self.begin((4, 5), "float32")
        output.write(whole((4, 5)), np.ones((4, 5), np.float32))
        with pytest.raises(ShapeError):
            output.write((slice(0, 5), slice(0, 5)), np.zeros((5, 5), np.float32))
        with pytest.raises(ShapeError):
            output.write(whole((4, 5)), np.zeros((5, 4), np.float32))
        with pytest.raises(DTypeError):
            output.write(whole((4, 5)), np.zeros((4, 5), np.float64))
        assert (output.to_numpy() == 1).all()

    def test_a_closed_output_says_so(self) -> None:
        output = self.begin((4, 5), "float32")
        output.abort()
        with pytest.raises(StoreError, match="closed"):
            output.write(whole((4, 5)), np.ones((4, 5), np.float32))

    def test_writing_changes_the_fingerprint(self) -> None:
        output = self.begin((4, 5), "float32")
        before = output.fingerprint()
        time.sleep(0.02)  # longer than the clock of file times ticks
        output.write(whole((4, 5)), np.ones((4, 5), np.float32))
        assert before is None or output.fingerprint() != before


class PublishedContract(OutputContract):
    """Results that appear under a name on ``commit``, in ``folder``: name ``reopen`` as well."""

    @abc.abstractmethod
    def reopen(self) -> Store:
        """Open what was published under that name; StoreError when nothing was."""

    def _published(self) -> np.ndarray[Any, Any]:
        with self.reopen() as store:
            return store.to_numpy()

    def test_nothing_is_seen_before_commit_and_all_of_it_after(self) -> None:
        array = sample((4, 5), "float32")
        output = self.begin((4, 5), "float32")
        output.write(whole((4, 5)), array)
        with pytest.raises(StoreError):
            self._published()
        output.commit()
        np.testing.assert_array_equal(self._published(), array)

    def test_an_older_result_stays_until_commit(self) -> None:
        for value in (1, 2):
            output = self.begin((4, 5), "float32")
            output.write(whole((4, 5)), np.full((4, 5), value, np.float32))
            if value == 2:
                assert (self._published() == 1).all()
            output.commit()
        assert (self._published() == 2).all()

    def test_an_aborted_result_leaves_nothing(self) -> None:
        output = self.begin((4, 5), "float32")
        output.write(whole((4, 5)), np.ones((4, 5), np.float32))
        output.abort()
        with pytest.raises(StoreError):
            self._published()
        assert not list(self.folder.iterdir())

    def test_an_interrupted_result_is_resumed(self) -> None:
        array = sample((4, 5), "float32")
        half = (slice(0, 2, 1), slice(0, 5, 1)), (slice(2, 4, 1), slice(0, 5, 1))
        first = self.begin((4, 5), "float32")
        first.write(half[0], array[:2])
        first.abort(keep_partial=True)
        second = self.begin((4, 5), "float32", resume=True)
        second.write(half[1], array[2:])
        second.commit()
        np.testing.assert_array_equal(self._published(), array)

    def test_only_the_same_result_is_resumed(self) -> None:
        with pytest.raises(StoreError, match="nothing to resume"):
            self.begin((4, 5), "float32", resume=True)
        self.begin((4, 5), "float32").abort(keep_partial=True)
        for shape, dtype in (((5, 4), "float32"), ((4, 5), "int32")):
            with pytest.raises(StoreError, match="was begun for"):
                self.begin(shape, dtype, resume=True)
        self.begin((4, 5), "float32", resume=True).abort()

    def test_one_run_writes_a_result_at_a_time(self) -> None:
        output = self.begin((4, 5), "float32")
        with pytest.raises(StoreError, match="another run"):
            self.begin((4, 5), "float32")
        output.abort()
        self.begin((4, 5), "float32").abort()
