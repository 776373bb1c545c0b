"""Names of PyTorch's OpInfo and what computes them in Tensora: translations of arguments, nothing more."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

import accelera.tensora as ts

SAME = """
abs acos acosh add addbmm addcdiv addcmul addmm addmv addr angle allclose argwhere asin asinh atan atan2 atanh
atleast_1d atleast_2d atleast_3d baddbmm bitwise_and bitwise_or bitwise_xor bitwise_left_shift
bitwise_right_shift bincount block_diag broadcast_to bucketize cartesian_prod ceil column_stack
combinations complex conj copysign corrcoef cos cosh cov deg2rad diag_embed digamma dist dot dstack
equal:all_equal erf erfc erfinv exp exp2 expm1 eye fft.fft2 flatten fliplr flipud float_power
floor floor_divide fmax fmin fmod frac frexp gcd gradient heaviside histc histogram hstack hypot i0 igamma igammac imag
inner isclose isfinite isin isinf isnan isneginf isposinf isreal kron lcm ldexp lerp lgamma linalg.cond
linalg.det linalg.eig linalg.eigvals linalg.eigh linalg.eigvalsh linalg.householder_product linalg.inv
linalg.lu_factor linalg.lu linalg.matrix_exp linalg.matrix_power linalg.multi_dot linalg.slogdet linalg.solve
linalg.svdvals linalg.tensorinv linalg.tensorsolve log log10 log1p log2 logaddexp logaddexp2
logical_and logical_not logical_or logical_xor logit masked_fill masked_scatter masked_select matmul maximum minimum
nan_to_num nextafter outer polar polygamma positive pow rad2deg real reciprocal remainder rot90
round rsqrt sigmoid sign signbit sin sinc sinh sqrt square tan tanh tensor_split tril_indices triu_indices trunc
unravel_index vdot vstack where xlogy view_as_real view_as_complex
special.airy_ai special.bessel_j0 special.bessel_j1 special.bessel_y0 special.bessel_y1 special.chebyshev_polynomial_t
special.chebyshev_polynomial_u special.chebyshev_polynomial_v special.chebyshev_polynomial_w special.entr
special.erfcx special.hermite_polynomial_h special.hermite_polynomial_he special.i0e special.i1 special.i1e
special.laguerre_polynomial_l special.legendre_polynomial_p special.log_ndtr special.modified_bessel_i0
special.modified_bessel_i1 special.modified_bessel_k0 special.modified_bessel_k1 special.ndtr special.ndtri
special.polygamma special.scaled_modified_bessel_k0 special.scaled_modified_bessel_k1
special.shifted_chebyshev_polynomial_t special.shifted_chebyshev_polynomial_u
special.shifted_chebyshev_polynomial_v special.shifted_chebyshev_polynomial_w special.spherical_bessel_j0
special.xlog1py special.zeta
"""
"""Names whose arguments are PyTorch's; ``name:ours`` where only the name differs."""

FUNCTIONAL = """
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
adaptive_max_pool3d alpha_dropout avg_pool1d avg_pool2d avg_pool3d batch_norm bilinear binary_cross_entropy
binary_cross_entropy_with_logits celu channel_shuffle conv1d conv2d conv3d conv_transpose1d conv_transpose2d
conv_transpose3d cosine_embedding_loss cosine_similarity cross_entropy ctc_loss dropout dropout2d dropout3d elu
embedding embedding_bag feature_alpha_dropout gaussian_nll_loss gelu glu grid_sample group_norm hardshrink
hardsigmoid hardswish hardtanh hinge_embedding_loss huber_loss instance_norm interpolate kl_div l1_loss layer_norm
leaky_relu linear linear_cross_entropy local_response_norm logsigmoid margin_ranking_loss max_pool1d max_pool2d
max_pool3d max_unpool1d max_unpool2d max_unpool3d mish mse_loss multi_head_attention_forward multi_margin_loss
multilabel_margin_loss multilabel_soft_margin_loss nll_loss normalize one_hot pad pairwise_distance pdist
pixel_shuffle pixel_unshuffle poisson_nll_loss prelu relu relu6 rms_norm rrelu scaled_dot_product_attention selu
silu smooth_l1_loss soft_margin_loss softmin softplus softshrink softsign tanhshrink threshold
triplet_margin_loss triplet_margin_with_distance_loss unfold upsample_bilinear upsample_nearest
"""
"""Names of `torch.nn.functional`, by the same names in `functional` or `windows`."""

WORDS = """
all: . axis keepdims
amax: max . axis keepdims
amin: min . axis keepdims
aminmax: . axis keepdims
any: . axis keepdims
argmax: . axis keepdims
argmin: . axis keepdims
bitwise_not: bitwise_invert
cat: concat . axis
chunk: . . axis
clamp: clip
clone: copy .
conj_physical: conj
count_nonzero: . axis
cross: linalg.cross
cummax: . axis
cummin: . axis
cumprod: cumulative_prod . axis
cumsum: cumulative_sum . axis
cumulative_trapezoid: . .
diag: . k
diagflat: . offset
expand_as: broadcast_as
fft.fft: . n axis norm
fft.fftn: . s axes norm
fft.fftshift: . axes
fft.hfft: . n axis norm
fft.ifft: . n axis norm
fft.ifftn: . s axes norm
fft.ifftshift: . axes
fft.ihfft: . n axis norm
fft.irfft: . n axis norm
fft.irfftn: . s axes norm
fft.rfft: . n axis norm
fft.rfftn: . s axes norm
flip: . axis
full: . .
full_like: . .
ge: greater_equal
gt: greater
index_add: . axis . .
index_copy: . axis . .
index_fill: . axis . .
index_reduce: . axis . . .
kthvalue: . . axis keepdims
le: less_equal
linalg.vecdot: . . axis
linspace: . . num
log_softmax: functional.log_softmax
logcumsumexp: . axis
logsumexp: . axis keepdims
logspace: . . num base
lt: less
mean: . axis keepdims
median: . axis keepdims
mode: . axis keepdims
movedim: moveaxis . . .
mul: multiply
nanmean: . axis keepdims
nanmedian: . axis keepdims
nanquantile: . . axis keepdims
nansum: . axis keepdims
narrow: . axis . .
ne: not_equal
neg: negative
ones: .
ones_like: .
prod: . axis keepdims
quantile: . . axis keepdims
ravel: flatten
repeat: tile
repeat_interleave: repeat . . axis
roll: . shift axis
scatter_add: . axis . .
select: . axis .
select_scatter: . . axis .
sgn: sign
slice_scatter: . . axis start end step
softmax: functional.softmax
stack: . axis
std_mean: . axis correction keepdims
sum: . axis keepdims
take_along_dim: take_along_axis . . axis
tile: . .
tril: . k
triu: . k
true_divide: divide
trapezoid: . .
trapz: trapezoid . .
transpose: swapaxes
unbind: unstack . axis
unflatten: . axis .
unfold: . axis . .
unsqueeze: expand_dims . axis
var_mean: . axis correction keepdims
zeros: .
zeros_like: .
"""
"""``name: ours argument ...``: how positional arguments are given to ours; ``.`` by position, others by name.
The name of ours is left out where it is PyTorch's."""

RENAMED = {"dim": "axis", "keepdim": "keepdims", "dims": "axis", "diagonal": "k"}
"""Argument names of PyTorch, and what the array API calls them."""

DRAWN = {
    *"empty empty_like empty_strided new_empty new_empty_strided rand_like randint randint_like randn randn_like".split(),
    *"bernoulli multinomial normal uniform exponential geometric cauchy log_normal".split(),
    *"nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d nn.functional.alpha_dropout".split(),
    *"nn.functional.feature_alpha_dropout nn.functional.rrelu".split(),
}
"""Results that are drawn, or whose elements may be anything: only their shapes and types are compared."""

GAUGE = {"svd", "linalg.svd", "linalg.eig", "linalg.eigh", "linalg.qr", "qr", "svd_lowrank", "pca_lowrank"}
"""Decompositions that are determined up to signs: compared by the functions that PyTorch's tests use."""

TOLERANCES: dict[str, dict[torch.dtype, tuple[float, float]]] = {}
"""Where results are less exact in either library than its default tolerance: relative and absolute."""

EXCUSED: dict[str, list[tuple[str, Callable[[Any], bool]]]] = {}
"""Samples of a name that are left out: the reason, and whether it applies to the arguments."""

DISAGREEING: dict[str, str] = {}
"""Names that Tensora has, but with other results on some samples: the reason."""


# --- translations that are more than a word ---------------------------------------------------------------


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "einsum": lambda operands, subscripts: ts.einsum(subscripts, *operands),
    "broadcast_shapes": lambda *shapes: ts.broadcast_shapes(*((s,) if isinstance(s, int) else s for s in shapes)),
    "diff": lambda x, n=1, dim=-1, prepend=None, append=None: ts.diff(
        x, n=n, axis=dim, prepend=prepend, append=append
    ),
    "flatten": lambda x, start_dim=0, end_dim=-1: ts.flatten(x, start_dim, end_dim),
    "__getitem__": lambda x, index: x[index],
    "__radd__": lambda x, other: other + x,
    "__rand__": lambda x, other: other & x,
    "__rdiv__": lambda x, other: other / x,
    "__rmatmul__": lambda x, other: other @ x,
    "__rmod__": lambda x, other: other % x,
    "__rmul__": lambda x, other: other * x,
    "__ror__": lambda x, other: other | x,
    "__rpow__": lambda x, other: other**x,
    "__rsub__": lambda x, other: other - x,
    "__rxor__": lambda x, other: other ^ x,
    "add": lambda x, y, alpha=1: ts.add(x, y if alpha == 1 else ts.multiply(y, alpha)),
    "sub": lambda x, y, alpha=1: ts.subtract(x, y if alpha == 1 else ts.multiply(y, alpha)),
    "rsub": lambda x, y, alpha=1: ts.subtract(y, x if alpha == 1 else ts.multiply(x, alpha)),
    "alias_copy": lambda x: x.copy(),
    "bmm": ts.matmul,
    "mm": ts.matmul,
    "mv": ts.matmul,
    "broadcast_tensors": lambda *xs: ts.broadcast_arrays(*xs),
    "clamp_max": lambda x, limit: ts.clip(x, max=limit),
    "clamp_min": lambda x, limit: ts.clip(x, min=limit),
    "contiguous": lambda x: x.contiguous(),
    "eq": ts.equal,
    "expand": lambda x, shape: x.expand(shape),
    "fill": lambda x, value: ts.full_like(x, value),
    "item": lambda x: x.item(),
    "permute": lambda x, dims: ts.permute_dims(x, dims),
    "reshape": lambda x, shape: ts.reshape(x, shape),
    "reshape_as": lambda x, other: ts.reshape(x, other.shape),
    "resolve_conj": lambda x: x,
    "resolve_neg": lambda x: x,
    "view": lambda x, shape: ts.reshape(x, shape),
    "view_as": lambda x, other: ts.reshape(x, other.shape),
    "zero_": lambda x: ts.zeros_like(x),
}


def _worded(ours: Callable[..., Any], words: list[str]) -> Callable[..., Any]:
    """Return a call with PyTorch's arguments as one with Tensora's."""

    def call(*args: Any, **kwargs: Any) -> Any:
        positional = [each for each, word in zip(args, words, strict=False) if word == "."]
        named = {word: each for each, word in zip(args, words, strict=False) if word != "."}
        if not words:
            positional = list(args)
        for key, value in kwargs.items():
            renamed = RENAMED.get(key, key)
            named[f"{renamed[:3]}es" if f"{renamed[:3]}es" in words else renamed] = value
        return ours(*positional, **named)

    return call


def _found(path: str) -> Callable[..., Any] | None:
    """Return a function of Tensora, by its path."""
    head, dot, name = path.rpartition(".")
    try:
        place = importlib.import_module(f"accelera.tensora.{head}") if dot else ts
    except ImportError:
        return None
    return getattr(place, name, None)


def _table() -> dict[str, Callable[..., Any] | None]:
    table: dict[str, Callable[..., Any] | None] = {}
    for word in SAME.split():
        name, _, ours = word.partition(":")
        table[name] = _found(ours or name)
    for line in WORDS.strip().splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        ours = words.pop(0) if words and not _is_argument(words[0]) else name
        function = _found(ours)
        table[name] = _worded(function, words) if function else None
    for name in FUNCTIONAL.split():
        table[f"nn.functional.{name}"] = _found(f"functional.{name}") or _found(f"windows.{name}")
    return table | FUNCTIONS


def _is_argument(word: str) -> bool:
    return word == "."


TABLE = _table()


def function_of(name: str, variant: str) -> Callable[..., Any] | None:
    """What computes a variant of a name, or None."""
    return TABLE.get(f"{name}:{variant}") or TABLE.get(name)


def names() -> list[str]:
    """All names that something computes."""
    return sorted({name.partition(":")[0] for name, function in TABLE.items() if function})


def agreeing() -> list[str]:
    """Names whose samples are expected to agree."""
    return [name for name in names() if name not in DISAGREEING]
