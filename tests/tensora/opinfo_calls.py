"""Calls of PyTorch's OpInfo that need more than a word to be calls of Tensora: translations of arguments."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from typing import Any

import accelera.tensora as ts


def found(path: str) -> Callable[..., Any] | None:
    """Return a function of Tensora, by its path."""
    head, dot, name = path.rpartition(".")
    try:
        place = importlib.import_module(f"accelera.tensora.{head}") if dot else ts
    except ImportError:
        return None
    return getattr(place, name, None)


def _softmax(name: str) -> Callable[..., Any] | None:
    """Return a function of `functional`, to which the samples give a type."""
    function = found(f"functional.{name}")
    return function and (lambda x, dim, dtype=None: function(x if dtype is None else x.to(dtype), dim=dim))


def _pooled(pool: Any) -> Any:
    """Return a pool whose stride may be empty, which is none."""
    return pool and (
        lambda x, size, stride=None, *rest, **options: pool(x, size, stride or None, *rest, **options)
    )


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


def _unique(find: Callable[..., Any]) -> Callable[..., Any]:
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


def _embedded(weight: Any, rows: Any, sparse: bool = False, **options: Any) -> Any:
    """`embedding`, whose samples give the table first, and a layout of its gradient."""
    return ts.functional.embedding(rows, weight, **options)


def _bags(weight: Any, rows: Any, **options: Any) -> Any:
    """`embedding_bag`, whose samples give the table first."""
    return ts.functional.embedding_bag(rows, weight, **options)


def _triplet(*tensors: Any, distance_function: Any, **options: Any) -> Any:
    """`triplet_margin_with_distance_loss`, to which the samples give a module of PyTorch."""

    def distance(x: Any, y: Any) -> Any:
        given = distance_function
        return ts.functional.pairwise_distance(x, y, given.norm, given.eps, given.keepdim)

    return ts.functional.triplet_margin_with_distance_loss(*tensors, distance_function=distance, **options)


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
    "linalg.lu": lambda x, pivot=True: ts.linalg.lu(x),
    "linalg.lu_factor": lambda x, pivot=True: ts.linalg.lu_factor(x),
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
    "nn.functional.avg_pool2d": _pooled(found("functional.avg_pool2d")),
    "clone": lambda x: x.copy(),
    "nn.functional.embedding": _embedded,
    "nn.functional.embedding_bag": _bags,
    "nn.functional.triplet_margin_with_distance_loss": _triplet,
    "constant_pad_nd": lambda x, pad, value=0: ts.functional.pad(x, pad, value=value),
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
