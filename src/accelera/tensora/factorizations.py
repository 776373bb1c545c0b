"""Decompositions of matrices into triangles, orthonormal columns, singular values and eigenvalues; ranks.

`linalg` has all of them in its namespace.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from accelera.errors import ArgumentError, ShapeError
from accelera.tensora.amp import computes_in
from accelera.tensora.autograd import Context, Function, is_grad_enabled
from accelera.tensora.core import DType, Tensor, native
from accelera.tensora.norms import real_type
from accelera.tensora.products import matrix_transpose


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


def is_complex(x: Tensor) -> bool:
    """Return whether the elements are complex."""
    return str(x.dtype.name).startswith("complex")


def epsilon(dtype: DType) -> float:
    """Distance of 1 and the next number."""
    name = real_type(dtype).name
    return {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}.get(name, 2.0**-52)


def conjugate(x: Tensor) -> Tensor:
    """Complex conjugate; the tensor itself if it is real."""
    return native.conj(x) if is_complex(x) else x


def adjoint_of(x: Tensor) -> Tensor:
    """Matrices transposed and conjugated."""
    return conjugate(matrix_transpose(x))


def needs_matrix(name: str, x: Tensor) -> None:
    """Raise ValueError for what has less than two axes."""
    if x.ndim < 2:
        raise ShapeError(f"[{name}] shape {x.shape}; a matrix or a batch of them is needed")


def needs_square(name: str, x: Tensor) -> None:
    """Raise ValueError for what are no square matrices."""
    needs_matrix(name, x)
    if x.shape[-2] != x.shape[-1]:
        raise ShapeError(
            f"[{name}] shape {x.shape}; square matrices are needed, with as many rows as columns"
        )


# --- triangles ---------------------------------------------------------------------------------------------


def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    """Triangle L with ``L @ adjoint_of(L) == x``, or its adjoint with `upper`.

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
    return adjoint_of(lower) if upper else lower


@computes_in("float32")
def cholesky_inverse(x: Tensor, /, *, upper: bool = False) -> Tensor:
    """Inverse of the matrix whose Cholesky triangle is given."""
    n = x.shape[-1]
    one = native.cast(native.equal(native.arange(n)[:, None], native.arange(n)), x.dtype)
    return cholesky_solve(native.expand(one, tuple(x.shape)), x, upper=upper)


class _CholeskySolve(Function):
    """Solution of A X = B from the lower factor of A; the gradient is the whole factor's, as PyTorch's."""

    @staticmethod
    def forward(ctx: Context, *inputs: Any) -> Any:
        """Arguments: right-hand sides, lower triangle."""
        x, lower = inputs
        ctx.save_for_backward(x, lower)
        inside = native.solve_triangular(lower, x, False)
        return native.solve_triangular(adjoint_of(lower), inside, True)

    @staticmethod
    def backward(ctx: Context, *grads: Any) -> Any:
        """Of both."""
        x, lower = ctx.saved_tensors
        g = _CholeskySolve.apply(grads[0], lower)
        product = native.matmul(g, adjoint_of(_CholeskySolve.apply(x, lower)))
        both = native.add(product, adjoint_of(product))
        return g, native.negative(native.matmul(both, lower))


@computes_in("float32")
def cholesky_solve(x1: Tensor, x2: Tensor, /, *, upper: bool = False) -> Tensor:
    """The X with ``A @ X == x1``, where `x2` is the Cholesky triangle of A."""
    return _CholeskySolve.apply(x1, adjoint_of(x2) if upper else x2)


class LUResult(NamedTuple):
    """Permutation, unit lower and upper triangle."""

    P: Any
    L: Any
    U: Any


class LUFactors(NamedTuple):
    """Both triangles in one matrix, and the pivots: which row was exchanged with each, counted from 1."""

    LU: Any
    pivots: Any


def lu_factor(x: Tensor, /) -> LUFactors:
    """LU decomposition by rows that are exchanged, as LAPACK keeps it.

    Parameters
    ----------
    x
        Matrices of shape ``(..., m, n)``. Singular ones have a zero on the diagonal of U.

    Returns
    -------
    LUFactors
        L below the diagonal, without its ones, and U in one matrix; min(m, n) int32 pivots for each.

    """
    return LUFactors(*native.lu_factor(x)[:2])


def lu(x: Tensor, /) -> LUResult:
    """Permutation P, unit lower triangle L and upper triangle U with ``P @ L @ U == x``."""
    factors, _, permutation = native.lu_factor(x)
    return LUResult(permutation, *_triangles(factors))


def lu_unpack(factors: Tensor, pivots: Tensor, /) -> LUResult:
    """P, L and U of what `lu_factor` returns."""
    return LUResult(_permutation(factors, pivots), *_triangles(factors))


def _triangles(factors: Tensor) -> tuple[Any, Any]:
    m, n = factors.shape[-2:]
    k = min(m, n)
    difference = native.arange(n) - native.reshape(native.arange(m), (m, 1))
    zero = native.full((), 0, factors.dtype)
    one = native.cast(native.equal(difference[:, :k], 0), factors.dtype)
    lower = native.where(native.less(difference[:, :k], 0), factors[..., :k], one)
    return lower, native.where(native.greater_equal(difference[:k], 0), factors[..., :k, :], zero)


def _permutation(factors: Tensor, pivots: Tensor) -> Tensor:
    """Matrix that exchanges rows as the pivots say, the last first."""
    m = factors.shape[-2]
    order = native.copy(native.expand(native.arange(m), (*pivots.shape[:-1], m)))
    for i in range(pivots.shape[-1]):
        other = native.cast(pivots[..., i : i + 1], native.dtype.int64) - 1
        own = native.copy(order[..., i : i + 1])
        moved = native.take_along_axis(order, other, order.ndim - 1)
        places = native.equal(native.arange(m), other)
        order = native.where(places, own, order)
        order[..., i : i + 1] = moved
    return native.cast(native.equal(order[..., None, :], native.arange(m)[:, None]), factors.dtype)


@computes_in("float32")
def lu_solve(
    factors: Tensor, pivots: Tensor, x: Tensor, /, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    """The X with ``A @ X == x`` for the A that `lu_factor` was given.

    With ``left=False`` the one with ``X @ A == x``; with ``adjoint=True`` for the adjoint of A.
    """
    p, lower, upper = lu_unpack(factors, pivots)
    if not left:
        return adjoint_of(lu_solve(factors, pivots, adjoint_of(x), adjoint=not adjoint))
    if adjoint:
        inside = native.solve_triangular(adjoint_of(upper), x, False)
        return native.matmul(p, native.solve_triangular(adjoint_of(lower), inside, True))
    inside = native.solve_triangular(lower, native.matmul(matrix_transpose(p), x), False)
    return native.solve_triangular(upper, inside, True)


# --- orthonormal columns, singular values -----------------------------------------------------------------


def qr(x: Tensor, /, *, mode: str = "reduced") -> QRResult:
    """Orthonormal Q and upper triangular R with ``Q @ R == x``.

    Parameters
    ----------
    x
        Matrices of shape ``(..., m, n)``.
    mode
        "reduced": Q has min(m, n) columns. "complete": Q is square; it then has no gradient if m > n.

    """
    if mode not in ("reduced", "complete"):
        raise ArgumentError(f"[qr] mode={mode!r}; give 'reduced' or 'complete'")
    return QRResult(*native.qr(x, mode == "complete"))


def svd(x: Tensor, /, *, full_matrices: bool = True) -> SVDResult:
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


def svdvals(x: Tensor, /) -> Tensor:
    """Singular values, in descending order."""
    return native.svdvals(x)


def eigh(x: Tensor, /, *, UPLO: str = "L") -> EighResult:
    """Eigenvalues and eigenvectors of Hermitian matrices, whose lower triangles are read (upper with "U").

    Gradients through eigenvectors need eigenvalues that differ; the gradient is Hermitian.
    """
    return EighResult(*native.eigh(_lower(x, UPLO)))


def eigvalsh(x: Tensor, /, *, UPLO: str = "L") -> Tensor:
    """Eigenvalues of Hermitian matrices, of which `eigh` reads the same, in ascending order."""
    return native.eigvalsh(_lower(x, UPLO))


def _lower(x: Tensor, uplo: str) -> Tensor:
    """Matrix whose lower triangle is the one that is asked for."""
    if uplo not in ("L", "U"):
        raise ArgumentError(f"[eigh] UPLO={uplo!r}; give 'L' or 'U'")
    return x if uplo == "L" else adjoint_of(x)


class EigResult(NamedTuple):
    """Eigenvalues in any order, and the eigenvectors as columns of length 1; both complex."""

    eigenvalues: Any
    eigenvectors: Any


def eig(x: Tensor, /) -> EigResult:
    """Eigenvalues and eigenvectors of square matrices.

    Gradients need eigenvalues that differ, and a function that does not depend on the phases of eigenvectors.
    """
    return EigResult(*native.eig(x))


def eigvals(x: Tensor, /) -> Tensor:
    """Eigenvalues of square matrices, complex, in any order."""
    return native.eig(x)[0]


@computes_in("float32")
def householder_product(x: Tensor, tau: Tensor, /) -> Tensor:
    """First columns of the product of reflections ``I - tau v vᴴ`` whose v lie below the diagonal of x.

    Parameters
    ----------
    x
        Of shape ``(..., m, n)`` with m >= n: LAPACK's result of a QR decomposition.
    tau
        Of shape ``(..., k)`` with k <= n.

    Returns
    -------
    Tensor
        Orthonormal columns, of shape ``(..., m, n)``.

    """
    needs_matrix("householder_product", x)
    m, n = x.shape[-2:]
    if n > m or tau.shape[-1] > n:
        raise ShapeError(f"[householder_product] shapes {x.shape} and {tau.shape}; m >= n >= k are needed")
    difference = native.arange(n) - native.reshape(native.arange(m), (m, 1))
    one = native.cast(native.equal(difference, 0), x.dtype)
    result = native.expand(one, tuple(x.shape))
    vectors = native.where(native.less(difference, 0), x, one)
    for i in range(tau.shape[-1] - 1, -1, -1):
        v = vectors[..., i : i + 1]
        reflected = native.matmul(adjoint_of(v), result)
        result = native.subtract(
            result, native.multiply(tau[..., i, None, None], native.matmul(v, reflected))
        )
    return result


# --- rank and pseudo-inverse ------------------------------------------------------------------------------


def _cutoff(
    x: Tensor, largest: Tensor, rtol: Tensor | float | None, atol: Tensor | float | None = None
) -> Tensor:
    """Return the largest singular value that counts as zero."""
    if rtol is None:
        rtol = max(x.shape[-2:]) * epsilon(x.dtype) if atol is None else 0.0
    relative, absolute = (
        each if isinstance(each, int | float) else native.cast(each, largest.dtype)[..., None]
        for each in (rtol, 0.0 if atol is None else atol)
    )
    return native.maximum(native.multiply(largest, relative), absolute)


@computes_in("float32")
def matrix_rank(
    x: Tensor, /, *, rtol: Tensor | float | None = None, atol: Tensor | float | None = None
) -> Tensor:
    """Number of singular values that are larger than `rtol` times the largest one; int64.

    Parameters
    ----------
    x
        Matrices of shape ``(..., m, n)``.
    rtol
        A number, or one for each matrix; max(m, n) times the type's epsilon by default, 0 if `atol` is given.
    atol
        The same, not times the largest one; the larger of both limits counts.

    """
    needs_matrix("matrix_rank", x)
    if min(x.shape[-2:]) == 0:
        return native.full(tuple(x.shape[:-2]), 0, native.dtype.int64)
    values = native.svdvals(x.detach())
    counted = native.greater(values, _cutoff(x, values[..., :1], rtol, atol))
    return native.sum(native.cast(counted, native.dtype.int64), axis=-1)


class _Pinv(Function):
    """Pseudo-inverse; its gradient is that of Golub and Pereyra (1973), for matrices whose rank stays."""

    @staticmethod
    def forward(ctx: Context, *inputs: Any) -> Tensor:
        """Inverse of the singular values that count."""
        x, rtol, atol = inputs
        u, s, vh = native.svd(x, False)
        counts = native.greater(s, _cutoff(x, s[..., :1], rtol, atol))
        inverse = native.where(counts, native.reciprocal(native.where(counts, s, 1.0)), 0.0)
        result = native.matmul(native.multiply(adjoint_of(vh), inverse[..., None, :]), adjoint_of(u))
        ctx.save_for_backward(x, result)
        ctx.limits = rtol, atol  # type: ignore[attr-defined]
        return result

    @staticmethod
    def backward(ctx: Context, *grads: Any) -> Any:
        """In products of the matrix, its pseudo-inverse and the gradient."""
        x, p = ctx.saved_tensors
        if is_grad_enabled():
            p = _Pinv.apply(x, *ctx.limits)  # type: ignore[attr-defined]
        g, ph = adjoint_of(grads[0]), adjoint_of(p)
        if x.shape[-2] <= x.shape[-1]:
            k = g @ p
            kph = k @ ph
            return kph - adjoint_of(p @ k) - (x @ p) @ kph + (ph @ p) @ (g - k @ x), None, None
        k = p @ g
        phk = ph @ k
        return phk - adjoint_of(k @ p) + ((g - x @ k) @ p) @ ph - (phk @ p) @ x, None, None


@computes_in("float32")
def pinv(
    x: Tensor,
    /,
    *,
    rtol: Tensor | float | None = None,
    atol: Tensor | float | None = None,
    hermitian: bool = False,
) -> Tensor:
    """Pseudo-inverse of Moore and Penrose, of shape ``(..., n, m)`` for matrices of shape ``(..., m, n)``.

    `rtol` and `atol` as for `matrix_rank`: smaller singular values count as zero. With `hermitian` the lower
    triangle of Hermitian matrices is read, and their eigenvalues are inverted.
    """
    needs_matrix("pinv", x)
    if min(x.shape[-2:]) == 0:
        return native.full((*x.shape[:-2], x.shape[-1], x.shape[-2]), 0, x.dtype)
    if not hermitian:
        return _Pinv.apply(x, rtol, atol)
    values, vectors = eigh(x)
    size = native.abs(values.detach())
    counts = native.greater(size, _cutoff(x, native.max(size, -1, True), rtol, atol))
    inverse = native.where(counts, native.reciprocal(native.where(counts, values, 1.0)), 0.0)
    return native.matmul(native.multiply(vectors, inverse[..., None, :]), adjoint_of(vectors))
