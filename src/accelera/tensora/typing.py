"""Types of arguments of the functions of the namespace, for annotations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from accelera.tensora.core import DType, Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Scalar: TypeAlias = "bool | int | float | complex"
"""A Python number; it takes the type of the tensor that it meets."""

TensorLike: TypeAlias = "Tensor | NDArray[Any] | np.generic[Any] | Scalar | Sequence[Any]"
"""What `accelera.tensora.asarray` makes a tensor of."""

DTypeLike: TypeAlias = "DType | str | type[Any] | np.dtype[Any]"
"""An element type, its name, or the type of NumPy or Python that it corresponds to."""

Device: TypeAlias = str
"""Name of a device: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``."""

Shape: TypeAlias = "int | Sequence[int]"
"""Extents of all axes; a number for one axis."""

Axes: TypeAlias = "int | tuple[int, ...] | None"
"""An axis, several, or None for all."""


class SupportsDLPack(Protocol):
    """An object that shares its memory by the DLPack protocol, such as an array of NumPy or PyTorch."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """Return a capsule over the memory."""


class SupportsStateDict(Protocol):
    """An object with named tensors, such as `accelera.tensora.nn.Module`."""

    def state_dict(self) -> dict[str, Any]:
        """Return the tensors by name."""


__all__ = [
    "Axes",
    "DType",
    "DTypeLike",
    "Device",
    "Scalar",
    "Shape",
    "SupportsDLPack",
    "SupportsStateDict",
    "Tensor",
    "TensorLike",
]
