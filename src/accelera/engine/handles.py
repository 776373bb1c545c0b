"""What a caller holds, told apart without loading torch."""

from __future__ import annotations

import sys
from os import PathLike
from typing import Any

from accelera.stores import Store


def lies_in_store(operand: Any) -> bool:
    """Return whether ``operand`` is a path or a store, so that no tensor library is needed for it."""
    return isinstance(operand, (str, PathLike, Store))


def unwrapped(operand: Any) -> Any:
    """Return the tensor of a Matrix, anything else as it is."""
    matrix = sys.modules.get("accelera.engine.matrix")
    return operand.tensor() if matrix is not None and isinstance(operand, matrix.Matrix) else operand
