"""Stores that are pickled arrive in another process, or are refused when they are sent."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

from accelera import AcceleraError, MatrixEngine, open_store
from accelera.errors import StoreError

ENGINE = MatrixEngine("cpu", enable_progress=False)
FILES = ["v.npy", "v.zarr", "v.h5", "v.safetensors"]
OPERANDS: dict[str, Callable[[str], Any]] = {
    "store": open_store,
    "view": lambda name: open_store(name)[1:, ::2].T,
    "lazy": ENGINE.array,
    "expression": lambda name: ENGINE.array(name) * 2,
}
RECEIVER = """
import os, pickle, sys
import numpy as np
from accelera import MatrixEngine
os.chdir("/")
operand = pickle.loads(sys.stdin.buffer.read())
print(float(np.asarray(MatrixEngine("cpu", enable_progress=False).sum(operand))))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        ENGINE.copy(np.arange(30.0).reshape(6, 5), name)
    with h5py.File("chunks.h5", "w") as file:
        file.create_dataset("x", data=np.arange(30.0).reshape(6, 5), chunks=(3, 3), compression="gzip")
    return tmp_path


@pytest.mark.parametrize("kind", OPERANDS)
@pytest.mark.parametrize("name", [*FILES, "chunks.h5"])
@pytest.mark.usefixtures("folder")
def test_in_another_process_and_folder(name: str, kind: str) -> None:
    operand = OPERANDS[kind](name)
    expected = float(np.asarray(ENGINE.sum(operand)))
    command = [sys.executable, "-c", RECEIVER]
    ran = subprocess.run(command, input=pickle.dumps(operand), capture_output=True, check=False)
    assert float(ran.stdout or "nan") == expected, ran.stderr[-500:]
    assert float(np.asarray(ENGINE.sum(copy.deepcopy(operand)))) == expected


@pytest.mark.parametrize("name", [*FILES, "chunks.h5"])
@pytest.mark.usefixtures("folder")
def test_a_file_that_changed_on_the_way_is_refused(name: str) -> None:
    store = open_store(name)
    sent = pickle.dumps(store)
    store.close()
    key = "::x" if name == "chunks.h5" else ""
    Path(name).unlink() if Path(name).is_file() else None
    ENGINE.copy(np.zeros((7, 9)), f"{name}{key}")
    with pytest.raises(AcceleraError, match="open it again"):
        pickle.loads(sent)


@pytest.mark.usefixtures("folder")
def test_what_cannot_be_sent_is_refused_with_the_remedy() -> None:
    with h5py.File("w.h5", "w") as file, h5py.File.in_memory() as memory:
        for each in (file, memory):
            dataset = each.create_dataset("x", data=np.ones((4, 4)), chunks=(2, 2))
            with pytest.raises(StoreError, match=r"\[pickle\].*send the path"):
                pickle.dumps(open_store(dataset))
    in_memory = zarr.create_array(zarr.storage.MemoryStore(), shape=(4,), chunks=(2,), dtype="f4")
    with pytest.raises(StoreError, match=r"\[pickle\].*send the path"):
        pickle.dumps(open_store(in_memory))
    closed = open_store("v.npy")
    closed.close()
    with pytest.raises(StoreError, match="closed"):
        pickle.dumps(closed)


@pytest.mark.parametrize("name", [*FILES[:2], "v.safetensors"])
def test_a_relative_name_in_another_folder_is_refused(name: str, folder: Path) -> None:
    store = open_store(name)
    (folder / "elsewhere").mkdir()
    os.chdir(folder / "elsewhere")
    with pytest.raises(StoreError, match=r"absolute path|open it again"):
        pickle.dumps(store)
