"""Failures of HDF5 files that are open are StoreErrors with the reason; only damage is called damage."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from accelera import AcceleraError, MatrixEngine, open_store
from accelera.errors import StoreError, StoreFormatError
from tests.architecture.repository import run_python

WRITER = """
import h5py, numpy as np, sys
file = h5py.File(sys.argv[1], "w", libver="latest")
file.create_dataset("x", data=np.ones((50, 20)), chunks=(10, 20), maxshape=(None, 20))
file.flush()
if sys.argv[2] == "swmr":
    file.swmr_mode = True
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("mode", ["plain", "swmr"])
def test_a_file_that_another_process_writes_is_not_called_damaged(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "w.h5"
    command = [sys.executable, "-c", WRITER, str(path), mode]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        with pytest.raises(StoreError, match=r"open for writing elsewhere.*swmr=True") as refused:
            open_store(f"{path}::x")
        if mode == "swmr":
            with h5py.File(path, "r", swmr=True) as file:
                assert MatrixEngine("cpu", enable_progress=False).sum(file["x"]) == 1000
        writer.communicate("\n", timeout=60)
    assert not isinstance(refused.value, StoreFormatError)
    assert open_store(f"{path}::x").to_numpy().sum() == 1000


def test_a_damaged_file_is_still_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "d.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(500))
    with pytest.raises(StoreFormatError, match="not a sound HDF5 file"):
        open_store(tmp_path / "d.h5")


FULL_DISK = """
import os, resource, signal, sys, warnings
warnings.simplefilter("ignore")
import h5py, numpy as np
from accelera import MatrixEngine
from accelera.errors import StoreError
engine = MatrixEngine("cpu", enable_progress=False)
a = np.random.default_rng(0).standard_normal((1200, 1100))
np.save("a.npy", a)
options = {"chunks": (100, 100)} if sys.argv[2] == "chunked" else {}
file = h5py.File("o.h5", "w")
target = file.create_dataset("x", shape=(1200, 1100), dtype="f8", **options)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, resource.RLIM_INFINITY))
work = {
    "copy": lambda: engine.copy("a.npy", target, budget="64MiB"),
    "expression": lambda: engine.evaluate(engine.array("a.npy") * 2, target),
    "product": lambda: engine.matmul("a.npy", np.eye(1100), out=target),
}[sys.argv[1]]
try:
    work()
    outcome = "no error"
except StoreError as error:
    outcome = f"StoreError {error}"
except BaseException as error:
    outcome = type(error).__name__
print(outcome, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("kind", ["chunked", "contiguous"])
@pytest.mark.parametrize("operation", ["copy", "expression", "product"])
def test_a_full_disk(operation: str, kind: str, tmp_path: Path) -> None:
    ran = run_python("-c", FULL_DISK, operation, kind, cwd=tmp_path)
    assert ran.stdout.startswith("StoreError"), ran.stdout + ran.stderr
    assert "o.h5::/x" in ran.stdout


FAILURES = [OSError(5, "Input/output error"), RuntimeError("unspecified"), KeyError("x"), ValueError("no")]
USES: dict[str, Callable[[Any], Any]] = {
    "flush": lambda store: store.flush(),
    "fingerprint": lambda store: store.fingerprint(),
    "read": lambda store: store.to_numpy(),
}


@pytest.mark.parametrize("failure", FAILURES, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("use", USES)
def test_whatever_the_library_raises(
    use: str, failure: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise failure

    with h5py.File(tmp_path / "a.h5", "w") as file:
        store = open_store(file.create_dataset("x", data=np.ones((8, 8)), chunks=(4, 4)))
        with monkeypatch.context() as patch:
            patch.setattr(h5py.File, "flush", fail)
            for name in ("read_direct", "__getitem__"):
                patch.setattr(h5py.Dataset, name, fail)
            with pytest.raises(AcceleraError, match="x"):
                USES[use](store)


INJECTED = [
    ("File", "__init__"),
    ("File", "close"),
    ("File", "flush"),
    ("File", "filename"),
    ("File", "mode"),
    ("Dataset", "id"),
    ("Dataset", "shape"),
    ("Dataset", "dtype"),
    ("Dataset", "chunks"),
    ("Dataset", "file"),
    ("Dataset", "name"),
    ("Dataset", "read_direct"),
    ("Dataset", "__getitem__"),
    ("Dataset", "__setitem__"),
    ("Group", "get"),
    ("Group", "visititems"),
]


def failing(kind: Any, name: str, failure: Exception) -> Any:
    def fail(*_: Any, **__: Any) -> Any:
        raise failure

    return property(fail) if isinstance(getattr(kind, name), property) else fail


def outcome_of(call: Callable[[], Any]) -> BaseException | None:
    try:
        call()
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("failure", FAILURES[:3], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize(("kind", "name"), INJECTED)
def test_failure_of_each_call_of_the_library(
    kind: str, name: str, failure: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, values = MatrixEngine("cpu", enable_progress=False), np.ones((8, 8))
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, chunks=(4, 4))
        file.create_dataset("contiguous", data=values)
    library_type = getattr(h5py, kind)
    errors = []
    with monkeypatch.context() as patch:
        patch.setattr(library_type, name, failing(library_type, name, failure), raising=False)
        errors += [
            outcome_of(lambda: open_store(f"{path}::x").close()),
            outcome_of(lambda: open_store(f"{path}::contiguous").close()),
            outcome_of(lambda: open_store(path)),
            outcome_of(lambda: engine.copy(values, f"{path}::x")),
            outcome_of(lambda: engine.copy(values, tmp_path / "new.h5")),
        ]
    with h5py.File(tmp_path / "b.h5", "w") as file:
        dataset = file.create_dataset("x", data=values, chunks=(4, 4))
        store = open_store(dataset)
        calls = [
            lambda: engine.copy(values, dataset),
            lambda: engine.sum(dataset),
            lambda: engine.sum(store),
            store.flush,
            store.fingerprint,
            store.sample,
        ]
        with monkeypatch.context() as patch:
            patch.setattr(library_type, name, failing(library_type, name, failure), raising=False)
            errors += [outcome_of(call) for call in calls]
    for identifier in h5py.h5f.get_obj_ids(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE):
        assert h5py.File(identifier).driver != "fileobj", "the library writes to a Python object at exit"
    raw = [error for error in errors if error is not None and not isinstance(error, AcceleraError)]
    assert not raw
