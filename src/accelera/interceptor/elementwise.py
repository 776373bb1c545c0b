"""Calls that work element by element, and softmax, which works along one axis: computed tile by tile.

Each tile goes through torch's own kernel, so that values are the same to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

import torch

from accelera.errors import BudgetExceededError
from accelera.interceptor.config import ACCELERATOR_TILE_BYTES, TILE_BYTES, InterceptionConfig
from accelera.interceptor.hooks import original
from accelera.interceptor.router import TiledCall, TileRunner
from accelera.interceptor.tiling import (
    Region,
    ResultLayout,
    TileTarget,
    broadcast,
    contiguous_strides,
    flat_pieces,
    nbytes,
    overlaps,
    split,
    whole,
)

_AXIS_ARGUMENTS = {
    "_softmax": 1,
    "_log_softmax": 1,
    "_softmax_backward_data": 2,
    "_log_softmax_backward_data": 2,
}
"""Operators whose elements depend on a whole axis, and the argument that names it."""


class ElementwiseSchema(NamedTuple):
    """Meaning of an element-wise operator's arguments, by the operator's name."""

    functional: str
    """The operator that returns a new result."""
    in_place: bool
    """Whether the first argument is the result as well."""
    axis: int | None
    """The argument that names the axis along which elements depend on each other."""
    conditions: int
    """How many tensors come first whose element type does not count."""


def schema_of(name: str) -> ElementwiseSchema:
    """Return the schema of an operator.

    >>> schema_of("add_.Tensor").functional, schema_of("_softmax.out").axis
    ('add.Tensor', 1)
    """
    packet = name.partition(".")[0]
    return ElementwiseSchema(
        functional(name), packet.endswith("_"), _AXIS_ARGUMENTS.get(packet), int(packet.startswith("where"))
    )


@final
class ElementwiseCall(TiledCall):
    """One call whose result has the operands' broadcast shape."""

    __slots__ = (
        *("args", "kwargs", "schema", "shape", "dtype", "whole_axis", "operands"),
        *("op", "device", "looked_bytes", "result_bytes", "temporary_bytes", "given"),
    )

    def __init__(
        self, name: str, schema: ElementwiseSchema, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self.op, self.schema, self.args, self.kwargs = name, schema, args, kwargs
        self.operands = operands = [each for each in args if isinstance(each, torch.Tensor)]
        first = operands[0]
        self.given: torch.Tensor | None = first if schema.in_place else None
        self.whole_axis: int | None = None
        self.temporary_bytes = 0
        if (
            schema.axis is None
            and _share_shape_and_type(operands, args)
            and not any(key in kwargs for key in RESULTS)
        ):
            self.device, self.shape, self.dtype = first.device, first.shape, first.dtype
            size = first.nbytes
            self.result_bytes = 0 if schema.in_place else size
            self.looked_bytes = size * (1 + len(operands))
            return
        self._infer_result()

    def _infer_result(self) -> None:
        """Set device, shape, dtype and sizes in the general case: broadcast, converted or given results."""
        largest = max(self.operands, key=torch.Tensor.dim)
        for key in RESULTS:
            self.given = self.kwargs.get(key, self.given)
        self.device = largest.device
        self.shape = torch.Size(broadcast(each.shape for each in self.operands))
        if self.schema.axis is not None:
            self.whole_axis = self.args[self.schema.axis] % max(1, largest.dim())
        self.dtype = self._result_dtype()
        size = nbytes(self.shape, self.dtype)
        self.result_bytes = 0 if self.given is not None and self.given.shape == self.shape else size
        self.looked_bytes = sum(each.nbytes for each in self.operands) + size
        self.temporary_bytes = self._converted_bytes()

    def _result_dtype(self) -> torch.dtype:
        """Return the element type of a new result, asked of torch once for operands of such types."""
        options = [(key, each) for key, each in self.kwargs.items() if key not in RESULTS]
        given = [*enumerate(self.args), *options]
        like = (self.op, torch.get_default_dtype(), *((key, _type_key(each)) for key, each in given))
        if like not in _DTYPES:
            _DTYPES[like] = self._probe_result().dtype
        return _DTYPES[like]

    def _probe_result(self) -> torch.Tensor:
        """Return torch's result for tiny operands, which shows its element type and the order of its axes."""
        probes = [_probe_of(each) for each in self.args]
        options = {key: each for key, each in self.kwargs.items() if key not in RESULTS}
        probe: torch.Tensor = original(self.schema.functional)(*probes, **options)
        return probe

    def _converted_bytes(self) -> int:
        """Return what torch's kernel takes on the CPU to bring operands and result into one form."""
        if self.device.type != "cpu":
            return 0
        counted = [each for each in self.operands[self.schema.conditions :] if each.dim()]
        if self.whole_axis is not None:
            return sum(nbytes(each.shape, self.dtype) for each in counted if not each.is_contiguous())
        converted = sum(nbytes(each.shape, self.dtype) for each in counted if each.dtype != self.dtype)
        if self.given is not None and self.given.dtype != self.dtype and not self.schema.in_place:
            converted += nbytes(self.shape, self.dtype)
        return converted

    def unsupported_reason(self) -> str | None:
        """Return why only torch's kernel can compute the call; None if it can be computed in pieces."""
        if not self.shape or 0 in self.shape:
            return "a result of one element or none"
        if self.given is not None and self.given.shape != self.shape:
            return "a result given that is resized"
        if self.given is not None and overlaps(self.given, self.operands):
            return "a result given that shares memory"
        if any(each.dim() and each.device != self.device for each in self.operands):
            return "mixed devices"
        return None

    def result(self) -> ResultLayout:
        """Return what a new result will be, strides as torch chooses them."""
        if all(each.is_contiguous() for each in self.operands):
            return ResultLayout(tuple(self.shape), contiguous_strides(self.shape), self.dtype)
        probe = self._probe_result()
        strides, step = [0] * len(self.shape), 1
        for axis in sorted(range(len(self.shape)), key=lambda axis: (probe.stride(axis), -axis)):
            strides[axis], step = step, step * self.shape[axis]
        return ResultLayout(tuple(self.shape), tuple(strides), self.dtype)

    def fill(self, target: TileTarget, config: InterceptionConfig, budget_bytes: int) -> list[str]:
        """Compute tile by tile into ``target``; return the fallbacks taken."""
        most = self._tile_elements(config, budget_bytes)
        if self._is_flat(target):
            pieces = self._flat_pieces(most)
            args = [_flattened(each) for each in self.args]
            kwargs = {key: _flattened(each) for key, each in self.kwargs.items()}
            tiles = ElementwiseTiles(self, self.schema.functional, target.flat(), args, kwargs, (0,))
            return tiles.compute((slice(start, stop),) for start, stop in pieces)
        axes = sorted(range(len(self.shape)), key=lambda axis: -target.strides[axis])
        cut = tuple(axis for axis in axes if axis != self.whole_axis)
        tiles = ElementwiseTiles(self, self.schema.functional, target, self.args, self.kwargs, cut)
        return tiles.compute(split(whole(self.shape), cut, most))

    def _flat_pieces(self, most: int) -> Iterable[tuple[int, int]]:
        """Return the bounds of pieces of at most ``most`` elements of the call's operands as vectors."""
        count = math.prod(self.shape)
        if self.device.type == "cpu":
            return flat_pieces(count, most, torch.get_num_threads())
        return ((start, min(start + most, count)) for start in range(0, count, most))

    def _is_flat(self, target: TileTarget) -> bool:
        """Return whether result and operands lie alike without gaps, so that they are vectors."""
        result = tuple(self.shape), tuple(target.strides)
        ordinary = self.whole_axis is None and math.prod(self.shape) == 1 + sum(
            (size - 1) * step for size, step in zip(*result, strict=True)
        )
        return ordinary and all(
            (tuple(each.shape), tuple(each.stride())) == result for each in self.operands if each.dim()
        )

    def _tile_elements(self, config: InterceptionConfig, budget_bytes: int) -> int:
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
        tile_bytes = config.override.tile_bytes or usual
        return max(least, min(tile_bytes // self.dtype.itemsize, budget_bytes // per_element))


_DTYPES: dict[Any, torch.dtype] = {}
"""Element types of results, by operator and types of arguments."""


def _type_key(value: Any) -> Any:
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


def _share_shape_and_type(operands: list[torch.Tensor], args: Sequence[Any]) -> bool:
    """Return whether all operands have one shape and floating type, which the result then has as well."""
    first = operands[0]
    shape, dtype = first.shape, first.dtype
    if not dtype.is_floating_point:
        return False
    for each in operands[1:]:
        if each.shape != shape or each.dtype is not dtype:
            return False
    return len(operands) == len(args) or not any(isinstance(each, complex) for each in args)


def _probe_of(value: Any) -> Any:
    """Return a tiny stand-in of a tensor: ones, at most two along each axis, with axes in the same order."""
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value
    steps = sorted({stride for stride in value.stride() if stride})
    strides = [0 if not stride else 1 << steps.index(stride) for stride in value.stride()]
    shape = [min(size, 2) for size in value.shape]
    return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device).fill_(1)


RESULTS = ("out", "grad_input")
"""Keywords by which a result is given."""


@final
class ElementwiseTiles(TileRunner):
    """The tiles of one call.

    Parameters
    ----------
    call
        What was called.
    functional
        The operator of its kind that returns a new result.
    target
        Where the result goes; its shape is the one that regions mean.
    args, kwargs
        What was called with, operands as they are to be cut.
    cut
        Axes that may be cut, slowest first.
    """

    def __init__(
        self,
        call: TiledCall,
        functional: str,
        target: TileTarget,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        cut: tuple[int, ...],
    ) -> None:
        super().__init__(call.device)
        self._call, self._functional, self._target = call, functional, target
        self._args, self._kwargs, self._cut = args, kwargs, cut
        self._kernel = original(call.op if call.given is not None else filling(call.op))
        self._result = "grad_input" if call.op == "_softmax_backward_data" else "out"
        self._scratch: torch.Tensor | None = None

    def axes(self, region: Region) -> Sequence[int]:
        """Return the axes that may be cut, slowest first."""
        return self._cut

    def release(self) -> None:
        """Free the memory that the tiles share."""
        self._scratch = None

    def at_once(self, region: Region) -> None:
        """Compute one tile by torch's kernel, into the result given or into memory that all tiles share."""
        shape = self._target.shape
        args = [tile(each, shape, region) for each in self._args]
        if self._call.given is not None:
            self._kernel(*args, **{key: tile(each, shape, region) for key, each in self._kwargs.items()})
            return
        piece = self._piece(tuple(part.stop - part.start for part in region))
        self._kernel(*args, **self._kwargs, **{self._result: piece})
        self._target.put(region, piece)

    def _piece(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return memory for one tile, the same for all: each of its own would leave the heap in pieces."""
        count = math.prod(shape)
        if self._scratch is None or self._scratch.numel() < count:
            self._scratch = None
            self._scratch = torch.empty(count, dtype=self._target.dtype, device=self._call.device)
        steps, step = [0] * len(shape), 1
        for axis in sorted(range(len(shape)), key=lambda axis: self._target.strides[axis]):
            steps[axis], step = step, step * shape[axis]
        return self._scratch[:count].as_strided(shape, steps)

    def on_cpu(self, region: Region) -> None:
        """Compute one tile on the CPU."""
        given = [_on_cpu(tile(each, self._target.shape, region)) for each in self._args]
        args = _of_one_type(self._functional, given)
        options = {key: each for key, each in self._kwargs.items() if key not in RESULTS}
        self._target.put(region, original(self._functional)(*args, **options))


def filling(name: str) -> str:
    """Return the operator that fills a given result where ``name`` returns a new one.

    >>> filling("add.Tensor"), filling("div.Tensor_mode"), filling("pow.Scalar"), filling("exp")
    ('add.out', 'div.out_mode', 'pow.Scalar_out', 'exp.out')
    """
    packet, _, variant = name.partition(".")
    if variant.startswith("Tensor") and packet != "pow":
        return f"{packet}.out{variant.removeprefix('Tensor')}"
    return f"{packet}.{variant}_out" if variant else f"{packet}.out"


def tile(value: Any, shape: Sequence[int], region: Region) -> Any:
    """Return the part of an operand that a region of a result of ``shape`` needs; anything else as it is."""
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value
    own = region[len(shape) - value.dim() :]
    return value[
        tuple(slice(None) if size == 1 else part for size, part in zip(value.shape, own, strict=True))
    ]


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value


def _of_one_type(functional: str, args: list[Any]) -> list[Any]:
    """Return the arguments of a softmax such that it converts nothing, which it does on accelerators only."""
    if functional in ("_softmax", "_log_softmax") and args[2]:
        return [args[0].float(), args[1], False]
    if functional in ("_softmax_backward_data", "_log_softmax_backward_data"):
        return [*args[:3], args[0].dtype]
    return args
