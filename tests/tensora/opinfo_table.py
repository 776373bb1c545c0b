"""Names of PyTorch's OpInfo and what computes them in Tensora: translations of arguments, nothing more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.tensora.opinfo_calls import FUNCTIONS, found

SAME = """
abs acos acosh addbmm addcdiv addcmul addmm addmv addr allclose angle argwhere asin asinh atan atan2 atanh
atleast_1d atleast_2d atleast_3d baddbmm bincount bitwise_and bitwise_left_shift bitwise_or
bitwise_right_shift bitwise_xor block_diag broadcast_to cartesian_prod ceil
cholesky_inverse:linalg.cholesky_inverse cholesky_solve:linalg.cholesky_solve column_stack combinations
complex conj copysign corrcoef cos cosh cov deg2rad diag_embed digamma dist dot dsplit dstack
equal:array_equal erf erfc erfinv exp exp2 expm1 eye flatten fliplr flipud float_power floor floor_divide
fmax fmin fmod frac frexp gcd gradient heaviside hsplit hstack hypot i0 igamma:special.gammainc
igammac:special.gammaincc imag index_put inner isclose isfinite isinf isnan isneginf isposinf isreal kron
lcm ldexp lerp lgamma linalg.cond linalg.det linalg.eig linalg.eigh linalg.eigvals linalg.eigvalsh
linalg.householder_product linalg.inv linalg.lu linalg.lu_factor linalg.lu_solve linalg.matrix_power
linalg.multi_dot linalg.slogdet linalg.svdvals linalg.tensorinv log log10 log1p log2 logaddexp logaddexp2
logical_and logical_not logical_or logical_xor logit lu_unpack:linalg.lu_unpack masked_fill masked_scatter
masked_select matmul matrix_exp:linalg.matrix_exp maximum minimum nan_to_num narrow nextafter
nonzero:argwhere outer polar positive pow put rad2deg real reciprocal remainder rot90 rsqrt sigmoid sign
signbit sin sinc sinh special.airy_ai special.bessel_j0 special.bessel_j1 special.bessel_y0
special.bessel_y1 special.chebyshev_polynomial_t special.chebyshev_polynomial_u
special.chebyshev_polynomial_v special.chebyshev_polynomial_w special.entr special.erfcx
special.hermite_polynomial_h special.hermite_polynomial_he special.i0e special.i1 special.i1e
special.laguerre_polynomial_l special.legendre_polynomial_p special.log_ndtr special.modified_bessel_i0
special.modified_bessel_i1 special.modified_bessel_k0 special.modified_bessel_k1 special.ndtr special.ndtri
special.scaled_modified_bessel_k0 special.scaled_modified_bessel_k1 special.shifted_chebyshev_polynomial_t
special.shifted_chebyshev_polynomial_u special.shifted_chebyshev_polynomial_v
special.shifted_chebyshev_polynomial_w special.spherical_bessel_j0 special.xlog1py special.zeta sqrt square
tan tanh tensor_split trace:linalg.trace tril_indices triu_indices trunc unravel_index vdot view_as_complex
view_as_real vsplit vstack xlogy
"""
"""Names whose arguments are PyTorch's; ``name:ours`` where only the name differs."""

FUNCTIONAL = """
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
adaptive_max_pool3d alpha_dropout avg_pool1d avg_pool2d avg_pool3d batch_norm bilinear binary_cross_entropy
binary_cross_entropy_with_logits celu channel_shuffle conv1d conv2d conv3d conv_transpose1d conv_transpose2d
conv_transpose3d cosine_embedding_loss cosine_similarity cross_entropy ctc_loss dropout dropout2d dropout3d
elu embedding_bag feature_alpha_dropout gaussian_nll_loss gelu glu grid_sample group_norm
hardshrink hardsigmoid hardswish hardtanh hinge_embedding_loss huber_loss instance_norm interpolate kl_div
l1_loss layer_norm leaky_relu linear linear_cross_entropy local_response_norm logsigmoid margin_ranking_loss
max_pool1d max_pool2d max_pool3d max_unpool1d max_unpool2d max_unpool3d mish mse_loss
multi_head_attention_forward multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss nll_loss
normalize one_hot pad pairwise_distance pdist pixel_shuffle pixel_unshuffle poisson_nll_loss prelu relu
relu6 rms_norm rrelu scaled_dot_product_attention selu silu smooth_l1_loss soft_margin_loss softmin softplus
softshrink softsign tanhshrink threshold triplet_margin_loss unfold
upsample_bilinear upsample_nearest
"""
"""Names of `torch.nn.functional`, by the same names in `functional`."""

WORDS = """
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
conj_physical: conj
count_nonzero: . axis
cross: linalg.cross
cummax: . axis
cummin: . axis
cumprod: cumulative_prod . axis
cumsum: cumulative_sum . axis
cumulative_trapezoid: . .
diag: . k
fft.fft: . n axis norm
fft.fftshift: . axes
fft.hfft: . n axis norm
fft.ifft: . n axis norm
fft.ifftshift: . axes
fft.ihfft: . n axis norm
fft.irfft: . n axis norm
fft.rfft: . n axis norm
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
select_scatter: . . axis .
sgn: sign
slice_scatter: . . axis start end step
stack: . axis
std_mean: . axis correction keepdims
sum: . axis keepdims
tile: . .
tril: . k
triu: . k
true_divide: divide
trapezoid: . .
trapz: trapezoid . .
transpose: swapaxes
unbind: unstack . axis
unsqueeze: expand_dims . axis
var_mean: . axis correction keepdims
zeros: .
zeros_like: .
all: . axis keepdims
argsort: . axis descending
bucketize: . .
cdist: . . p
diag_embed: . offset axis1 axis2
diagonal: . offset axis1 axis2
diagonal_copy: diagonal . offset axis1 axis2
diagonal_scatter: . . offset axis1 axis2
diagflat: . offset
dist: . . p
gather: . axis .
index_select: . axis .
linalg.cholesky: . upper
linalg.cross: . .
linalg.diagonal: diagonal . offset axis1 axis2
linalg.lstsq: . . rtol
linalg.matrix_norm: . ord axis keepdims
linalg.matrix_rank: . rtol
linalg.norm: . ord axis keepdims
linalg.pinv: . rtol
linalg.solve_triangular: . .
linalg.svd: . full_matrices
linalg.vander: .
linalg.vector_norm: . ord axis keepdims
mvlgamma: special.multigammaln
narrow_copy: narrow
norm: linalg.norm . ord axis keepdims
permute_copy: permute_dims
pinverse: linalg.pinv
scatter_add: . axis . .
select: . . .
topk: . . axis largest
transpose_copy: swapaxes
tril_indices: . . offset
triu_indices: . . offset
tensor_split: . . axis
unbind_copy: unstack . axis
unfold: . . . .
unfold_copy: unfold . . . .
unsqueeze_copy: expand_dims . axis
unflatten: . . .
view_copy: reshape
"""
"""``name: ours argument ...``: how positional arguments are given to ours; ``.`` by position, others by name.
The name of ours is left out where it is PyTorch's."""

RENAMED = {
    "dim": "axis",
    "keepdim": "keepdims",
    "dims": "axis",
    "diagonal": "k",
    "dim1": "axis1",
    "dim2": "axis2",
    "N": "n",
    "A": "x1",
    "B": "x2",
}
"""Argument names of PyTorch, and what the array API calls them."""

_DRAWN = """
bernoulli cauchy empty empty_like empty_strided exponential geometric log_normal multinomial new_empty
new_empty_strided nn.functional.alpha_dropout nn.functional.dropout nn.functional.dropout2d
nn.functional.dropout3d nn.functional.feature_alpha_dropout nn.functional.rrelu normal rand_like randint
randint_like randn randn_like uniform
"""
DRAWN = frozenset(_DRAWN.split())
"""Results that are drawn, or whose elements may be anything: only their shapes and types are compared,
as with dropout."""

GAUGE = {"svd", "linalg.svd", "linalg.eig", "linalg.eigh", "linalg.qr", "qr", "svd_lowrank", "pca_lowrank"}
"""Decompositions that are determined up to signs: compared by the functions that PyTorch's tests use."""

_PRODUCTS = "matmul __rmatmul__ addbmm addmm baddbmm bmm cdist einsum linalg.multi_dot mm"
_SUMS = {torch.float32: (1e-4, 1e-4)}
TOLERANCES: dict[str, dict[torch.dtype, tuple[float, float]]] = {
    **dict.fromkeys(_PRODUCTS.split(), _SUMS),
    "cov": {torch.float64: (1e-4, 1e-4)},  # PyTorch sums float32 weights in float32, Tensora in float64
    "matrix_exp": {torch.float32: (1e-4, 1e-3)},
    **{
        f"fft.{name}{n}": _SUMS
        for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
        for n in ("", "2", "n")
    },
    **{f"nn.functional.conv{kind}{n}d": _SUMS for kind in ("", "_transpose") for n in (1, 2, 3)},
    "nn.functional.scaled_dot_product_attention": _SUMS,
    "special.hermite_polynomial_he": _SUMS,
    "special.hermite_polynomial_h": _SUMS,
    # PyTorch's are off by some 1e-7 for arguments above 5, as mpmath shows
    **{f"special.bessel_{kind}": {torch.float64: (1e-5, 1e-6)} for kind in ("j0", "j1", "y0", "y1")},
    "polygamma": {torch.float32: (1e-4, 1e-4)},
    "special.polygamma": {torch.float32: (1e-4, 1e-4)},
}
"""Where results are less exact in either library than its default tolerance: relative and absolute."""

EXCUSED: dict[str, list[tuple[str, Callable[[Any], bool]]]] = {}
"""Samples of a name that are left out: the reason, and whether it applies to the arguments."""

_UNPOOLED = "of maxima with one place, PyTorch gives a gradient also to those that were overwritten"
DISAGREEING: dict[str, str] = {
    **{f"nn.functional.max_unpool{n}d": _UNPOOLED for n in (1, 2, 3)},
    "as_strided": "PyTorch addresses the storage behind a view, Tensora the elements of the tensor",
    "as_strided_scatter": "PyTorch's gradient goes to the elements that are replaced, not to the others",
}
"""Names that Tensora has, but with other results on some samples: the reason."""


def _worded(ours: Callable[..., Any], words: list[str]) -> Callable[..., Any]:
    """Return a call with PyTorch's arguments as one with Tensora's."""

    def call(*args: Any, **kwargs: Any) -> Any:
        positional = [each for each, word in zip(args, words, strict=False) if word == "."]
        named = {word: each for each, word in zip(args, words, strict=False) if word != "."}
        if not words:
            positional = list(args)
        for key, value in kwargs.items():
            renamed = RENAMED.get(key, key)
            named["axes" if renamed == "axis" and "axes" in words else renamed] = value
        return ours(*positional, **named)

    return call


def _table() -> dict[str, Callable[..., Any] | None]:
    table: dict[str, Callable[..., Any] | None] = {}
    for word in SAME.split():
        name, _, ours = word.partition(":")
        table[name] = found(ours or name)
    for line in WORDS.strip().splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        ours = words.pop(0) if words and not _is_argument(words[0]) else name
        function = found(ours)
        table[name] = _worded(function, words) if function else None
    for name in FUNCTIONAL.split():
        table[f"nn.functional.{name}"] = found(f"functional.{name}")
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
