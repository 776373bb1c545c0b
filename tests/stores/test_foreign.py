"""Arrays of other libraries as operands: read by chunk, the same for NumPy's eyes, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from accelera.errors import DTypeError, ShapeError, StoreError, StoreFormatError
from accelera.stores import Store, open_store
from accelera.stores._internal import create_store, open_result, whole
from accelera.testing._internal import StoreContract
from accelera.testing.store_contract import sample

da = pytest.importorskip("dask.array", reason="dask is part of the dev extra")
h5py = pytest.importorskip("h5py", reason="h5py is part of the dev extra")
xarray = pytest.importorskip("xarray", reason="xarray is part of the dev extra")
zarr = pytest.importorskip("zarr", minversion="3", reason="the extra zarr is not installed")


def chunks_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(min(max(size, 1), 256 if size > 100 else 4) for size in shape)


class TestZarrInMemory(StoreContract):
    def make(self, array: np.ndarray[Any, Any]) -> Store:
        made = zarr.create_array(
            store=zarr.storage.MemoryStore(),
            shape=array.shape,
            dtype=array.dtype,
            chunks=chunks_of(array.shape),
        )
        made[...] = array
        return open_store(made)


class TestZarrVersionTwoOnDisk(StoreContract):
    def make(self, array: np.ndarray[Any, Any]) -> Store:
        made = zarr.create_array(
            store=str(self.folder / "a"),
            shape=array.shape,
            dtype=array.dtype,
            chunks=chunks_of(array.shape),
            zarr_format=2,
            overwrite=True,
        )
        made[...] = array
        return open_store(made)


class TestH5Dataset(StoreContract):
    chunked = True

    def make(self, array: np.ndarray[Any, Any]) -> Store:
        path = self.folder / f"{len(list(self.folder.iterdir()))}.h5"
        file = h5py.File(path, "w")
        plain = not self.chunked or array.ndim == 0 or 0 in array.shape
        options = {} if plain else {"chunks": chunks_of(array.shape), "compression": "gzip"}
        return open_store(file.create_dataset("x", data=array, **options))


class TestH5DatasetWithoutChunks(TestH5Dataset):
    chunked = False


class TestDask(StoreContract):
    def make(self, array: np.ndarray[Any, Any]) -> Store:
        uneven = tuple(
            (size // 3, size - size // 3) if 3 < size < 100 else chunks_of((size,))[0] for size in array.shape
        )
        return open_store(da.from_array(array, chunks=uneven))


class TestXarrayOverZarr(StoreContract):
    dtypes = ("int16", "float32", "float64")

    def make(self, array: np.ndarray[Any, Any]) -> Store:
        names = [f"axis{i}" for i in range(array.ndim)]
        path = str(self.folder / f"{len(list(self.folder.iterdir()))}.zarr")
        data = xarray.Dataset({"x": (names, array)})
        data.to_zarr(
            path, consolidated=False, encoding={"x": {"chunks": chunks_of(array.shape)}} if names else {}
        )
        return open_store(xarray.open_zarr(path, chunks=None, consolidated=False, mask_and_scale=False)["x"])


def test_xarray_is_what_it_holds(tmp_path: Path) -> None:
    array = sample((6, 5), "float64")
    assert open_store(xarray.DataArray(array)).resident() is array
    lazily = open_store(xarray.DataArray(da.from_array(array, chunks=3)))
    assert type(lazily).__name__ == "DaskStore"
    np.testing.assert_array_equal(lazily.to_numpy(), array)
    np.testing.assert_array_equal(open_store(xarray.Variable(("i", "j"), array)).to_numpy(), array)


def test_other_byte_orders_are_read(tmp_path: Path) -> None:
    array = sample((7, 5), "float32").astype(">f4")
    made = zarr.create_array(store=str(tmp_path / "a.zarr"), shape=(7, 5), dtype=">f4", chunks=(3, 3))
    made[...] = array
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("flat", data=array)
        file.create_dataset("chunked", data=array, chunks=(3, 3))
    for each in (array, made, tmp_path / "a.zarr", f"{tmp_path}/a.h5::flat", f"{tmp_path}/a.h5::chunked"):
        store = open_store(each)
        assert store.dtype.str == np.dtype("f4").str
        np.testing.assert_array_equal(store.T[::-1].to_numpy(), array.T[::-1])


def test_what_could_only_be_loaded_whole_is_refused() -> None:
    class Opaque:
        def __init__(self, count: int | None) -> None:
            if count is not None:
                self.shape, self.dtype, self.nbytes = (count,), np.dtype("f8"), 8 * count

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            if getattr(self, "nbytes", 1 << 30) > 1 << 20:
                raise AssertionError("it was loaded")
            return np.arange(self.shape[0], dtype="f8")

    np.testing.assert_array_equal(open_store(Opaque(5)).to_numpy(), np.arange(5.0))
    for opaque in (Opaque(1 << 24), Opaque(None)):
        with pytest.raises(StoreError, match=r"np\.asarray"):
            open_store(opaque)
    with pytest.raises(DTypeError, match=r"toarray"):
        open_store(scipy.sparse.eye_array(5, format="csr"))
    with pytest.raises(StoreFormatError, match="several arrays"):
        open_store(zarr.create_group(store=zarr.storage.MemoryStore()))
    with pytest.raises(StoreFormatError, match="several arrays"):
        open_store(xarray.Dataset())


def test_dask_arrays_that_tell_too_little_are_refused() -> None:
    x = da.from_array(np.arange(10.0), chunks=3)
    with pytest.raises(StoreError, match="compute_chunk_sizes"):
        open_store(x[x > 4])
    with pytest.raises(DTypeError, match="MaskedArray"):
        open_store(da.ma.masked_greater(x, 4))


def test_a_failing_dask_graph_says_so() -> None:
    def fails(block: Any) -> Any:
        raise ArithmeticError("no luck")

    x = da.from_array(np.arange(10.0), chunks=3).map_blocks(fails, dtype="f8", meta=np.empty(0))
    with pytest.raises(StoreError, match=r"no luck; dask could not compute it"):
        open_store(x).to_numpy()


class TestMaskedArrays:
    def test_masked_elements_are_refused(self) -> None:
        masked = np.ma.array([[1.0, 2.0], [3.0, 4.0]], mask=[[False, True], [False, False]])
        for each in (masked, masked[0], [masked[0], masked[1]], np.ma.masked):
            with pytest.raises(DTypeError, match="mask"):
                open_store(each)

    def test_nothing_masked_is_an_array(self) -> None:
        plain = np.ma.array([[1.0, 2.0], [3.0, 4.0]])
        np.testing.assert_array_equal(open_store(plain).to_numpy(), plain.data)
        assert type(open_store(plain).resident()) is np.ndarray

    def test_matrices_of_numpy_are_arrays(self) -> None:
        found = open_store(np.array([[1.0, 2.0], [3.0, 4.0]]).view(np.matrix))
        np.testing.assert_array_equal(found[0].to_numpy(), [1.0, 2.0])


class TestResults:
    """What ``out=`` may be: ``open_result`` is the one place that knows."""

    @pytest.mark.parametrize("zarr_format", [2, 3])
    @pytest.mark.parametrize("where", ["disk", "memory"])
    def test_zarr_arrays_are_written(self, tmp_path: Path, zarr_format: int, where: str) -> None:
        place = str(tmp_path / "a") if where == "disk" else zarr.storage.MemoryStore()
        made = zarr.create_array(
            store=place, shape=(7, 5), dtype="f4", chunks=(3, 2), zarr_format=zarr_format, fill_value=1
        )
        array = sample((7, 5), "float32")
        store = open_result(made)
        for rows in (slice(0, 4), slice(4, 7)):
            store.write((rows, slice(0, 5)), array[rows])
        store.flush()
        np.testing.assert_array_equal(made[...], array)

    def test_datasets_are_written(self, tmp_path: Path) -> None:
        array = sample((7, 5), "float32")
        with h5py.File(tmp_path / "a.h5", "w") as file:
            for name, options in (("flat", {}), ("chunked", {"chunks": (3, 2), "compression": "gzip"})):
                store = open_result(file.create_dataset(name, (7, 5), "f4", **options))
                store.write(whole((7, 5)), array)
                store.flush()
        with h5py.File(tmp_path / "a.h5") as file:
            for name in ("flat", "chunked"):
                np.testing.assert_array_equal(file[name][...], array)
                with pytest.raises(StoreError, match="reading"):
                    open_result(file[name])
            closed = file["flat"]
        with pytest.raises(StoreError, match="closed"):
            open_store(closed)

    @pytest.mark.parametrize("dtype", ["<f4", ">f4"])
    @pytest.mark.parametrize("step", [1, -2])
    def test_maps_are_written_into_their_file(self, tmp_path: Path, dtype: str, step: int) -> None:
        mapped = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", dtype, (9, 6))
        array = sample(mapped[:, ::step].shape, "float32")
        with open_result(mapped[:, ::step]) as store:
            store.write(whole(store.shape), array)
            store.flush()
        np.testing.assert_array_equal(mapped[:, ::step], array)
        np.testing.assert_array_equal(np.load(tmp_path / "a.npy")[:, ::step], array)

    def test_arrays_in_the_other_byte_order_are_written(self) -> None:
        array = sample((6, 5), "complex64")
        out = np.zeros((6, 10), ">c8")
        open_result(out[:, ::2]).write(whole((6, 5)), array)
        np.testing.assert_array_equal(out[:, ::2], array)
        assert (out[:, 1::2] == 0).all()

    def test_what_cannot_be_written_is_refused(self, tmp_path: Path) -> None:
        frozen = np.zeros(3)
        frozen.flags.writeable = False
        np.save(tmp_path / "a.npy", np.zeros(3))
        read_only = zarr.create_array(store=str(tmp_path / "z"), shape=(3,), dtype="f8")
        x = xarray.DataArray(np.zeros(3))
        for out, kind, remedy in (
            (frozen, StoreError, "writeable"),
            (np.broadcast_to(np.zeros(1), (3,)), StoreError, "writeable"),
            (np.lib.stride_tricks.as_strided(np.zeros(1), (3,), (0,)), StoreError, "share memory"),
            (np.load(tmp_path / "a.npy", mmap_mode="r"), StoreError, r"mode='r\+'"),
            (zarr.open_array(store=str(tmp_path / "z"), mode="r"), StoreError, "reading"),
            (open_store(tmp_path / "a.npy"), StoreError, "reading"),
            (open_store(np.zeros(1)).broadcast_to((3,)), StoreError, "broadcast"),
            (da.zeros(3), StoreError, "path"),
            (x, StoreError, "values"),
            ([0.0] * 3, DTypeError, "array"),
            (3.0, DTypeError, "array"),
            (object(), DTypeError, "array"),
            (scipy.sparse.eye_array(3, format="csr"), DTypeError, "toarray"),
            (np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False]), DTypeError, "mask"),
        ):
            with pytest.raises(kind, match=remedy):
                open_result(out)
        assert read_only.shape == (3,)

    def test_tensors(self) -> None:
        torch = pytest.importorskip("torch")
        plain = torch.zeros(3, dtype=torch.complex64)
        open_result(plain).write(whole((3,)), np.ones(3, "c8"))
        assert (plain == 1).all()
        for out, remedy in (
            (torch.zeros(3, requires_grad=True), "detach"),
            (plain.conj(), "clone"),
            (torch.zeros(1).expand(3), "share memory"),
        ):
            with pytest.raises(StoreError, match=remedy):
                open_result(out)
            with pytest.raises(StoreError, match=remedy):
                create_store(out, (3,), "float32" if out.dtype == torch.float32 else "complex64")


def test_a_store_is_an_array_for_numpy(tmp_path: Path) -> None:
    array = sample((6, 5), "float32")
    np.save(tmp_path / "a.npy", array)
    store = open_store(tmp_path / "a.npy")
    for each in (store, store.T, open_store(array)):
        found = np.asarray(each)
        assert (found.dtype, found.shape) == (np.float32, each.shape)
    assert np.asarray(open_store(array)) is array
    assert np.array(open_store(array)) is not array
    assert np.asarray(store, "f8").dtype == np.float64
    with pytest.raises(ValueError, match="copy=False"):
        np.array(store, copy=False)
    for use in (lambda: np.sqrt(store), lambda: array + store, lambda: store + 1):
        with pytest.raises(TypeError):
            use()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        np.asarray(store)


def test_more_than_the_memory_is_not_loaded(tmp_path: Path) -> None:
    from accelera.errors import BudgetExceededError

    with open(tmp_path / "a.bin", "wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(BudgetExceededError, match="are free"):
        np.asarray(open_store(tmp_path / "a.bin", shape=(1 << 42,), dtype="int8"))


def test_a_map_of_a_replaced_file_shows_what_it_maps(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(5))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    with create_store(tmp_path / "a.npy", (5,), "f8") as output:
        output.write(whole((5,)), np.full(5, 2.0))
        output.commit()
    assert (open_store(mapped).to_numpy() == 1).all()
    assert (open_store(tmp_path / "a.npy").to_numpy() == 2).all()


@pytest.mark.parametrize("name", ["r.npy", "r.safetensors::x", "r.bin", "r.zarr", "r.h5::g/x", "r.h5"])
def test_a_published_result_is_an_operand_at_once(tmp_path: Path, name: str) -> None:
    array = sample((6, 5), "float32")
    output = create_store(tmp_path / name, array.shape, array.dtype)
    assert output.read_only is None
    output.write(whole(array.shape), array)
    output.commit()
    np.testing.assert_array_equal(np.asarray(output), array)
    np.testing.assert_array_equal(output.T[1:, ::2].to_numpy(), array.T[1:, ::2])
    known: dict[str, Any] = {"shape": (6, 5), "dtype": "f4"} if name.endswith(".bin") else {}
    with open_store(tmp_path / name, **known) as again:
        assert output.fingerprint() == again.fingerprint()
    assert output.layout.order == (0, 1)
    with pytest.raises(StoreError, match="complete"):
        open_result(output)
    with pytest.raises(StoreError):
        output.write(whole(array.shape), array)
    assert not list(tmp_path.glob("*.partial"))
    output.abort()
    output.close()


@pytest.mark.parametrize("suffix", [".npy", ".zarr", ".h5"])
def test_links_are_followed(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "data").mkdir()
    for name in ("new", "old"):
        (tmp_path / f"{name}{suffix}").symlink_to(tmp_path / "data" / f"{name}{suffix}")
    create_store(tmp_path / "data" / f"old{suffix}", (3,), "f4").commit()
    for name in ("new", "old"):
        with create_store(tmp_path / f"{name}{suffix}", (5,), "f4") as output:
            output.write(whole((5,)), np.ones(5, "f4"))
            output.commit()
        assert (tmp_path / f"{name}{suffix}").is_symlink()
        assert open_store(tmp_path / "data" / f"{name}{suffix}").shape == (5,)
    assert sorted(each.name for each in (tmp_path / "data").iterdir()) == [f"new{suffix}", f"old{suffix}"]


def test_long_headers_are_read_when_told_to(tmp_path: Path) -> None:
    array = np.arange(4.0)
    head = repr({"descr": "<f8", "fortran_order": False, "shape": (4,)}).ljust(100_000).encode()
    raw = b"\x93NUMPY\x02\x00" + len(head).to_bytes(4, "little") + head + array.tobytes()
    (tmp_path / "a.npy").write_bytes(raw)
    with pytest.raises(StoreFormatError, match="max_header_size=100000"):
        open_store(tmp_path / "a.npy")
    assert (open_store(tmp_path / "a.npy", max_header_size=1 << 20).to_numpy() == array).all()


def test_more_axes_than_numpy_has_are_refused(tmp_path: Path) -> None:
    shape = (1,) * 70
    head = repr({"descr": "<f8", "fortran_order": False, "shape": shape}).encode()
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(8))
    with pytest.raises(ShapeError, match="70 axes"):
        open_store(tmp_path / "a.npy")
    with pytest.raises(ShapeError, match="70 axes"):
        create_store(tmp_path / "b.npy", shape, "f8")
    store = open_store(np.ones(3))
    with pytest.raises(ShapeError, match="axes"):
        store[(None,) * 70]
    with pytest.raises(ShapeError, match="axes"):
        store.broadcast_to((1,) * 69 + (3,))
