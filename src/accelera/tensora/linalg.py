"""Linear algebra: the array API's extension `linalg`. The last two axes of a batch are rows and columns.

Everything has gradients. The decompositions run on the LAPACK of OpenBLAS, for float32, float64, complex64
and complex128; other types raise TypeError, and shapes that do not fit raise ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from accelera.tensora.autograd import Context, Function, is_grad_enabled
from accelera.tensora.core import native
from accelera.tensora.creation import eye
from accelera.tensora.manipulation import broadcast_shapes
from accelera.tensora.products import matmul, matrix_transpose, tensordot, vecdot

__all__ = [
    "EighResult",
    "QRResult",
    "SVDResult",
    "SlogdetResult",
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]


class EighResult(NamedTuple):
    """Eigenvalues in ascending order, and the eigenvectors as columns."""

    eigenvalues: Any
    eigenvectors: Any


class QRResult(NamedTuple):
    """Orthonormal columns, and an upper triangle."""

    Q: Any
    R: Any


class SlogdetResult(NamedTuple):
    """Sign of a determinant, of modulus 1 or 0, and the logarithm of its modulus."""

    sign: Any
    logabsdet: Any


class SVDResult(NamedTuple):
    """Left singular vectors as columns, descending singular values, right vectors as conjugated rows."""

    U: Any
    S: Any
    Vh: Any


# --- types and shapes -------------------------------------------------------------------------------------


def _is_complex(x: Any) -> bool:
    return str(x.dtype.name).startswith("complex")


def _real_type(dtype: Any) -> Any:
    """Type of the modulus of an element."""
    return {"complex64": native.dtype.float32, "complex128": native.dtype.float64}.get(dtype.name, dtype)


def _epsilon(dtype: Any) -> float:
    name = _real_type(dtype).name
    return {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}.get(name, 2.0**-52)


def _conj(x: Any) -> Any:
    return native.conj(x) if _is_complex(x) else x


def _adjoint(x: Any) -> Any:
    return _conj(matrix_transpose(x))


def _needs_matrix(name: str, x: Any) -> None:
    if x.ndim < 2:
        raise ValueError(f"{name}: shape {x.shape}; a matrix or a batch of them is needed")


def _needs_square(name: str, x: Any) -> None:
    _needs_matrix(name, x)
    if x.shape[-2] != x.shape[-1]:
        raise ValueError(f"{name}: shape {x.shape}; square matrices are needed, with as many rows as columns")


def _axis(name: str, axis: int, ndim: int) -> int:
    """Axis counted from the front."""
    if not -ndim <= axis < ndim:
        raise IndexError(
            f"{name}: axis {axis} of a tensor with {ndim} dimensions; give one from {-ndim} to {ndim - 1}"
        )
    return axis % ndim


def _last(x: Any, axis: int) -> Any:
    """The tensor with one axis, counted from the front, moved to the end."""
    order = [i for i in range(x.ndim) if i != axis]
    return x if axis == x.ndim - 1 else native.permute(x, (*order, axis))


# --- products ---------------------------------------------------------------------------------------------


def outer(x1: Any, x2: Any, /) -> Any:
    """Products of each element of one vector with each of another, of shape ``(x1.size, x2.size)``."""
    if x1.ndim != 1 or x2.ndim != 1:
        raise ValueError(f"outer: shapes {x1.shape} and {x2.shape}; two vectors are needed")
    return native.multiply(x1[:, None], x2[None, :])


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Vector products in three dimensions, which lie on `axis`; other axes are broadcast."""
    shape = broadcast_shapes(x1.shape, x2.shape)
    at = _axis("cross", axis, min(x1.ndim, x2.ndim)) - min(x1.ndim, x2.ndim) if axis < 0 else axis
    for x in (x1, x2):
        if x.shape[_axis("cross", at, x.ndim)] != 3:
            raise ValueError(f"cross: shape {x.shape}; vectors of 3 elements are needed on axis {axis}")
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


def matrix_power(x: Any, n: int, /) -> Any:
    """Product of `n` factors `x`, of the inverse for a negative `n`, or the identity for 0."""
    _needs_square("matrix_power", x)
    if n == 0:
        return native.copy(native.expand(eye(x.shape[-1], dtype=x.dtype), tuple(x.shape)))
    base = inv(x) if n < 0 else x
    result = None
    for bit in f"{abs(n):b}"[::-1]:
        if bit == "1":
            result = base if result is None else native.matmul(result, base)
        base = native.matmul(base, base)
    return result


# --- parts of matrices ------------------------------------------------------------------------------------


def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """Elements ``x[..., i, i + offset]``: shape ``(..., d)`` for the d of them that there are."""
    _needs_matrix("diagonal", x)
    rows, columns = x.shape[-2:]
    n = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    if n == 0 or x.size == 0:
        return native.full((*x.shape[:-2], n), 0, x.dtype)
    whole = native.contiguous(x)
    steps = whole.strides
    start = offset * steps[-1] if offset > 0 else -offset * steps[-2]
    return native.as_strided(whole, (*x.shape[:-2], n), (*steps[:-2], steps[-2] + steps[-1]), start)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """Sum of the elements ``x[..., i, i + offset]``, in the type that a sum has or in `dtype`."""
    elements = diagonal(x, offset=offset)
    if dtype is not None:
        elements = native.cast(elements, native.to_dtype(dtype))
    total = native.sum(elements, axis=-1)
    return total if dtype is None else native.cast(total, native.to_dtype(dtype))


# --- solvers and decompositions ---------------------------------------------------------------------------


def cholesky(x: Any, /, *, upper: bool = False) -> Any:
    """Triangle L with ``L @ adjoint(L) == x``, or its adjoint with `upper`.

    Parameters
    ----------
    x
        Hermitian positive definite matrices, of shape ``(..., n, n)``; only their lower triangles are read.

    Raises
    ------
    ValueError
        If one is not positive definite; the message names it, and its first minor that is not.

    """
    lower = native.cholesky(x)
    return _adjoint(lower) if upper else lower


def det(x: Any, /) -> Any:
    """Determinants of square matrices, of shape ``x.shape[:-2]``."""
    return native.det(x)


def slogdet(x: Any, /) -> SlogdetResult:
    """Sign and logarithm of the modulus of determinants, which themselves may be too large or small."""
    return SlogdetResult(*native.slogdet(x))


def inv(x: Any, /) -> Any:
    """Inverses of square matrices. Raises ValueError for one that is singular."""
    return native.inv(x)


def solve(x1: Any, x2: Any, /) -> Any:
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


def solve_triangular(x1: Any, x2: Any, /, *, upper: bool) -> Any:
    """The X with ``x1 @ X == x2`` for triangular `x1`, whose other triangle is not read.

    A zero on the diagonal gives infinities, as a division by it does.
    """
    return native.solve_triangular(x1, x2, upper)


def qr(x: Any, /, *, mode: str = "reduced") -> QRResult:
    """Orthonormal Q and upper triangular R with ``Q @ R == x``.

    Parameters
    ----------
    x
        Matrices of shape ``(..., m, n)``.
    mode
        "reduced": Q has min(m, n) columns. "complete": Q is square; it then has no gradient if m > n.

    """
    if mode not in ("reduced", "complete"):
        raise ValueError(f"qr: mode={mode!r}; give 'reduced' or 'complete'")
    return QRResult(*native.qr(x, mode == "complete"))


def svd(x: Any, /, *, full_matrices: bool = True) -> SVDResult:
    """Orthonormal U, Vh and singular values S with ``U @ diag(S) @ Vh == x``.

    Parameters
    ----------
    x
        Matrices of shape ``(..., m, n)``.
    full_matrices
        Whether U and Vh are square; otherwise they have min(m, n) columns and rows. Square ones have no
        gradient unless m == n. Gradients through U and Vh need singular values that differ.

    """
    return SVDResult(*native.svd(x, full_matrices))


def svdvals(x: Any, /) -> Any:
    """Singular values, in descending order."""
    return native.svdvals(x)


def eigh(x: Any, /) -> EighResult:
    """Eigenvalues and eigenvectors of Hermitian matrices, whose lower triangles are read.

    Gradients through eigenvectors need eigenvalues that differ; the gradient is Hermitian.
    """
    return EighResult(*native.eigh(x))


def eigvalsh(x: Any, /) -> Any:
    """Eigenvalues of Hermitian matrices, whose lower triangles are read, in ascending order."""
    return native.eigvalsh(x)


# --- rank and pseudo-inverse ------------------------------------------------------------------------------


def _cutoff(x: Any, largest: Any, rtol: Any) -> Any:
    """Singular values up to this one count as zero."""
    if rtol is None:
        rtol = max(x.shape[-2:]) * _epsilon(x.dtype)
    if isinstance(rtol, int | float):
        return native.multiply(largest, rtol)
    return native.multiply(largest, native.cast(rtol, largest.dtype)[..., None])


def matrix_rank(x: Any, /, *, rtol: Any = None) -> Any:
    """How many singular values are larger than `rtol` times the largest one; int64.

    Parameters
    ----------
    x
        Matrices of shape ``(..., m, n)``.
    rtol
        A number, or one for each matrix; max(m, n) times the type's epsilon by default.

    """
    _needs_matrix("matrix_rank", x)
    if min(x.shape[-2:]) == 0:
        return native.full(tuple(x.shape[:-2]), 0, native.dtype.int64)
    values = native.svdvals(x.detach())
    counted = native.greater(values, _cutoff(x, values[..., :1], rtol))
    return native.sum(native.cast(counted, native.dtype.int64), axis=-1)


class _Pinv(Function):
    """Pseudo-inverse; its gradient is that of Golub and Pereyra (1973), for matrices whose rank stays."""

    @staticmethod
    def forward(ctx: Context, *inputs: Any) -> Any:
        """Inverse of the singular values that count."""
        x, rtol = inputs
        u, s, vh = native.svd(x, False)
        counts = native.greater(s, _cutoff(x, s[..., :1], rtol))
        inverse = native.where(counts, native.reciprocal(native.where(counts, s, 1.0)), 0.0)
        result = native.matmul(native.multiply(_adjoint(vh), inverse[..., None, :]), _adjoint(u))
        ctx.save_for_backward(x, result)
        ctx.rtol = rtol  # type: ignore[attr-defined]
        return result

    @staticmethod
    def backward(ctx: Context, *grads: Any) -> Any:
        """In products of the matrix, its pseudo-inverse and the gradient."""
        x, p = ctx.saved_tensors
        if is_grad_enabled():
            p = _Pinv.apply(x, ctx.rtol)  # type: ignore[attr-defined]
        g, ph = _adjoint(grads[0]), _adjoint(p)
        if x.shape[-2] <= x.shape[-1]:
            k = g @ p
            kph = k @ ph
            return kph - _adjoint(p @ k) - (x @ p) @ kph + (ph @ p) @ (g - k @ x), None
        k = p @ g
        phk = ph @ k
        return phk - _adjoint(k @ p) + ((g - x @ k) @ p) @ ph - (phk @ p) @ x, None


def pinv(x: Any, /, *, rtol: Any = None) -> Any:
    """Pseudo-inverse of Moore and Penrose, of shape ``(..., n, m)`` for matrices of shape ``(..., m, n)``.

    `rtol` as for `matrix_rank`: smaller singular values count as zero.
    """
    _needs_matrix("pinv", x)
    if min(x.shape[-2:]) == 0:
        return native.full((*x.shape[:-2], x.shape[-1], x.shape[-2]), 0, x.dtype)
    return _Pinv.apply(x, rtol)


# --- norms ------------------------------------------------------------------------------------------------


def _root(squares: Any) -> Any:
    """Square root whose gradient at 0 is 0, not infinite."""
    if not squares.requires_grad:
        return native.sqrt(squares)
    zero = native.equal(squares, 0)
    return native.where(zero, squares, native.sqrt(native.where(zero, 1.0, squares)))


def _squares(x: Any) -> Any:
    if _is_complex(x):
        return native.add(native.square(native.real(x)), native.square(native.imag(x)))
    return native.square(x)


def _needs_inexact(name: str, x: Any) -> None:
    if "float" not in x.dtype.name and not _is_complex(x):
        raise TypeError(f"{name}: not defined for {x.dtype.name}; convert with .to(float32)")


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: int | float | str | None = "fro") -> Any:  # noqa: A002
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

    """
    _needs_matrix("matrix_norm", x)
    _needs_inexact("matrix_norm", x)
    if ord is None or ord == "fro":
        result = _root(native.sum(_squares(x), axis=(-2, -1)))
    elif ord in ("nuc", 2, -2):
        values = native.svdvals(x)
        result = native.sum(values, axis=-1) if ord == "nuc" else _extreme(values, ord, -1)
    elif ord in (1, -1, math.inf, -math.inf):
        sums = native.sum(native.abs(x), axis=-2 if abs(ord) == 1 else -1)
        result = _extreme(sums, ord, -1)
    else:
        raise ValueError(f"matrix_norm: ord={ord!r}; give 'fro', 'nuc', 1, -1, 2, -2, inf or -inf")
    return result[..., None, None] if keepdims else result


def _extreme(x: Any, sign: Any, axis: Any, keepdims: bool = False) -> Any:
    """Largest elements for a positive sign, smallest for a negative one."""
    return (native.max if sign > 0 else native.min)(x, axis=axis, keepdims=keepdims)


def vector_norm(
    x: Any,
    /,
    *,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    ord: int | float = 2,  # noqa: A002
) -> Any:
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

    def total(each: Any) -> Any:
        return native.sum(each, axis=axes, keepdims=keepdims)

    if math.isinf(ord):
        return _extreme(native.abs(x), ord, axes, keepdims)
    if ord == 0:
        return total(native.cast(native.not_equal(x, 0), _real_type(x.dtype)))
    if ord == 1:
        return total(native.abs(x))
    if ord == 2:
        return _root(total(_squares(x)))
    return native.pow(total(native.pow(native.abs(x), ord)), 1 / ord)
