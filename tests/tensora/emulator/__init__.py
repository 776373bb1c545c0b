"""A CUDA driver, run-time compiler and cuBLAS on the CPU, so that code for CUDA devices runs without one."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
LIBRARIES = {"DRIVER": "libcuda.so.1", "COMPILER": "libnvrtc.so.13", "BLAS": "libcublas.so.13"}


def missing() -> str | None:
    """What the emulator needs and does not find; None where it can be loaded."""
    return None if shutil.which("g++") else "no g++ to compile the emulator of a CUDA device with"


def load(folder: Path, *, graphs: bool = True) -> None:
    """Build the libraries in a folder, unless they are there, and load them into this process.

    Without `graphs` the driver is one that has none; other libraries and compiled kernels are the same.
    """
    os.environ["EMULATED_CUDA_FOLDER"] = str(folder)
    os.environ["EMULATED_CUDA_HEADER"] = str(HERE / "device.h")
    for part, name in LIBRARIES.items():
        other = part == "DRIVER" and not graphs
        path = folder / "without_graphs" / name if other else folder / name
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            partial = path.with_name(f"{name}.{os.getpid()}")
            links = [f"-L{folder}", "-l:libcuda.so.1"] if part == "BLAS" else ["-ldl"]
            options = ["-std=c++20", "-O1", "-shared", "-fPIC", f"-DEMULATED_{part}", f"-Wl,-soname,{name}"]
            options += ["-DWITHOUT_GRAPHS"] if other else []
            subprocess.run(["g++", *options, HERE / "libraries.cpp", "-o", partial, *links], check=True)
            partial.rename(path)
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
