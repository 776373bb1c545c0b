"""The extension module `accelera._tensora`, with its OpenBLAS loaded.

Every other module of the package takes the C++ functions from here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import scipy_openblas32

try:
    from accelera import _tensora
except ImportError as error:
    raise ImportError(
        "[tensora] was not compiled: `make demo` leaves it out; `make test` or pip install compiles it"
    ) from error

native: Any = _tensora
"""The functions of the op table and the class Tensor, as C++ gives them."""

Tensor = _tensora.Tensor

native.load_blas(str(Path(scipy_openblas32.get_lib_dir()) / scipy_openblas32.get_library(fullname=True)))
