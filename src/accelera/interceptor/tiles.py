"""One call computed tile by tile, with torch's own kernel for each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch

from accelera.interceptor.calls import Call, Target
from accelera.interceptor.mechanism import original
from accelera.interceptor.pieces import Pieces
from accelera.interceptor.regions import Region

RESULTS = ("out", "grad_input")
"""Keywords by which a result is given."""


@final
class Tiles(Pieces):
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
        call: Call,
        functional: str,
        target: Target,
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
