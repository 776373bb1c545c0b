"""Compilation of the shim: ``csrc/torch/shim.cpp`` for one version of torch.

CMake runs this file as a script while Accelera is built; ``accelera build-shim`` uses it afterwards. So it
imports nothing of Accelera.

    python shim_build.py --compiler c++ --torch FOLDER --sources csrc --out _shim-2.13.0.so
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
from pathlib import Path


def compile_shim(
    compiler: str, torch_folder: Path, sources: Path, target: Path, cxx11_abi: bool | None = None
) -> str | None:
    """Compile the shim into ``target``, which appears when it is complete.

    Parameters
    ----------
    compiler
        GCC or Clang.
    torch_folder
        Where torch is installed.
    sources
        The folder that holds ``torch/shim.cpp``.
    cxx11_abi
        Which of GCC's two string layouts torch was compiled with; None: the compiler's own.

    Returns
    -------
    str or None
        What the compiler compiler_output when it failed.
    """
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    ran = subprocess.run(
        [*_command(compiler, torch_folder, sources, cxx11_abi), "-o", str(partial), *_linking(torch_folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if ran.returncode:
        partial.unlink(missing_ok=True)
        return ran.stdout or f"{compiler} ended with {ran.returncode}"
    os.replace(partial, target)
    return None


def _command(compiler: str, torch_folder: Path, sources: Path, cxx11_abi: bool | None) -> list[str]:
    include = torch_folder / "include"
    layout = [] if cxx11_abi is None else [f"-D_GLIBCXX_USE_CXX11_ABI={int(cxx11_abi)}"]
    return [
        *(compiler, "-std=c++20", "-O2", "-DNDEBUG", "-Wall", "-Wextra", *layout),
        *("-fPIC", "-fvisibility=hidden", "-shared"),
        *(f"-ffile-prefix-map={include}/=", f"-ffile-prefix-map={sources}/="),
        *(f"-I{sources}", "-isystem", str(include), "-isystem", str(include / "torch/csrc/api/include")),
        *("-isystem", sysconfig.get_path("include")),
        str(sources / "torch" / "shim.cpp"),
    ]


def _linking(torch_folder: Path) -> list[str]:
    """Name torch's libraries but keep no path to them: Python has loaded them before the shim."""
    if sys.platform == "darwin":
        return ["-undefined", "dynamic_lookup"]
    return [f"-L{torch_folder / 'lib'}", "-Wl,--no-as-needed", "-ltorch_python", "-ltorch_cpu", "-lc10"]


def main() -> int:
    """Compile as the arguments say; a failure is reported and leaves the shim out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiler", required=True)
    for name in ("--torch", "--sources", "--out"):
        parser.add_argument(name, required=True, type=Path)
    given = parser.parse_args()
    given.out.unlink(missing_ok=True)
    compiler_output = compile_shim(given.compiler, given.torch, given.sources, given.out)
    if compiler_output is not None:
        sys.stderr.write(
            f"{compiler_output}\nthe shim does not compile against the torch in {given.torch} and is left "
            "out; calls of torch are caught another way\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
