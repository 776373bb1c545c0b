"""Memory that torch's kernels for the CPU allocate while they compute, beside operands and results.

The figures are those of torch's allocator while oneDNN's and torch's own kernels ran in single precision, by the
shapes of operands: copies in the layout that a kernel computes in, unfolded images, gates of an LSTM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

Arguments = Mapping[str, Any]
"""Arguments of one call by name, defaults included."""

_UNREDUCED = 0
"""What losses are given when they are to return an element for each of their operand's."""
_PLAIN_CHANNELS = 4
"""Images of so few channels are read as they lie."""
_WIDEST_KERNEL = 14
"""The widest filter that oneDNN's own kernels take; wider ones are unfolded by every thread."""
_DEEP_KERNEL = 3
"""The widest filter of a single channel for whose gradient oneDNN copies images."""
_BLOCK = 16
"""Channels that oneDNN's kernels compute at a time."""


def workspace_bytes(func: Any, args: Any, kwargs: Any) -> int:
    """Return what the kernel of ``func`` allocates for the time of one call on the CPU; 0 where none is known."""
    schema = getattr(func, "_schema", None)
    rule = None if schema is None else _RULES.get(schema.name)
    if rule is None or not isinstance(args[0], torch.Tensor) or args[0].device.type != "cpu":
        return 0
    named = {argument.name: argument.default_value for argument in schema.arguments}
    named.update(zip(named, args, strict=False))
    return max(0, rule({**named, **kwargs}))


def rnn_workspace_bytes(rows: int, steps: int, width: int, hidden: int, itemsize: int) -> int:
    """Return the bytes in which an LSTM's layer keeps what its backward pass needs.

    Parameters
    ----------
    rows, steps
        Sequences at once, and their length.
    width, hidden
        Elements of an input and of a state.
    itemsize
        Bytes of an element.
    """
    gates = steps * rows * _padded(4 * hidden, itemsize) * itemsize
    per_element = [(size, (steps + 1) * rows * size) for size in (itemsize, 4)]
    layers = sum(count * _padded(max(width, hidden), size) for size, count in per_element)
    states = sum(count * _padded(hidden, size) for size, count in per_element)
    return int(gates + 3 * layers + 2.375 * states)


def _padded(size: int, itemsize: int) -> int:
    """Return the row length that oneDNN gives to rows of ``size`` elements: whole cache lines, no power of two."""
    line = 64 // itemsize
    length = -(-size // line) * line
    return length + line if length * itemsize % 256 == 0 else length


def _convolution(call: Arguments) -> int:
    image, weight = call["input"], call["weight"]
    kind = _kernel(call, None)
    result = _result_bytes(call)
    if kind == "slow":
        return _unfolded_bytes(call)
    if kind != "onednn":
        return 0
    read = _copied(image, call) + weight.nbytes
    written = 2 * result if call["transposed"] and _is_strided(call) else result
    return max(read, written)


def _convolution_backward(call: Arguments) -> int:
    image, weight, gradient = call["input"], call["weight"], call["grad_output"]
    kind = _kernel(call, call["bias_sizes"])
    of_image = image.nbytes if call["output_mask"][0] else 0
    of_weight = weight.nbytes if call["output_mask"][1] else 0
    if kind == "slow":
        return _unfolded_bytes(call)
    if kind != "onednn":
        return 0
    phases = [0]
    if of_image:
        padded = weight.nbytes * max(1, -(-image.shape[1] // _BLOCK) * _BLOCK // image.shape[1])
        phases += [gradient.nbytes + padded + of_image, (3 if _is_strided(call) else 2) * of_image]
    if of_weight:
        filters = math.prod(weight.shape[2:])
        if max(weight.shape[2:]) > _WIDEST_KERNEL:
            unfolded = image.shape[1] * filters * math.prod(gradient.shape[2:]) * image.itemsize
            threads = min(torch.get_num_threads(), image.shape[0])
            phases.append(of_image + of_weight + threads * (4 * of_weight + min(unfolded, 3 * of_weight)))
        elif call["groups"] < image.shape[1] or max(weight.shape[2:]) <= _DEEP_KERNEL or call["groups"] == 1:
            phases.append(of_image + gradient.nbytes + _copied(image, call) + of_weight)
        phases.append(of_image + 2 * of_weight)
    return max(phases) - of_image - of_weight


def _is_strided(call: Arguments) -> bool:
    return any(step > 1 for step in call["stride"])


def _copied(image: torch.Tensor, call: Arguments) -> int:
    """Return the bytes of a copy of ``image`` in blocks of channels."""
    return 0 if image.shape[1] <= _PLAIN_CHANNELS and call["groups"] == 1 else image.nbytes


def _kernel(call: Arguments, bias_sizes: Any) -> str:
    """Return whose kernel torch takes for a convolution on the CPU: ``"onednn"``, ``"slow"`` or ``"other"``."""
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    image, weight = (
        torch.zeros(1, dtype=call[each].dtype, device="cpu").expand(call[each].shape)
        for each in ("input", "weight")
    )
    ask: Any = torch._C._select_conv_backend
    name = ask(image, weight, None, *(call[each] for each in names), bias_sizes).name
    # torch has no name in Python for oneDNN's kernel of a transposed convolution.
    if name in ("Mkldnn", "???"):
        return "onednn"
    return "slow" if name.startswith("Slow") else "other"


def _result_bytes(call: Arguments) -> int:
    image, weight = call["input"], call["weight"]
    channels = weight.shape[1] * call["groups"] if call["transposed"] else weight.shape[0]
    return int(image.shape[0] * channels * math.prod(_result_sizes(call)) * image.itemsize)


def _result_sizes(call: Arguments) -> list[int]:
    """Return the height, width and so on of a convolution's result."""
    image, weight = call["input"], call["weight"]
    spatial = zip(
        image.shape[2:], weight.shape[2:], call["stride"], call["padding"], call["dilation"], strict=True
    )
    if not call["transposed"]:
        return [(size + 2 * pad - far * (side - 1) - 1) // step + 1 for size, side, step, pad, far in spatial]
    grown = [(size - 1) * step - 2 * pad + far * (side - 1) + 1 for size, side, step, pad, far in spatial]
    return [size + more for size, more in zip(grown, call["output_padding"], strict=True)]


def _unfolded_bytes(call: Arguments) -> int:
    """Return the bytes of the image, or of the result of a transposed convolution, with a copy per place."""
    image, weight = call["input"], call["weight"]
    filters = math.prod(weight.shape[2:])
    if call["transposed"]:
        return int(weight.shape[1] * filters * math.prod(image.shape[2:]) * image.itemsize)
    dilated = any(each > 1 for each in call["dilation"])
    if filters == 1 and not dilated and all(step == 1 for step in call["stride"]):
        return 0
    rows = 1 if dilated else image.shape[0]
    return int(rows * weight.shape[1] * filters * math.prod(_result_sizes(call)) * image.itemsize)


def _size_of_result(call: Arguments) -> int:
    """Return the bytes of one more tensor like the first operand, whose elements are then reduced."""
    return int(call["self"].nbytes) if call.get("reduction") != _UNREDUCED else 0


def _upsampling(call: Arguments) -> int:
    """Return the bytes of the image and of the result once more, with channels last."""
    image, sizes = call["self"], call["output_size"]
    return int(image.nbytes + math.prod((*image.shape[:2], *sizes)) * image.itemsize)


def _safe_softmax(call: Arguments) -> int:
    """Return the bytes of what tells rows that see nothing: a byte per score."""
    return int(call["self"].numel())


def _batch_norm_backward(call: Arguments) -> int:
    return int(call["input"].nbytes) if call["train"] else 0


def _attention_layer(call: Arguments) -> int:
    """Return what the fast path of ``nn.MultiheadAttention`` takes: projections, and scores of all heads."""
    rows = call["query"]
    scores = _scores_bytes(rows, call["num_head"])
    weights = scores
    if not call["need_weights"]:
        return int(max(6 * rows.nbytes, 3 * rows.nbytes + scores) - rows.nbytes)
    if call["average_attn_weights"]:
        weights = scores // call["num_head"]
    attended = max(2 * rows.nbytes, rows.nbytes + weights)
    return int(max(6 * rows.nbytes, 3 * rows.nbytes + scores + attended) - rows.nbytes - weights)


def _transformer_layer(call: Arguments) -> int:
    """Return what the fast path of ``nn.TransformerEncoderLayer`` takes: its attention, or its hidden layer."""
    rows = call["src"]
    hidden = rows.nbytes // rows.shape[-1] * call["ffn_weight_1"].shape[0]
    scores = _scores_bytes(rows, call["num_heads"])
    most = max(6 * rows.nbytes, 3 * rows.nbytes + scores, 2 * rows.nbytes + hidden)
    return int(most - (0 if call["norm_first"] else rows.nbytes))


def _scores_bytes(rows: torch.Tensor, heads: int) -> int:
    length = rows.shape[-2]
    return rows.nbytes // rows.shape[-1] * heads * length


def _lstm_layer(call: Arguments) -> int:
    weights = call["weight0"].nbytes + call["weight1"].nbytes
    return int(weights + (_gates_bytes(call) if call["input"].dtype == torch.float32 else 0))


def _lstm_layer_backward(call: Arguments) -> int:
    copies = 0
    for weight in (call["weight1"], call["weight2"]):
        rows, width = weight.shape
        aligned = width % 16 == 0 and width * 4 % 1024
        copies += 4 * rows * (width if aligned else width + _padded(width, 4))
    return int(copies + _gates_bytes(call))


def _gates_bytes(call: Arguments) -> int:
    steps, rows = call["input"].shape[:2]
    return int(steps * rows * _padded(4 * call["hidden_size"], 4) * 4)


_RULES: dict[str, Callable[[Arguments], int]] = {
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::_safe_softmax": _safe_softmax,
    "aten::mse_loss": _size_of_result,
    "aten::logsumexp": _size_of_result,
    "aten::upsample_bilinear2d": _upsampling,
    "aten::upsample_nearest2d": _upsampling,
    "aten::native_batch_norm_backward": _batch_norm_backward,
    "aten::_native_multi_head_attention": _attention_layer,
    "aten::_transformer_encoder_layer_fwd": _transformer_layer,
    "aten::mkldnn_rnn_layer": _lstm_layer,
    "aten::mkldnn_rnn_layer_backward": _lstm_layer_backward,
}
