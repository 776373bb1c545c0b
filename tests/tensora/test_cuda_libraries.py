"""Drivers, compilers and processes with which CUDA devices do not work, and the errors that say so."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

import accelera.tensora as ts
from tests.tensora import emulator

START = """
import ctypes, os, pathlib, sys
from tests.tensora import emulator
emulator.load(pathlib.Path(os.environ["EMULATED_CUDA_FOLDER"]))
driver, compiler, blas = (ctypes.CDLL(name) for name in emulator.LIBRARIES.values())
def number(library, name): return ctypes.c_int.in_dll(library, name)
{before}
import accelera.tensora as ts
from accelera.tensora import cuda
from accelera.tensora.core import native
native.cuda_set_kernel_folder({folder!r})
"""


@pytest.fixture(autouse=True)
def fusion() -> None:
    """Once, as users have it."""


def run(code: str, *, before: str = "", folder: str = "") -> str:
    """Output of a process with the emulated device, where `before` comes before its first use."""
    emulator.driver()
    text = START.format(before=before, folder=folder) + code
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=os.environ)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


RAISES = """
def message(function):
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing raised"
"""
ADDITION = RAISES + 'print(message(lambda: (ts.ones(3, device="cuda") * 7 + 2).tolist()))\n'


# --- versions


def test_compiler_newer_than_driver(device: str) -> None:
    output = run(ADDITION, before='number(driver, "emulated_driver_version").value = 12020')
    assert "DeviceError: [tensora] CUDA's run-time compiler" in output
    assert "from 12 to 12" in output
    assert "pip install nvidia-cuda-nvrtc-cu12" in output


def test_blas_newer_than_driver(device: str) -> None:
    code = RAISES + 'x = ts.empty((3, 3), device="cuda")\nprint(message(lambda: x @ x))\n'
    output = run(code, before='number(driver, "emulated_driver_version").value = 12020')
    assert "DeviceError: [tensora] cuBLAS (libcublas.so) of a version from 12 to 12 is not found" in output


def test_device_newer_than_compiler(device: str) -> None:
    """The driver compiles text for an older one."""
    architectures = '(ctypes.c_int * 3).in_dll(compiler, "emulated_architectures")[:] = 75, 80, 86'
    options = "compiler.emulated_compile_options.restype = ctypes.c_char_p\n"
    output = run(ADDITION + options + "print(compiler.emulated_compile_options())", before=architectures)
    assert output.startswith("nothing raised")
    assert "--gpu-architecture=compute_86" in output


def test_device_older_than_compiler(device: str) -> None:
    architectures = '(ctypes.c_int * 3).in_dll(compiler, "emulated_architectures")[:] = 100, 103, 110'
    output = run(ADDITION, before=architectures)
    assert (
        "run-time compiler 13.0 does not compile for compute capability 9.0; install an older one" in output
    )


# --- processes


def test_forked_process_names_the_remedy(device: str) -> None:
    code = (
        ADDITION
        + """
x = ts.ones(3, device="cuda")
if os.fork() == 0:
    print(message(lambda: x + 1), flush=True)
    print(message(lambda: ts.zeros(2, device="cuda")), flush=True)
    del x
    os._exit(0)
os.wait()
print((x + 1).tolist())
"""
    )
    _, first, second, own = run(code).splitlines()
    for line in (first, second):
        assert "StateError: [CUDA] this process was forked" in line or "was forked from one" in line
        assert "start worker processes with the method 'forkserver' or 'spawn'" in line
    assert own == "[2.0, 2.0, 2.0]"


def test_lost_context_is_named(device: str) -> None:
    code = (
        RAISES
        + """
x = ts.ones(1000, device="cuda")
with emulator.context() as driver:
    address = ctypes.c_ulonglong()
    driver.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(8), None)
    driver.cuMemFreeAsync(address, None)
    driver.cuMemcpyDtoDAsync_v2(address, ctypes.c_ulonglong(address.value + 4), ctypes.c_size_t(4), None)
for _ in range(2):
    print(message(lambda: x.tolist()))
del x
"""
    )
    for line in run(code).splitlines():
        assert "DeviceError: [CUDA] " in line
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in line
        assert "The device can do nothing more in this process: start a new one" in line
        assert "CUDA_LAUNCH_BLOCKING=1" in line


# --- kernels


def test_damaged_kernel_file_is_made_anew(device: str, tmp_path: Path) -> None:
    code = ADDITION + "print(*cuda.kernel_counts().values())\n"
    compiled = run(code, folder=str(tmp_path)).splitlines()[-1]
    kernels = sorted(tmp_path.glob("*.cubin"))
    assert kernels
    assert compiled == f"{len(kernels)} 0"
    assert run(code, folder=str(tmp_path)).splitlines()[-1] == f"0 {len(kernels)}"
    for kernel in kernels:
        kernel.write_bytes(b"damaged")
    counts = f"{len(kernels)} {len(kernels)}"
    assert run(code, folder=str(tmp_path)).splitlines() == ["nothing raised", counts]
    assert run(code, folder=str(tmp_path)).splitlines() == ["nothing raised", f"0 {len(kernels)}"]


def test_kernels_have_names_of_operations(device: str, tmp_path: Path) -> None:
    code = 'x = ts.ones((3, 4), device="cuda")\n(ts.nn.functional.softmax(x, -1) + 1).tolist()\n'
    run(code, folder=str(tmp_path))
    names = {file.read_text().partition(":")[0][1:] for file in tmp_path.glob("*.cubin")}
    assert {"ts_softmax", "ts_elementwise"} <= names


def test_threads_compile_a_kernel_once(device: str, tmp_path: Path) -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
x = ts.ones(50, device="cuda")
def work(_): return (x * 3 - 1).sum().item()
with ThreadPoolExecutor(4) as pool:
    print(set(pool.map(work, range(8))))
print(*cuda.kernel_counts().values())
"""
    values, counts = run(code, folder=str(tmp_path)).splitlines()
    assert values == "{100.0}"
    assert counts == f"{len(list(tmp_path.glob('*.cubin')))} 0"


# --- memory


def test_products_without_memory_for_blas(device: str) -> None:
    """cuBLAS reports that it was not initialized, once for memory that is cached and then for good."""
    code = (
        RAISES
        + """
x = ts.ones((3, 3), device="cuda")
number(blas, "emulated_blas_failures").value = 2
print(message(lambda: x @ x))
number(blas, "emulated_blas_failures").value = 1
print((x @ x).tolist()[0])
"""
    )
    first, second = run(code).splitlines()
    assert first.startswith("DeviceMemoryError: [CUDA] to start cuBLAS failed: cuBLAS's status 1")
    assert second == "[3.0, 3.0, 3.0]"


def test_allocations_that_fail_inside_a_budget(device: str) -> None:
    driver = emulator.driver()
    x = ts.ones((64, 64), device=device)
    failing = ctypes.c_int.in_dll(driver, "emulated_failing_allocation")
    failures = ctypes.c_int.in_dll(driver, "emulated_failures")
    failing.value, failures.value = 1, 3
    try:
        with pytest.raises(MemoryError, match=r"\[budget\] cuda:0 has no"), ts.budget("1MiB", device=device):
            x @ x
    finally:
        failing.value, failures.value = 0, 1
    with ts.budget("1MiB", device=device):
        y = x @ x
    assert y[0, 0].item() == 64


def test_budget_leaves_memory_for_libraries(device: str) -> None:
    """A budget of all that is free is refused before the step, not by the first product in it."""
    code = (
        RAISES
        + """
x = ts.ones((64, 64), device="cuda")
def step(nbytes):
    with ts.budget(nbytes, device="cuda"):
        return x @ x
free = cuda.memory_free()
print(message(lambda: step(free)))
print(message(lambda: step(free - (65 << 20))))
print(cuda.memory_used() + cuda.memory_free() == cuda.get_device_properties().total_memory)
"""
    )
    first, second, third = run(code).splitlines()
    assert first.startswith("DeviceMemoryError: [budget] cuda:0 has no ")
    assert "of which cuBLAS and kernels take 67108864. Give a smaller budget" in first
    assert (second, third) == ("nothing raised", "True")
