"""The extension module `accelera._tensora`, with its OpenBLAS loaded.

Every other module of the package takes the C++ functions from here.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from accelera.errors import ArgumentError, BackendMissingError


def _import_failure(error: ImportError) -> BackendMissingError:
    """Return the error for an extension module that was not imported, with the linker's reason."""
    if importlib.util.find_spec("accelera._tensora") is None:
        return BackendMissingError(
            "[tensora] was not compiled: `make demo` leaves it out; `make test` or pip install compiles it"
        )
    remedy = "reinstall accelera for this interpreter and system"
    if "static TLS" in str(error):
        remedy = (
            "other libraries occupy the memory for static thread-local storage; import accelera.tensora "
            "before them, or set GLIBC_TUNABLES=glibc.rtld.optional_static_tls=16384"
        )
    return BackendMissingError(f"[tensora] the extension module was not loaded: {error}. Remedy: {remedy}")


try:
    from accelera import _tensora
except ImportError as error:
    raise _import_failure(error) from error

native: Any = _tensora
"""The functions of the op table and the class Tensor, as C++ gives them."""

Tensor = _tensora.Tensor

DType = _tensora.dtype
"""The class of element types."""

MemoryStats = _tensora.MemoryStats
"""The class of the result of `memory_stats`."""


def require_tensors(*given: Any) -> None:
    """Raise TypeError for what is no Tensor, as the C++ functions do."""
    for each in given:
        if not isinstance(each, Tensor):
            raise ArgumentError(f"[tensora] {each!r:.60} ({type(each).__name__}) where a Tensor is needed")


def _openblas() -> str:
    """Path of the library in scipy-openblas32, a package whose own import takes longer than ours."""
    package = importlib.util.find_spec("scipy_openblas32")
    if package is None or package.origin is None:
        raise BackendMissingError("[tensora] OpenBLAS is missing: pip install scipy-openblas32")
    return str(next((Path(package.origin).parent / "lib").glob("libscipy_openblas*")))


native.load_blas(_openblas())
# OpenBLAS ends its threads before a fork, and hangs if another thread computes meanwhile.
os.register_at_fork(before=native.hold_blas, after_in_parent=native.release_blas)
