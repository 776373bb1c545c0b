"""Operands and results anywhere: .npy, raw, safetensors and Zarr files, arrays, and views of them."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from accelera import MatrixEngine, open_store

random = np.random.default_rng(1)
a = random.standard_normal((900, 700), dtype=np.float32)
b = random.standard_normal((700, 500), dtype=np.float32)
exact = a.astype(np.float64) @ b
engine = MatrixEngine("cpu", budget="64MiB")


def check(result: np.ndarray) -> None:
    """Compare with float64."""
    assert np.allclose(result, exact, rtol=1e-4, atol=1e-3)


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    np.save(folder / "a.npy", a)
    engine.copy(a, f"{folder}/a.safetensors::left")
    b.tofile(folder / "b.bin")

    # A path is an operand; out= is where the result goes.
    engine.matmul(folder / "a.npy", b, out=folder / "c.npy")
    check(np.load(folder / "c.npy"))
    print(engine.last_report.table())

    # The array of a file that can have several is named with '::'; a file without a header is described.
    right = open_store(folder / "b.bin", shape=(700, 500), dtype="float32")
    engine.matmul(f"{folder}/a.safetensors::left", right, out=folder / "c.bin")
    check(np.fromfile(folder / "c.bin", np.float32).reshape(900, 500))

    # Views are read as they lie: no transposed copy is made.
    np.save(folder / "a_transposed.npy", np.ascontiguousarray(a.T))
    left = open_store(folder / "a_transposed.npy").T
    engine.matmul(left, right, out=folder / "c.npy")
    check(np.load(folder / "c.npy"))

    # A slice of the product: only the rows that are needed are read.
    engine.matmul(open_store(folder / "a.npy")[100:200], right, out=folder / "rows.npy")
    assert np.allclose(np.load(folder / "rows.npy"), exact[100:200], rtol=1e-4, atol=1e-3)
    print("bytes read:", dict(engine.last_report.bytes_read))

    # Zarr, where it is installed.
    if find_spec("zarr"):
        engine.matmul(folder / "a.npy", right, out=folder / "c.zarr")
        check(open_store(folder / "c.zarr").to_numpy())
