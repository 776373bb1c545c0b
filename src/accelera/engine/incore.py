"""Operations on tensors that are in memory, computed in one piece by torch, or by NumPy without it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from accelera._logs import logger
from accelera.devices._internal import is_out_of_memory
from accelera.engine.matrix import Matrix
from accelera.engine.operands import broadcast_shape, matmul_shape
from accelera.engine.tensors import BOOL, NOT_ON_CPU, SLOW_ON_CPU, STRIDED, WIDENED, to_tensor, torch
from accelera.errors import BackendMissingError, DeviceMemoryError, DTypeError
from accelera.memory._internal import ALWAYS_FITS_BYTES, LEDGER
from accelera.stores import Store
from accelera.stores._internal import has_whole_strides, is_mapped
from accelera.units import format_bytes


def in_memory(operand: Any) -> torch.Tensor | None:
    """Return ``operand`` as a tensor when its elements lie in memory; None for a path or a store."""
    if isinstance(operand, Matrix):
        return operand._tensor
    if isinstance(operand, torch.Tensor):
        if operand.layout is not STRIDED:
            raise DTypeError(
                f"[operand] a tensor of layout {operand.layout}: dense operands are needed; pass "
                "x.to_dense(), or a sparse matrix of SciPy to matmul"
            )
        return operand.detach() if operand.requires_grad else operand
    if isinstance(operand, list) or (
        isinstance(operand, np.ndarray)
        and not isinstance(operand, np.memmap)
        and operand.dtype.isnative
        and has_whole_strides(operand)
    ):
        return to_tensor(operand)
    return None


@cache
def torch_device(name: str) -> torch.device | None:
    """Return torch's device of that name; None for one that torch does not know (a simulated one)."""
    try:
        return torch.device(name)
    except (RuntimeError, BackendMissingError):
        return None


FEW_MULTIPLICATIONS = 2**27
"""A product of fewer multiplications takes less time than planning it."""


class ProductPair(NamedTuple):
    """Two operands in memory that can be multiplied as matrices."""

    a: torch.Tensor
    b: torch.Tensor
    shape: tuple[int, ...]
    """Shape of the product."""

    @classmethod
    def of(cls, A: Any, B: Any) -> ProductPair | None:
        """Check two operands; None when one is not in memory, or they differ in type.

        Raises ShapeError and DTypeError when they cannot be multiplied.
        """
        a, b = in_memory(A), in_memory(B)
        if a is None or b is None or a.dtype != b.dtype:
            return None
        _check_types(a.dtype, b.dtype)
        left, right = a.shape, b.shape
        if len(left) == 2 == len(right) and left[1] == right[0]:
            return cls(a, b, (left[0], right[1]))
        return cls(a, b, matmul_shape(tuple(left), tuple(right)))

    @property
    def total_bytes(self) -> int:
        """Size of both operands and the product."""
        return self.a.nbytes + self.b.nbytes + self._result_bytes

    @property
    def is_mapped(self) -> bool:
        """Whether an operand of more than 1 MiB is a mapped file: a product would make its pages resident."""
        return any(
            operand.device.type == "cpu" and is_mapped(operand.data_ptr(), operand.nbytes)
            for operand in (self.a, self.b)
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute."""
        return self.a.numel() == 0 or self.b.numel() == 0

    @property
    def _result_bytes(self) -> int:
        return prod(self.shape) * self.a.itemsize

    def place(self, name: str) -> torch.device | None:
        """Return the device of a direct product: the operands' common accelerator, else the one named."""
        if self.a.device == self.b.device and self.a.device.type != "cpu":
            return self.a.device
        return torch_device(name)

    def suits_torch(self, place: torch.device | None) -> bool:
        """Return whether torch multiplies such elements at that place, and is not slow there.

        It multiplies integers on the CPU alone, and not all of them; it is slow with float16 there.
        """
        dtype = self.a.dtype
        if place is None:
            return False
        if place.type != "cpu":
            inexact = dtype.is_floating_point or dtype.is_complex
            return inexact and not (place.type == "mps" and dtype in (torch.float64, torch.complex128))
        if dtype in NOT_ON_CPU:
            return False
        return dtype not in SLOW_ON_CPU or prod(self.shape) * self.a.shape[-1] < FEW_MULTIPLICATIONS

    def added_bytes(self, place: torch.device | None) -> int:
        """Return the bytes that multiplying directly adds at ``place``.

        That is the result, the operands that are elsewhere, and the copies torch makes of operands
        that its kernels cannot read as they lie or must repeat for the batch.
        """
        bytes_added = self._result_bytes
        if self.a.dtype in WIDENED:
            bytes_added += 4 * (self.a.numel() + self.b.numel() + prod(self.shape))
        for each in (self.a, self.b):
            if each.device != place:
                bytes_added += each.nbytes
            if each.ndim > 2 or not each.is_contiguous():
                bytes_added += _copied_bytes(each, self.shape)
        return bytes_added

    def product(self, name: str) -> Matrix:
        """Return the product, computed at ``place(name)``, as a Matrix where A lies.

        Raises DeviceMemoryError when there is no room.
        """
        place, origin = self.place(name), self.a.device
        try:
            if origin == place == self.b.device:
                return _counted("matmul", torch.matmul(self.a, self.b))
            return _counted("matmul", torch.matmul(self.a.to(place), self.b.to(place)).to(origin))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error, of_python=True):
                raise
            raise DeviceMemoryError(f"[matmul] {place} ran out of memory: {error}") from error


def _check_types(a: torch.dtype, b: torch.dtype) -> None:
    if a != b:
        raise DTypeError(
            f"[matmul] A is {a} and B is {b}: a product takes one element type; convert one of them first"
        )
    if a == BOOL:
        raise DTypeError(f"[matmul] {a} cannot be multiplied; use a float, complex or integer type")


def _copied_bytes(operand: torch.Tensor, shape: tuple[int, ...]) -> int:
    """Return the bytes torch copies of ``operand`` to make a product of ``shape``."""
    if operand.ndim < 2:
        return 0
    batches = max(1, prod(shape[:-2])) if operand.ndim > 2 else 1
    repeated = batches * operand.shape[-1] * operand.shape[-2]
    if repeated <= operand.numel() and (operand.is_contiguous() or _has_dense_rows_or_columns(operand)):
        return 0
    return repeated * operand.itemsize


def _has_dense_rows_or_columns(operand: torch.Tensor) -> bool:
    down, across = operand.stride()[-2:]
    return (across == 1 and down >= operand.shape[-1]) or (down == 1 and across >= operand.shape[-2])


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
            return _counted(self.op, function(self.a, self.b.to(self.a.device)))
        except RuntimeError as error:
            if self.a.device.type == "cpu" or not is_out_of_memory(error):
                raise
            return _moved_back(function(self.a.cpu(), self.b.cpu()), self.a.device)


def _counted(op: str, tensor: torch.Tensor) -> Matrix:
    """Return a new ``tensor`` as a Matrix, whose bytes in RAM count while its memory exists."""
    if tensor.device.type == "cpu" and tensor.nbytes > ALWAYS_FITS_BYTES:
        LEDGER.reserve_while(op, "engine results", tensor.nbytes, tensor.untyped_storage())
    return Matrix.wrap(tensor)


def result(store: Store, out: Any, a: Any) -> Matrix:
    """Return a Matrix: of ``out``, or a new one beside A."""
    if out is not None:
        return Matrix.wrap(to_tensor(out))
    tensor = to_tensor(store.resident())
    return _moved_back(tensor, a.device if isinstance(a, torch.Tensor | Matrix) else tensor.device)


def _moved_back(tensor: torch.Tensor, origin: torch.device) -> Matrix:
    """Return ``tensor`` as a Matrix on the device ``origin``, or where it is if that has no room for it."""
    try:
        return Matrix.wrap(tensor.to(origin))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        logger.warning("the result stays in RAM: %s has no room for %s", origin, format_bytes(tensor.nbytes))
        return Matrix.wrap(tensor)
