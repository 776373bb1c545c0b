"""Interception by kernels built for one version of torch: a small call costs nanoseconds more."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from accelera.devices.torch_shim import (
    SHIM_PREFIX,
    built_folder,
    compiled_folder,
    shim_for,
    shim_sources,
)
from accelera.errors import BackendMissingError
from accelera.interceptor.mechanism.compiled import CompiledTier, load
from accelera.interceptor.mechanism.shim_build import compile_shim

REMEDY = "`accelera build-shim` builds it"
_COMPILERS = ("c++", "g++", "clang++")


def fault() -> str | None:
    """Return why no shim can be used here, None when one can."""
    path = shim_path()
    if path.exists():
        return _loading_fault(path)
    files = [
        file for folder in {path.parent, compiled_folder()} for file in folder.glob(f"{SHIM_PREFIX}*.so")
    ]
    found = {file.stem.removeprefix(SHIM_PREFIX) for file in files} - {torch.__version__}
    if not found:
        return f"no shim was built for torch {torch.__version__}; {REMEDY}"
    others = " and ".join(sorted(found))
    return f"the shim was built for torch {others}, this is torch {torch.__version__}; {REMEDY}"


def make() -> CompiledTier:
    """Load the shim of this torch."""
    return CompiledTier("shim", shim_path())


def shim_path() -> Path:
    """Return where the shim for the torch that is loaded lies, or would be built."""
    return shim_for(torch.__version__)


def build(compiler: str | None = None) -> Path:
    """Compile the shim for the torch that is loaded, into the cache folder; return the library.

    Takes some 20 seconds. ``compiler``: a name or path, by default what there is of GCC and Clang. Raises
    BackendMissingError when there is none, or the shim does not compile against this torch.
    """
    compiler = compiler or next(filter(shutil.which, _COMPILERS), None)
    if compiler is None or shutil.which(compiler) is None:
        raise BackendMissingError(
            f"[build-shim] there is no C++ compiler {compiler or ' or '.join(_COMPILERS)}; install g++, or"
            " name one with --compiler"
        )
    target = built_folder() / shim_path().name
    target.parent.mkdir(parents=True, exist_ok=True)
    folder, abi = Path(torch.__file__).parent, torch.compiled_with_cxx11_abi()
    said = compile_shim(compiler, folder, shim_sources(), target, abi)
    if said is not None:
        raise BackendMissingError(
            f"[build-shim] {compiler} does not compile the shim against torch {torch.__version__}; calls are"
            f" caught another way. It says: {said.strip()[-2000:]}"
        )
    return target


def _loading_fault(path: Path) -> str | None:
    try:
        load(path)
    except OSError as error:
        return f"the shim cannot be loaded: {error}"
    return None
