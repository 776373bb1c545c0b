"""Operations in processes of their own, and the large packages that each loads after its budget was read.

``python -m tests.engine.loading`` prints one JSON object: by operation, the packages that came after the
first look at a budget, and whether any came before. Each operation runs in a child that was forked when
nothing large was loaded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

import accelera
from accelera.memory._internal import Budget
from tests.children import answer_of

LARGE = {
    "torch",
    "pandas",
    "pyarrow",
    "zarr",
    "numcodecs",
    "h5py",
    "scipy",
    "ml_dtypes",
    "rich",
    "ray",
    "dask",
}


def operations() -> dict[str, Callable[[Any], Any]]:
    """Return every kind of operation, on files, arrays and expressions, by name."""
    return {
        "matmul of files": lambda e: e.matmul("A.npy", "A.npy"),
        "matmul of files into a file": lambda e: e.matmul("A.npy", "A.npy", out="C.npy"),
        "matmul into an array": lambda e: e.matmul("A.npy", "A.npy", out=np.empty((300, 300))),
        "matmul into Zarr": lambda e: e.matmul("A.npy", "A.npy", out="C.zarr"),
        "gram": lambda e: e.gram("A.npy"),
        "sum": lambda e: e.sum("A.npy", axis=0),
        "mean": lambda e: e.mean("A.npy"),
        "expression": lambda e: e.evaluate(e.array("A.npy") * 2 + 1),
        "expression into a file": lambda e: e.evaluate(np.exp(e.array("A.npy")), out="E.npy"),
        "transpose": lambda e: e.transpose("A.npy", out="T.npy"),
        "copy to raw": lambda e: e.copy("A.npy", out="R.raw"),
        "copy to safetensors": lambda e: e.copy("A.npy", out="S.safetensors"),
    }


def loaded() -> set[str]:
    return LARGE & {name.partition(".")[0] for name in sys.modules}


def came_late(operation: Callable[[Any], Any]) -> list[str]:
    """Return what ``operation`` loads after a budget was first looked at."""
    at_budget: list[set[str]] = []
    parse = Budget.parse

    def parsed(*args: Any, **kwargs: Any) -> Any:
        at_budget.append(loaded())
        return parse(*args, **kwargs)

    Budget.parse = parsed  # type: ignore[method-assign]
    engine = accelera.MatrixEngine("cpu", enable_progress=False, budget="64MiB")
    operation(engine)
    return sorted(loaded() - at_budget[0]) if at_budget else []


def main() -> None:
    """Fork a child per operation, in a folder with a file and a Zarr array."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        np.save("A.npy", np.ones((300, 300)))
        subprocess.run([sys.executable, "-c", _ZARR], check=True)
        assert not loaded() & {"torch", "zarr", "pandas", "pyarrow"}
        print(json.dumps({name: in_child(each) for name, each in operations().items()}))


_ZARR = "import zarr, numpy; zarr.save_array('Z.zarr', numpy.ones((300, 300)))"


def in_child(operation: Callable[[Any], Any]) -> Any:
    """Return what came late, or the words of an error."""
    reader, writer = os.pipe()
    if child := os.fork():
        os.close(writer)
        with os.fdopen(reader) as told:
            answer = told.read()
        os.waitpid(child, 0)
        return json.loads(answer)
    try:
        answer = json.dumps(came_late(operation))
    except BaseException as error:
        answer = json.dumps(f"{type(error).__name__}: {error}")
    os.write(writer, answer.encode())
    os._exit(0)


def late_by_operation() -> dict[str, Any]:
    """Run ``main`` in a new process."""
    found: dict[str, Any] = answer_of("-m", "tests.engine.loading")
    return found


if __name__ == "__main__":
    main()
