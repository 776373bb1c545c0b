"""Operations on tensors that are in memory, computed in one piece by torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from os import PathLike
from typing import Any

import numpy as np
import torch

from accelera.engine.convert import to_tensor
from accelera.engine.logs import logger
from accelera.engine.matrix import Matrix
from accelera.engine.shapes import broadcast_shape
from accelera.errors import DeviceMemoryError, DTypeError
from accelera.stores import Store
from accelera.units import format_bytes


def in_memory(operand: Any) -> torch.Tensor | None:
    """Return ``operand`` as a tensor when its elements lie in memory; None for a path or a store."""
    if isinstance(operand, Matrix):
        return operand.tensor()
    if isinstance(operand, torch.Tensor):
        return operand.detach() if operand.requires_grad else operand
    if isinstance(operand, list | np.ndarray) and not isinstance(operand, np.memmap):
        return to_tensor(operand)
    return None


def unwrapped(out: Any) -> Any:
    """Return the tensor of a Matrix, anything else as it is."""
    return out.tensor() if isinstance(out, Matrix) else out


def check_pair(op: str, a: torch.Tensor, b: torch.Tensor) -> None:
    """Raise DTypeError unless A and B have one element type that can be multiplied."""
    if a.dtype is not b.dtype:
        raise DTypeError(
            f"[{op}] A is {a.dtype} and B is {b.dtype}: a product takes one type; convert one of them first"
        )
    if a.dtype is torch.bool:
        raise DTypeError(f"[{op}] torch.bool cannot be multiplied; use a float, complex or integer type")


def added_bytes(a: torch.Tensor, b: torch.Tensor, shape: tuple[int, ...], device: torch.device | None) -> int:
    """Return the bytes that multiplying directly on ``device`` adds there.

    That is the result, the operands that are elsewhere, and the copies torch makes of operands that
    its kernels cannot read as they lie or must repeat for the batch.
    """
    bytes_added = prod(shape) * a.element_size()
    for operand in (a, b):
        if operand.device != device:
            bytes_added += operand.numel() * operand.element_size()
        bytes_added += _copied_bytes(operand, shape)
    return bytes_added


def _copied_bytes(operand: torch.Tensor, shape: tuple[int, ...]) -> int:
    if operand.ndim < 2:
        return 0
    batches = max(1, prod(shape[:-2])) if operand.ndim > 2 else 1
    matrix_elements = operand.shape[-1] * operand.shape[-2]
    repeated = batches * matrix_elements > operand.numel()
    if not repeated and (operand.is_contiguous() or _rows_or_columns_are_dense(operand)):
        return 0
    return batches * matrix_elements * operand.element_size()


def _rows_or_columns_are_dense(operand: torch.Tensor) -> bool:
    down, across = operand.stride()[-2:]
    return (across == 1 and down >= operand.shape[-1]) or (down == 1 and across >= operand.shape[-2])


def torch_device(name: str) -> torch.device | None:
    """Return torch's device of that name; None for one that torch does not know (a simulated one)."""
    try:
        return torch.device(name)
    except RuntimeError:
        return None


def multiply(a: torch.Tensor, b: torch.Tensor, device: torch.device | None = None) -> Matrix:
    """Return ``A @ B`` computed on ``device`` (A's own by default), as a Matrix where A lies.

    Raises DeviceMemoryError when the device has no room.
    """
    home = a.device
    try:
        if device is not None and not (device == home == b.device):
            return Matrix.wrap(torch.matmul(a.to(device), b.to(device)).to(home))
        return Matrix.wrap(torch.matmul(a, b if b.device == home else b.to(home)))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise DeviceMemoryError(f"[matmul] {device or home} ran out of memory: {error}") from error


@dataclass(frozen=True)
class ElementPair:
    """Two operands in memory that are combined element by element."""

    op: str
    a: torch.Tensor
    b: torch.Tensor
    shape: tuple[int, ...]
    """Shape they broadcast to."""

    @classmethod
    def of(cls, op: str, A: Any, B: Any) -> ElementPair:
        """Check two operands; raises ShapeError and DTypeError."""
        a, b = in_memory(A), in_memory(B)
        if a is None or b is None:
            raise DTypeError(f"[{op}] takes a Matrix, tensor, array or list; got {A!r:.80} and {B!r:.80}")
        return cls(op, a, b, broadcast_shape(op, a.shape, b.shape))

    @property
    def result_bytes(self) -> int:
        """Size of the result."""
        return prod(self.shape) * torch.result_type(self.a, self.b).itemsize

    def combined(self) -> Matrix:
        """Return the result where A lies; computed on the CPU when an accelerator has no room."""
        function = getattr(torch, self.op)
        try:
            return Matrix.wrap(function(self.a, self.b.to(self.a.device)))
        except RuntimeError as error:
            if self.a.device.type == "cpu" or not is_out_of_memory(error):
                raise
            return _homeward(function(self.a.cpu(), self.b.cpu()), self.a.device)


def result(store: Store, out: Any, a: Any) -> Matrix | Store:
    """Return the store when ``out`` is a path or a store, else a Matrix: of ``out``, or a new one where A lies."""
    if isinstance(out, str | PathLike | Store):
        return store
    if out is not None:
        return Matrix.wrap(to_tensor(out))
    tensor = to_tensor(store.resident())
    return _homeward(tensor, a.device if isinstance(a, torch.Tensor) else tensor.device)


def _homeward(tensor: torch.Tensor, home: torch.device) -> Matrix:
    """Return ``tensor`` as a Matrix on ``home``, or where it is when there is no room for it."""
    try:
        return Matrix.wrap(tensor.to(home))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        logger.warning("the result stays in RAM: %s has no room for %s", home, format_bytes(tensor.nbytes))
        return Matrix.wrap(tensor)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether ``error`` is torch's way to say that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return "out of memory" in str(error) or "can't allocate memory" in str(error)
