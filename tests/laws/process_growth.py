"""A program that runs operations on one kind of operand and prints how much its process grew in each.

The kernel measures: the highest resident memory of the process between two marks, file pages included.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import accelera as acc
from accelera import BudgetExceededError, MatrixEngine
from accelera.engine import Expr

warnings.simplefilter("ignore")

ROWS, COLUMNS = 5000, 2200
CHUNK = (250, 220)
SLACK = 1.3
"""Budgets as multiples of the smallest, at which compressed chunks would be decoded many times."""


def resident(key: str) -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024


def npy(path: Path, rows: np.ndarray) -> str:
    np.save(path.with_suffix(".npy"), rows)
    return str(path.with_suffix(".npy"))


def h5(path: Path, rows: np.ndarray, **options: Any) -> str:
    import h5py

    with h5py.File(path.with_suffix(".h5"), "w") as file:
        file.create_dataset("x", data=rows, **options)
    return str(path.with_suffix(".h5"))


def open_h5(path: Path, rows: np.ndarray) -> Any:
    import h5py

    return h5py.File(h5(path, rows, chunks=CHUNK), "r")["x"]


def zarr_array(path: Path, rows: np.ndarray, **options: Any) -> Any:
    import zarr

    array = zarr.create_array(
        str(path.with_suffix(".zarr")), shape=rows.shape, dtype="f4", chunks=CHUNK, **options
    )
    array[:] = rows
    return array


def gzipped_zarr(path: Path, rows: np.ndarray) -> str:
    from zarr.codecs import GzipCodec

    zarr_array(path, rows, compressors=GzipCodec(level=1))
    return str(path.with_suffix(".zarr"))


def many_h5(path: Path, rows: np.ndarray) -> Any:
    parts = np.array_split(rows, 12)
    names = [
        h5(path.with_name(f"{path.name}{number}"), part, chunks=(50, 220))
        for number, part in enumerate(parts)
    ]
    return acc.concatenate(names)


def mapped(mode: Any) -> Callable[[Path, np.ndarray], Any]:
    return lambda path, rows: np.load(npy(path, rows), mmap_mode=mode)


def mapped_matrix(path: Path, rows: np.ndarray) -> Any:
    return acc.Matrix(np.load(npy(path, rows), mmap_mode="r"))


def mapped_tensor(path: Path, rows: np.ndarray) -> Any:
    import torch

    return torch.from_file(npy(path, rows), False, rows.size + 32)[32:].reshape(rows.shape)


def safetensors(path: Path, rows: np.ndarray) -> str:
    from safetensors.numpy import save_file

    save_file({"x": rows}, path.with_suffix(".safetensors"))
    return str(path.with_suffix(".safetensors"))


KINDS: dict[str, Callable[[Path, np.ndarray], Any]] = {
    "npy": npy,
    "npy, Fortran order": lambda path, rows: npy(path, np.asfortranarray(rows)),
    "npy, other byte order": lambda path, rows: npy(path, rows.astype(">f4")),
    "safetensors": safetensors,
    "hdf5": h5,
    "hdf5, chunks": lambda path, rows: h5(path, rows, chunks=CHUNK),
    "hdf5, gzip": lambda path, rows: h5(path, rows, chunks=CHUNK, compression=1, shuffle=True),
    "hdf5, opened by the caller": open_h5,
    "hdf5, many files": many_h5,
    "zarr": lambda path, rows: zarr_array(path, rows) and str(path.with_suffix(".zarr")),
    "zarr, gzip": gzipped_zarr,
    "zarr, format 2": lambda path, rows: zarr_array(path, rows, zarr_format=2),
    "zarr, shards": lambda path, rows: zarr_array(path, rows, shards=(500, 440)),
    "map, mode r": mapped("r"),
    "map, mode r+": mapped("r+"),
    "map, mode c": mapped("c"),
    "matrix over a map": mapped_matrix,
    "tensor over a map": mapped_tensor,
}
"""Kinds of operands by name: a function that writes rows and returns the operand."""


def operations(engine: MatrixEngine, x: Any, folder: Path) -> dict[str, Callable[[Any], Any]]:
    narrow = np.ones((x_shape(engine, x)[1], 300), "f4")
    np.save(folder / "narrow.npy", narrow)
    expression = (x if isinstance(x, Expr) else engine.array(x)) * 2 + 1
    calls: dict[str, Callable[[Any], Any]] = {
        "matmul": lambda budget: engine.matmul(x, folder / "narrow.npy", out=folder / "p.npy", budget=budget),
        "mean": lambda budget: engine.mean(x, axis=0, budget=budget),
        "evaluate": lambda budget: engine.evaluate(expression, folder / "e.npy", budget=budget),
    }
    if isinstance(x, Expr):
        return calls
    return calls | {
        "gram": lambda budget: engine.gram(x, out=folder / "g.npy", budget=budget),
        "transpose": lambda budget: engine.transpose(x, out=folder / "t.npy", budget=budget),
    }


def x_shape(engine: MatrixEngine, x: Any) -> tuple[int, ...]:
    return tuple(x.shape if hasattr(x, "shape") else engine.array(x).shape)


def growth(run: Callable[[Any], Any]) -> tuple[int, int]:
    """Return the smallest budget of an operation, and how much the process grows when it has that."""
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    try:
        run(1)  # the refusal must not touch the operand either
    except BudgetExceededError as refused:
        budget = int(refused.needed_bytes * SLACK)
    run(budget)
    return budget, resident("VmHWM") - before


def main(kind: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, engine = Path(name), MatrixEngine("cpu", enable_progress=False)
        rows = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), np.float32)
        warm = KINDS[kind](folder / "warm", rows[:700, :600].copy())
        for run in operations(engine, warm, folder).values():
            run("64MiB")
        x = KINDS[kind](folder / "x", rows)
        del rows
        os.sync()
        print(json.dumps({name: growth(run) for name, run in operations(engine, x, folder).items()}))


if __name__ == "__main__":
    main(sys.argv[1])
