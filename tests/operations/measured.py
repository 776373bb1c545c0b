"""Run as a program: one operation, written as Python, in a budget; prints what it took as JSON.

After ``#`` come what ``operand`` and ``out`` stand for, made before the memory is measured.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import numpy as np

from accelera.devices import get_device
from accelera.engine import RunReport, lazy
from accelera.memory import process_memory, reset_peak
from accelera.stores import open_store
from tests.planned import copy, evaluate, evaluate_all, gram, matmul, sparse_matmul, transpose

CALLED = {
    "matmul": matmul,
    "evaluate": evaluate,
    "evaluate_all": evaluate_all,
    "copy": copy,
    "transpose": transpose,
    "gram": gram,
    "lazy": lazy,
    "np": np,
}


def main(call: str, budget_bytes: int) -> dict[str, Any]:
    warm_up(call)
    x, y = lazy("a.npy"), lazy("b.npy")
    options = {"device": get_device("cpu"), "budget_bytes": budget_bytes}
    names: dict[str, Any] = {
        **CALLED,
        "sparse_matmul": sparse_matmul,
        **libraries(call),
        "open_store": open_store,
        "x": x,
        "y": y,
        "options": options,
    }
    names["operand"], names["out"] = (
        eval(each, names) if each else None for each in (*call.split(" # ")[1:], "", "")[:2]
    )
    before = process_memory().rss_bytes
    reset_peak()
    report: RunReport = eval(call, names)[1]
    assert_kept(names["out"])
    return {
        "peak": process_memory().peak_bytes - before,
        "projected": report.plan.peak_bytes["ram"],
        "pool": report.peak_pool_bytes,
        "moved": report.moved_bytes,
        "planned": report.plan.moved_bytes,
    }


def libraries(call: str) -> dict[str, Any]:
    """Return the libraries that a call names, loaded."""
    named = {"sparse": "scipy.sparse", "zarr": "zarr", "h5py": "h5py", "da": "dask.array", "xarray": "xarray"}
    return {name: importlib.import_module(path) for name, path in named.items() if f"{name}." in call}


def assert_kept(out: Any) -> None:
    """Raise unless a result was written: nothing here has only zeros."""
    assert out is None or np.any(out[:8] != 0)


def warm_up(call: str) -> None:
    """Load what the operation imports, and start the libraries' threads, on operands of a few bytes."""
    device = get_device("cpu")
    small = np.ones((8, 8), "f4")
    evaluate(np.sqrt(lazy(small)).sum(axis=0), device=device)
    gram(open_store(small), device=device)
    if "zarr" in call:
        copy(small, "warm.zarr", device=device)
        copy("warm.zarr", device=device)
    if "h5" in call:
        copy(small, "warm.h5", device=device)
    if "da." in call:
        copy(libraries("da.")["da"].ones((8, 8)), device=device)
    gemm = matmul(open_store(small), open_store(small), device=device)
    del gemm


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
