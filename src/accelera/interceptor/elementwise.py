"""Calls that work element by element, and softmax, which works along one axis: computed tile by tile.

Each tile goes through torch's own kernel, so that values are the same to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

import torch

from accelera.errors import BudgetExceededError
from accelera.interceptor.calls import (
    Call,
    Result,
    Target,
    broadcast,
    contiguous_strides,
    nbytes,
    overlaps,
)
from accelera.interceptor.limits import ACCELERATOR_TILE_BYTES, TILE_BYTES, Limits
from accelera.interceptor.mechanism import original
from accelera.interceptor.regions import flat_pieces, split, whole
from accelera.interceptor.tiles import RESULTS, Tiles

_ALONG_AN_AXIS = {
    "_softmax": 1,
    "_log_softmax": 1,
    "_softmax_backward_data": 2,
    "_log_softmax_backward_data": 2,
}
"""Operators whose elements depend on a whole axis, and the argument that names it."""


class Kind(NamedTuple):
    """What an operator's name says of its arguments."""

    functional: str
    """The operator that returns a new result."""
    in_place: bool
    """Whether the first argument is the result as well."""
    axis: int | None
    """The argument that names the axis along which elements depend on each other."""
    conditions: int
    """How many tensors come first whose element type does not count."""


def kind_of(name: str) -> Kind:
    """Return the kind of an operator.

    >>> kind_of("add_.Tensor").functional, kind_of("_softmax.out").axis
    ('add.Tensor', 1)
    """
    packet = name.partition(".")[0]
    return Kind(
        functional(name), packet.endswith("_"), _ALONG_AN_AXIS.get(packet), int(packet.startswith("where"))
    )


@final
class Elementwise(Call):
    """One call whose result has the operands' broadcast shape."""

    __slots__ = (
        *("args", "kwargs", "kind", "shape", "dtype", "whole_axis", "operands"),
        *("op", "device", "looked_bytes", "result_bytes", "temporary_bytes", "given"),
    )

    def __init__(self, name: str, kind: Kind, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.op, self.kind, self.args, self.kwargs = name, kind, args, kwargs
        self.operands = operands = [each for each in args if isinstance(each, torch.Tensor)]
        first = operands[0]
        self.given: torch.Tensor | None = first if kind.in_place else None
        self.whole_axis: int | None = None
        self.temporary_bytes = 0
        if kind.axis is None and _are_alike(operands, args) and not any(key in kwargs for key in RESULTS):
            self.device, self.shape, self.dtype = first.device, first.shape, first.dtype
            size = first.nbytes
            self.result_bytes = 0 if kind.in_place else size
            self.looked_bytes = size * (1 + len(operands))
            return
        self._understand()

    def _understand(self) -> None:
        """Set the attributes whatever the operands."""
        largest = max(self.operands, key=torch.Tensor.dim)
        for key in RESULTS:
            self.given = self.kwargs.get(key, self.given)
        self.device = largest.device
        self.shape = torch.Size(broadcast(each.shape for each in self.operands))
        if self.kind.axis is not None:
            self.whole_axis = self.args[self.kind.axis] % max(1, largest.dim())
        self.dtype = self._result_dtype()
        size = nbytes(self.shape, self.dtype)
        self.result_bytes = 0 if self.given is not None and self.given.shape == self.shape else size
        self.looked_bytes = sum(each.nbytes for each in self.operands) + size
        self.temporary_bytes = self._converted_bytes()

    def _result_dtype(self) -> torch.dtype:
        """Return the element type of a new result, asked of torch once for operands of such types."""
        options = [(key, each) for key, each in self.kwargs.items() if key not in RESULTS]
        given = [*enumerate(self.args), *options]
        like = (self.op, torch.get_default_dtype(), *((key, _typed(each)) for key, each in given))
        if like not in _DTYPES:
            _DTYPES[like] = self._corner().dtype
        return _DTYPES[like]

    def _corner(self) -> torch.Tensor:
        """Return what torch's kernel makes of so few elements that only types and the order of axes count."""
        corners = [_corner_of(each) for each in self.args]
        options = {key: each for key, each in self.kwargs.items() if key not in RESULTS}
        corner: torch.Tensor = original(self.kind.functional)(*corners, **options)
        return corner

    def _converted_bytes(self) -> int:
        """Return what torch's kernel takes on the CPU to bring operands and result into one form."""
        if self.device.type != "cpu":
            return 0
        counted = [each for each in self.operands[self.kind.conditions :] if each.dim()]
        if self.whole_axis is not None:
            return sum(nbytes(each.shape, self.dtype) for each in counted if not each.is_contiguous())
        converted = sum(nbytes(each.shape, self.dtype) for each in counted if each.dtype != self.dtype)
        if self.given is not None and self.given.dtype != self.dtype and not self.kind.in_place:
            converted += nbytes(self.shape, self.dtype)
        return converted

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
        if all(each.is_contiguous() for each in self.operands):
            return Result(tuple(self.shape), contiguous_strides(self.shape), self.dtype)
        corner = self._corner()
        strides, step = [0] * len(self.shape), 1
        for axis in sorted(range(len(self.shape)), key=lambda axis: (corner.stride(axis), -axis)):
            strides[axis], step = step, step * self.shape[axis]
        return Result(tuple(self.shape), tuple(strides), self.dtype)

    def fill(self, target: Target, limits: Limits, budget_bytes: int) -> list[str]:
        """Compute tile by tile into ``target``; return the fallbacks taken."""
        most = self._tile_elements(limits, budget_bytes)
        if self._is_flat(target):
            pieces = self._flat_pieces(most)
            args = [_flattened(each) for each in self.args]
            kwargs = {key: _flattened(each) for key, each in self.kwargs.items()}
            tiles = Tiles(self, self.kind.functional, target.flat(), args, kwargs, (0,))
            return tiles.compute((slice(start, stop),) for start, stop in pieces)
        axes = sorted(range(len(self.shape)), key=lambda axis: -target.strides[axis])
        cut = tuple(axis for axis in axes if axis != self.whole_axis)
        tiles = Tiles(self, self.kind.functional, target, self.args, self.kwargs, cut)
        return tiles.compute(split(whole(self.shape), cut, most))

    def _flat_pieces(self, most: int) -> Iterable[tuple[int, int]]:
        """Return the bounds of pieces of at most ``most`` elements of the call's operands as vectors."""
        count = math.prod(self.shape)
        if self.device.type == "cpu":
            return flat_pieces(count, most, torch.get_num_threads())
        return ((start, min(start + most, count)) for start in range(0, count, most))

    def _is_flat(self, target: Target) -> bool:
        """Return whether result and operands lie alike without gaps, so that they are vectors."""
        result = tuple(self.shape), tuple(target.strides)
        ordinary = self.whole_axis is None and math.prod(self.shape) == 1 + sum(
            (size - 1) * step for size, step in zip(*result, strict=True)
        )
        return ordinary and all(
            (tuple(each.shape), tuple(each.stride())) == result for each in self.operands if each.dim()
        )

    def _tile_elements(self, limits: Limits, budget_bytes: int) -> int:
        """Return how many elements are computed at a time; raises BudgetExceededError when none can be."""
        per_element = self.dtype.itemsize * (2 + len(self.operands))
        least = 1 if self.whole_axis is None else self.shape[self.whole_axis]
        needed = least * per_element
        if budget_bytes < needed:
            raise BudgetExceededError(
                f"[{self.op}] the smallest tile needs {needed} bytes, and {budget_bytes} are left; raise the "
                f"budget to at least {needed} bytes",
                needed_bytes=needed,
                budget_bytes=budget_bytes,
            )
        usual = TILE_BYTES if self.device.type == "cpu" else ACCELERATOR_TILE_BYTES
        tile_bytes = limits.cut.tile_bytes or usual
        return max(least, min(tile_bytes // self.dtype.itemsize, budget_bytes // per_element))


_DTYPES: dict[Any, torch.dtype] = {}
"""Element types of results, by operator and types of arguments."""


def _typed(value: Any) -> Any:
    """Return what the element type of a result may depend on."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim() == 0
    return type(value) if isinstance(value, (int, float, complex)) and type(value) is not bool else value


def _flattened(value: Any) -> Any:
    """Return a tensor without gaps as a vector, in the order in which it lies; anything else as it is."""
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value
    return value.as_strided((value.numel(),), (1,))


def functional(name: str) -> str:
    """Return the operator that returns a new result where ``name`` fills a given one.

    >>> functional("add_.Tensor"), functional("pow.Tensor_Scalar_out"), functional("where.self_out")
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


def _are_alike(operands: list[torch.Tensor], args: Sequence[Any]) -> bool:
    """Return whether all operands have one shape and floating type, which the result then has as well."""
    first = operands[0]
    shape, dtype = first.shape, first.dtype
    if not dtype.is_floating_point:
        return False
    for each in operands[1:]:
        if each.shape != shape or each.dtype is not dtype:
            return False
    return len(operands) == len(args) or not any(isinstance(each, complex) for each in args)


def _corner_of(value: Any) -> Any:
    """Return ones, which may divide, of at most two elements along each axis; axes lie in the same order."""
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value
    steps = sorted({stride for stride in value.stride() if stride})
    strides = [0 if not stride else 1 << steps.index(stride) for stride in value.stride()]
    shape = [min(size, 2) for size in value.shape]
    return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device).fill_(1)
