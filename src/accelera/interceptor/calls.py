"""What a call that is looked at must tell, so that it can be routed."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, final

import torch

from accelera.interceptor.limits import Limits
from accelera.interceptor.regions import Region


class Result(NamedTuple):
    """What a result will be."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements; the result has no gaps."""
    dtype: torch.dtype


class Target(Protocol):
    """Where the pieces of a result go."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    memory: torch.Tensor | None
    """The result itself where it lies in memory."""

    def put(self, region: Region, piece: torch.Tensor) -> None:
        """Store one piece, from any device."""

    def flat(self) -> Target:
        """Return the same place as a vector, in the order in which the elements lie."""


@final
class InMemory:
    """A result in memory: new, or the caller's own."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory: torch.Tensor | None = memory
        self.shape, self.strides, self.dtype = tuple(memory.shape), tuple(memory.stride()), memory.dtype
        self._memory = memory

    def put(self, region: Region, piece: torch.Tensor) -> None:
        """Store one piece, from any device."""
        self._memory[region].copy_(piece)

    def flat(self) -> InMemory:
        """Return the same memory as a vector."""
        return InMemory(self._memory.as_strided((self._memory.numel(),), (1,)))


class Call(abc.ABC):
    """One call of an operator, understood: what it adds, and how it is computed in pieces.

    Subclasses set the attributes.
    """

    op: str
    """The operator, as aten names it."""
    device: torch.device
    """Where the operands are."""
    looked_bytes: int
    """Size of operands and result."""
    result_bytes: int
    """New memory for the result; 0 when the caller gave it."""
    temporary_bytes: int
    """What torch's kernel takes besides in one piece: copies of operands that it cannot read as they are."""
    given: torch.Tensor | None = None
    """The caller's own result, of ``out=`` and in-place forms."""

    @property
    def added_bytes(self) -> int:
        """What torch's kernel adds in one piece."""
        return self.result_bytes + self.temporary_bytes

    def wants_pieces(self, limits: Limits) -> bool:
        """Return whether the call goes in pieces even when it would fit."""
        return limits.cut.least != "direct"

    @abc.abstractmethod
    def why_whole(self) -> str | None:
        """Return why only torch's kernel can compute the call; None: it can go in pieces."""

    @abc.abstractmethod
    def result(self) -> Result:
        """Return what a new result will be; raises what torch raises for operands that do not fit."""

    @abc.abstractmethod
    def fill(self, target: Target, limits: Limits, budget_bytes: int) -> list[str]:
        """Compute in pieces into ``target``, adding at most ``budget_bytes``; return the fallbacks taken.

        Raises BudgetExceededError before anything is computed, DeviceMemoryError or torch's own error when
        memory runs out whatever the size of the pieces.
        """


def nbytes(shape: tuple[int, ...] | torch.Size, dtype: torch.dtype) -> int:
    """Return the bytes of a dense tensor."""
    count = dtype.itemsize
    for size in shape:
        count *= size
    return count


def broadcast(shapes: Iterable[torch.Size | tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape that operands are broadcast to; raises ValueError when they do not fit."""
    given = list(shapes)
    rank = max(map(len, given))
    sizes = []
    for axis in range(-rank, 0):
        lengths = {shape[axis] for shape in given if len(shape) >= -axis} - {1}
        if len(lengths) > 1:
            raise ValueError(f"shapes {given} do not broadcast")
        sizes.append(lengths.pop() if lengths else 1)
    return tuple(sizes)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense tensor whose last axis is the fastest, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def overlaps(target: torch.Tensor, operands: list[Any], *, element_for_element: bool = True) -> bool:
    """Return whether writing ``target`` piece by piece could change an operand that is still to be read.

    An operand that is ``target`` itself is read before it is written where ``element_for_element``.
    """
    if any(size > 1 and stride == 0 for size, stride in zip(target.shape, target.stride(), strict=True)):
        return True
    storage = target.untyped_storage().data_ptr()
    return any(
        each.untyped_storage().data_ptr() == storage and not (element_for_element and _is_same(each, target))
        for each in operands
        if isinstance(each, torch.Tensor) and each.device == target.device
    )


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.data_ptr(), one.shape, one.stride(), one.dtype) == (
        other.data_ptr(),
        other.shape,
        other.stride(),
        other.dtype,
    )
