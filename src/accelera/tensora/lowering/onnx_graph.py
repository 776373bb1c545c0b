"""Builder of ONNX graphs: values with shapes and element types, and the nodes between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

Shape = tuple[int, ...]


def numpy_type(name: str) -> np.dtype[Any]:
    """Return NumPy's type of that name; ml_dtypes provides bfloat16."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def element_type(name: str) -> int:
    """Return ONNX's enum value of an element type."""
    return helper.np_dtype_to_tensor_dtype(numpy_type(name))


@dataclass(frozen=True)
class GraphValue:
    """Tensor of a graph: its name, shape and element type. Operators add nodes to the graph."""

    graph: OnnxGraph
    name: str
    shape: Shape
    dtype: str

    def __add__(self, other: Any) -> GraphValue:
        return self.graph.elementwise("Add", self, other)

    def __radd__(self, other: Any) -> GraphValue:
        return self.graph.elementwise("Add", other, self)

    def __sub__(self, other: Any) -> GraphValue:
        return self.graph.elementwise("Sub", self, other)

    def __rsub__(self, other: Any) -> GraphValue:
        return self.graph.elementwise("Sub", other, self)

    def __mul__(self, other: Any) -> GraphValue:
        return self.graph.elementwise("Mul", self, other)

    def __rmul__(self, other: Any) -> GraphValue:
        return self.graph.elementwise("Mul", other, self)

    def __truediv__(self, other: Any) -> GraphValue:
        return self.graph.elementwise("Div", self, other)

    def __rtruediv__(self, other: Any) -> GraphValue:
        return self.graph.elementwise("Div", other, self)

    def __neg__(self) -> GraphValue:
        return self.graph.elementwise("Neg", self)

    def __lt__(self, other: Any) -> GraphValue:
        return self.graph.elementwise("Less", self, other, dtype="bool")

    def __le__(self, other: Any) -> GraphValue:
        return self.graph.elementwise("LessOrEqual", self, other, dtype="bool")

    def __gt__(self, other: Any) -> GraphValue:
        return self.graph.elementwise("Greater", self, other, dtype="bool")

    def __ge__(self, other: Any) -> GraphValue:
        return self.graph.elementwise("GreaterOrEqual", self, other, dtype="bool")

    def equals(self, other: Any) -> GraphValue:
        """Return a mask of the elements that are equal."""
        return self.graph.elementwise("Equal", self, other, dtype="bool")

    def is_nan(self) -> GraphValue:
        """Return a mask of the elements that are NaN."""
        if not self.dtype.startswith(("float", "bfloat")):
            return self.graph.elementwise("Not", self.equals(self))
        return self.graph.elementwise("IsNaN", self, dtype="bool")

    def to(self, dtype: str) -> GraphValue:
        """The elements in another type."""
        if dtype == self.dtype:
            return self
        return self.graph.add("Cast", [self], self.shape, dtype, to=element_type(dtype))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def reshape(self, shape: Sequence[int]) -> GraphValue:
        """The elements in another shape."""
        shape = tuple(int(each) for each in shape)
        if shape == self.shape:
            return self
        return self.graph.add("Reshape", [self, self.graph.integers(shape)], shape, self.dtype)

    def transpose(self, order: Sequence[int]) -> GraphValue:
        """The axes in another order."""
        if list(order) == list(range(len(self.shape))):
            return self
        shape = tuple(self.shape[i] for i in order)
        return self.graph.add("Transpose", [self], shape, self.dtype, perm=list(order))

    def expand(self, shape: Sequence[int]) -> GraphValue:
        """Broadcast to a shape."""
        if tuple(shape) == self.shape:
            return self
        return self.graph.add("Expand", [self, self.graph.integers(shape)], tuple(shape), self.dtype)

    def reduce(self, op: str, axes: Sequence[int], *, keep: bool = True) -> GraphValue:
        """Reduce over some axes with the operator `op`; without axes return the value itself."""
        axes = [i % len(self.shape) for i in axes]
        if not axes:
            return self
        kept = tuple(1 if i in axes else n for i, n in enumerate(self.shape) if keep or i not in axes)
        inputs = [self, self.graph.integers(axes)]
        return self.graph.add(op, inputs, kept, self.dtype, keepdims=int(keep))


class OnnxGraph:
    """Nodes and initializers, in the order in which they are added."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._constants: dict[Any, GraphValue] = {}
        self._suffixes: dict[str, int] = {}
        self._used_names: set[str] = set()

    def unique(self, name: str) -> str:
        """Return an unused name: the given one, with a number behind it if it is in use."""
        while name in self._used_names:
            self._suffixes[name] = self._suffixes.get(name, 0) + 1
            candidate = f"{name}_{self._suffixes[name]}"
            if candidate not in self._used_names:
                name = candidate
        self._used_names.add(name)
        return name

    def add(
        self, op: str, inputs: Sequence[Any], shape: Sequence[int], dtype: str, **given: Any
    ) -> GraphValue:
        """Add a node with one output, and return the value of that."""
        return self.add_all(op, inputs, [(tuple(shape), dtype)], **given)[0]

    def add_all(
        self, op: str, inputs: Sequence[Any], outputs: Sequence[tuple[Shape, str]], **given: Any
    ) -> list[GraphValue]:
        """Add a node with several outputs, and return their values; absent inputs are None."""
        base = self.unique(op.lower())
        names = [base, *(self.unique(f"{base}_output{i}") for i in range(1, len(outputs)))]
        given_names = ["" if each is None else each.name for each in inputs]
        self.nodes.append(helper.make_node(op, given_names, names, name=base, **given))
        return [
            GraphValue(self, name, shape, dtype) for name, (shape, dtype) in zip(names, outputs, strict=True)
        ]

    def elementwise(self, op: str, *operands: Any, dtype: str = "", **given: Any) -> GraphValue:
        """Add an elementwise node; numbers become constants of the other operands' type."""
        like = next(each for each in reversed(operands) if isinstance(each, GraphValue))
        values = [
            each if isinstance(each, GraphValue) else self.constant(np.asarray(each, numpy_type(like.dtype)))
            for each in operands
        ]
        shape = np.broadcast_shapes(*(each.shape for each in values))
        return self.add(op, values, shape, dtype or like.dtype, **given)

    def where(self, condition: GraphValue, x: Any, y: Any) -> GraphValue:
        """Select elements of x where the condition holds, else of y; one of them may be a number."""
        like = x if isinstance(x, GraphValue) else y
        values = [
            each if isinstance(each, GraphValue) else self.constant(np.asarray(each, numpy_type(like.dtype)))
            for each in (x, y)
        ]
        if like.dtype == "bool":  # which runtimes have no kernel for
            values = [each.to("int32") for each in values]
        chosen = self.elementwise("Where", condition, *values, dtype=values[0].dtype)
        return chosen.to(like.dtype)

    def initializer(self, name: str, array: np.ndarray) -> GraphValue:
        """Add an array that is stored in the model, and return its value."""
        name = self.unique(name)
        self.initializers.append(
            numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        )
        return GraphValue(self, name, array.shape, array.dtype.name)

    def constant(self, array: np.ndarray) -> GraphValue:
        """Return the value of a small array; equal arrays share one initializer."""
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.initializer("constant", array)
        return self._constants[key]

    def integers(self, values: Sequence[int]) -> GraphValue:
        """Return an int64 constant: axes, shapes or indices."""
        return self.constant(np.asarray(values, np.int64))

    def slice(self, x: GraphValue, starts: Sequence[int], sizes: Sequence[int]) -> GraphValue:
        """Slice x by starts and sizes of all axes; return x itself if nothing is cut off."""
        cut = [i for i, size in enumerate(sizes) if size != x.shape[i]]
        if not cut:
            return x
        ends = [starts[i] + sizes[i] for i in cut]
        inputs = [x, self.integers([starts[i] for i in cut]), self.integers(ends), self.integers(cut)]
        return self.add("Slice", inputs, tuple(sizes), x.dtype)

    def flip(self, x: GraphValue, axes: Sequence[int]) -> GraphValue:
        """Reverse the elements along some axes."""
        if not axes:
            return x
        last = [-1] * len(axes)
        ends = [-(2**63) + 1] * len(axes)
        inputs = [x, *(self.integers(each) for each in (last, ends, list(axes), last))]
        return self.add("Slice", inputs, x.shape, x.dtype)

    def gather(self, x: GraphValue, places: np.ndarray, axis: int) -> GraphValue:
        """Gather slices of x at constant indices along an axis."""
        shape = (*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])
        return self.add("Gather", [x, self.constant(places)], shape, x.dtype, axis=axis)

    def zeros(self, shape: Sequence[int], dtype: str) -> GraphValue:
        """Return zeros of a shape, expanded from a single one."""
        return self.constant(np.zeros((), numpy_type(dtype))).expand(shape)

    def pad(self, x: GraphValue, low: Sequence[int], high: Sequence[int], fill: float = 0) -> GraphValue:
        """Pad each axis with `low` elements in front and `high` elements behind."""
        if not any(low) and not any(high):
            return x
        shape = tuple(a + n + b for a, n, b in zip(low, x.shape, high, strict=True))
        inputs = [x, self.integers([*low, *high]), self.constant(np.asarray(fill, numpy_type(x.dtype)))]
        return self.add("Pad", inputs, shape, x.dtype)
