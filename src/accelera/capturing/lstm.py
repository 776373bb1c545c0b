"""LSTMs by their shapes, in the layers that torch takes on the CPU where tensors have contents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_LSTM = 2
"""oneDNN's number for an LSTM."""


@contextmanager
def cpu_lstm() -> Iterator[None]:
    """Compute fake tensors' ``torch.lstm`` layer by layer, as oneDNN does it for tensors with contents.

    A mode of torch's functions would do it as well, and would keep other modules off their fast paths.
    """
    names, before = vars(torch._VF), torch._VF.lstm

    def lstm(*args: Any) -> Any:
        return _lstm(*args) if _is_for_onednn(*args) else before(*args)

    names["lstm"] = lstm
    try:
        yield
    finally:
        del names["lstm"]


def _types() -> tuple[torch.dtype, ...]:
    """Return the element types of which oneDNN computes LSTMs on this processor."""
    supported: Any = torch.ops.mkldnn
    halves = {
        torch.bfloat16: supported._is_mkldnn_bf16_supported(),
        torch.float16: supported._is_mkldnn_fp16_supported(),
    }
    return (torch.float32, *(kind for kind, is_there in halves.items() if is_there))


def _is_for_onednn(rows: Any, state: Any, weights: Any = (), has_biases: Any = False, *more: Any) -> bool:
    """Return whether these are arguments of the form without packing or projections, of the CPU's kernel."""
    if not isinstance(has_biases, bool) or not isinstance(state, (tuple, list)) or not more:
        return False
    tensors, types = [rows, *state, *weights], _types()
    onednn: Any = torch.backends.mkldnn
    return bool(
        isinstance(rows, FakeTensor)
        and onednn.is_available()
        and onednn.enabled
        and state[0].shape[-1] == state[1].shape[-1]
        and rows.numel() > 0
        and all(each.device.type == "cpu" and each.dtype in types for each in tensors)
    )


def _lstm(
    rows: torch.Tensor,
    state: tuple[torch.Tensor, torch.Tensor],
    weights: list[torch.Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
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
            options: Any = (bool(way), [], _LSTM, hidden.shape[-1], layers)
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
