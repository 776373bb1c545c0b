"""The extension module `accelera._tensora`, with its OpenBLAS loaded.

Every other module of the package takes the C++ functions from here.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

try:
    from accelera import _tensora
except ImportError as error:
    raise ImportError(
        "[tensora] was not compiled: `make demo` leaves it out; `make test` or pip install compiles it"
    ) from error

native: Any = _tensora
"""The functions of the op table and the class Tensor, as C++ gives them."""

Tensor = _tensora.Tensor


def require_tensors(*given: Any) -> None:
    """Raise TypeError for what is no Tensor, as the C++ functions do."""
    for each in given:
        if not isinstance(each, Tensor):
            raise TypeError(f"tensora: {each!r:.60} ({type(each).__name__}) where a Tensor is needed")


def _openblas() -> str:
    """Path of the library in scipy-openblas32, a package whose own import takes longer than ours."""
    package = importlib.util.find_spec("scipy_openblas32")
    if package is None or package.origin is None:
        raise ImportError("[tensora] OpenBLAS is missing: pip install scipy-openblas32")
    return str(next((Path(package.origin).parent / "lib").glob("libscipy_openblas*")))


native.load_blas(_openblas())
# OpenBLAS ends its threads before a fork, and hangs if another thread computes meanwhile.
os.register_at_fork(before=native.hold_blas, after_in_parent=native.release_blas)
