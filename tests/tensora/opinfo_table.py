"""Names of PyTorch's OpInfo and what computes them in Tensora: translations of arguments, nothing more."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from typing import Any

import torch

import accelera.tensora as ts

SAME = """
allclose isclose narrow nonzero:argwhere trace:linalg.trace linalg.cond
abs acos acosh addbmm addcdiv addcmul addmm addmv addr angle argwhere asin asinh atan atan2 atanh
atleast_1d atleast_2d atleast_3d baddbmm bitwise_and bitwise_or bitwise_xor bitwise_left_shift
bitwise_right_shift bincount block_diag broadcast_to cartesian_prod ceil column_stack
combinations complex conj copysign corrcoef cos cosh cov deg2rad diag_embed digamma dist dot dstack
equal:array_equal erf erfc erfinv exp exp2 expm1 eye flatten fliplr flipud float_power
floor floor_divide fmax fmin fmod frac frexp gcd gradient heaviside hstack hypot i0 imag
inner isfinite isinf isnan isneginf isposinf isreal kron lcm ldexp lerp lgamma linalg.det linalg.eig linalg.eigvals linalg.eigh linalg.eigvalsh linalg.householder_product linalg.inv
linalg.lu_factor linalg.lu  linalg.matrix_power linalg.multi_dot linalg.slogdet
linalg.svdvals linalg.tensorinv log log10 log1p log2 logaddexp logaddexp2
logical_and logical_not logical_or logical_xor logit masked_fill masked_scatter masked_select matmul maximum minimum
nan_to_num nextafter outer polar positive pow rad2deg real reciprocal remainder rot90
rsqrt sigmoid sign signbit sin sinc sinh sqrt square tan tanh tensor_split tril_indices triu_indices trunc
unravel_index vdot vstack xlogy view_as_real view_as_complex
special.airy_ai special.bessel_j0 special.bessel_j1 special.bessel_y0 special.bessel_y1 special.chebyshev_polynomial_t
special.chebyshev_polynomial_u special.chebyshev_polynomial_v special.chebyshev_polynomial_w special.entr
special.erfcx special.hermite_polynomial_h special.hermite_polynomial_he special.i0e special.i1 special.i1e
special.laguerre_polynomial_l special.legendre_polynomial_p special.log_ndtr special.modified_bessel_i0
special.modified_bessel_i1 special.modified_bessel_k0 special.modified_bessel_k1 special.ndtr special.ndtri
special.scaled_modified_bessel_k0 special.scaled_modified_bessel_k1
special.shifted_chebyshev_polynomial_t special.shifted_chebyshev_polynomial_u
special.shifted_chebyshev_polynomial_v special.shifted_chebyshev_polynomial_w special.spherical_bessel_j0
special.xlog1py special.zeta
hsplit vsplit dsplit index_put put
linalg.lu_solve lu_unpack:linalg.lu_unpack cholesky_inverse:linalg.cholesky_inverse cholesky_solve:linalg.cholesky_solve
igamma:special.gammainc igammac:special.gammaincc matrix_exp:linalg.matrix_exp
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

DRAWN = {
    *"empty empty_like empty_strided new_empty new_empty_strided rand_like randint randint_like randn randn_like".split(),
    *"bernoulli multinomial normal uniform exponential geometric cauchy log_normal".split(),
    *"nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d nn.functional.alpha_dropout".split(),
    *"nn.functional.feature_alpha_dropout nn.functional.rrelu".split(),
}
"""Results that are drawn, or whose elements may be anything: only their shapes and types are compared."""

GAUGE = {"svd", "linalg.svd", "linalg.eig", "linalg.eigh", "linalg.qr", "qr", "svd_lowrank", "pca_lowrank"}
"""Decompositions that are determined up to signs: compared by the functions that PyTorch's tests use."""

_SUMS = {torch.float32: (1e-4, 1e-4)}
TOLERANCES: dict[str, dict[torch.dtype, tuple[float, float]]] = {
    **dict.fromkeys(
        "matmul __rmatmul__ addbmm addmm baddbmm bmm cdist einsum linalg.multi_dot mm".split(), _SUMS
    ),
    "cov": {torch.float64: (1e-4, 1e-4)},  # PyTorch sums float32 weights in float32, Tensora in float64
    "matrix_exp": {torch.float32: (1e-4, 1e-3)},
    **{
        f"fft.{name}{n}": _SUMS
        for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
        for n in ("", "2", "n")
    },
    "special.hermite_polynomial_he": _SUMS,
    "special.hermite_polynomial_h": _SUMS,
    # PyTorch's are off by some 1e-7 for arguments above 5: of mpmath, SciPy's and PyTorch's values the last differ
    **{f"special.bessel_{kind}": {torch.float64: (1e-5, 1e-6)} for kind in ("j0", "j1", "y0", "y1")},
    "polygamma": {torch.float32: (1e-4, 1e-4)},
    "special.polygamma": {torch.float32: (1e-4, 1e-4)},
}
"""Where results are less exact in either library than its default tolerance: relative and absolute."""

EXCUSED: dict[str, list[tuple[str, Callable[[Any], bool]]]] = {}
"""Samples of a name that are left out: the reason, and whether it applies to the arguments."""

DISAGREEING: dict[str, str] = {
    "as_strided": "PyTorch addresses the storage behind a view, Tensora the elements of the tensor",
    "as_strided_scatter": "PyTorch's gradient of the tensor goes to the elements that are replaced, not to the others",
}
"""Names that Tensora has, but with other results on some samples: the reason."""


# --- translations that are more than a word ---------------------------------------------------------------


def _found(path: str) -> Callable[..., Any] | None:
    """Return a function of Tensora, by its path."""
    head, dot, name = path.rpartition(".")
    try:
        place = importlib.import_module(f"accelera.tensora.{head}") if dot else ts
    except ImportError:
        return None
    return getattr(place, name, None)


def _softmax(name: str) -> Callable[..., Any] | None:
    """Return a function of `functional`, to which the samples give a type."""
    function = _found(f"functional.{name}")
    return function and (lambda x, dim, dtype=None: function(x if dtype is None else x.to(dtype), dim=dim))


def _deviation(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `var` and its like, whose divisor PyTorch tells by `unbiased` or `correction`."""

    def call(
        x: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, correction: Any = None
    ) -> Any:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        bias = (1 if unbiased is None else int(unbiased)) if correction is None else correction
        axis = tuple(dim) if isinstance(dim, list | tuple) else dim
        return function(x, axis=axis or (None if axis == () else axis), correction=bias, keepdims=keepdim)

    return call


def _extreme(reduce: Any, find: Any, pair: Any) -> Callable[..., Any]:
    """Return `max` or `min`: of all elements, with indices along an axis, or of two tensors."""

    def call(x: Any, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
        if isinstance(dim, ts.Tensor):
            return pair(x, dim)
        if dim is None:
            return reduce(x)
        if x.ndim == 0:
            return x.copy(), find(x)
        places = find(x, axis=dim, keepdims=True)
        found = ts.take_along_axis(x, places, axis=dim)
        return (found, places) if keepdim else (ts.squeeze(found, axis=dim), ts.squeeze(places, axis=dim))

    return call


def _divided(x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return ts.floor_divide(x, y)
    return ts.divide(x, y) if rounding_mode is None else ts.trunc(ts.divide(x, y))


def _split(x: Any, size: Any, dim: int = 0) -> Any:
    """`torch.split`: sizes, where ours takes the places between parts."""
    extent = x.shape[dim]
    sizes = list(size) if isinstance(size, list | tuple) else [size] * -(-extent // size)
    return ts.split(x, list(itertools.accumulate(sizes))[:-1], axis=dim)


def _squeezed(x: Any, dim: Any = None) -> Any:
    """Axes that are not of extent 1 stay, as `torch.squeeze` has it."""
    if dim is None or x.ndim == 0:
        return ts.squeeze(x)
    axes = dim if isinstance(dim, list | tuple) else (dim,)
    return ts.squeeze(x, axis=tuple(each for each in axes if x.shape[each] == 1))


def _solved(a: Any, b: Any, left: bool = True) -> Any:
    """`torch.linalg.solve`: a batch of vectors where shapes say so, and factors on the other side."""
    vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and tuple(b.shape) == tuple(a.shape[:-1]))
    if not left:
        return (
            ts.linalg.solve(a.mT, b[..., None] if vector else b.mT)[..., 0]
            if vector
            else ts.linalg.solve(a.mT, b.mT).mT
        )
    return ts.linalg.solve(a, b[..., None])[..., 0] if vector else ts.linalg.solve(a, b)


def _unique(find: Callable[[Any], Any]) -> Callable[..., Any]:
    def call(
        x: Any,
        sorted: bool = True,  # noqa: A002
        return_inverse: bool = False,
        return_counts: bool = False,
        dim: Any = None,
    ) -> Any:
        found = find(x, axis=dim)
        chosen = [found.values]
        chosen += [found.inverse_indices] if return_inverse else []
        chosen += [found.counts] if return_counts else []
        return chosen[0] if len(chosen) == 1 else tuple(chosen)

    return call


def _searched(
    boundaries: Any,
    x: Any,
    out_int32: bool = False,
    right: bool = False,
    side: Any = None,
    sorter: Any = None,
) -> Any:
    found = ts.searchsorted(boundaries, x, side=side or ("right" if right else "left"), sorter=sorter)
    return found.to(ts.int32) if out_int32 else found


def _bucketized(x: Any, boundaries: Any, out_int32: bool = False, right: bool = False) -> Any:
    found = ts.bucketize(x, boundaries, right=right)
    return found.to(ts.int32) if out_int32 else found


def _converted(x: Any, *args: Any, dtype: Any = None, **_: Any) -> Any:
    """`Tensor.to`: of device, type and another tensor the type counts."""
    for each in args:
        dtype = each.dtype if isinstance(each, ts.Tensor) else each if isinstance(each, ts.dtype) else dtype
    return x if dtype is None else x.to(dtype)


def _to(name: str) -> Callable[..., Any]:
    return lambda x, **_: x.to(getattr(ts, name))


def _new(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return `new_zeros` and its like: the type is the tensor's."""
    return lambda x, shape, *rest, dtype=None: make(tuple(shape), *rest, dtype=dtype or x.dtype)


def _svd(x: Any, some: bool = True, compute_uv: bool = True) -> Any:
    u, s, vh = ts.linalg.svd(x, full_matrices=not some)
    return u, s, ts.conj(vh).mT


def _tile(x: Any, dims: Any) -> Any:
    return ts.tile(x, tuple(dims))


def _each(function: Callable[[Any], Any], given: Any) -> Any:
    """Return what a function makes of one tensor, or of each of several."""
    tensors = given[0] if isinstance(given[0], list | tuple) else given
    found = [function(x) for x in tensors]
    return found[0] if tensors is given and len(given) == 1 else found


def _transform(function: Callable[..., Any], axes: Any) -> Callable[..., Any]:
    """Return a Fourier transform of several axes, of which PyTorch takes a number as well."""

    def call(x: Any, s: Any = None, dim: Any = axes, norm: str | None = None) -> Any:
        size, places = ((each,) if isinstance(each, int) else each for each in (s, dim))
        return function(x, s=size, axes=places, norm=norm or "backward")

    return call


def _scattered(x: Any, dim: int, index: Any, source: Any, reduce: str | None = None) -> Any:
    """`torch.scatter`, which can add and multiply."""
    if reduce is None:
        return ts.scatter(x, index, source, axis=dim)
    values = source if isinstance(source, ts.Tensor) else ts.full(index.shape, source, dtype=x.dtype)
    kind = {"add": "sum", "multiply": "prod"}[reduce]
    return ts.scatter_reduce(x, index, values, axis=dim, reduce=kind)


def _least_squares(a: Any, b: Any, driver: str | None = None) -> Any:
    """`torch.linalg.lstsq`, whose driver decides what is left out."""
    solution, residuals, rank = ts.linalg.lstsq(a, b)
    none = ts.empty(0, dtype=ts.int64)
    residuals = ts.empty(0, dtype=a.dtype) if driver == "gelsy" else residuals
    values = ts.linalg.svdvals(a) if driver in ("gelss", "gelsd") else ts.empty(0, dtype=a.dtype)
    return solution, residuals, none if driver == "gels" else rank, values


def _unpivoted() -> Any:
    raise NotImplementedError("LU decomposition without exchanges of rows")


def _norm(x: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """`torch.norm`, whose numbers are orders of vectors on any axes."""
    axis = tuple(dim) if isinstance(dim, list | tuple) else dim
    if p == "nuc":
        return ts.linalg.matrix_norm(x, ord="nuc", axis=axis or (-2, -1), keepdims=keepdim)
    return ts.linalg.vector_norm(x, ord=2 if p == "fro" else p, axis=axis, keepdims=keepdim)


def _number(each: Any) -> Any:
    return each.item() if isinstance(each, ts.Tensor) else each


def _randint(*args: Any, dtype: Any = None) -> Any:
    *bounds, size = args
    low, high = bounds if len(bounds) == 2 else (0, bounds[0])
    drawn = ts.random.randint(low, high, tuple(size))
    return drawn if dtype is None else drawn.to(dtype)


FOURIER = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")

FUNCTIONS: dict[str, Callable[..., Any] | None] = {
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "einsum": lambda operands, subscripts: ts.einsum(subscripts, *operands),
    "broadcast_shapes": lambda *shapes: ts.broadcast_shapes(
        *((s,) if isinstance(s, int) else s for s in shapes)
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
    "H": lambda x: ts.conj(x).mT,
    "mH": lambda x: ts.conj(x).mT,
    "t": lambda x: x.T,
    "t_copy": lambda x: x.T.copy(),
    "std": _deviation(ts.std),
    "var": _deviation(ts.var),
    "std_mean": _deviation(ts.std_mean),
    "var_mean": _deviation(ts.var_mean),
    "max": _extreme(ts.max, ts.argmax, ts.maximum),
    "min": _extreme(ts.min, ts.argmin, ts.minimum),
    "div": _divided,
    "split": _split,
    "split_with_sizes": _split,
    "split_with_sizes_copy": _split,
    "unsafe_split": _split,
    "unsafe_chunk": lambda x, n, dim=0: ts.chunk(x, n, axis=dim),
    "squeeze": _squeezed,
    "squeeze_copy": _squeezed,
    "linalg.solve": _solved,
    "linalg.tensorsolve": lambda a, b, dims=None: ts.linalg.tensorsolve(a, b, axes=dims),
    "unique": _unique(ts.unique_all),
    "unique_consecutive": _unique(ts.unique_consecutive),
    "searchsorted": _searched,
    "bucketize": _bucketized,
    "to": _converted,
    "bfloat16": _to("bfloat16"),
    "bool": _to("bool"),
    "byte": _to("uint8"),
    "cdouble": _to("complex128"),
    "cfloat": _to("complex64"),
    "char": _to("int8"),
    "double": _to("float64"),
    "float": _to("float32"),
    "half": _to("float16"),
    "int": _to("int32"),
    "long": _to("int64"),
    "short": _to("int16"),
    "new_empty": _new(ts.empty),
    "new_full": _new(ts.full),
    "new_ones": _new(ts.ones),
    "new_zeros": _new(ts.zeros),
    "svd": _svd,
    "qr": lambda x, some=True: ts.linalg.qr(x, mode="reduced" if some else "complete"),
    "linalg.qr": lambda x, mode="reduced": ts.linalg.qr(x, mode=mode),
    "tile": _tile,
    "repeat": _tile,
    "round": lambda x, decimals=0: ts.round(x, decimals=decimals),
    "polygamma": lambda x, n: ts.special.polygamma(n, x),
    "special.polygamma": lambda x, n: ts.special.polygamma(n, x),
    "repeat_interleave": lambda x, repeats, dim=None, output_size=None: ts.repeat(x, repeats, axis=dim),
    "where": lambda x, condition, y: ts.where(condition, x, y),
    "take_along_dim": lambda x, indices, dim=None: (
        ts.take(x.flatten(), indices.flatten(), axis=0)
        if dim is None
        else ts.take_along_axis(x, indices, axis=dim)
    ),
    "take": lambda x, indices: ts.take(x.flatten(), indices, axis=0),
    "combinations": lambda x, r=2, with_replacement=False: ts.combinations(
        x, r, with_replacement=with_replacement
    ),
    "expand_as": lambda x, other: ts.broadcast_to(x, other.shape),
    "expand_copy": lambda x, shape: x.expand(shape).copy(),
    "view_copy": lambda x, shape: ts.reshape(x, shape, copy=True),
    "slice": lambda x, dim=0, start=None, end=None, step=1: x[
        (slice(None),) * dim + (slice(start, end, step),)
    ],
    "msort": lambda x: ts.sort(x, axis=0),
    "sort": lambda x, dim=-1, descending=False, stable=False: (
        ts.sort(x, axis=dim, descending=descending),
        ts.argsort(x, axis=dim, descending=descending),
    ),
    "argsort": lambda x, dim=-1, descending=False, stable=False: ts.argsort(
        x, axis=dim, descending=descending
    ),
    "isin": lambda x, values, assume_unique=False, invert=False: ts.isin(x, values, invert=invert),
    "linspace": lambda start, stop, steps, dtype=None: ts.linspace(
        _number(start), _number(stop), steps, dtype=dtype
    ),
    "logspace": lambda start, stop, steps, base=10.0, dtype=None: ts.logspace(
        _number(start), _number(stop), steps, base, dtype=dtype
    ),
    "tensordot": lambda x, y, dims=2: ts.tensordot(x, y, axes=dims),
    "meshgrid": lambda *xs, indexing="ij": ts.meshgrid(
        *(x.flatten() for x in (xs[0] if isinstance(xs[0], list | tuple) else xs)), indexing=indexing
    ),
    "cartesian_prod": lambda *xs: ts.cartesian_prod(*xs),
    "block_diag": lambda *xs: ts.block_diag(*xs),
    "atleast_1d": lambda *xs: _each(ts.atleast_1d, xs),
    "atleast_2d": lambda *xs: _each(ts.atleast_2d, xs),
    "atleast_3d": lambda *xs: _each(ts.atleast_3d, xs),
    "arange": lambda start, end=None, step=1, dtype=None: ts.arange(start, end, step, dtype=dtype),
    "bincount": lambda x, weights=None, minlength=0: ts.bincount(x, weights, minlength=minlength),
    "linalg.lstsq": _least_squares,
    "linalg.lstsq:grad_oriented": lambda a, b, driver=None: _least_squares(a, b, driver)[:2],
    "linalg.lu": lambda x, pivot=True: ts.linalg.lu(x) if pivot else _unpivoted(),
    "linalg.lu_factor": lambda x, pivot=True: ts.linalg.lu_factor(x) if pivot else _unpivoted(),
    "linalg.matrix_rank": lambda x, atol=None, rtol=None, hermitian=False: ts.linalg.matrix_rank(
        x, atol=atol, rtol=rtol
    ),
    "linalg.pinv:singular": lambda a, b: ts.linalg.pinv(a @ b.mT),
    "logit": lambda x, eps=None: ts.logit(x, eps=eps),
    "nonzero": lambda x, as_tuple=False: ts.nonzero(ts.atleast_1d(x)) if as_tuple else ts.argwhere(x),
    "norm": _norm,
    "tril_indices": lambda rows, columns, offset=0, dtype=None: ts.tril_indices(rows, columns, offset=offset),
    "triu_indices": lambda rows, columns, offset=0, dtype=None: ts.triu_indices(rows, columns, offset=offset),
    "histogram": lambda x, bins, **kwargs: ts.histogram(x, bins, **kwargs),
    "gradient": lambda x, spacing=None, dim=None, edge_order=1: ts.gradient(
        x, spacing=1 if spacing is None else spacing, axis=dim, edge_order=edge_order
    ),
    "index_add": lambda x, dim, index, source, alpha=1: ts.index_add(x, index, source, axis=dim, alpha=alpha),
    "index_copy": lambda x, dim, index, source: ts.index_copy(x, index, source, axis=dim),
    "index_fill": lambda x, dim, index, value: ts.index_fill(x, index, value, axis=dim),
    "gather": lambda x, dim, index: ts.gather(x, index, axis=dim),
    "index_select": lambda x, dim, index: ts.index_select(x, index, axis=dim),
    "scatter": _scattered,
    "scatter_add": lambda x, dim, index, source: ts.scatter_add(x, index, source, axis=dim),
    "select_scatter": lambda x, source, dim, index: ts.select_scatter(x, source, axis=dim, index=index),
    "slice_scatter": lambda x, source, dim=0, start=None, end=None, step=1: ts.slice_scatter(
        x, source, axis=dim, start=start, end=end, step=step
    ),
    "put": lambda x, index, source, accumulate=False: ts.put(x, index, source, accumulate=accumulate),
    "narrow_copy": lambda x, dim, start, length: ts.narrow(x, dim, start, length).copy(),
    "narrow": lambda x, dim, start, length: ts.narrow(x, dim, _number(start), length),
    "cholesky": lambda x, upper=False: ts.linalg.cholesky(x, upper=upper),
    "cholesky_inverse": lambda x, upper=False: ts.linalg.cholesky_inverse(x, upper=upper),
    "cholesky_solve": lambda x, factor, upper=False: ts.linalg.cholesky_solve(x, factor, upper=upper),
    "logdet": lambda x: ts.linalg.slogdet(x)[1],
    "triangular_solve": lambda b, a, upper=True, transpose=False, unitriangular=False: (
        ts.linalg.solve_triangular(
            a.mT if transpose else a, b, upper=upper != transpose, unitriangular=unitriangular
        ),
        a.copy(),
    ),
    "lu_solve": lambda b, factors, pivots: ts.linalg.lu_solve(factors, pivots, b),
    "lu": lambda x, pivot=True, get_infos=False: (
        (*ts.linalg.lu_factor(x), ts.zeros(x.shape[:-2], dtype=ts.int32))
        if get_infos
        else ts.linalg.lu_factor(x)
    ),
    "linalg.vecdot": lambda x, y, dim=-1: ts.vecdot(x, y, axis=dim),
    "cross": lambda x, y, dim=None: ts.linalg.cross(
        x, y, axis=-1 if dim is None and x.shape[-1] == 3 else x.shape.index(3) if dim is None else dim
    ),
    "linalg.cross": lambda x, y, dim=-1: ts.linalg.cross(x, y, axis=dim),
    "linalg.multi_dot": lambda xs: ts.linalg.multi_dot(xs),
    "rand_like": lambda x, dtype=None: ts.random.rand(*x.shape, dtype=dtype or x.dtype),
    "randn_like": lambda x, dtype=None: ts.random.randn(*x.shape, dtype=dtype or x.dtype),
    "randn": lambda *shape, dtype=None: ts.random.randn(
        *(shape[0] if isinstance(shape[0], tuple) else shape), dtype=dtype
    ),
    "randint": _randint,
    "randint_like": lambda x, *bounds, dtype=None: _randint(*bounds, x.shape, dtype=dtype or x.dtype),
    "scalar_tensor": lambda value, dtype=None: ts.asarray(value, dtype=dtype),
    "empty": lambda *shape, dtype=None: ts.empty(*shape, dtype=dtype),
    "empty_like": lambda x, dtype=None: ts.empty_like(x, dtype=dtype),
    "diff": lambda x, n=1, dim=-1, prepend=None, append=None: ts.diff(
        x, n=n, axis=dim, prepend=prepend, append=append
    ),
    "linalg.svd": lambda x, full_matrices=True: ts.linalg.svd(x, full_matrices=full_matrices),
    "unravel_index": lambda x, shape: ts.unravel_index(x, shape),
    "dstack": lambda xs: ts.dstack(xs),
    "linalg.householder_product": lambda x, tau: ts.linalg.householder_product(x, tau),
    "aminmax": lambda x, dim=None, keepdim=False: ts.aminmax(x, axis=dim, keepdims=keepdim),
    **{f"fft.{name}n": _transform(getattr(ts.fft, f"{name}n"), None) for name in FOURIER},
    **{f"fft.{name}2": _transform(getattr(ts.fft, f"{name}n"), (-2, -1)) for name in FOURIER},
    "histc": lambda x, bins=100, min=0, max=0: ts.histc(x, bins, min=min, max=max),  # noqa: A006
    "scatter_reduce": lambda x, dim, index, source, reduce, include_self=True: ts.scatter_reduce(
        x, index, source, axis=dim, reduce=reduce, include_self=include_self
    ),
    "index_reduce": lambda x, dim, index, source, reduce, include_self=True: ts.index_reduce(
        x, index, source, axis=dim, reduce=reduce, include_self=include_self
    ),
    "sum_to_size": lambda x, *shape: ts.sum_to_size(
        x, tuple(shape[0] if isinstance(shape[0], list | tuple) else shape) if shape else ()
    ),
    "as_strided": lambda x, size, stride, storage_offset=0: ts.as_strided(x, size, stride, storage_offset),
    "as_strided_copy": lambda x, size, stride, storage_offset=0: ts.as_strided(
        x, size, stride, storage_offset
    ).copy(),
    "as_strided_scatter": lambda x, source, size, stride, storage_offset=0: ts.as_strided_scatter(
        x, source, size, stride, storage_offset
    ),
    "renorm": lambda x, p, dim, maxnorm: ts.linalg.renorm(x, p=p, axis=dim, maxnorm=maxnorm),
    "clone": lambda x: x.copy(),
    "constant_pad_nd": _found("functional.pad"),
    "softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"),
    "nn.functional.softmin": _softmax("softmin"),
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
            named["axes" if renamed == "axis" and "axes" in words else renamed] = value
        return ours(*positional, **named)

    return call


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
