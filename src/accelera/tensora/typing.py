"""Types of arguments of the functions of the namespace, for annotations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from accelera.tensora.core import DType, Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Scalar: TypeAlias = "bool | int | float | complex"
"""A Python number; it takes the type of the tensor that it meets."""

TensorLike: TypeAlias = "Tensor | NDArray[Any] | Scalar | Sequence[Any]"
"""What `accelera.tensora.asarray` makes a tensor of."""

DTypeLike: TypeAlias = "DType | str | type[Any] | np.dtype[Any]"
"""An element type, its name, or the type of NumPy or Python that it corresponds to."""

Device: TypeAlias = str
"""Name of a device: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``."""

Shape: TypeAlias = "int | Sequence[int]"
"""Extents of all axes; a number for one axis."""

Axes: TypeAlias = "int | tuple[int, ...] | None"
"""An axis, several, or None for all."""

__all__ = ["Axes", "DType", "DTypeLike", "Device", "Scalar", "Shape", "Tensor", "TensorLike"]
