"""Whatever is handed in, only errors of our tree come back, and nothing on the disk is touched."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accelera.engine import MatrixEngine, lazy
from accelera.errors import AcceleraError, UnknownNameError
from accelera.stores import open_store
from accelera.stores._internal import create_store

GOOD = np.arange(12.0).reshape(3, 4)

NAMES: tuple[Any, ...] = (
    "",
    ".",
    "..",
    "/",
    "a\0b.npy",
    "x" * 300 + ".npy",
    "x" * 248 + ".npy",
    "\ud800.npy",
    "loop.npy",
    "absent/x.npy",
    "old.npy/x.npy",
    "x.csv",
    "x",
    "folder",
    "folder.npy",
    "~nobody-there/x.npy",
    b"x.npy",
    "x.npy::key",
    "x.zarr::key",
    "x.safetensors::",
    "x.h5::",
    "x.h5::a\0b",
    "x.h5::.",
    "pipe.npy",
    "old.safetensors::other",
    "old.zarr/x.npy/y.npy",
    "folder.zarr",
    Path("absent/y.zarr"),
    Path(),
)

ARRAYS: tuple[Any, ...] = (
    np.ones((1,) * 40),
    np.ones((0, 3)),
    np.ones(()),
    np.array(["a", "b"]),
    np.array([None]),
    np.zeros(3, "M8[s]"),
    np.zeros(3, "f4,i4"),
    np.zeros(3, "longdouble"),
    np.ma.masked_greater(GOOD, 3),
    [[1.0], [1.0, 2.0]],
    ["a"],
    [],
    None,
    object(),
    {"a": 1},
    {1, 2},
    lambda: 0,
    np.ones((3, 5), "c8"),
    np.ones((7,), bool),
    np.broadcast_to(np.ones(1), (1 << 40,)),
    10**400,
    [10**400],
)

BUDGETS: tuple[Any, ...] = (
    float("nan"),
    float("inf"),
    -1,
    -0.5,
    0.0,
    1.5,
    True,
    False,
    10**40,
    1 << 63,
    "12 parsecs",
    "",
    "nan",
    "-5MiB",
    "nan%",
    "200%",
    "1e400",
    "1e400MiB",
    "0x10",
    [],
    object(),
    1j,
    b"1MiB",
    np.float32("nan"),
    np.array([1, 2]),
)

AXES: tuple[Any, ...] = (5, -9, "x", 1.5, (0, 0), [0, 1, 2], object(), (0, "a"), True, 1 << 70, b"0", {})

DTYPES: tuple[Any, ...] = (
    "nonsense",
    "S3",
    object,
    "float8_e4m3fn",
    "i3",
    "f4,f4",
    7,
    "M8[s]",
    "",
    "f4,(",
    [],
)

OPERATIONS: dict[str, Callable[..., Any]] = {
    "matmul": lambda e, x, axis, **k: e.matmul(x, x, **k),
    "gram": lambda e, x, axis, **k: e.gram(x, **k),
    "copy": lambda e, x, axis, **k: e.copy(x, dtype=axis if isinstance(axis, str) else None, **k),
    "transpose": lambda e, x, axis, **k: e.transpose(x, axis, **k),
    "evaluate": lambda e, x, axis, **k: e.evaluate(lazy(x) * 2, **k),
    "add": lambda e, x, axis, **k: e.add(x, x, **k),
    "sum": lambda e, x, axis, **k: e.sum(x, axis=axis, **k),
    "argmax": lambda e, x, axis, **k: e.argmax(x, axis=axis, **k),
    "norm": lambda e, x, axis, **k: e.norm(x, axis if isinstance(axis, (int, str)) else 2, **k),
    "plan": lambda e, x, axis, **k: e.plan(x, x, out=k["out"], budget=k["budget"]),
    "plan_gram": lambda e, x, axis, **k: e.plan_gram(x, out=k["out"], budget=k["budget"]),
    "plan_evaluate": lambda e, x, axis, **k: e.plan_evaluate(lazy(x) + 1, out=k["out"], budget=k["budget"]),
    "index": lambda e, x, axis, **k: open_store(x)[axis],
    "open": lambda e, x, axis, **k: open_store(x, dtype=axis, shape=axis),
    "create": lambda e, x, axis, **k: create_store(k["out"], axis, "f4").abort(),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path, before = tmp_path_factory.mktemp("bad"), os.getcwd()
    os.chdir(path)
    try:
        np.save("old.npy", GOOD)
        for name in ("old.safetensors::weight", "old.zarr", "old.h5"):
            with create_store(name, GOOD.shape, GOOD.dtype) as output:
                output.write((slice(0, 3), slice(0, 4)), GOOD)
                output.commit()
        os.symlink("loop.npy", "loop.npy")
        os.mkfifo("pipe.npy")
        for name in ("folder", "folder.npy", "folder.zarr"):
            os.mkdir(name)
        Path("folder.zarr/keep.txt").write_text("years of work")
        yield path
    finally:
        os.chdir(before)


def contents(folder: Path) -> dict[str, Any]:
    """Return every entry below a folder, and what its files hold."""
    found = sorted(folder.rglob("*"))
    return {str(each): each.read_bytes() if each.is_file() else None for each in found}


Argument = st.sampled_from


@given(
    operation=Argument(sorted(OPERATIONS)),
    operand=Argument((GOOD, "old.npy", "old.zarr", *ARRAYS, *NAMES)),
    out=Argument((None, "new.npy", "old.npy", *ARRAYS, *NAMES)),
    budget=Argument((None, "64MiB", 0, 1, *BUDGETS)),
    axis=Argument((None, 0, *AXES, *DTYPES)),
)
@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
def test_only_our_errors_and_nothing_is_left(
    folder: Path, operation: str, operand: Any, out: Any, budget: Any, axis: Any
) -> None:
    before = contents(folder)
    given_out = out.copy() if isinstance(out, np.ndarray) and out.nbytes < 1 << 20 else None
    try:
        OPERATIONS[operation](
            MatrixEngine("cpu", enable_progress=False), operand, axis, out=out, budget=budget
        )
    except AcceleraError:
        assert contents(folder) == before
        if given_out is not None:
            np.testing.assert_array_equal(out, given_out)
    else:
        np.save(folder / "old.npy", GOOD)
        (folder / "new.npy").unlink(missing_ok=True)
        assert contents(folder) == before


def test_an_objective_that_is_none(tmp_path: Path) -> None:
    engine = MatrixEngine("cpu", enable_progress=False)
    unknown: Any = "speed"
    for factor in (GOOD, lazy(GOOD)):
        with pytest.raises(UnknownNameError, match=r"no objective is called 'speed'; known: bytes, time"):
            engine.matmul(factor, GOOD.T, out=tmp_path / "c.npy", objective=unknown)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("threshold", [float("nan"), -1, float("inf"), "much", True])
def test_thresholds_that_mean_nothing(threshold: Any) -> None:
    with pytest.raises(AcceleraError, match="memory_threshold_gb"):
        MatrixEngine("cpu", memory_threshold_gb=threshold)


@pytest.mark.parametrize("budget", BUDGETS)
def test_every_bad_budget_is_refused_by_every_operation(budget: Any) -> None:
    engine = MatrixEngine("cpu", enable_progress=False)
    for operation in ("gram", "copy", "evaluate", "sum", "plan"):
        with pytest.raises(AcceleraError, match=r"budget|size|share|memory|needs"):
            OPERATIONS[operation](engine, GOOD, 0, out=None, budget=budget)
