"""Expressions: computations on arrays, checked when they are written and done when they are evaluated.

``lazy("A.npy")`` is an operand; operators, NumPy's functions and the methods below combine operands
into larger expressions, checked at once for shapes and types. Nothing is read before
``engine.evaluate``. Element-wise operations cost one pass over their operands; a reduction, a product of
matrices (``x @ y``) and what they are part of are computed in stages, as one plan.
"""

from __future__ import annotations

import abc
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from types import EllipsisType
from typing import Any, cast, final

import numpy as np

from accelera.engine.dtypes import (
    Type,
    TypeSignature,
    check_conversion,
    common_type,
    held_dtype,
    product_type,
    real_type,
    resolve,
)
from accelera.engine.operands import broadcast_shape, matmul_shape, open_operand
from accelera.engine.reducers import RunningReduction, rule
from accelera.errors import ArgumentError, DTypeError, ShapeError, UnknownNameError
from accelera.stores import Store
from accelera.stores._internal import Viewing, check_shape, is_sparse, joined_shape, parse_dtype

Axis = int | Sequence[int] | None
Key = int | slice | EllipsisType | None


class Expr(abc.ABC):
    """A value of ``shape`` and ``dtype`` that is not computed yet.

    Python's arithmetic, comparison and bitwise operators and NumPy's element-wise functions
    (``np.sqrt(x)``, ``np.where(c, x, y)``) take expressions and give expressions; shapes broadcast
    and types combine as in NumPy, half types as ``accelera.engine.dtypes`` says.
    """

    __slots__ = ("dtype", "shape")
    __hash__ = None  # type: ignore[assignment]

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def joins_as(self) -> Type:
        """The element type, or a Python type for a number that takes the type of what it meets."""
        return self.dtype

    @property
    @abc.abstractmethod
    def arguments(self) -> tuple[Expr, ...]:
        """The expressions it is made of."""

    # Operators

    def __add__(self, other: Any) -> Expr:
        return _binary(np.add, self, other)

    def __radd__(self, other: Any) -> Expr:
        return _binary(np.add, other, self)

    def __sub__(self, other: Any) -> Expr:
        return _binary(np.subtract, self, other)

    def __rsub__(self, other: Any) -> Expr:
        return _binary(np.subtract, other, self)

    def __mul__(self, other: Any) -> Expr:
        return _binary(np.multiply, self, other)

    def __rmul__(self, other: Any) -> Expr:
        return _binary(np.multiply, other, self)

    def __truediv__(self, other: Any) -> Expr:
        return _binary(np.true_divide, self, other)

    def __rtruediv__(self, other: Any) -> Expr:
        return _binary(np.true_divide, other, self)

    def __floordiv__(self, other: Any) -> Expr:
        return _binary(np.floor_divide, self, other)

    def __rfloordiv__(self, other: Any) -> Expr:
        return _binary(np.floor_divide, other, self)

    def __mod__(self, other: Any) -> Expr:
        return _binary(np.remainder, self, other)

    def __rmod__(self, other: Any) -> Expr:
        return _binary(np.remainder, other, self)

    def __pow__(self, other: Any) -> Expr:
        return power(self, other)

    def __rpow__(self, other: Any) -> Expr:
        return _binary(np.power, other, self)

    def __and__(self, other: Any) -> Expr:
        return _binary(np.bitwise_and, self, other)

    def __rand__(self, other: Any) -> Expr:
        return _binary(np.bitwise_and, other, self)

    def __or__(self, other: Any) -> Expr:
        return _binary(np.bitwise_or, self, other)

    def __ror__(self, other: Any) -> Expr:
        return _binary(np.bitwise_or, other, self)

    def __xor__(self, other: Any) -> Expr:
        return _binary(np.bitwise_xor, self, other)

    def __rxor__(self, other: Any) -> Expr:
        return _binary(np.bitwise_xor, other, self)

    def __lt__(self, other: Any) -> Expr:
        return _binary(np.less, self, other)

    def __le__(self, other: Any) -> Expr:
        return _binary(np.less_equal, self, other)

    def __gt__(self, other: Any) -> Expr:
        return _binary(np.greater, self, other)

    def __ge__(self, other: Any) -> Expr:
        return _binary(np.greater_equal, self, other)

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return _binary(np.equal, self, other)

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return _binary(np.not_equal, self, other)

    def __matmul__(self, other: Any) -> Expr:
        return matmul(self, other) if _is_operand(other) else cast(Expr, NotImplemented)

    def __rmatmul__(self, other: Any) -> Expr:
        return matmul(other, self) if _is_operand(other) else cast(Expr, NotImplemented)

    def __neg__(self) -> Expr:
        return apply(np.negative, self)

    def __pos__(self) -> Expr:
        return apply(np.positive, self)

    def __invert__(self) -> Expr:
        return apply(np.invert, self)

    def __abs__(self) -> Expr:
        return self.abs()

    def __bool__(self) -> bool:
        raise ArgumentError("[Expr] an expression has no truth value yet; evaluate it first")

    def __array__(self, *_: Any, **__: Any) -> np.ndarray[Any, Any]:
        raise ArgumentError("[Expr] an expression is no array yet; evaluate it first")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            return NotImplemented
        return matmul(*inputs) if ufunc is np.matmul else apply(ufunc, *inputs)

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        ours = _FUNCTIONS.get(function)
        if ours is not None:
            return ours(*args, **kwargs)
        if not all(issubclass(each, Expr | np.ndarray) for each in types):
            return NotImplemented
        name = function.__name__
        raise DTypeError(
            f"[{name}] the engine does not compute numpy.{name} of an expression; apply it to the values, "
            "np.asarray(engine.evaluate(x))"
        )

    def __getattr__(self, name: str) -> Any:
        hint = ""
        if not name.startswith("_") and hasattr(np.ndarray, name):
            hint = f"; apply it to the values: np.asarray(engine.evaluate(x)).{name}"
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    # Element by element

    def apply(self, name: str, *others: Any) -> Expr:
        """Return NumPy's element-wise function of that name, such as ``"arctan2"``, with self first.

        Raises DTypeError when NumPy has no such function or it does not take these types.
        """
        function = getattr(np, name, None)
        if not isinstance(function, np.ufunc):
            raise DTypeError(f"[apply] numpy.{name} is no element-wise function; see NumPy's list of ufuncs")
        return apply(function, self, *others)

    def sqrt(self) -> Expr:
        """Return the square root."""
        return apply(np.sqrt, self)

    def exp(self) -> Expr:
        """Return e to this power."""
        return apply(np.exp, self)

    def log(self) -> Expr:
        """Return the natural logarithm."""
        return apply(np.log, self)

    def sin(self) -> Expr:
        """Return the sine."""
        return apply(np.sin, self)

    def cos(self) -> Expr:
        """Return the cosine."""
        return apply(np.cos, self)

    def tanh(self) -> Expr:
        """Return the hyperbolic tangent."""
        return apply(np.tanh, self)

    def abs(self) -> Expr:
        """Return the absolute value, real for complex numbers."""
        return apply(np.absolute, self)

    def conj(self) -> Expr:
        """Return the complex conjugate."""
        return apply(np.conjugate, self) if self.dtype.kind == "c" else self

    def isnan(self) -> Expr:
        """Return whether it is not a number."""
        return apply(np.isnan, self)

    def maximum(self, other: Any) -> Expr:
        """Return the larger of the two, NaN if either is."""
        return apply(np.maximum, self, other)

    def minimum(self, other: Any) -> Expr:
        """Return the smaller of the two, NaN if either is."""
        return apply(np.minimum, self, other)

    def clip(self, low: Any = None, high: Any = None) -> Expr:
        """Return it limited to [low, high]; None leaves a side open."""
        raised = self if low is None else self.maximum(low)
        return raised if high is None else raised.minimum(high)

    @property
    def real(self) -> Expr:
        """The real part."""
        return ComplexPart(self, "real") if self.dtype.kind == "c" else self

    @property
    def imag(self) -> Expr:
        """The imaginary part, zero for real numbers."""
        return ComplexPart(self, "imag")

    def astype(self, dtype: Any) -> Expr:
        """Return it converted; fractions are cut off and integers wrap around, as in NumPy.

        Raises DTypeError where an imaginary part would be dropped.
        """
        wanted = parse_dtype(dtype, op="astype")
        return self if wanted == self.dtype else Convert(self, wanted)

    # Other looks

    @property
    def T(self) -> Expr:  # noqa: N802
        """The view with all axes reversed."""
        return self.transpose()

    def transpose(self, axes: Sequence[int] | None = None) -> Expr:
        """Return a view with permuted axes, reversed by default."""
        shape = Viewing.of(self.shape).transpose(axes).shape
        return Viewed(self, shape, lambda store: store.transpose(axes), f"transpose {axes}")

    def __getitem__(self, key: Key | tuple[Key, ...]) -> Expr:
        shape = Viewing.of(self.shape).index(key).shape
        return Viewed(self, shape, lambda store: store[key], f"index {key}")

    def __iter__(self) -> Any:
        raise ArgumentError("[Expr] an expression is not read element by element; evaluate it first")

    # Reductions

    def sum(self, axis: Axis = None, *, keepdims: bool = False) -> Reduction:
        """Return the sum along ``axis``: integers in int64 or uint64, others without growing error."""
        return reduce("sum", self, axis, keepdims=keepdims)

    def mean(self, axis: Axis = None, *, keepdims: bool = False) -> Reduction:
        """Return the mean along ``axis``, of integers in float64."""
        return reduce("mean", self, axis, keepdims=keepdims)

    def var(self, axis: Axis = None, *, ddof: float = 0, keepdims: bool = False) -> Reduction:
        """Return the variance along ``axis``, divided by the count less ``ddof``."""
        return reduce("var", self, axis, keepdims=keepdims, ddof=ddof)

    def std(self, axis: Axis = None, *, ddof: float = 0, keepdims: bool = False) -> Reduction:
        """Return the standard deviation along ``axis``."""
        return reduce("std", self, axis, keepdims=keepdims, ddof=ddof)

    def min(self, axis: Axis = None, *, keepdims: bool = False) -> Reduction:
        """Return the smallest along ``axis``, NaN if one is."""
        return reduce("min", self, axis, keepdims=keepdims)

    def max(self, axis: Axis = None, *, keepdims: bool = False) -> Reduction:
        """Return the largest along ``axis``, NaN if one is."""
        return reduce("max", self, axis, keepdims=keepdims)

    def argmin(self, axis: int | None = None, *, keepdims: bool = False) -> Reduction:
        """Return where the first smallest lies along ``axis``; without ``axis`` its index when flattened."""
        return reduce("argmin", self, axis, keepdims=keepdims)

    def argmax(self, axis: int | None = None, *, keepdims: bool = False) -> Reduction:
        """Return where the first largest lies along ``axis``; without ``axis`` its index when flattened."""
        return reduce("argmax", self, axis, keepdims=keepdims)

    def prod(self, axis: Axis = None, *, keepdims: bool = False) -> Reduction:
        """Return the product along ``axis``."""
        return reduce("prod", self, axis, keepdims=keepdims)

    def any(self, axis: Axis = None, *, keepdims: bool = False) -> Reduction:
        """Return whether one is not zero."""
        return reduce("any", self.astype(bool), axis, keepdims=keepdims)

    def all(self, axis: Axis = None, *, keepdims: bool = False) -> Reduction:
        """Return whether none is zero."""
        return reduce("all", self.astype(bool), axis, keepdims=keepdims)

    def norm(self, ord: float = 2, axis: Axis = None, *, keepdims: bool = False) -> Reduction:  # noqa: A002
        """Return the norm of order 1, 2 or infinity of the vectors along ``axis`` (2 of all: Frobenius).

        Computed in float64 whatever the type.
        """
        wide = self.astype(np.complex128 if self.dtype.kind == "c" else np.float64)
        dtype = np.dtype(np.float64) if self.dtype.kind in "biu" else real_type(self.dtype)
        if ord == 2:
            squares = wide * wide if wide.dtype.kind == "f" else wide.real * wide.real + wide.imag * wide.imag
            return reduce("root", squares, axis, keepdims=keepdims, dtype=dtype)
        ends = {1: "sum", math.inf: "max"}
        if ord not in ends:
            raise UnknownNameError(f"[norm] no norm of order {ord!r}; there are 1, 2 and math.inf")
        return reduce(ends[ord], wide.abs(), axis, keepdims=keepdims, dtype=dtype)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.dtype}{list(self.shape)}>"


@final
class Reduction(Expr):
    """An expression whose elements become fewer: what ``sum``, ``max`` and the like return.

    Inside a larger expression it is a pass of its own over its operands, made before.
    """

    __slots__ = ("axes", "keepdims", "name", "reducer", "source")

    def __init__(
        self,
        name: str,
        source: Expr,
        axes: tuple[int, ...],
        keepdims: bool,
        reducer: RunningReduction,
        dtype: np.dtype[Any],
    ) -> None:
        self.name = name
        self.source = source
        self.axes = axes
        """Axes of ``source`` that are reduced."""
        self.keepdims = keepdims
        self.reducer = reducer
        self.dtype = dtype
        sizes = self.kept_shape
        self.shape = sizes if keepdims else tuple(n for axis, n in enumerate(sizes) if axis not in axes)

    @property
    def arguments(self) -> tuple[Expr, ...]:
        """What is reduced."""
        return (self.source,)

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """Shape of the result with reduced axes of length 1."""
        return tuple(1 if axis in self.axes else n for axis, n in enumerate(self.source.shape))

    def of(self, source: Expr) -> Reduction:
        """Return the same reduction of another expression of that shape and type."""
        return Reduction(self.name, source, self.axes, self.keepdims, self.reducer, self.dtype)

    def __repr__(self) -> str:
        return f"<{self.name} {self.dtype}{list(self.shape)} of {self.source!r}>"


@final
class MatrixProduct(Expr):
    """A product of matrices, for shapes by the rules of ``torch.matmul``, types promoted as in NumPy."""

    __slots__ = ("_arguments",)

    def __init__(self, a: Expr, b: Expr) -> None:
        self.dtype = product_type(a.dtype, b.dtype)
        self.shape = matmul_shape(a.shape, b.shape)
        self._arguments = (a, b)

    @property
    def arguments(self) -> tuple[Expr, ...]:
        """Both factors."""
        return self._arguments


@final
class Concatenated(Expr):
    """Expressions one after the other along an axis."""

    __slots__ = ("_arguments", "axis")

    def __init__(self, parts: Sequence[Expr], axis: int) -> None:
        self.dtype = common_type("concatenate", [each.joins_as for each in parts]).dtype
        self.axis = axis
        self.shape = check_shape("concatenate", joined_shape([each.shape for each in parts], axis))
        self._arguments = tuple(each.astype(self.dtype) for each in parts)

    @property
    def arguments(self) -> tuple[Expr, ...]:
        """The parts, in the type of the whole."""
        return self._arguments


@final
class Viewed(Expr):
    """A transposed or sliced look at an expression."""

    __slots__ = ("look", "source", "text")

    def __init__(
        self, source: Expr, shape: tuple[int, ...], look: Callable[[Store], Store], text: str
    ) -> None:
        self.source, self.shape, self.dtype = source, shape, source.dtype
        self.look = look
        """Returns the same view of a store."""
        self.text = text

    @property
    def arguments(self) -> tuple[Expr, ...]:
        """What is looked at."""
        return (self.source,)


@final
class Leaf(Expr):
    """An operand: an array that lies in a store."""

    __slots__ = ("store",)

    def __init__(self, store: Store) -> None:
        self.store = store
        self.shape, self.dtype = store.shape, store.dtype

    @property
    def arguments(self) -> tuple[Expr, ...]:
        """None: it is read."""
        return ()

    def transpose(self, axes: Sequence[int] | None = None) -> Leaf:
        """Return a view with permuted axes, reversed by default."""
        return Leaf(self.store.transpose(axes))

    def __getitem__(self, key: Key | tuple[Key, ...]) -> Leaf:
        return Leaf(self.store[key])


@final
class Constant(Expr):
    """A number; one of Python's takes the type of what it meets."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value
        self.shape = ()
        self.dtype = np.result_type(value)

    @property
    def joins_as(self) -> Type:
        """``int``, ``float`` or ``complex`` for a Python number."""
        if isinstance(self.value, (bool, np.generic)):
            return self.dtype
        return next(kind for kind in (int, float, complex) if isinstance(self.value, kind))

    @property
    def arguments(self) -> tuple[Expr, ...]:
        """None."""
        return ()

    def in_type(self, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return the number in ``dtype``; raises DTypeError when an integer does not fit."""
        try:
            with np.errstate(over="ignore"):
                return np.asarray(self.value, dtype)
        except (OverflowError, TypeError) as error:
            raise DTypeError(f"[evaluate] {self.value!r} beside {dtype}: {error}; use astype") from error


@final
class Apply(Expr):
    """An element-wise function of NumPy."""

    __slots__ = ("_arguments", "signature", "ufunc")

    def __init__(self, ufunc: np.ufunc, arguments: tuple[Expr, ...]) -> None:
        self.ufunc = ufunc
        self._arguments = arguments
        self.signature: TypeSignature = resolve(ufunc, [each.joins_as for each in arguments])
        self.dtype = self.signature.dtype
        self.shape = joint_shape(ufunc.__name__, arguments)
        check_numbers(arguments, self.signature)

    @property
    def arguments(self) -> tuple[Expr, ...]:
        """What the function is applied to."""
        return self._arguments


@final
class Convert(Expr):
    """A change of type."""

    __slots__ = ("source",)

    def __init__(self, source: Expr, dtype: np.dtype[Any]) -> None:
        check_conversion("astype", source.dtype, dtype)
        self.source, self.dtype, self.shape = source, dtype, source.shape

    @property
    def arguments(self) -> tuple[Expr, ...]:
        """What is converted."""
        return (self.source,)


@final
class ComplexPart(Expr):
    """The real or the imaginary part of complex numbers."""

    __slots__ = ("name", "source")

    def __init__(self, source: Expr, name: str) -> None:
        self.source, self.name, self.shape = source, name, source.shape
        self.dtype = real_type(source.dtype)

    @property
    def arguments(self) -> tuple[Expr, ...]:
        """What it is a part of."""
        return (self.source,)


@final
class Choose(Expr):
    """One value where a condition holds, another where it does not."""

    __slots__ = ("_arguments", "signature")

    def __init__(self, condition: Expr, x: Expr, y: Expr) -> None:
        chosen = common_type("where", [x.joins_as, y.joins_as])
        inputs = (np.dtype(np.bool_), *chosen.inputs)
        self.signature = TypeSignature(inputs, chosen.held, chosen.dtype)
        self._arguments = (condition, x, y)
        self.dtype = chosen.dtype
        self.shape = joint_shape("where", self._arguments)
        check_numbers(self._arguments, self.signature)

    @property
    def arguments(self) -> tuple[Expr, ...]:
        """Condition, value where it holds, value elsewhere."""
        return self._arguments


def lazy(x: Any) -> Leaf:
    """Return ``x`` as an operand of expressions: a path, array, tensor, Matrix, list, number or store.

    No elements are read. Raises TypeError for an expression, which lies in no store yet.

    Parameters
    ----------
    x
        A path, array, tensor, ``Matrix``, list, number or store.
    """
    if isinstance(x, Expr):
        raise ArgumentError("[lazy] an expression lies in no store yet; evaluate it first")
    return Leaf(open_operand(x))


def as_expr(x: Any) -> Expr:
    """Return ``x`` as an expression: expressions stay what they are, numbers become constants."""
    if isinstance(x, Expr):
        return x
    return Constant(x) if isinstance(x, _NUMBERS) else lazy(x)


def where(condition: Any, x: Any, y: Any) -> Expr:
    """Return ``x`` where ``condition`` is true and ``y`` elsewhere, all three broadcast.

    Parameters
    ----------
    condition
        Truth values.
    x, y
        Operands or expressions, broadcast against it.
    """
    return Choose(as_expr(condition), as_expr(x), as_expr(y))


def matmul(a: Any, b: Any) -> Expr:
    """Return ``a @ b``, types promoted as in NumPy; a chain of products is multiplied in the best order.

    Raises ShapeError for shapes that do not fit, DTypeError for truth values.
    """
    return MatrixProduct(as_expr(a), as_expr(b))


def concatenate(parts: Sequence[Any], axis: int = 0) -> Expr:
    """Return ``parts`` one after the other along ``axis``, types promoted as in NumPy; nothing is copied.

    Parameters
    ----------
    parts
        Operands or expressions.
    axis
        The axis along which they follow one another.

    Raises
    ------
    ShapeError
        When they differ in another axis.
    """
    found = [as_expr(each) for each in parts]
    if not found or any(each.ndim == 0 for each in found):
        raise ShapeError("[concatenate] give at least one array, and none without axes")
    (place,) = _axes("concatenate", found[0].shape, [axis])
    return Concatenated(found, place) if len(found) > 1 else found[0]


def apply(ufunc: np.ufunc, *inputs: Any) -> Expr:
    """Return an element-wise function of NumPy with one result, applied to ``inputs``."""
    if ufunc.nout != 1 or ufunc.signature is not None:
        raise DTypeError(f"[{ufunc.__name__}] has several results or works on whole axes; expressions cannot")
    return Apply(ufunc, _fitting(ufunc, tuple(as_expr(each) for each in inputs)))


def power(base: Expr, exponent: Any) -> Expr:
    """Return ``base ** exponent``; 2 and 0.5 are a product and a root, which are far quicker."""
    if exponent is not True and isinstance(exponent, (int, float)):
        if exponent == 2 and base.dtype != np.bool_:
            return apply(np.square, base)
        if exponent == 0.5 and base.dtype.kind in "fcV":
            return apply(np.sqrt, base)
        if exponent < 0 and isinstance(exponent, int) and base.dtype.kind in "iu":
            raise DTypeError(f"[power] {base.dtype} to {exponent}: no integer; use a float exponent")
    return _binary(np.power, base, exponent)


def reduce(
    op: str,
    source: Expr,
    axis: Axis,
    *,
    keepdims: bool = False,
    ddof: float = 0,
    dtype: np.dtype[Any] | None = None,
) -> Reduction:
    """Return ``source`` reduced along ``axis`` (None: all axes) by ``op``: see ``reducers.rule``.

    Raises ShapeError for axes that are not there, and for an extreme of no elements.
    """
    axes = _axes(op, source.shape, axis)
    if op.startswith("arg") and axis is not None and not hasattr(axis, "__index__"):
        raise ShapeError(f"[{op}] axis={axis!r}: one axis, or None for the flattened array")
    count = math.prod(source.shape[each] for each in axes)
    found = rule(op, source.dtype, held_dtype(source.dtype), count, ddof)
    reduction = Reduction(op, source, axes, keepdims, found.reducer, dtype or found.dtype)
    if found.needs_elements and count == 0 and 0 not in reduction.shape:
        raise ShapeError(f"[{op}] shape {source.shape} along axes {axes} has no elements, so no {op}")
    return reduction


def _axes(op: str, shape: tuple[int, ...], axis: Axis) -> tuple[int, ...]:
    rank = len(shape)
    try:
        given = range(rank) if axis is None else [axis] if hasattr(axis, "__index__") else axis
        axes = [operator.index(each) for each in given]
    except TypeError as error:
        raise ShapeError(f"[{op}] axis={axis!r}: {error}; give whole numbers, or None for all") from error
    if any(not -rank <= each < rank for each in axes) or len({each % rank for each in axes}) < len(axes):
        raise ShapeError(
            f"[{op}] axis={axis!r} of shape {shape}: axes run from {-rank} to {rank - 1}, each once"
        )
    return tuple(sorted(each % rank for each in axes))


def check_numbers(arguments: Sequence[Expr], signature: TypeSignature) -> None:
    """Raise DTypeError when a number does not fit the type it is converted to."""
    for each, dtype in zip(arguments, signature.inputs, strict=True):
        if isinstance(each, Constant):
            each.in_type(dtype)


def joint_shape(op: str, arguments: Sequence[Expr]) -> tuple[int, ...]:
    """Return the shape to which ``arguments`` broadcast; raises ShapeError."""
    shape: tuple[int, ...] = ()
    for each in arguments:
        shape = broadcast_shape(op, shape, each.shape)
    return shape


def _binary(ufunc: np.ufunc, x: Any, y: Any) -> Expr:
    return apply(ufunc, x, y) if _is_operand(x) and _is_operand(y) else cast(Expr, NotImplemented)


def _is_operand(x: object) -> bool:
    return isinstance(x, (Expr, *_NUMBERS, Store, list, tuple, str, PathLike)) or (
        hasattr(x, "__array__") or is_sparse(x)
    )


def _fitting(ufunc: np.ufunc, arguments: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Return the arguments with Python integers that their neighbours cannot hold made int64.

    Only comparisons can use such numbers.
    """
    if ufunc not in _COMPARISONS:
        return arguments
    types = resolve(ufunc, [each.joins_as for each in arguments]).inputs
    return tuple(
        Constant(np.int64(each.value))
        if isinstance(each, Constant) and each.joins_as is int and not _fits(each.value, dtype)
        else each
        for each, dtype in zip(arguments, types, strict=True)
    )


def _fits(value: int, dtype: np.dtype[Any]) -> bool:
    if dtype.kind not in "iu":
        return True
    limits = np.iinfo(dtype)
    return int(limits.min) <= value <= int(limits.max)


def _method(name: str) -> Callable[..., Any]:
    """Return what NumPy's function of that name does with an expression: call the method."""

    def call(x: Any, *args: Any, out: None = None, **options: Any) -> Any:
        if out is not None:
            raise ArgumentError(f"[{name}] give out to engine.evaluate")
        found = getattr(as_expr(x), name)
        return found(*args, **options) if callable(found) else found

    return call


def _concatenate(arrays: Sequence[Any], axis: int = 0) -> Expr:
    return concatenate(arrays, axis)


def _multi_dot(arrays: Sequence[Any]) -> Expr:
    return functools.reduce(matmul, arrays[1:], as_expr(arrays[0]))


def _dot(a: Any, b: Any) -> Expr:
    left, right = as_expr(a), as_expr(b)
    if left.ndim == 0 or right.ndim == 0:
        return left * right
    if right.ndim > 2:
        raise ShapeError(f"[dot] shapes {left.shape} and {right.shape}: write a product of stacks with @")
    return matmul(left, right)


def _transpose(x: Any, axes: Sequence[int] | None = None) -> Expr:
    return as_expr(x).transpose(axes)


def _norm(x: Any, ord: float | None = None, axis: Axis = None, keepdims: bool = False) -> Reduction:  # noqa: A002
    found = as_expr(x)
    if ord is not None and axis is None and found.ndim > 1:
        raise UnknownNameError(
            "[norm] numpy.linalg.norm with ord and no axis is a matrix norm; use x.norm(ord)"
        )
    return found.norm(2 if ord is None else ord, axis, keepdims=keepdims)


_NUMBERS = (bool, int, float, complex, np.generic)
_COMPARISONS = (np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal)

_REDUCTIONS = ("sum", "mean", "var", "std", "min", "max", "argmin", "argmax", "prod", "any", "all")
_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    np.where: where,
    np.linalg.norm: _norm,
    np.concatenate: _concatenate,
    np.transpose: _transpose,
    np.dot: _dot,
    np.linalg.multi_dot: _multi_dot,
    **{getattr(np, name): _method(name) for name in (*_REDUCTIONS, "clip", "real", "imag")},
}
