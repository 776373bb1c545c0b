"""Memory that torch's kernels for the CPU allocate while they compute, beside operands and results.

The figures are those of torch's allocator while oneDNN's and torch's own kernels ran, by the shapes of
operands: copies in the layout that a kernel computes in, unfolded images, gates of an LSTM, sums in single
precision. Tables that a kernel keeps per thread, some 100 KiB, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

Arguments = Mapping[str, Any]
"""Arguments of one call by name, defaults included."""

_UNREDUCED = 0
"""Value of ``reduction`` for a loss that returns one element per element of its operand."""
_PLAIN_CHANNELS = 4
"""Images of at most this many channels are read in their own layout, without a copy."""
_WIDEST_KERNEL = 14
"""The widest filter that oneDNN's own kernels take; wider ones are unfolded by every thread."""
_DEEP_KERNEL = 3
"""The widest filter of a single channel for whose gradient oneDNN copies images."""
_BLOCK = 16 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 8
"""Channels that oneDNN's kernels compute at a time, in single precision: as many as a register holds."""
_BLOCK_BYTES = 900_000
"""Bytes of a factor in half precision that one thread copies."""
_HALF = (torch.bfloat16, torch.float16)
_SAVED_ROWS = {4: (6.0, 4.75), 2: (11.5, 5.85)}
"""Rows that an LSTM's layer keeps per step: as wide as its input and as its state; by an element's bytes."""


def workspace_bytes(func: Any, args: Any, kwargs: Any) -> int:
    """Return what the kernel of ``func`` allocates for one call on the CPU; 0 where nothing is known."""
    schema = getattr(func, "_schema", None)
    first = args[0] if args else None
    if schema is None or schema.name not in _RULES or not isinstance(first, torch.Tensor):
        return 0
    if first.device.type != "cpu":
        return 0
    named = {argument.name: argument.default_value for argument in schema.arguments}
    named.update(zip(named, args, strict=False))
    named.update(kwargs)
    if "convolution" in schema.name:
        _expand_per_axis(named)
    return max(0, _RULES[schema.name](named))


def _expand_per_axis(call: dict[str, Any]) -> None:
    """Repeat settings of a convolution that are given once for all axes, as ``padding="valid"`` gives 0."""
    axes = call["weight"].dim() - 2
    for name in ("stride", "padding", "dilation", "output_padding"):
        if len(call[name]) == 1:
            call[name] = list(call[name]) * axes


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
    gates = steps * rows * _row_length(4 * hidden, itemsize) * itemsize
    of_width, of_state = _SAVED_ROWS[itemsize]
    wide, narrow = _row_length(max(width, hidden), itemsize), _row_length(hidden, itemsize)
    return int(gates + (steps + 1) * rows * itemsize * (of_width * wide + of_state * narrow))


def _row_length(size: int, itemsize: int) -> int:
    """Return the row length that oneDNN gives to what an LSTM keeps; rows of two bytes stay as they are."""
    return _padded_length(size, itemsize) if itemsize == 4 else size


def _padded_length(size: int, itemsize: int) -> int:
    """Return oneDNN's length of rows of ``size`` elements: whole cache lines, no power of two."""
    line = 64 // itemsize
    length = -(-size // line) * line
    return length + line if length * itemsize % 256 == 0 else length


def _convolution(call: Arguments) -> int:
    image, weight = call["input"], call["weight"]
    kind = _convolution_kernel(call, None)
    result = _result_bytes(call)
    if kind == "slow":
        return _unfolded_bytes(call)
    if kind != "onednn":
        return 0
    if _uses_amx(image):
        copies = image.nbytes + weight.nbytes
        return int(copies if _is_depthwise(call) else max(copies, 2 * result))
    in_blocks = result if call["transposed"] else _blocked_bytes(result, weight.shape[0])
    read = _copy_bytes(image, call) + weight.nbytes + in_blocks - result
    return int(max(read, 2 * result if call["transposed"] and _is_strided(call) else in_blocks))


def _convolution_backward(call: Arguments) -> int:
    image, weight, gradient = call["input"], call["weight"], call["grad_output"]
    kind = _convolution_kernel(call, call["bias_sizes"])
    of_image = image.nbytes if call["output_mask"][0] else 0
    of_weight = weight.nbytes if call["output_mask"][1] else 0
    if kind == "slow":
        return _unfolded_bytes(call)
    if kind != "onednn":
        return 0
    phases = [0]
    gradient_bytes = gradient.nbytes
    if not _uses_amx(gradient) and not call["transposed"]:
        gradient_bytes = _blocked_bytes(gradient.nbytes, gradient.shape[1])
    if of_image:
        padded = weight.nbytes * max(1, -(-image.shape[1] // _BLOCK) * _BLOCK // image.shape[1])
        copies = 3 if _is_strided(call) or (_uses_amx(image) and not _is_depthwise(call)) else 2
        phases += [gradient_bytes + padded + of_image, copies * of_image]
    if of_weight:
        filters = math.prod(weight.shape[2:])
        if max(weight.shape[2:]) > _WIDEST_KERNEL:
            unfolded = image.shape[1] * filters * math.prod(gradient.shape[2:]) * image.itemsize
            threads = min(torch.get_num_threads(), image.shape[0])
            phases.append(of_image + of_weight + threads * (4 * of_weight + min(unfolded, 3 * of_weight)))
        elif call["groups"] < image.shape[1] or max(weight.shape[2:]) <= _DEEP_KERNEL or call["groups"] == 1:
            phases.append(of_image + gradient_bytes + _copy_bytes(image, call) + _summed_bytes(weight))
        phases.append(of_image + 2 * of_weight)
    return max(phases) - of_image - of_weight


def _summed_bytes(weight: torch.Tensor) -> int:
    """Return the bytes of the weights' gradient in the kernel's layout, and of its sums."""
    if weight.dtype not in _HALF:
        return weight.nbytes
    channels = weight.shape[1]
    elements = weight.numel() // channels * (-(-channels // _BLOCK) * _BLOCK)
    return elements * (2 * weight.itemsize + 4)


def _uses_amx(image: torch.Tensor) -> bool:
    """Return whether oneDNN convolves with AMX tiles; other kernels treat half precision like single."""
    return image.dtype in _HALF and torch.cpu._is_amx_tile_supported()


def _is_strided(call: Arguments) -> bool:
    return any(step > 1 for step in call["stride"])


def _copy_bytes(image: torch.Tensor, call: Arguments) -> int:
    """Return the bytes of a copy of ``image`` as the kernel reads it."""
    if _uses_amx(image):
        return image.nbytes
    if image.shape[1] <= _PLAIN_CHANNELS and call["groups"] == 1:
        return 0
    return _blocked_bytes(image.nbytes, image.shape[1])


def _blocked_bytes(nbytes: int, channels: int) -> int:
    """Return the bytes of an image of so many channels in whole blocks of them."""
    return nbytes // channels * (-(-channels // _BLOCK) * _BLOCK)


def _is_depthwise(call: Arguments) -> bool:
    return bool(call["groups"] == call["input"].shape[1] > 1)


def _convolution_kernel(call: Arguments, bias_sizes: Any) -> str:
    """Return which kernel convolves on the CPU: ``"onednn"``, ``"slow"`` or ``"other"``."""
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


def _unreduced_bytes(call: Arguments) -> int:
    """Return the bytes of one more tensor like the first operand, whose elements are then reduced."""
    return int(call["self"].nbytes) if call.get("reduction") != _UNREDUCED else 0


def _upsampling(call: Arguments) -> int:
    """Return the bytes of the image and of the result once more, with channels last."""
    image, sizes = call["self"], call["output_size"]
    return int(image.nbytes + math.prod((*image.shape[:2], *sizes)) * image.itemsize)


def _safe_softmax(call: Arguments) -> int:
    """Return the bytes of the mask of fully masked rows: one byte per score."""
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
    """Return what the fast path of ``nn.TransformerEncoderLayer`` takes."""
    rows = call["src"]
    hidden = rows.nbytes // rows.shape[-1] * call["ffn_weight_1"].shape[0]
    scores = _scores_bytes(rows, call["num_heads"])
    most = max(6 * rows.nbytes, 3 * rows.nbytes + scores, 2 * rows.nbytes + hidden)
    return int(most - (0 if call["norm_first"] else rows.nbytes))


def _scores_bytes(rows: torch.Tensor, heads: int) -> int:
    length = rows.shape[-2]
    return rows.nbytes // rows.shape[-1] * heads * length


def _float32_copy_bytes(call: Arguments) -> int:
    """Return the bytes of a half-precision operand in single precision, in which its mean is taken."""
    operand = call["self"]
    return int(4 * operand.numel()) if operand.dtype in _HALF else 0


def _transposed_copy_bytes(call: Arguments) -> int:
    """Return the bytes of a row-major copy of the first factor, made in blocks, if it is column-major."""
    factor = call["self"]
    by_columns = factor.dtype in _HALF and factor.stride(0) == 1 < factor.shape[0]
    return min(int(factor.nbytes), torch.get_num_threads() * _BLOCK_BYTES) if by_columns else 0


def _lstm_layer(call: Arguments) -> int:
    rows, weights = call["input"], call["weight0"].nbytes + call["weight1"].nbytes
    scratch = _gates_bytes(call)
    if rows.itemsize == 2:
        scratch = 0 if call["train"] else scratch // 2
    if not call["train"] and rows.shape[-1] > call["hidden_size"]:
        scratch += rows.nbytes
    return int(weights + scratch)


def _lstm_layer_backward(call: Arguments) -> int:
    weights = (call["weight1"], call["weight2"])
    if call["input"].itemsize == 2:
        return int(call["input"].nbytes + 4 * sum(each.nbytes for each in weights))
    copies = 0
    for weight in weights:
        rows, width = weight.shape
        aligned = width % 16 == 0 and width * 4 % 1024
        copies += 4 * rows * (width if aligned else width + _padded_length(width, 4))
    return int(copies + _gates_bytes(call))


def _gates_bytes(call: Arguments) -> int:
    steps, rows = call["input"].shape[:2]
    return int(steps * rows * _padded_length(4 * call["hidden_size"], 4) * 4)


_RULES: dict[str, Callable[[Arguments], int]] = {
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::_safe_softmax": _safe_softmax,
    "aten::mean": _float32_copy_bytes,
    "aten::mm": _transposed_copy_bytes,
    "aten::mse_loss": _unreduced_bytes,
    "aten::logsumexp": _unreduced_bytes,
    "aten::upsample_bilinear2d": _upsampling,
    "aten::upsample_nearest2d": _upsampling,
    "aten::native_batch_norm_backward": _batch_norm_backward,
    "aten::_native_multi_head_attention": _attention_layer,
    "aten::_transformer_encoder_layer_fwd": _transformer_layer,
    "aten::mkldnn_rnn_layer": _lstm_layer,
    "aten::mkldnn_rnn_layer_backward": _lstm_layer_backward,
}
