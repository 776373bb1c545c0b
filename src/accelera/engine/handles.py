"""What a caller holds, told apart without loading torch."""

from __future__ import annotations

import sys
from os import PathLike
from typing import Any

from accelera.settings import current
from accelera.stores import Store, open_store

_DIRECT = {"auto": None, "always": True, "never": False}


def open_operand(operand: Any) -> Store:
    """Return the store of whatever a caller hands in, read around the page cache as the settings say."""
    return open_store(unwrapped(operand), direct=direct_io())


def direct_io() -> bool | None:
    """Return whether files go around the page cache: always, never, or (None) where it pays."""
    return _DIRECT[current().direct_io]


def lies_in_store(operand: Any) -> bool:
    """Return whether ``operand`` is a path or a store, so that no tensor library is needed for it."""
    return isinstance(operand, (str, PathLike, Store))


def unwrapped(operand: Any) -> Any:
    """Return the tensor or array of a Matrix, anything else as it is."""
    matrix = sys.modules.get("accelera.engine.matrix")
    return matrix.held(operand) if matrix is not None and isinstance(operand, matrix.Matrix) else operand
