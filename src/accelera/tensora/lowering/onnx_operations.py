"""Reductions, scans, movements, indexing and searches of the op table in ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from accelera.errors import UnsupportedError
from accelera.tensora.lowering.onnx_elementwise import COMPUTED
from accelera.tensora.lowering.onnx_graph import GraphValue, numpy_type
from accelera.tensora.lowering.program import ProgramStep
from accelera.tensora.lowering.window import BufferWindow

Lowering = Callable[..., Any]


def widened(x: GraphValue, *, wraps: bool = False) -> GraphValue:
    """The value in a type that runtimes have kernels for; `wraps`: sums and products modulo its range.

    Raises
    ------
    NotImplementedError
        For uint64 where the order of numbers matters, and for complex numbers.

    """
    if x.dtype == "uint64" and wraps:
        return x.to("int64")
    if x.dtype == "uint64" or x.dtype.startswith("complex"):
        raise UnsupportedError(f"[export_onnx] an operation on {x.dtype} has no form here; use other types")
    return x.to(COMPUTED.get(x.dtype, x.dtype))


# --- reductions: a: axes, flag: axes are kept


def _reduction(op: str) -> Lowering:
    def lowered(step: ProgramStep, x: GraphValue) -> GraphValue:
        is_extreme = op in ("ReduceMax", "ReduceMin")
        x = widened(x) if is_extreme else widened(x.to(step.outputs[0].dtype.name), wraps=True)
        return x.reduce(op, step.params.a, keep=step.params.flag)

    return lowered


def _bool_reduction(op: str) -> Lowering:
    def lowered(step: ProgramStep, x: GraphValue) -> GraphValue:
        return x.to("bool").to("int32").reduce(op, step.params.a, keep=step.params.flag)

    return lowered


def cumsum(step: ProgramStep, x: GraphValue) -> GraphValue:
    """Running sums along the axis `mode`."""
    x = widened(x.to(step.outputs[0].dtype.name), wraps=True)
    axis = x.graph.constant(np.asarray(step.params.mode, np.int64))
    return x.graph.add("CumSum", [x, axis], x.shape, x.dtype)


# --- movement


def concat(step: ProgramStep, *parts: GraphValue) -> GraphValue:
    """Parts side by side along the axis `mode`."""
    out = step.outputs[0]
    given = [each.to(out.dtype.name) for each in parts if each.size]
    if len(given) < 2:
        return given[0] if given else parts[0]
    return parts[0].graph.add("Concat", given, out.shape, out.dtype.name, axis=step.params.mode)


def unslice(step: ProgramStep, x: GraphValue) -> GraphValue:
    """Zeros of shape c, with x from a on in steps of b."""
    params = step.params
    if all(each == 1 for each in params.b):
        high = [n - a - m for n, a, m in zip(params.c, params.a, x.shape, strict=True)]
        return x.graph.pad(x, params.a, high)
    strides = [math.prod(params.c[i + 1 :]) for i in range(len(params.c))]
    offset = sum(a * s for a, s in zip(params.a, strides, strict=True))
    steps = tuple(b * s for b, s in zip(params.b, strides, strict=True))
    return scattered(x, BufferWindow(0, None, x.shape, steps, offset), params.c)


def strided_scatter(step: ProgramStep, x: GraphValue) -> GraphValue:
    """Zeros of shape a, with x at its places by strides b and offset c."""
    window = BufferWindow(0, None, x.shape, step.params.b, step.params.c[0])
    return scattered(x, window, step.params.a)


def scattered(x: GraphValue, window: BufferWindow, shape: tuple[int, ...]) -> GraphValue:
    """Zeros of a shape, with x in a window of them."""
    return written(x.graph.zeros((math.prod(shape),), x.dtype), x, window).reshape(shape)


def written(flat: GraphValue, x: GraphValue, window: BufferWindow) -> GraphValue:
    """A row of elements, with x in a window of them."""
    graph = flat.graph
    places = graph.constant(window.places().reshape(-1))
    return graph.add("ScatterElements", [flat, places, x.reshape((-1,))], flat.shape, flat.dtype, axis=0)


# --- indexing: mode: axis; indices are int64


def wrap_index(step: ProgramStep, index: GraphValue) -> GraphValue:
    """Indices counted from the end where they are negative."""
    index = index.to("int64")
    return index.graph.where(index < 0, index + step.params.a[0], index)


def take(step: ProgramStep, x: GraphValue, index: GraphValue) -> GraphValue:
    """Slices of x."""
    out = step.outputs[0]
    return x.graph.add("Gather", [x, index], out.shape, x.dtype, axis=step.params.mode)


def _element_index(index: GraphValue, shape: tuple[int, ...], axis: int) -> GraphValue:
    """Expand an index of slices along an axis to one index per element of those slices."""
    along = index.reshape([index.size if i == axis else 1 for i in range(len(shape))])
    return along.expand([index.size if i == axis else n for i, n in enumerate(shape)])


def take_add(step: ProgramStep, values: GraphValue, index: GraphValue) -> GraphValue:
    """Zeros of shape a, to which slices are added."""
    axis, shape = step.params.mode, step.params.a
    values = widened(values)
    at = _element_index(index, shape, axis)
    inputs = [values.graph.zeros(shape, values.dtype), at, values.reshape(at.shape)]
    return values.graph.add("ScatterElements", inputs, shape, values.dtype, axis=axis, reduction="add")


def put(step: ProgramStep, x: GraphValue, index: GraphValue, values: GraphValue) -> GraphValue:
    """X with slices replaced."""
    axis = step.params.mode
    at = _element_index(index, x.shape, axis)
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    given = values.to(x.dtype).expand(shape).reshape(at.shape)
    return x.graph.add("ScatterElements", [x, at, given], x.shape, x.dtype, axis=axis)


def take_along(step: ProgramStep, x: GraphValue, index: GraphValue) -> GraphValue:
    """One element of x for each index."""
    return x.graph.add("GatherElements", [x, index], index.shape, x.dtype, axis=step.params.mode)


def _scattering(reduction: Callable[[ProgramStep], str]) -> Lowering:
    def lowered(step: ProgramStep, x: GraphValue, index: GraphValue, values: GraphValue) -> GraphValue:
        x, given = widened(x), widened(values.to(x.dtype))
        inputs, axis = [x, index, given], step.params.mode
        return x.graph.add("ScatterElements", inputs, x.shape, x.dtype, axis=axis, reduction=reduction(step))

    return lowered


# --- search, along the last axis


def _extreme(op: str) -> Lowering:
    return lambda _step, x: x.graph.add(op, [widened(x)], x.shape[:-1], "int64", axis=-1, keepdims=0)


def argsort(step: ProgramStep, x: GraphValue) -> GraphValue:
    """Places of the first a[0] sorted elements, equal ones in order; flag: descending."""
    x = widened(x)
    kept = step.params.a[0]
    shape = (*x.shape[:-1], kept)
    inputs = [x, x.graph.integers([kept])]
    largest = int(step.params.flag)
    return x.graph.add_all("TopK", inputs, [(shape, x.dtype), (shape, "int64")], axis=-1, largest=largest)[1]


def searchsorted(step: ProgramStep, ordered: GraphValue, values: GraphValue) -> GraphValue:
    """Places where values belong: the number of smaller elements; flag: of those not larger."""
    dtype = np.promote_types(numpy_type(ordered.dtype), numpy_type(values.dtype)).name
    ordered, values = (widened(each.to(dtype)) for each in (ordered, values))
    if len(ordered.shape) > 1:
        ordered = ordered.reshape((*ordered.shape[:-1], 1, ordered.shape[-1]))
    wanted = values.reshape((*values.shape, 1))
    is_before = (ordered <= wanted) if step.params.flag else (ordered < wanted)
    return is_before.to("int64").reduce("ReduceSum", [-1], keep=False)


def where(step: ProgramStep, condition: GraphValue, x: GraphValue, y: GraphValue) -> GraphValue:
    """Elements of x where the condition holds, else of y."""
    dtype = step.outputs[0].dtype.name
    return x.graph.where(condition.to("bool"), x.to(dtype), y.to(dtype))


OPERATIONS: dict[str, Lowering] = {
    "sum": _reduction("ReduceSum"),
    "prod": _reduction("ReduceProd"),
    "max": _reduction("ReduceMax"),
    "min": _reduction("ReduceMin"),
    "all": _bool_reduction("ReduceMin"),
    "any": _bool_reduction("ReduceMax"),
    "argmax": _extreme("ArgMax"),
    "argmin": _extreme("ArgMin"),
    "scatter_add": _scattering(lambda _step: "add"),
    "scatter_reduce": _scattering(lambda step: ("mul", "min", "max")[step.params.a[0]]),
    "to_device": lambda _step, x: x,
    "det": lambda _step, x: x.graph.add("Det", [x], x.shape[:-2], x.dtype),
} | {
    each.__name__: each
    for each in (
        cumsum,
        concat,
        unslice,
        strided_scatter,
        wrap_index,
        take,
        take_add,
        put,
        take_along,
        argsort,
        searchsorted,
        where,
    )
}
"""By name of the entry."""
