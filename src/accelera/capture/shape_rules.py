"""Shapes of results on fake tensors where the rules of torch differ from its kernels, LSTMs among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils import _pytree as pytree

from accelera.capture.fake import as_fake
from accelera.capture.known_values import evaluated, follow, has_known_operands, is_known
from accelera.capture.workspaces import rnn_workspace_bytes
from accelera.errors import StateError

ShapeRule = Callable[..., Any]
"""Takes an operator's arguments and returns its results as new tensors on the first argument's device."""

_ALIGNMENT_BYTES = 16
"""Rows of a grouped product begin at multiples of this."""


def shape_rule(func: Any) -> ShapeRule | None:
    """Return the rule that replaces torch's; None where torch's rule covers all that its kernel takes."""
    return _RULES.get(func)


_MASKS = (torch.bool, torch.uint8)

_MASKED = (torch.ops.aten.index.Tensor, torch.ops.aten.masked_select.default)
"""Operators whose result has as many rows as a mask selects."""


class ShapeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """torch's mode of tensors without contents, for all that torch's CPU kernels take."""

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the results of one operator; called by torch."""
        kwargs = kwargs or {}
        rule = _RULES.get(func)
        if rule is not None:
            with self:
                return rule(*args, **kwargs)
        try:
            result = super().dispatch(func, types, args, kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            return self._by_known_values(func, types, args, kwargs)
        follow(func, args, kwargs, result)
        return result

    def _by_known_values(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Return the results of an operator that needs values; raises torch's error for unknown ones."""
        if has_known_operands(args, kwargs):
            return as_fake(evaluated(func, args, kwargs), self)
        if func in _MASKED:
            tensor, masks = args[0], args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
            if all(each is None or each.dtype not in _MASKS or is_known(each) for each in masks):
                return self._indexed(tensor, masks)
        return super().dispatch(func, types, args, kwargs)

    def _indexed(self, tensor: torch.Tensor, masks: Any) -> Any:
        """Return ``tensor[masks]`` for masks whose values are known: as many rows as they select."""
        indices: list[Any] = []
        for each in masks:
            if each is None or each.dtype not in _MASKS:
                indices.append(each)
                continue
            places = evaluated(torch.ops.aten.nonzero.default, (each,), {})
            indices.extend(as_fake(column, self) for column in places.unbind(1))
        with self:
            return torch.ops.aten.index.Tensor(tensor, indices)


def _grouped_product(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,  # noqa: ARG001 - no kernel takes one yet
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return what ``torch._grouped_mm`` does: torch's rule takes bfloat16 only, its CPU kernel more.

    Raises RuntimeError for operands that are no such product, as the kernel does.
    """
    _check_grouped(a, b, offs)
    shape = _grouped_shape(a, b, offs)
    dtype = out_dtype or a.dtype
    step = _ALIGNMENT_BYTES // dtype.itemsize
    row = -(-shape[-1] // step) * step
    strides = (shape[-2] * row, row, 1)[-len(shape) :]
    return torch.empty_strided(shape, strides, dtype=dtype, device=a.device)


def _check_grouped(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None) -> None:
    known = (torch.bfloat16, torch.float16, torch.float32)
    if a.dtype not in known or a.dtype != b.dtype:
        raise StateError(
            f"grouped products are of bfloat16, float16 or float32, not of {a.dtype} and {b.dtype}"
        )
    if a.dim() not in (2, 3) or b.dim() not in (2, 3):
        raise StateError(f"grouped products are of 2 or 3 axes, not of {a.dim()} and {b.dim()}")
    if (offs is None) != (a.dim() == b.dim() == 3):
        raise StateError("grouped products need offsets unless both operands are stacks of matrices")
    if max(a.dim(), b.dim()) == 3 and a.shape[-1] != b.shape[-2]:
        raise StateError(f"a grouped product of {tuple(a.shape)} and {tuple(b.shape)}: the inner axes differ")


def _grouped_shape(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None) -> tuple[int, ...]:
    if a.dim() == b.dim() == 3:
        return (a.shape[0], a.shape[1], b.shape[2])
    if a.dim() == b.dim() == 2:
        assert offs is not None, "two matrices are grouped by offsets"
        return (offs.shape[0], a.shape[0], b.shape[1])
    return (a.shape[-2], b.shape[-1])


def _lstm_layer(rows: torch.Tensor, *more: Any) -> tuple[torch.Tensor, ...]:
    """Return what ``torch.mkldnn_rnn_layer`` does; torch's rule leaves out what its backward pass needs."""
    hidden, cell, size = more[4], more[5], more[9]
    steps, count, width = rows.shape
    differentiable = torch.is_grad_enabled()
    kept = rnn_workspace_bytes(count, steps, width, size, rows.itemsize) if differentiable else 0
    return (
        rows.new_empty(steps, count, size),
        hidden.new_empty(hidden.shape),
        cell.new_empty(cell.shape),
        rows.new_empty(kept, dtype=torch.uint8),
    )


_RULES: dict[Any, ShapeRule] = {torch.ops.aten.mkldnn_rnn_layer.default: _lstm_layer}
if hasattr(torch.ops.aten, "_grouped_mm"):
    _RULES[torch.ops.aten._grouped_mm.default] = _grouped_product


_ONEDNN_LSTM = 2
"""oneDNN's number for an LSTM."""


@contextmanager
def cpu_lstm() -> Iterator[None]:
    """Compute fake tensors' ``torch.lstm`` layer by layer, as oneDNN does it for tensors with contents.

    A mode of torch's functions would do it as well, and would keep other modules off their fast paths.
    """
    names, before = vars(torch._VF), torch._VF.lstm

    def lstm(*args: Any) -> Any:
        return _lstm(*args) if _runs_on_onednn(*args) else before(*args)

    names["lstm"] = lstm
    try:
        yield
    finally:
        del names["lstm"]


@contextmanager
def scalars_in_lists() -> Iterator[None]:
    """Let ``torch.tensor`` take lists in which fake scalars stand, whose values are known.

    It reads the memory of scalars in a list without asking for their values.
    """
    before = torch.tensor

    def tensor(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if isinstance(data, (list, tuple)):
            data = pytree.tree_map_only(FakeTensor, _number, data)
        return before(data, *args, **kwargs)

    torch.tensor = tensor
    try:
        yield
    finally:
        torch.tensor = before


def _number(tensor: FakeTensor) -> Any:
    return tensor.item() if tensor.dim() == 0 else tensor


def _lstm_dtypes() -> tuple[torch.dtype, ...]:
    """Return the element types of which oneDNN computes LSTMs on this processor."""
    supported: Any = torch.ops.mkldnn
    halves = {
        torch.bfloat16: supported._is_mkldnn_bf16_supported(),
        torch.float16: supported._is_mkldnn_fp16_supported(),
    }
    return (torch.float32, *(kind for kind, is_there in halves.items() if is_there))


def _runs_on_onednn(rows: Any, state: Any, weights: Any = (), has_biases: Any = False, *more: Any) -> bool:
    """Return whether these are arguments of the form without packing or projections, of the CPU's kernel."""
    if not isinstance(has_biases, bool) or not isinstance(state, (tuple, list)) or not more:
        return False
    tensors, types = [rows, *state, *weights], _lstm_dtypes()
    onednn: Any = torch.backends.mkldnn
    return bool(
        isinstance(rows, FakeTensor)
        and onednn.is_available()
        and onednn.enabled
        and state[0].shape[-1] == state[1].shape[-1]
        and rows.numel() > 0
        and all(each.device.type == "cpu" and each.dtype in types for each in tensors)
    )


class _LstmArguments(NamedTuple):
    """The arguments of ``torch.lstm`` without packing or projections, in its order."""

    rows: torch.Tensor
    state: tuple[torch.Tensor, torch.Tensor]
    weights: list[torch.Tensor]
    has_biases: bool
    layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool


def _lstm(*args: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    lstm = _LstmArguments(*args)
    rows, state, weights, has_biases, layers, dropout, train, bidirectional, batch_first = lstm
    ways, each = 2 if bidirectional else 1, 4 if has_biases else 2
    # torch holds the copy until the last layer is done, too.
    rows = first = (rows.transpose(0, 1) if batch_first else rows).contiguous()
    hidden, cell = (tensor.contiguous() for tensor in state)
    layer_of: Any = torch.mkldnn_rnn_layer
    ends: list[tuple[torch.Tensor, torch.Tensor]] = []
    for layer in range(layers):
        outputs = []
        for way in range(ways):
            at = layer * ways + way
            own = _weights(weights[at * each : (at + 1) * each])
            options: Any = (bool(way), [], _ONEDNN_LSTM, hidden.shape[-1], layers)
            flags = (has_biases, bidirectional, False, train)
            output, *end = layer_of(rows, *own, hidden[at], cell[at], *options, *flags)[:3]
            outputs.append(output)
            ends.append((end[0], end[1]))
        rows = outputs[0] if ways == 1 else torch.cat(outputs, -1)
        if dropout and train and layer < layers - 1:
            rows = torch.dropout(rows, dropout, True)
    del first
    last_hidden, last_cell = (torch.stack(parts) for parts in zip(*ends, strict=True))
    return rows.transpose(0, 1) if batch_first else rows, last_hidden, last_cell


def _weights(own: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the weights of one layer, with biases of nothing where it has none."""
    if len(own) == 4:
        return list(own)
    return [*own, *(own[0].new_zeros(own[0].shape[:1]) for _ in range(2))]
