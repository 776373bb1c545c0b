"""Calls that work element by element, and softmax, which works along one axis: computed tile by tile.

Each tile goes through torch's own kernel, so that values are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch

from accelera.errors import BudgetExceededError
from accelera.interceptor.calls import (
    Call,
    Result,
    Target,
    broadcast,
    contiguous_strides,
    is_out_of_memory,
    nbytes,
    overlaps,
)
from accelera.interceptor.limits import TILE_BYTES, Limits
from accelera.interceptor.mechanism import original
from accelera.interceptor.regions import Region, halved, split, whole

_ALONG_AN_AXIS = {
    "_softmax": 1,
    "_log_softmax": 1,
    "_softmax_backward_data": 2,
    "_log_softmax_backward_data": 2,
}
"""Operators whose elements depend on a whole axis, and the argument that names it."""
_CONDITIONS = {"where": 0}
"""Operators with an argument whose type does not count, and its place."""


@final
class Elementwise(Call):
    """One call whose result has the operands' broadcast shape."""

    __slots__ = (
        *("args", "kwargs", "shape", "dtype", "whole_axis", "in_place", "operands"),
        *("op", "device", "looked_bytes", "result_bytes", "temporary_bytes", "given"),
    )

    def __init__(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.op, self.args, self.kwargs = name, args, kwargs
        packet = name.partition(".")[0]
        self.in_place = packet.endswith("_")
        axis = _ALONG_AN_AXIS.get(packet)
        self.given = args[0] if self.in_place else kwargs.get("out", kwargs.get("grad_input"))
        self.operands = [each for each in args if isinstance(each, torch.Tensor)]
        largest = max(self.operands, key=torch.Tensor.dim)
        self.device, self.shape = largest.device, tuple(largest.shape)
        if any(each.shape != self.shape and each.dim() for each in self.operands):
            self.shape = broadcast(each.shape for each in self.operands)
        self.whole_axis = None if axis is None else args[axis] % max(1, largest.dim())
        self.dtype = self._dtype(packet)
        size = nbytes(self.shape, self.dtype)
        is_given = self.given is not None and self.given.shape == self.shape
        self.result_bytes = 0 if is_given else size
        self.looked_bytes = sum(each.nbytes for each in self.operands) + size
        self.temporary_bytes = self._temporary_bytes(packet)

    def _dtype(self, packet: str) -> torch.dtype:
        """Return the element type of a new result."""
        counted = self._counted(packet)
        first = counted[0].dtype if counted else self.operands[0].dtype
        if (
            first.is_floating_point
            and all(each.dtype == first for each in counted)
            and self._has_no_type(packet)
        ):
            return first
        return self._corner().dtype

    def _counted(self, packet: str) -> list[torch.Tensor]:
        """Return the operands whose element type decides the result's."""
        skipped = _CONDITIONS.get(packet)
        return [each for at, each in enumerate(self.operands) if each.dim() and at != skipped]

    def _has_no_type(self, packet: str) -> bool:
        """Return whether no other argument can change the element type of a floating result."""
        others = [each for each in self.args if isinstance(each, (complex, torch.dtype))]
        scalars = [each for each in self.operands if not each.dim() and not _is_simple(each.dtype)]
        return packet not in _ALONG_AN_AXIS and not others and not scalars

    def _corner(self) -> torch.Tensor:
        """Return what torch's kernel makes of one element."""
        name = _functional(self.op)
        tiles = [_tile(each, self.shape, (slice(0, 1),) * len(self.shape)) for each in self.args]
        options = {key: each for key, each in self.kwargs.items() if key not in ("out", "grad_input")}
        corner: torch.Tensor = original(name)(*tiles, **options)
        return corner

    def _temporary_bytes(self, packet: str) -> int:
        """Return what torch's kernel takes on the CPU to convert operands and result to one type."""
        if self.device.type != "cpu":
            return 0
        counted = self._counted(packet)
        if self.whole_axis is not None:
            return sum(nbytes(each.shape, self.dtype) for each in counted if not each.is_contiguous())
        bytes_taken = sum(nbytes(each.shape, self.dtype) for each in counted if each.dtype != self.dtype)
        if self.given is not None and self.given.dtype != self.dtype and not self.in_place:
            bytes_taken += nbytes(self.shape, self.dtype)
        return bytes_taken

    def why_whole(self) -> str | None:
        """Return why only torch's kernel can compute the call; None: it can go in pieces."""
        if not self.shape or 0 in self.shape:
            return "a result of one element or none"
        if self.given is not None and self.given.shape != self.shape:
            return "a result given that is resized"
        if self.given is not None and overlaps(self.given, self.operands):
            return "a result given that shares memory"
        if any(each.dim() and each.device != self.device for each in self.operands):
            return "mixed devices"
        return None

    def result(self) -> Result:
        """Return what a new result will be, strides as torch chooses them."""
        if all(each.is_contiguous() for each in self.operands if each.shape == self.shape):
            return Result(tuple(self.shape), contiguous_strides(tuple(self.shape)), self.dtype)
        metas = [_on_meta(each) for each in self.args]
        packet, _, variant = self.op.partition(".")
        made = getattr(getattr(torch.ops.aten, packet), variant or "default")(*metas, **self.kwargs)
        return Result(tuple(made.shape), tuple(made.stride()), self.dtype)

    def fill(self, target: Target, limits: Limits, budget_bytes: int) -> list[str]:
        """Compute tile by tile into ``target``."""
        axes = sorted(range(len(self.shape)), key=lambda axis: -target.strides[axis])
        cut = [axis for axis in axes if axis != self.whole_axis]
        most = self._tile_elements(limits, budget_bytes, cut)
        fallbacks: list[str] = []
        for region in split(whole(self.shape), cut, most):
            self._compute(target, region, cut, fallbacks)
        return fallbacks

    def _tile_elements(self, limits: Limits, budget_bytes: int, cut: list[int]) -> int:
        per_element = self.dtype.itemsize * (2 + len(self.operands))
        least = 1 if self.whole_axis is None else self.shape[self.whole_axis]
        tile_bytes = limits.cut.tile_bytes or TILE_BYTES
        most = min(tile_bytes // self.dtype.itemsize, budget_bytes // per_element)
        needed = least * per_element
        if budget_bytes < needed:
            raise BudgetExceededError(
                f"[{self.op}] the smallest tile needs {needed} bytes, and {budget_bytes} are left; raise the "
                f"budget to at least {needed} bytes",
                needed_bytes=needed,
                budget_bytes=budget_bytes,
            )
        return max(most, least)

    def _compute(self, target: Target, region: Region, cut: list[int], fallbacks: list[str]) -> None:
        """Compute one tile; in halves when memory runs out, and at last on the CPU."""
        try:
            self._piece(target, region)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            halves = halved(region, cut)
            if halves is None:
                self._on_cpu(target, region, error)
            fallbacks.append(
                f"{'in half the tile' if halves else 'on the CPU'} after running out of memory: {error}"
            )
            for half in halves or ():
                self._compute(target, half, cut, fallbacks)

    def _piece(self, target: Target, region: Region) -> None:
        args = [_tile(each, self.shape, region) for each in self.args]
        kernel = original(self.op)
        if self.given is None:
            target.put(region, kernel(*args, **self.kwargs))
        else:
            kernel(*args, **{key: _tile(each, self.shape, region) for key, each in self.kwargs.items()})

    def _on_cpu(self, target: Target, region: Region, error: RuntimeError) -> None:
        if self.device.type == "cpu":
            raise error
        args = [_moved(_tile(each, self.shape, region)) for each in self.args]
        options = {key: each for key, each in self.kwargs.items() if key not in ("out", "grad_input")}
        target.put(region, original(_functional(self.op))(*args, **options))


def _functional(name: str) -> str:
    """Return the operator that returns a new result where ``name`` fills a given one.

    >>> _functional("add_.Tensor"), _functional("pow.Tensor_Scalar_out"), _functional("where.self_out")
    ('add.Tensor', 'pow.Tensor_Scalar', 'where.self')
    """
    packet, _, variant = name.partition(".")
    family = packet.removesuffix("_")
    if family == "pow" and packet != family:
        return f"pow.Tensor_{variant}"
    if variant == "out":
        variant = "Tensor" if family in ("add", "sub", "mul", "div") else ""
    elif variant == "out_mode":
        variant = "Tensor_mode"
    variant = variant.removesuffix("_out")
    return f"{family}.{variant}" if variant else family


def _is_simple(dtype: torch.dtype) -> bool:
    return not dtype.is_complex


def _tile(value: Any, shape: Sequence[int], region: Region) -> Any:
    """Return the part of an operand that a region of the result needs; anything else as it is."""
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value
    own = region[len(shape) - value.dim() :]
    return value[
        tuple(slice(None) if size == 1 else part for size, part in zip(value.shape, own, strict=True))
    ]


def _on_meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _moved(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value
