"""Measured in a process of its own: what a run takes is at most what its plan says, and that its budget."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.matmul.products import values

h5py = pytest.importorskip("h5py", reason="h5py is part of the dev extra")
xarray = pytest.importorskip("xarray", reason="xarray is part of the dev extra")
zarr = pytest.importorskip("zarr", minversion="3", reason="the extra zarr is not installed")

MIB = 1 << 20
SHAPE = (5_000, 3_000)
SLACK_BYTES = 256 << 10
"""The kernel counts resident pages in batches, per thread."""

OPERATIONS = {
    "expression": "evaluate(np.sqrt(x * x + y) * 2, 'out.npy', **options)",
    "transposed": "evaluate(x + lazy('b.npy').T.T, 'out.npy', **options)",
    "halves": "evaluate(x.astype('f2') + y.astype('f2'), 'out.safetensors', **options)",
    "sum": "evaluate((x * y).sum(axis=0), 'out.npy', **options)",
    "variance": "evaluate(x.var(axis=1), None, **options)",
    "position": "evaluate(x.argmax(), None, **options)",
    "transpose": "transpose('a.npy', None, 'out.npy', **options)",
    "copy": "copy('a.npy', 'out.npy', 'f8', **options)",
    "zarr": "copy('a.npy', 'out.zarr', **options)",
    "bfloat16": "copy('d.npy', 'out.safetensors', 'bfloat16', **options)",
    "gram": "gram(open_store('a.npy'), 'out.npy', **options)",
    "zarr operand": "copy(operand, 'out.npy', **options) # zarr.open_array('a.zarr', mode='r')",
    "zarr of large chunks": "copy(operand, 'out.npy', **options) # zarr.open_array('l.zarr', mode='r')",
    "zarr product": "matmul(*[open_store(operand)] * 2, 'out.npy', **options) # zarr.open_array('s.zarr')",
    "into zarr": "evaluate(x + y, out, **options) # '' # zarr.create_array('o.zarr', shape=(5000, 3000), "
    "chunks=(400, 512), dtype='f4', overwrite=True)",
    "into a map": "evaluate(x + y, out, **options) # '' # np.lib.format.open_memmap('m.npy', 'w+', 'f4', "
    "(5000, 3000))",
    "hdf5 operand": "evaluate(lazy(operand) * 2, 'out.npy', **options) # h5py.File('a.h5')['x']",
    "hdf5 result": "copy('a.npy', 'out.h5', **options)",
    "dask operand": "evaluate(lazy(operand).sum(axis=0), 'out.npy', **options) # da.from_zarr('a.zarr') + 1",
    "xarray operand": "copy(operand, 'out.npy', **options) # xarray.open_zarr('x.zarr', chunks=None, "
    "consolidated=False)['x']",
    "big-endian operand": "copy(operand, 'out.npy', **options) # np.load('a.npy').astype('>f4')",
    "centred": "evaluate_all((x - x.mean(axis=0)) / y.std(axis=0), 'out.npy', **options)",
    "product within": "evaluate_all((x.T @ y).T + 1, 'out.npy', **options)",
    "product of expressions": "evaluate_all((x - 1).T @ (y * 2), 'out.npy', **options)",
    "joined": "evaluate_all(np.concatenate([x, y * 2, x]), 'out.npy', **options)",
    "product of two types": "evaluate_all(x[:2000, :1000].T @ lazy('d.npy'), 'out.npy', **options)",
    "sparse product": "sparse_matmul(operand, 'a.npy', 'out.npy', **options) # "
    "sparse.random_array((4000, 5000), density=0.002, format='csr', dtype='f4')",
    "gram of complex": "gram(open_store('c.npy'), 'out.npy', **options)",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memory")
    np.save(path / "a.npy", np.abs(values(SHAPE, "f4", 1)))
    np.save(path / "b.npy", np.abs(values(SHAPE, "f4", 2)))
    np.save(path / "c.npy", values((3_000, 1_500), "c16", 3))
    np.save(path / "d.npy", values((2_000, 3_000), "f8", 4))
    keep_elsewhere(path)
    return path


def keep_elsewhere(path: Path) -> None:
    """Store A once more as other libraries do."""
    a = np.load(path / "a.npy")
    zarr.create_array(str(path / "a.zarr"), data=a, chunks=(500, 600))
    zarr.create_array(str(path / "l.zarr"), data=a, chunks=(800, 1_000))
    zarr.create_array(str(path / "s.zarr"), data=a[:3_000], chunks=(500, 600))
    with h5py.File(path / "a.h5", "w") as file:
        file.create_dataset("x", data=a, chunks=(500, 600), compression="lzf")
    encoding = {"x": {"chunks": (500, 600)}}
    xarray.Dataset({"x": (("i", "j"), a)}).to_zarr(path / "x.zarr", consolidated=False, encoding=encoding)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measured through /proc")
def test_measured_peak_is_at_most_the_projected_one(name: str, folder: Path) -> None:
    program = Path(__file__).with_name("measured.py")
    ran = subprocess.run(
        [sys.executable, str(program), OPERATIONS[name], str(64 * MIB)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=840,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["moved"] == found["planned"]
    assert found["peak"] <= found["projected"] + SLACK_BYTES, found
    assert found["projected"] <= 64 * MIB
