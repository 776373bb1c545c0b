"""Operations by name, and the way a fusing compiler treats each.

The classes follow PyTorch's inductor: products, convolutions and attention are calls into libraries and stay
as they are; pointwise operations and reductions become loops, which merge; views cost nothing.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache


class OpKind(Enum):
    """How an operation is compiled."""

    LIBRARY = "library"
    """A call: products, convolutions, attention. Nothing merges with it."""
    POINTWISE = "pointwise"
    """A loop over its output, one element at a time."""
    CONSTANT = "constant"
    """Known without reading: becomes part of the loops that use it."""
    FULL_REDUCTION = "full reduction"
    """A loop that reduces everything to one number; takes in the pointwise loops before it."""
    ROW_REDUCTION = "row reduction"
    """A loop that reduces the fastest axis; merges with loops over the same elements."""
    COLUMN_REDUCTION = "column reduction"
    """A loop that reduces the slow axes; merges with others that read the same elements."""
    ROW_AND_COLUMN = "row and column reduction"
    """One loop of each kind: the gradient of a layer norm."""
    COLUMN_THEN_POINTWISE = "column reduction, then pointwise"
    """Statistics first, then a loop that uses them: batch norm and its gradient."""
    VIEW = "view"
    """No loop, no bytes."""
    OPAQUE = "opaque"
    """A call nothing is known about: sorting, scattering, a kernel of one's own."""


_LIBRARY = """mm addmm bmm baddbmm matmul linear mv addmv dot einsum addbmm grouped_mm scaled_mm conv1d
conv2d conv3d convolution convolution_backward convolution_overrideable mkldnn_linear mkldnn_convolution
scaled_dot_product_attention attention attention_backward ffn expert router projection conv int_mm"""
_LIBRARY_PREFIXES = ("scaled_dot_product_", "flash_attention", "efficient_attention", "cudnn_convolution")
_VIEWS = """view reshape unsafe_view transpose permute t expand expand_as slice select unsqueeze squeeze
as_strided detach alias split split_with_sizes chunk unbind view_as narrow flatten unflatten
movedim swapaxes view_as_real view_as_complex real imag diagonal unfold reshape_alias"""
_CONSTANTS = """full full_like zeros zeros_like ones ones_like empty empty_like empty_strided new_zeros
new_ones new_full new_empty new_empty_strided arange scalar_tensor fill zero eye tril_indices linspace
lift_fresh"""
_POINTWISE = """add sub rsub mul div true_divide floor_divide remainder fmod pow neg abs sign exp exp2
expm1 log log2 log10 log1p sqrt rsqrt reciprocal square sin cos tan tanh asin acos atan atan2 sinh cosh
sigmoid log_sigmoid_forward logit erf erfc relu relu6 leaky_relu elu selu celu gelu silu mish softplus
hardtanh hardsigmoid hardswish threshold clamp clamp_min clamp_max clip minimum maximum where masked_fill
lerp addcmul addcdiv fma round floor ceil trunc frac eq ne lt le gt ge logical_not logical_and logical_or
logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor isnan isinf isfinite copy clone contiguous to
to_copy _to_copy type_as copysign nan_to_num polar heaviside tril triu cat stack repeat constant_pad_nd
flip roll index index_select gather embedding take_along_dim native_dropout dropout
native_dropout_backward bernoulli rand_like randn_like rand randn uniform normal max_pool2d_with_indices
max_pool2d avg_pool2d adaptive_avg_pool2d upsample_nearest2d upsample_bilinear2d avg_pool2d_backward
upsample_nearest2d_backward pixel_shuffle select_backward slice_backward glu glu_backward pad activation
norm_apply nll_loss_backward bucketize one_hot mse_loss_backward add_relu addr"""
_ROW_REDUCTIONS = """sum mean amax amin max min prod var var_mean std norm linalg_vector_norm logsumexp
softmax log_softmax softmax_backward_data log_softmax_backward_data layer_norm native_layer_norm rms_norm
fused_rms_norm native_group_norm group_norm nll_loss_forward nll_loss cross_entropy mse_loss argmax argmin
any all count_nonzero safe_softmax aminmax l1_loss smooth_l1_loss normalization"""
_BATCH_NORMS = """native_batch_norm native_batch_norm_backward batch_norm cudnn_batch_norm
native_batch_norm_legit native_batch_norm_legit_functional batch_norm_backward batch_norm_with_update
cudnn_batch_norm_backward"""
_BOTH = "native_layer_norm_backward fused_rms_norm_backward native_group_norm_backward layer_norm_backward"

_KIND_OF = {
    name: kind
    for kind, names in (
        (OpKind.POINTWISE, _POINTWISE),
        (OpKind.LIBRARY, _LIBRARY),
        (OpKind.VIEW, _VIEWS),
        (OpKind.CONSTANT, _CONSTANTS),
        (OpKind.ROW_REDUCTION, _ROW_REDUCTIONS),
        (OpKind.COLUMN_THEN_POINTWISE, _BATCH_NORMS),
        (OpKind.ROW_AND_COLUMN, _BOTH),
    )
    for name in names.split()
}


@lru_cache(maxsize=4096)
def base_name(op: str) -> str:
    """Return the operation's own name, without namespace, overload, or the mark of an in-place variant.

    >>> base_name("aten.add_.Tensor"), base_name("aten._softmax.default"), base_name("_foreach_mul_")
    ('add', 'softmax', 'mul')
    """
    words = re.split(r"::|\.", op.strip().lower())
    name = words[1] if len(words) > 1 and words[0] in {"aten", "prims", "accelera"} else words[0]
    return name.removeprefix("_foreach_").strip("_") or op


@lru_cache(maxsize=4096)
def kind_of(op: str) -> OpKind:
    """Return how ``op`` is compiled; ``OPAQUE`` when nothing is known of it."""
    name = base_name(op)
    if name in _KIND_OF:
        return _KIND_OF[name]
    if name.startswith(_LIBRARY_PREFIXES):
        return OpKind.LIBRARY
    if name.endswith("_backward") and kind_of(name.removesuffix("_backward")) is OpKind.POINTWISE:
        return OpKind.POINTWISE
    return OpKind.OPAQUE
