"""Linear algebra: the array API's extension `linalg`. The last two axes of a batch are rows and columns.

Everything has gradients. The decompositions run on the LAPACK of OpenBLAS, for float32, float64, complex64
and complex128; other types raise TypeError, and shapes that do not fit raise ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from accelera.errors import ArgumentError, DTypeError, IndexingError, ShapeError
from accelera.tensora.amp import computes_in
from accelera.tensora.core import Tensor, native
from accelera.tensora.creation import eye
from accelera.tensora.factorizations import (
    EighResult,
    EigResult,
    LUFactors,
    LUResult,
    QRResult,
    SlogdetResult,
    SVDResult,
    cholesky,
    cholesky_inverse,
    cholesky_solve,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    householder_product,
    is_complex,
    lu,
    lu_factor,
    lu_solve,
    lu_unpack,
    matrix_rank,
    needs_matrix,
    needs_square,
    pinv,
    qr,
    svd,
    svdvals,
)
from accelera.tensora.manipulation import broadcast_shapes
from accelera.tensora.norms import as_single, power_norm, real_type, root_of_squares, squares
from accelera.tensora.products import matmul, matrix_transpose, multi_dot, outer, tensordot, vander, vecdot
from accelera.tensora.typing import DTypeLike

__all__ = [
    "EigResult",
    "EighResult",
    "LUFactors",
    "LUResult",
    "LstsqResult",
    "QRResult",
    "SVDResult",
    "SlogdetResult",
    "cholesky",
    "cholesky_inverse",
    "cholesky_solve",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "householder_product",
    "inv",
    "lstsq",
    "lu",
    "lu_factor",
    "lu_solve",
    "lu_unpack",
    "matmul",
    "matrix_exp",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "qr",
    "renorm",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensordot",
    "tensorinv",
    "tensorsolve",
    "trace",
    "vander",
    "vecdot",
    "vector_norm",
]


def _axis(name: str, axis: int, ndim: int) -> int:
    """Axis counted from the front."""
    if not -ndim <= axis < ndim:
        raise IndexingError(
            f"[{name}] axis {axis} of a tensor with {ndim} dimensions; give one from {-ndim} to {ndim - 1}"
        )
    return axis % ndim


def _last(x: Tensor, axis: int) -> Tensor:
    """The tensor with one axis, counted from the front, moved to the end."""
    order = [i for i in range(x.ndim) if i != axis]
    return x if axis == x.ndim - 1 else native.permute(x, (*order, axis))


# --- products ---------------------------------------------------------------------------------------------


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Vector products in three dimensions, which lie on `axis`; other axes are broadcast."""
    shape = broadcast_shapes(x1.shape, x2.shape)
    at = _axis("cross", axis, min(x1.ndim, x2.ndim)) - min(x1.ndim, x2.ndim) if axis < 0 else axis
    for x in (x1, x2):
        if x.shape[_axis("cross", at, x.ndim)] != 3:
            raise ShapeError(f"[cross] shape {x.shape}; vectors of 3 elements are needed on axis {axis}")
    place = _axis("cross", at, len(shape))
    a, b = (_last(native.expand(x, shape), place) for x in (x1, x2))
    following, last = native.asarray([1, 2, 0]), native.asarray([2, 0, 1])
    end = len(shape) - 1
    result = native.subtract(
        native.multiply(native.take(a, following, end), native.take(b, last, end)),
        native.multiply(native.take(a, last, end), native.take(b, following, end)),
    )
    order = [*range(place), end, *range(place, end)]
    return native.permute(result, tuple(order))


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """Product of `n` factors `x`, of the inverse for a negative `n`, or the identity for 0."""
    needs_square("matrix_power", x)
    if n == 0:
        return native.copy(native.expand(eye(x.shape[-1], dtype=x.dtype), tuple(x.shape)))
    base = inv(x) if n < 0 else x
    result: Any = None
    for bit in f"{abs(n):b}"[::-1]:
        if bit == "1":
            result = base if result is None else native.matmul(result, base)
        base = native.matmul(base, base)
    return result


# --- parts of matrices ------------------------------------------------------------------------------------


def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """Elements ``x[..., i, i + offset]``: shape ``(..., d)`` for the d of them that there are."""
    needs_matrix("diagonal", x)
    rows, columns = x.shape[-2:]
    n = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    if n == 0 or x.size == 0:
        return native.full((*x.shape[:-2], n), 0, x.dtype)
    whole = native.contiguous(x)
    steps = whole.strides
    start = offset * steps[-1] if offset > 0 else -offset * steps[-2]
    return native.as_strided(whole, (*x.shape[:-2], n), (*steps[:-2], steps[-2] + steps[-1]), start)


def trace(x: Tensor, /, *, offset: int = 0, dtype: DTypeLike | None = None) -> Tensor:
    """Sum of the elements ``x[..., i, i + offset]``, in the type that a sum has or in `dtype`."""
    elements = diagonal(x, offset=offset)
    if dtype is not None:
        elements = native.cast(elements, native.to_dtype(dtype))
    total = native.sum(elements, axis=-1)
    return total if dtype is None else native.cast(total, native.to_dtype(dtype))


# --- solvers and decompositions ---------------------------------------------------------------------------


def det(x: Tensor, /) -> Tensor:
    """Determinants of square matrices, of shape ``x.shape[:-2]``."""
    return native.det(x)


def slogdet(x: Tensor, /) -> SlogdetResult:
    """Sign and logarithm of the modulus of determinants, which themselves may be too large or small."""
    return SlogdetResult(*native.slogdet(x))


def inv(x: Tensor, /) -> Tensor:
    """Inverses of square matrices. Raises ValueError for one that is singular."""
    return native.inv(x)


def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The X with ``x1 @ X == x2``.

    Parameters
    ----------
    x1
        Square matrices, of shape ``(..., n, n)``.
    x2
        One vector of n elements, or matrices of shape ``(..., n, k)``; batches are broadcast.

    Raises
    ------
    ValueError
        If a matrix is singular.

    """
    if x2.ndim != 1:
        return native.solve(x1, x2)
    return native.solve(x1, x2[:, None])[..., 0]


def solve_triangular(
    x1: Tensor, x2: Tensor, /, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """The X with ``x1 @ X == x2`` for triangular `x1`, whose other triangle is not read.

    With ``left=False`` the one with ``X @ x1 == x2``; with ``unitriangular=True`` the diagonal counts as ones
    and is not read either. A zero on the diagonal gives infinities, as a division by it does.
    """
    if unitriangular:
        needs_square("solve_triangular", x1)
        own = native.equal(native.arange(x1.shape[-1])[:, None], native.arange(x1.shape[-1]))
        x1 = native.where(own, native.full((), 1, x1.dtype), x1)
    if left:
        return native.solve_triangular(x1, x2, upper)
    return matrix_transpose(native.solve_triangular(matrix_transpose(x1), matrix_transpose(x2), not upper))


class LstsqResult(NamedTuple):
    """Solution, sums of squared distances (none where matrices are not higher than wide), and rank."""

    solution: Any
    residuals: Any
    rank: Any


@computes_in("float32")
def lstsq(x1: Tensor, x2: Tensor, /, *, rtol: float | None = None) -> LstsqResult:
    """The X of least norm for which ``x1 @ X - x2`` has the least norm.

    Parameters
    ----------
    x1
        Matrices of shape ``(..., m, n)``.
    x2
        Of shape ``(..., m, k)``.
    rtol
        As for `pinv`, whose product with `x2` the solution is.

    """
    solution = native.matmul(pinv(x1, rtol=rtol), x2)
    m, n = x1.shape[-2:]
    distance = native.subtract(native.matmul(x1, solution), x2)
    residuals = native.sum(squares(distance), axis=-2) if m > n else native.full((0,), 0, real_type(x1.dtype))
    return LstsqResult(solution, residuals, matrix_rank(x1, rtol=rtol))


def tensorsolve(x1: Tensor, x2: Tensor, /, *, axes: Sequence[int] | None = None) -> Tensor:
    """The X with ``tensordot(x1, X, axes=X.ndim) == x2``; `axes` of `x1` are moved to its end before."""
    if axes is not None:
        places = [axis % x1.ndim for axis in axes]
        x1 = native.permute(x1, (*(i for i in range(x1.ndim) if i not in places), *places))
    shape = tuple(x1.shape[x2.ndim :])
    matrix = native.reshape(x1, (x2.size, math.prod(shape)))
    return native.reshape(solve(matrix, native.reshape(x2, (x2.size,))), shape)


def tensorinv(x: Tensor, /, *, ind: int = 2) -> Tensor:
    """The Y with ``tensordot(Y, x, axes=ind)`` the identity: the inverse, first `ind` axes being rows."""
    if not 0 < ind <= x.ndim:
        raise ShapeError(f"[tensorinv] ind={ind} for a tensor with {x.ndim} dimensions")
    rows = math.prod(x.shape[:ind])
    inverse = inv(native.reshape(x, (rows, -1)))
    return native.reshape(inverse, (*x.shape[ind:], *x.shape[:ind]))


# --- norms ------------------------------------------------------------------------------------------------


def _needs_inexact(name: str, x: Tensor) -> None:
    if "float" not in x.dtype.name and not is_complex(x):
        raise DTypeError(f"[{name}] not defined for {x.dtype.name}; convert with .to(float32)")


@computes_in("float32")
def matrix_norm(
    x: Tensor,
    /,
    *,
    keepdims: bool = False,
    ord: int | float | str | None = "fro",  # noqa: A002
    axis: tuple[int, int] = (-2, -1),
) -> Tensor:
    """Norms of matrices.

    Parameters
    ----------
    x
        Matrices of shape ``(..., m, n)``, of a floating-point type.
    keepdims
        Whether the result keeps the last two axes, with one element.
    ord
        "fro": root of the sum of squares; "nuc": sum of the singular values; 2 and -2: largest and smallest
        singular value; 1 and -1: largest and smallest sum of moduli of a column; inf and -inf: of a row.
    axis
        Where rows and columns lie.

    """
    needs_matrix("matrix_norm", x)
    _needs_inexact("matrix_norm", x)
    rows, columns = (_axis("matrix_norm", each, x.ndim) for each in axis)
    if rows == columns:
        raise ShapeError(f"[matrix_norm] axes {axis} are one")
    order = (*(i for i in range(x.ndim) if i not in (rows, columns)), rows, columns)
    result = native.cast(_matrix_norm(native.permute(as_single(x), order), ord), real_type(x.dtype))
    if not keepdims:
        return result
    return native.reshape(result, tuple(1 if i in (rows, columns) else n for i, n in enumerate(x.shape)))


def _matrix_norm(x: Tensor, ord: Any) -> Tensor:  # noqa: A002
    if ord is None or ord == "fro":
        result = root_of_squares(x, (-2, -1))
    elif min(x.shape[-2:]) == 0 and ord in ("nuc", 2, 1, math.inf) and (ord in ("nuc", 2) or x.size == 0):
        result = native.full(tuple(x.shape[:-2]), 0, real_type(x.dtype))
    elif ord in ("nuc", 2, -2):
        values = native.svdvals(x)
        result = native.sum(values, axis=-1) if ord == "nuc" else _extreme(values, ord, -1)
    elif ord in (1, -1, math.inf, -math.inf):
        sums = native.sum(native.abs(x), axis=-2 if abs(ord) == 1 else -1)
        result = _extreme(sums, ord, -1)
    else:
        raise ArgumentError(f"[matrix_norm] ord={ord!r}; give 'fro', 'nuc', 1, -1, 2, -2, inf or -inf")
    return result


def _extreme(x: Tensor, sign: Any, axis: Any, keepdims: bool = False) -> Tensor:
    """Largest elements for a positive sign, smallest for a negative one."""
    return (native.max if sign > 0 else native.min)(x, axis=axis, keepdims=keepdims)


@computes_in("float32")
def vector_norm(
    x: Tensor,
    /,
    *,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    ord: int | float = 2,  # noqa: A002
) -> Tensor:
    """Norms of vectors: ``sum(abs(x) ** ord) ** (1 / ord)``.

    Parameters
    ----------
    x
        Of a floating-point type.
    axis
        Axis or axes on which the vectors lie; all by default.
    keepdims
        Whether the result keeps these axes, with one element.
    ord
        Any number; inf and -inf: largest and smallest modulus; 0: number of elements that are not zero.

    """
    _needs_inexact("vector_norm", x)
    axes = tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)

    return native.cast(_vector_norm(as_single(x), ord, axes, keepdims), real_type(x.dtype))


def _vector_norm(x: Tensor, ord: float, axes: tuple[int, ...], keepdims: bool) -> Tensor:  # noqa: A002
    if ord == 2:
        return root_of_squares(x, axes, keepdims)
    size = native.abs(x)
    if math.isinf(ord):
        return _extreme(size, ord, axes, keepdims)
    if ord == 0:
        return native.sum(native.where(native.not_equal(size, 0), 1.0, size), axis=axes, keepdims=keepdims)
    if ord == 1:
        return native.sum(size, axis=axes, keepdims=keepdims)
    return power_norm(x, ord, axes, keepdims)


@computes_in("float32")
def norm(
    x: Tensor,
    /,
    *,
    ord: Any = None,  # noqa: A002
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
) -> Tensor:
    """`vector_norm` or `matrix_norm`, as PyTorch and NumPy choose.

    Without `ord` the 2-norm of all elements on the axes. With `ord` matrices lie on two axes, and vectors on
    one; without axes the tensor is one of both.
    """
    axes = tuple(axis) if isinstance(axis, Sequence) else axis if axis is None else (axis,)
    if ord is None:
        return vector_norm(x, axis=axes, keepdims=keepdims)
    n = x.ndim if axes is None else len(axes)
    if n not in (1, 2):
        raise ShapeError(f"[norm] ord={ord!r} on {n} axes; give one for vectors or two for matrices")
    if n == 1:
        return vector_norm(x, ord=ord, axis=axes, keepdims=keepdims)
    rows, columns = (-2, -1) if axes is None else axes
    return matrix_norm(x, ord=ord, axis=(rows, columns), keepdims=keepdims)


@computes_in("float32")
def cond(x: Tensor, /, *, p: int | float | str | None = None) -> Tensor:
    """Condition numbers: largest by smallest singular value, or the norm of x times that of its inverse."""
    if p is None or p in (2, -2):
        values = svdvals(x)
        first, last = values[..., 0], values[..., -1]
        return native.divide(last, first) if p == -2 else native.divide(first, last)
    return native.multiply(matrix_norm(x, ord=p), matrix_norm(inv(x), ord=p))


# --- functions of matrices --------------------------------------------------------------------------------

_PADE = (
    64764752532480000.0,
    32382376266240000.0,
    7771770303897600.0,
    1187353796428800.0,
    129060195264000.0,
    10559470521600.0,
    670442572800.0,
    33522128640.0,
    1323241920.0,
    40840800.0,
    960960.0,
    16380.0,
    182.0,
    1.0,
)


@computes_in("float32")
def matrix_exp(x: Tensor, /) -> Tensor:
    """Exponential of square matrices: Padé's approximant of degree 13 with scaling and squaring.

    Source: N. Higham, "The scaling and squaring method for the matrix exponential revisited" (2005).
    """
    needs_square("matrix_exp", x)
    _needs_inexact("matrix_exp", x)
    if x.size == 0:
        return native.copy(x)
    largest = native.max(native.sum(native.abs(x.detach()), -2)).item()
    halvings = max(0, math.ceil(math.log2(largest / 5.37))) if 0 < largest < math.inf else 0
    a = native.multiply(x, 0.5**halvings)
    one = eye(x.shape[-1], dtype=x.dtype)
    a2 = a @ a
    a4 = a2 @ a2
    a6 = a4 @ a2
    b = _PADE
    odd = a @ (a6 @ (a6 * b[13] + a4 * b[11] + a2 * b[9]) + a6 * b[7] + a4 * b[5] + a2 * b[3] + one * b[1])
    even = a6 @ (a6 * b[12] + a4 * b[10] + a2 * b[8]) + a6 * b[6] + a4 * b[4] + a2 * b[2] + one * b[0]
    result = solve(even - odd, even + odd)
    for _ in range(halvings):
        result = result @ result
    return result


@computes_in("float32")
def renorm(x: Tensor, /, *, p: float, axis: int, maxnorm: float) -> Tensor:
    """Tensor whose slices along an axis are scaled down to a norm of order `p` of at most `maxnorm`."""
    rest = tuple(i for i in range(x.ndim) if i != _axis("renorm", axis, x.ndim))
    size = vector_norm(x, ord=p, axis=rest, keepdims=True)
    scale = native.divide(maxnorm, native.add(size, 1e-7))
    return native.multiply(x, native.where(native.greater(size, maxnorm), scale, 1.0))
