"""A CUDA driver, run-time compiler and cuBLAS on the CPU, so that code for CUDA devices runs without one."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LIBRARIES = {"driver": "libcuda.so.1", "compiler": "libnvrtc.so.13", "blas": "libcublas.so.13"}
"""Libraries by the source that each is compiled from."""


def missing() -> str | None:
    """What the emulator needs and does not find; None where it can be loaded."""
    return None if shutil.which("g++") else "no g++ to compile the emulator of a CUDA device with"


def driver() -> ctypes.CDLL:
    """Return the emulated driver of this process; skips the test where the device is a real one."""
    library = ctypes.CDLL("libcuda.so.1")
    if not hasattr(library, "emulated_graph_launches"):
        pytest.skip("for the emulated device")
    return library


@contextlib.contextmanager
def context(device: str = "cuda:0") -> Iterator[ctypes.CDLL]:
    """Make a device's context the current one of the thread, as code of other libraries does."""
    library, before = driver(), ctypes.c_void_p()
    library.cuCtxGetCurrent(ctypes.byref(before))
    library.cuCtxSetCurrent(ctypes.c_void_p(int(device.removeprefix("cuda:")) + 1))
    try:
        yield library
    finally:
        library.cuCtxSetCurrent(before)


def load(folder: Path, *, graphs: bool = True) -> None:
    """Build the libraries in a folder, unless they are there, and load them into this process.

    Without `graphs` the driver is one that has none; other libraries and compiled kernels are the same.
    """
    os.environ["EMULATED_CUDA_FOLDER"] = str(folder)
    os.environ["EMULATED_CUDA_HEADER"] = str(HERE / "device.h")
    for part, name in LIBRARIES.items():
        other = part == "driver" and not graphs
        path = folder / "without_graphs" / name if other else folder / name
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            partial = path.with_name(f"{name}.{os.getpid()}")
            links = [f"-L{folder}", "-l:libcuda.so.1"] if part == "blas" else ["-ldl"]
            options = ["-std=c++20", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{name}"]
            options += ["-DWITHOUT_GRAPHS"] if other else []
            subprocess.run(["g++", *options, HERE / f"{part}.cpp", "-o", partial, *links], check=True)
            partial.rename(path)
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
