"""Operands in every store, products by a plan, and an independent reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from accelera.devices import Device, get_device
from accelera.engine import RunReport
from accelera.errors import BudgetExceededError
from accelera.stores import Store, open_store
from accelera.stores._internal import create_store
from tests.planned import matmul

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
HALVES = (np.dtype(np.float16), BFLOAT16)
INTEGERS = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = [*HALVES, np.dtype("f4"), np.dtype("f8"), np.dtype("c8"), np.dtype("c16")]
ROOMY = 256 << 20
"""A budget in which every product of the tests fits."""

Keep = Callable[[Path, np.ndarray[Any, Any]], Store]


def values(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return repeatable contents; integers take their type's whole range, so products wrap around."""
    rng, dtype = np.random.default_rng(seed), np.dtype(dtype)
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return rng.integers(bounds.min, bounds.max, shape, dtype, endpoint=True)
    real = rng.standard_normal(shape)
    if dtype.kind == "c":
        return (real + 1j * rng.standard_normal(shape)).astype(dtype)
    return real.astype(dtype)


def reference(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return ``a @ b`` in the widest type there is; integers wrap around exactly."""
    kind = a.dtype.kind
    if kind in "iu":
        with np.errstate(over="ignore"):
            return np.asarray(np.matmul(a.astype("u8"), b.astype("u8"))).astype(a.dtype)
    wide = "c16" if kind == "c" else "f8"
    return np.asarray(np.matmul(a.astype(wide), b.astype(wide)))


def in_ram(_: Path, array: np.ndarray[Any, Any]) -> Store:
    return open_store(array)


def in_fortran_ram(_: Path, array: np.ndarray[Any, Any]) -> Store:
    return open_store(np.asfortranarray(array))


def in_npy(path: Path, array: np.ndarray[Any, Any]) -> Store:
    return _file(path.with_suffix(".npy"), array)


def in_fortran_npy(path: Path, array: np.ndarray[Any, Any]) -> Store:
    return _file(path.with_suffix(".npy"), array, order="F")


def in_raw(path: Path, array: np.ndarray[Any, Any]) -> Store:
    path = path.with_suffix(".bin")
    path.write_bytes(np.ascontiguousarray(array).tobytes())
    return open_store(path, shape=array.shape, dtype=array.dtype)


def in_safetensors(path: Path, array: np.ndarray[Any, Any]) -> Store:
    return _file(path.with_suffix(".safetensors"), array)


def in_zarr(path: Path, array: np.ndarray[Any, Any]) -> Store:
    chunk = tuple(max(1, -(-size // 3)) for size in array.shape)
    return _file(path.with_suffix(".zarr"), array, chunk=chunk)


PLACES: dict[str, Keep] = {
    "ram": in_ram,
    "ram-f": in_fortran_ram,
    "npy": in_npy,
    "npy-f": in_fortran_npy,
    "raw": in_raw,
    "safetensors": in_safetensors,
    "zarr": in_zarr,
}
SUFFIXES = {"npy": ".npy", "raw": ".bin", "safetensors": ".safetensors", "zarr": ".zarr"}


def can_hold(place: str, dtype: Any) -> bool:
    """Return whether the format behind ``place`` has a name for ``dtype``."""
    dtype = np.dtype(dtype)
    return not (place == "safetensors" and dtype == "c16") and not (place == "zarr" and dtype == BFLOAT16)


def _file(path: Path, array: np.ndarray[Any, Any], **options: Any) -> Store:
    output = create_store(path, array.shape, array.dtype, **options)
    output.write(tuple(slice(0, size) for size in array.shape), array)
    output.commit()
    return open_store(path, dtype=array.dtype)


def read_back(path: Path, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """Return what a finished result file holds."""
    described = {"shape": shape, "dtype": dtype} if path.suffix == ".bin" else {"dtype": dtype}
    with open_store(path, **described) as store:
        assert store.shape == shape
        assert store.dtype == dtype
        return store.to_numpy()


def smallest_budget(a: Store, b: Store, out: Any = None, **options: Any) -> int:
    """Return the least budget that a refusal names."""
    try:
        matmul(a, b, out, device=cpu(), budget_bytes=1, **options)
    except BudgetExceededError as refusal:
        return refusal.needed_bytes
    raise AssertionError("a budget of one byte was accepted")


def run(a: Store, b: Store, out: Any = None, extra_bytes: int = 0, **options: Any) -> tuple[Store, RunReport]:
    """Multiply inside the smallest budget that does, plus ``extra_bytes``."""
    budget_bytes = smallest_budget(a, b, out, **_planning(options)) + extra_bytes
    return matmul(a, b, out, device=cpu(), budget_bytes=budget_bytes, **options)


def cpu() -> Device:
    return get_device("cpu")


def _planning(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in ("tiles", "prefetch", "readers") if name in options}


def assert_as_planned(report: RunReport) -> None:
    """Raise unless a whole run did to the byte what its plan said."""
    said = report.plan.forecast
    assert report.bytes_read == dict(said.bytes_read)
    assert report.bytes_written == said.bytes_written
    assert report.steps_run == said.steps
    assert report.peak_pool_bytes == said.peak_pool_bytes
    assert (report.hits, report.misses, report.evictions) == (said.hits, said.misses, said.evictions)
    assert report.plan.peak_bytes["ram"] <= (report.plan.budget_bytes or 1 << 62)


def assert_close(got: np.ndarray[Any, Any], a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> None:
    """Raise unless ``got`` is ``a @ b``: exactly for integers, else within the type's rounding."""
    expected = reference(a, b)
    assert got.shape == expected.shape
    assert got.dtype == a.dtype
    if a.dtype.kind in "iu":
        np.testing.assert_array_equal(got, expected)
        return
    wide = expected.dtype
    limits = ml_dtypes.finfo(a.dtype)
    epsilon, least = float(limits.eps), float(limits.smallest_subnormal)
    summed = float(np.finfo(np.float32).eps) if a.dtype in HALVES else epsilon
    depth = a.shape[-1]
    bound = np.asarray(np.matmul(np.abs(a.astype(wide)), np.abs(b.astype(wide)))) * (depth + 4) * summed
    allowed = bound + epsilon * np.abs(expected) + least
    assert (np.abs(got.astype(wide) - expected) <= allowed).all()
