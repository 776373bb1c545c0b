"""Reductions, scans, movements, searches and factorizations of the op table in JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accelera.tensora.lowering.jax_networks import widened
from accelera.tensora.lowering.program import ProgramStep
from accelera.tensora.lowering.window import BufferWindow

# --- reductions: a: axes, flag: axes are kept


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    def lowered(step: ProgramStep, x: Any) -> Any:
        return function(widened(x), step)

    return lowered


def _sum(x: Any, step: ProgramStep) -> Any:
    return jnp.sum(x, step.params.a, keepdims=step.params.flag, dtype=_accumulation_dtype(step))


def _prod(x: Any, step: ProgramStep) -> Any:
    return jnp.prod(x, step.params.a, keepdims=step.params.flag, dtype=_accumulation_dtype(step))


def _accumulation_dtype(step: ProgramStep) -> Any:
    """Return the type to accumulate in: that of the result, but float32 for 16-bit floats."""
    return widened(jnp.zeros((), step.outputs[0].dtype.name)).dtype


def _numpy_reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    return _reduction(lambda x, step: function(x, axis=step.params.a, keepdims=step.params.flag))


# --- scans: mode: axis


def cumsum(step: ProgramStep, x: Any) -> Any:
    """Running sums."""
    return jnp.cumsum(widened(x), step.params.mode, dtype=_accumulation_dtype(step))


def cumprod(step: ProgramStep, x: Any) -> Any:
    """Running products."""
    return jnp.cumprod(widened(x), step.params.mode, dtype=_accumulation_dtype(step))


def logcumsumexp(step: ProgramStep, x: Any) -> Any:
    """Logarithms of running sums of e^x."""
    return jax.lax.cumlogsumexp(widened(x), axis=step.params.mode)


def linear_recurrence(step: ProgramStep, a: Any, b: Any) -> Any:
    """y[i] = a[i] y[i - 1] + b[i]."""
    dtype = _accumulation_dtype(step)

    def both(one: Any, two: Any) -> Any:
        return one[0] * two[0], one[1] * two[0] + two[1]

    return jax.lax.associative_scan(both, (a.astype(dtype), b.astype(dtype)), axis=step.params.mode)[1]


# --- movement


def concat(step: ProgramStep, *parts: Any) -> Any:
    """Parts side by side along the axis `mode`."""
    dtype = step.outputs[0].dtype.name
    return jnp.concatenate([each.astype(dtype) for each in parts], step.params.mode)


def unslice(step: ProgramStep, x: Any) -> Any:
    """Zeros of shape c, with x from a on in steps of b."""
    at = tuple(
        slice(a, a + b * n if a + b * n >= 0 else None, b)
        for a, b, n in zip(step.params.a, step.params.b, x.shape, strict=True)
    )
    return jnp.zeros(step.params.c, x.dtype).at[at].set(x)


def strided_scatter(step: ProgramStep, x: Any) -> Any:
    """Zeros of shape a, with x at its places by strides b and offset c."""
    window = BufferWindow(0, None, x.shape, step.params.b, step.params.c[0])
    flat = jnp.zeros((int(np.prod(step.params.a)),), x.dtype).at[window.places()].set(x)
    return flat.reshape(step.params.a)


# --- indexing: mode: axis; indices are int64


def wrap_index(step: ProgramStep, index: Any) -> Any:
    """Indices counted from the end where they are negative; out of range they are clipped, not refused."""
    extent = step.params.a[0]
    index = index.astype(jnp.int64)
    return jnp.clip(jnp.where(index < 0, index + extent, index), 0, max(extent - 1, 0))


def _axis_index(index: Any, axis: int) -> tuple[Any, ...]:
    return (*[slice(None)] * axis, index)


def take(step: ProgramStep, x: Any, index: Any) -> Any:
    """Slices of x."""
    return jnp.take(x, index, axis=step.params.mode)


def take_add(step: ProgramStep, values: Any, index: Any) -> Any:
    """Zeros of shape a, to which slices are added."""
    at = jnp.zeros(step.params.a, widened(values).dtype).at[_axis_index(index, step.params.mode)]
    return at.max(values) if values.dtype == bool else at.add(values)


def put(step: ProgramStep, x: Any, index: Any, values: Any) -> Any:
    """X with slices replaced; of several for one place the last."""
    axis, size = step.params.mode, index.size
    flat = index.reshape(-1)
    last = jnp.full((x.shape[axis],), -1, jnp.int64).at[flat].max(jnp.arange(size))
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    values = jnp.broadcast_to(values, _take_shape(x, index, axis)).reshape(shape).astype(x.dtype)
    is_written = (last >= 0).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    return jnp.where(is_written, jnp.take(values, jnp.maximum(last, 0), axis), x) if size else x


def _take_shape(x: Any, index: Any, axis: int) -> tuple[int, ...]:
    """Return the shape of ``take(x, index)`` along an axis."""
    return (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def _along_axis_index(index: Any, axis: int) -> tuple[Any, ...]:
    grid = list(jnp.indices(index.shape, sparse=True))
    grid[axis] = index
    return tuple(grid)


def take_along(step: ProgramStep, x: Any, index: Any) -> Any:
    """One element of x for each index."""
    return x[_along_axis_index(index, step.params.mode)]


def scatter_add(step: ProgramStep, x: Any, index: Any, values: Any) -> Any:
    """X with values added to one element for each index."""
    if x.dtype == bool:
        return x.at[_along_axis_index(index, step.params.mode)].max(values)
    return widened(x).at[_along_axis_index(index, step.params.mode)].add(values.astype(widened(x).dtype))


def scatter_reduce(step: ProgramStep, x: Any, index: Any, values: Any) -> Any:
    """The same with products, smallest or largest elements."""
    at = x.at[_along_axis_index(index, step.params.mode)]
    return [at.multiply, at.min, at.max][step.params.a[0]](values.astype(x.dtype))


# --- search, along the last axis


def argsort(step: ProgramStep, x: Any) -> Any:
    """Places of the first a[0] sorted elements, equal ones in order; flag: descending."""
    if step.params.flag:  # NaN comes last in both orders
        x = -x if jnp.issubdtype(x.dtype, jnp.floating) else ~x
    return jnp.argsort(x, axis=-1, stable=True)[..., : step.params.a[0]]


def searchsorted(step: ProgramStep, sorted_: Any, values: Any) -> Any:
    """Places where values belong; flag: behind equal elements."""
    side = "right" if step.params.flag else "left"
    dtype = jnp.promote_types(sorted_.dtype, values.dtype)
    sorted_, values = sorted_.astype(dtype), values.astype(dtype)
    if sorted_.ndim == 1:
        return jnp.searchsorted(sorted_, values, side=side)
    lines = sorted_.reshape((-1, sorted_.shape[-1])), values.reshape((-1, values.shape[-1]))
    found = jax.vmap(lambda line, wanted: jnp.searchsorted(line, wanted, side=side))(*lines)
    return found.reshape(values.shape)


def running_extreme(step: ProgramStep, x: Any) -> Any:
    """Place of the largest (flag) or smallest element so far, of equal ones the last."""

    def later(one: Any, two: Any) -> Any:
        (a, i), (b, k) = one, two
        keeps = (b < a) if step.params.flag else (a < b)
        is_next = (b != b) | ((a == a) & ~keeps)
        return jnp.where(is_next, b, a), jnp.where(is_next, k, i)

    places = jnp.broadcast_to(jnp.arange(x.shape[-1]), x.shape)
    return jax.lax.associative_scan(later, (x, places), axis=-1)[1]


# --- linear algebra, of the last two axes


def solve_triangular(step: ProgramStep, a: Any, b: Any) -> Any:
    """Solution of a triangular system; flag: the upper triangle."""
    dtype = step.outputs[0].dtype.name
    return jax.lax.linalg.triangular_solve(
        a.astype(dtype), b.astype(dtype), left_side=True, lower=not step.params.flag
    )


def qr(step: ProgramStep, x: Any) -> Any:
    """Q and R; flag: complete."""
    return tuple(jnp.linalg.qr(x, "complete" if step.params.flag else "reduced"))


def svd(step: ProgramStep, x: Any) -> Any:
    """U, singular values and Vᴴ; flag: full matrices."""
    return tuple(jnp.linalg.svd(x, full_matrices=step.params.flag))


def solve(step: ProgramStep, a: Any, b: Any) -> Any:
    """Solution of a x = b."""
    dtype = step.outputs[0].dtype.name
    return jnp.linalg.solve(a.astype(dtype), b.astype(dtype))


def _ignoring_step(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _step, x: function(x)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "sum": _reduction(_sum),
    "prod": _reduction(_prod),
    "max": _numpy_reduction(jnp.max),
    "min": _numpy_reduction(jnp.min),
    "all": _numpy_reduction(jnp.all),
    "any": _numpy_reduction(jnp.any),
    "to_device": _ignoring_step(lambda x: x),
    "argmax": _ignoring_step(lambda x: jnp.argmax(x, -1)),
    "argmin": _ignoring_step(lambda x: jnp.argmin(x, -1)),
    "cholesky": _ignoring_step(jnp.linalg.cholesky),
    "det": _ignoring_step(jnp.linalg.det),
    "inv": _ignoring_step(jnp.linalg.inv),
    "svdvals": _ignoring_step(lambda x: jnp.linalg.svd(x, compute_uv=False)),
    "slogdet": _ignoring_step(lambda x: tuple(jnp.linalg.slogdet(x))),
    "eigh": _ignoring_step(lambda x: tuple(jnp.linalg.eigh(x))),
    "eigvalsh": _ignoring_step(jnp.linalg.eigvalsh),
    "where": lambda _step, condition, x, y: jnp.where(condition != 0, x, y),
} | {
    each.__name__: each
    for each in (
        cumsum,
        cumprod,
        logcumsumexp,
        linear_recurrence,
        concat,
        unslice,
        strided_scatter,
        wrap_index,
        take,
        take_add,
        put,
        take_along,
        scatter_add,
        scatter_reduce,
        argsort,
        searchsorted,
        running_extreme,
        solve_triangular,
        qr,
        svd,
        solve,
    )
}
"""By name of the entry."""
