"""Every operation with operands and results in every kind of place that other libraries have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

from accelera.engine import MatrixEngine
from accelera.errors import AcceleraError, BudgetExceededError, DTypeError, StoreError
from accelera.stores import Store
from tests.matmul.products import values

da = pytest.importorskip("dask.array", reason="dask is part of the dev extra")
h5py = pytest.importorskip("h5py", reason="h5py is part of the dev extra")
xarray = pytest.importorskip("xarray", reason="xarray is part of the dev extra")
zarr = pytest.importorskip("zarr", minversion="3", reason="the extra zarr is not installed")

SHAPE = (60, 60)
A = np.abs(values(SHAPE, "f4", 1)).round(2)

OPERATIONS: dict[str, tuple[Callable[..., Any], np.ndarray[Any, Any]]] = {
    "matmul": (lambda e, x, **k: e.matmul(x, x, **k), A @ A),
    "gram": (lambda e, x, **k: e.gram(x, **k), A.T @ A),
    "evaluate": (lambda e, x, **k: e.evaluate(np.sqrt(e.array(x)) + 1, **k), np.sqrt(A) + 1),
    "add": (lambda e, x, **k: e.add(x, x, **k), A + A),
    "copy": (lambda e, x, **k: e.copy(x, **k), A),
    "transpose": (lambda e, x, **k: e.transpose(x, **k), A.T),
    "sum": (lambda e, x, **k: e.sum(x, axis=1, **k), A.sum(axis=1)),
    "argmax": (lambda e, x, **k: e.argmax(x, axis=1, **k), A.argmax(axis=1)),
}


@pytest.fixture
def engine() -> MatrixEngine:
    return MatrixEngine("cpu", enable_progress=False, budget="64MiB")


def zarr_array(place: Any, shape: tuple[int, ...], dtype: Any, **options: Any) -> Any:
    chunks = tuple(max(1, size // 3 + 1) for size in shape)
    return zarr.create_array(store=place, shape=shape, dtype=dtype, chunks=chunks, **options)


def filled(array: Any, data: np.ndarray[Any, Any]) -> Any:
    array[...] = data
    return array


OPERANDS: dict[str, Callable[[Path], Any]] = {
    "zarr object": lambda path: filled(zarr_array(str(path / "a"), SHAPE, "f4", overwrite=True), A),
    "zarr in memory": lambda path: filled(zarr_array(zarr.storage.MemoryStore(), SHAPE, "f4"), A),
    "h5py dataset": lambda path: h5py.File(path / "a.h5", "a").create_dataset("x", data=A, chunks=(7, 60)),
    "dask array": lambda path: da.from_array(A, chunks=(17, 60)),
    "xarray object": lambda path: xarray.DataArray(da.from_array(A, chunks=(60, 9))),
    "big-endian array": lambda path: A.astype(">f4"),
}


@pytest.mark.parametrize("kind", OPERANDS)
def test_operands(kind: str, engine: MatrixEngine, tmp_path: Path) -> None:
    operand = OPERANDS[kind](tmp_path)
    for name, (operation, wanted) in OPERATIONS.items():
        found = np.asarray(operation(engine, operand))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, err_msg=name)
        operation(engine, operand, out=tmp_path / f"{name}.npy")
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), wanted, rtol=1e-5, err_msg=name)


def mapped(path: Path, shape: tuple[int, ...], dtype: Any) -> Any:
    return np.lib.format.open_memmap(path / "out.npy", "w+", dtype, shape)


RESULTS: dict[str, Callable[[Path, tuple[int, ...], Any], Any]] = {
    "zarr 3 on disk": lambda path, shape, dtype: zarr_array(str(path / "out"), shape, dtype, overwrite=True),
    "zarr 2 on disk": lambda path, shape, dtype: zarr_array(
        str(path / "out"), shape, dtype, overwrite=True, zarr_format=2
    ),
    "zarr in memory": lambda path, shape, dtype: zarr_array(zarr.storage.MemoryStore(), shape, dtype),
    "h5py dataset": lambda path, shape, dtype: h5py.File(path / "out.h5", "w").create_dataset(
        "x", shape, dtype, chunks=True
    ),
    "writeable map": mapped,
    "big-endian map": lambda path, shape, dtype: mapped(path, shape, np.dtype(dtype).newbyteorder(">")),
    "big-endian array": lambda path, shape, dtype: np.zeros(shape, np.dtype(dtype).newbyteorder(">")),
    "strided array": lambda path, shape, dtype: np.zeros((*shape, 2), dtype)[..., 0],
}


@pytest.mark.parametrize("kind", RESULTS)
def test_results(kind: str, engine: MatrixEngine, tmp_path: Path) -> None:
    for name, (operation, wanted) in OPERATIONS.items():
        out = RESULTS[kind](tmp_path, wanted.shape, wanted.dtype)
        found = operation(engine, A, out=out)
        np.testing.assert_allclose(out[...], wanted, rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5, err_msg=name)
        if isinstance(out, np.memmap):
            np.testing.assert_allclose(np.load(tmp_path / "out.npy"), wanted, rtol=1e-5, err_msg=name)
        elif hasattr(out, "file"):
            out.file.close()


class OnlyArray:
    """What a result would be lost in: NumPy gets a copy of it."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return np.zeros(SHAPE, "f4")


UNWRITABLE: dict[str, Callable[[Path], Any]] = {
    "list": lambda path: np.zeros(SHAPE).tolist(),
    "only __array__": lambda path: OnlyArray(),
    "read-only array": lambda path: np.broadcast_to(np.zeros((1, 60), "f4"), SHAPE),
    "read-only map": lambda path: np.load(filled_file(path), mmap_mode="r"),
    "read-only zarr": lambda path: zarr.open_array(
        store=zarr_array(str(path / "z"), SHAPE, "f4", overwrite=True).store, mode="r"
    ),
    "dask": lambda path: da.zeros(SHAPE, dtype="f4"),
    "xarray": lambda path: xarray.DataArray(np.zeros(SHAPE, "f4")),
    "tensor with gradient": lambda path: torch.zeros(SHAPE, requires_grad=True),
    "expanded tensor": lambda path: torch.zeros(1, 60).expand(*SHAPE),
    "sparse": lambda path: scipy.sparse.csr_array(SHAPE, dtype="f4"),
    "number": lambda path: 3.0,
}


def filled_file(path: Path) -> Path:
    np.save(path / "frozen.npy", np.zeros(SHAPE, "f4"))
    return path / "frozen.npy"


class Unread(Store):
    """An operand that must not be read."""

    shape, dtype, tier, name = SHAPE, np.dtype("f4"), "disk", "unread"

    def read(self, region: Any, out: Any) -> int:
        raise AssertionError("it was read before the result's place was known to be good")

    write = read  # type: ignore[assignment]

    def fingerprint(self) -> dict[str, Any]:
        return {"kind": "unread"}

    @property
    def layout(self) -> Any:
        from accelera.stores._internal import Layout

        return Layout((0, 1), 4)


@pytest.mark.parametrize("kind", UNWRITABLE)
def test_what_cannot_be_written_is_refused_before_anything_is_read(
    kind: str, engine: MatrixEngine, tmp_path: Path
) -> None:
    for name, (operation, _) in OPERATIONS.items():
        with pytest.raises((StoreError, DTypeError), match=r"\[out\]|toarray"):
            operation(engine, Unread(), out=UNWRITABLE[kind](tmp_path))
        assert name
    assert not list(tmp_path.glob("*.partial"))


def test_chunks_too_large_for_the_budget_are_refused(engine: MatrixEngine) -> None:
    large = np.zeros((4_000, 2_000), "f4")
    for operand in (
        zarr.create_array(store=zarr.storage.MemoryStore(), data=large, chunks=large.shape),
        da.from_array(large, chunks=large.shape),
    ):
        for operation in ("copy", "transpose", "sum", "gram"):
            with pytest.raises(BudgetExceededError, match="budget"):
                OPERATIONS[operation][0](engine, operand)


@pytest.mark.parametrize("kind", ["array", "map", "zarr"])
def test_a_result_over_an_operand_is_refused(kind: str, engine: MatrixEngine, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", A)
    whole = {
        "array": lambda: A.copy(),
        "map": lambda: np.load(tmp_path / "a.npy", mmap_mode="r+"),
        "zarr": lambda: filled(zarr_array(str(tmp_path / "z"), SHAPE, "f4"), A),
    }[kind]()
    for operation, _ in list(OPERATIONS.values())[:6]:
        with pytest.raises(StoreError, match="shares memory"):
            operation(engine, whole, out=whole)
    if kind != "zarr":
        engine.copy(whole[:30], out=whole[30:])
        np.testing.assert_array_equal(whole[30:], A[:30])


def test_masked_elements_are_refused_by_every_operation(engine: MatrixEngine) -> None:
    masked = np.ma.masked_greater(A, 1)
    for operation, _ in OPERATIONS.values():
        with pytest.raises(AcceleraError, match="mask"):
            operation(engine, masked)


@pytest.mark.parametrize("codec", [None, "zstd", "gzip:1", "blosc-lz4:9"])
def test_zarr_results_as_they_are_wanted(codec: str | None, engine: MatrixEngine, tmp_path: Path) -> None:
    for name, (operation, wanted) in OPERATIONS.items():
        chunks = (17, 23)[: wanted.ndim]
        out = tmp_path / f"{name}{codec}.zarr"
        found = operation(engine, A, out=out, chunks=chunks, codec=codec)
        made = zarr.open_array(store=str(out), mode="r")
        assert (made.chunks, len(made.compressors)) == (chunks, int(codec is not None))
        np.testing.assert_allclose(made[...], wanted, rtol=1e-5)
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5)


def test_layouts_that_mean_nothing_are_refused(engine: MatrixEngine, tmp_path: Path) -> None:
    for out, options in (
        (tmp_path / "a.npy", {"codec": "zstd"}),
        (None, {"chunks": (2, 2)}),
        (np.zeros(SHAPE, "f4"), {"chunks": (2, 2)}),
        (tmp_path / "a.zarr", {"chunks": (2,)}),
        (tmp_path / "a.zarr", {"chunks": (0, 2)}),
        (tmp_path / "a.zarr", {"chunks": ("a", 2)}),
        (tmp_path / "a.zarr", {"codec": "zip"}),
        (tmp_path / "a.zarr", {"codec": "gzip:many"}),
        (tmp_path / "a.zarr", {"codec": "gzip:99"}),
    ):
        for operation, _ in list(OPERATIONS.values())[:6]:
            with pytest.raises(AcceleraError):
                operation(engine, Unread(), out=out, **options)
    assert not list(tmp_path.iterdir())
