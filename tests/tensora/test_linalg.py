"""Linear algebra beside NumPy and PyTorch: values, batches, errors, and gradients by finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from accelera.tensora import autograd, linalg
from accelera.tensora.core import native

DTYPES = ("float32", "float64", "complex64", "complex128")
TOLERANCE = {"float32": 2e-4, "complex64": 2e-4, "float64": 1e-11, "complex128": 1e-11}


def numbers(shape: tuple[int, ...], dtype: str = "float64", seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    values = random.normal(size=shape)
    if dtype.startswith("complex"):
        values = values + 1j * random.normal(size=shape)
    return values.astype(dtype)


def adjoint(x: Any) -> Any:
    return x.conj().swapaxes(-1, -2)


def positive(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    """Hermitian positive definite matrices."""
    x = numbers(shape, dtype, seed)
    return (x @ adjoint(x) + shape[-1] * np.eye(shape[-1])).astype(dtype)


def tensor(x: Any, requires_grad: bool = False) -> Any:
    made = native.asarray(np.asarray(x))
    if requires_grad:
        made.requires_grad = True
    return made


def same(found: Any, expected: Any, dtype: str = "float64") -> None:
    expected = np.asarray(expected)
    assert tuple(found.shape) == expected.shape
    assert found.dtype.name == expected.dtype.name
    tolerance = TOLERANCE.get(dtype, 0.0)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=tolerance, atol=tolerance)


# --- values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (0,), (40,)])
def test_solvers_are_those_of_numpy(dtype: str, batch: tuple[int, ...]) -> None:
    x, b = numbers((*batch, 4, 4), dtype) + 3 * np.eye(4, dtype=dtype), numbers((*batch, 4, 2), dtype, 1)
    p = positive((*batch, 4, 4), dtype)
    same(linalg.inv(tensor(x)), np.linalg.inv(x), dtype)
    same(linalg.det(tensor(x)), np.linalg.det(x), dtype)
    same(linalg.solve(tensor(x), tensor(b)), np.linalg.solve(x, b), dtype)
    same(linalg.cholesky(tensor(p)), np.linalg.cholesky(p), dtype)
    same(linalg.cholesky(tensor(p), upper=True), adjoint(np.linalg.cholesky(p)), dtype)
    for found, expected in zip(linalg.slogdet(tensor(x)), np.linalg.slogdet(x), strict=True):
        same(found, expected, dtype)
    same(linalg.svdvals(tensor(b)), np.linalg.svd(b, compute_uv=False), dtype)
    same(linalg.eigvalsh(tensor(p)), np.linalg.eigvalsh(p), dtype)
    same(linalg.matrix_rank(tensor(b)), np.linalg.matrix_rank(b))
    if batch != (0,):
        same(linalg.pinv(tensor(b)), np.linalg.pinv(b), dtype)
    triangle = np.triu(x)
    same(linalg.solve_triangular(tensor(x), tensor(b), upper=True), np.linalg.solve(triangle, b), dtype)
    triangle = np.tril(x)
    same(linalg.solve_triangular(tensor(x), tensor(b), upper=False), np.linalg.solve(triangle, b), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(5, 3), (3, 5), (4, 4), (2, 3, 2), (30, 2, 3), (0, 3, 2), (3, 0), (0, 3), (2, 0, 0)]
)
def test_decompositions_multiply_to_the_matrix(dtype: str, shape: tuple[int, ...]) -> None:
    x = numbers(shape, dtype)
    m, n, k = *shape[-2:], min(shape[-2:])
    tolerance = TOLERANCE[dtype]

    def check(a: Any, b: Any) -> None:
        np.testing.assert_allclose(a, np.broadcast_to(b, a.shape), atol=10 * tolerance)

    for full in (False, True):
        u, s, vh = (np.asarray(each) for each in linalg.svd(tensor(x), full_matrices=full))
        assert u.shape[-2:] == (m, m if full else k)
        assert vh.shape[-2:] == (n if full else k, n)
        check((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], x)
        check(adjoint(u) @ u, np.eye(u.shape[-1]))
        check(vh @ adjoint(vh), np.eye(vh.shape[-2]))
        assert np.all(np.diff(s, axis=-1) <= 0)
        q, r = (np.asarray(each) for each in linalg.qr(tensor(x), mode="complete" if full else "reduced"))
        assert q.shape[-2:] == (m, m if full else k)
        check(q @ r, x)
        check(adjoint(q) @ q, np.eye(q.shape[-1]))
        check(r, np.triu(r))
        assert {u.dtype.name, q.dtype.name, r.dtype.name, vh.dtype.name} == {dtype}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 4), (3, 5, 5), (50, 2, 2), (0, 3, 3), (2, 0, 0)])
def test_eigenvectors_belong_to_their_values(dtype: str, shape: tuple[int, ...]) -> None:
    x = positive(shape, dtype)
    values, vectors = (np.asarray(each) for each in linalg.eigh(tensor(x)))
    assert values.dtype == np.zeros(0, dtype).real.dtype
    np.testing.assert_allclose(x @ vectors, vectors * values[..., None, :], atol=50 * TOLERANCE[dtype])
    np.testing.assert_allclose(
        adjoint(vectors) @ vectors, np.broadcast_to(np.eye(shape[-1]), shape), atol=10 * TOLERANCE[dtype]
    )


def test_only_the_lower_triangle_is_read() -> None:
    x = positive((4, 4), "complex128")
    spoilt = tensor(np.tril(x) + np.triu(np.full((4, 4), np.nan), 1))
    same(linalg.cholesky(spoilt), np.linalg.cholesky(x), "complex128")
    same(linalg.eigvalsh(spoilt), np.linalg.eigvalsh(x), "complex128")


def test_views_are_read_by_their_strides() -> None:
    x = numbers((5, 3, 5)) + 2 * np.eye(5)[:, None, :]
    view = native.permute(tensor(x), (1, 2, 0))[::-1]
    expected = x.transpose(1, 2, 0)[::-1]
    same(linalg.inv(view), np.linalg.inv(expected), "float64")
    same(linalg.svdvals(view), np.linalg.svd(expected)[1], "float64")
    same(linalg.solve(view, view), np.broadcast_to(np.eye(5), expected.shape), "float64")


def test_large_matrices_and_many_threads_agree() -> None:
    x = numbers((150, 150))
    before = native.thread_count()
    try:
        for threads in (1, 3):
            native.set_thread_count(threads)
            same(linalg.inv(tensor(x)) @ tensor(x), np.eye(150), "complex64")
            same(linalg.svdvals(tensor(x)), np.linalg.svd(x)[1], "float64")
            many = numbers((500, 6, 6))
            same(linalg.det(tensor(many)), np.linalg.det(many), "float64")
    finally:
        native.set_thread_count(before)


def test_batches_of_solve_are_broadcast() -> None:
    a, b = numbers((3, 1, 4, 4)) + 3 * np.eye(4), numbers((2, 4, 2))
    same(linalg.solve(tensor(a), tensor(b)), np.linalg.solve(a, b), "float64")
    vector = numbers((4,))
    expected = np.linalg.solve(a, np.broadcast_to(vector[:, None], (3, 1, 4, 1)))[..., 0]
    same(linalg.solve(tensor(a), tensor(vector)), expected, "float64")
    single = a.astype("float32")
    assert linalg.solve(tensor(single), tensor(b)).dtype.name == "float64"


def test_determinants_of_singular_and_empty_matrices() -> None:
    singular = np.array([[1.0, 2.0], [2.0, 4.0]])
    assert linalg.det(tensor(singular)).item() == 0
    sign, logarithm = linalg.slogdet(tensor(singular))
    assert (sign.item(), logarithm.item()) == (0, -math.inf)
    same(linalg.det(tensor(np.zeros((2, 0, 0)))), np.ones(2))
    large = np.eye(200) * 1e10
    assert linalg.slogdet(tensor(large)).logabsdet.item() == pytest.approx(200 * math.log(1e10))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("ord", ["fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf])
def test_matrix_norms_are_those_of_numpy(dtype: str, ord: Any) -> None:  # noqa: A002
    x = numbers((2, 3, 4), dtype)
    for keepdims in (False, True):
        found = linalg.matrix_norm(tensor(x), ord=ord, keepdims=keepdims)
        same(found, np.linalg.matrix_norm(x, ord=ord, keepdims=keepdims), dtype)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("axis", [None, 1, -1, (0, 2)])
@pytest.mark.parametrize("ord", [2, 1, 0, 3, 0.5, -1, math.inf, -math.inf])
def test_vector_norms_are_those_of_numpy(dtype: str, axis: Any, ord: Any) -> None:  # noqa: A002
    x = numbers((2, 3, 4), dtype)
    for keepdims in (False, True):
        found = linalg.vector_norm(tensor(x), axis=axis, ord=ord, keepdims=keepdims)
        same(found, np.linalg.vector_norm(x, axis=axis, ord=ord, keepdims=keepdims), dtype)


def test_products_and_parts_are_those_of_numpy() -> None:
    x, y = numbers((2, 3, 4)), numbers((3,), seed=1)
    for offset in range(-4, 6):
        same(linalg.diagonal(tensor(x), offset=offset), np.linalg.diagonal(x, offset=offset))
        same(linalg.trace(tensor(x), offset=offset), np.linalg.trace(x, offset=offset), "float64")
    assert linalg.trace(tensor(x), dtype="float32").dtype.name == "float32"
    same(linalg.outer(tensor(y), tensor(x[0, 0])), np.outer(y, x[0, 0]))
    same(linalg.cross(tensor(x), tensor(y[:, None]), axis=-2), np.cross(x, y[:, None], axis=-2), "float64")
    same(linalg.cross(tensor(x[..., :3]), tensor(y)), np.linalg.cross(x[..., :3], y), "float64")
    square = numbers((2, 3, 3))
    for n in (-3, -1, 0, 1, 2, 5):
        same(linalg.matrix_power(tensor(square), n), np.linalg.matrix_power(square, n), "float64")
    assert linalg.tensordot(tensor(x), tensor(y), axes=((1,), (0,))).shape == (2, 4)


def test_rank_and_pseudo_inverse_of_matrices_of_lower_rank() -> None:
    low = numbers((2, 5, 2)) @ numbers((2, 2, 4), seed=1)
    same(linalg.matrix_rank(tensor(low)), np.array([2, 2]))
    same(linalg.pinv(tensor(low)), np.linalg.pinv(low), "float64")
    same(linalg.matrix_rank(tensor(np.diag([1.0, 0.1, 0.01])), rtol=0.05), np.int64(2))
    tolerances = tensor(np.array([0.5, 0.001]))
    stacked = tensor(np.stack([np.diag([1.0, 0.1, 0.01])] * 2))
    same(linalg.matrix_rank(stacked, rtol=tolerances), np.array([1, 3]))
    same(linalg.pinv(tensor(np.zeros((3, 0)))), np.zeros((0, 3)))


# --- errors -----------------------------------------------------------------------------------------------


def test_matrices_without_the_decomposition_are_named() -> None:
    batch = np.stack([np.eye(3)] * 5)
    batch[3, 1, 1] = -1
    with pytest.raises(
        ValueError, match=r"\[cholesky\] matrix 3 of the batch is not positive definite \(leading minor 2"
    ):
        linalg.cholesky(tensor(batch))
    batch[3, 1, 1] = 0
    for function in (linalg.inv, lambda x: linalg.solve(x, x)):
        with pytest.raises(ValueError, match=r"matrix 3 of the batch is singular \(pivot 2 is zero\)"):
            function(tensor(batch))
    with pytest.raises(ValueError, match=r"\[inv\] the matrix is singular"):
        linalg.inv(tensor(np.zeros((2, 2))))
    with pytest.raises(ValueError, match="the matrix has no decomposition that was found"):
        linalg.svd(tensor(np.full((3, 3), np.nan)))


@pytest.mark.parametrize("name", ["cholesky", "inv", "det", "slogdet", "eigh", "eigvalsh"])
def test_matrices_must_be_square(name: str) -> None:
    with pytest.raises(ValueError, match=rf"\[{name}\] shape \(2, 3\); square matrices"):
        getattr(linalg, name)(tensor(numbers((2, 3))))
    with pytest.raises(ValueError, match=rf"\[{name}\] shape \(3,\)"):
        getattr(linalg, name)(tensor(numbers((3,))))
    with pytest.raises(TypeError, match=rf"\[{name}\] not defined for int64"):
        getattr(linalg, name)(tensor(np.eye(2, dtype=np.int64)))


def test_arguments_that_do_not_fit_are_named() -> None:
    x = tensor(numbers((2, 3, 4)))
    square = tensor(numbers((3, 3)))
    for call, words in (
        (lambda: linalg.solve(square, tensor(numbers((4, 2)))), r"\[solve\] .* need 3 rows"),
        (lambda: linalg.qr(x, mode="full"), r"\[qr\] mode='full'"),
        (lambda: linalg.matrix_norm(x, ord=3), r"\[matrix_norm\] ord=3"),
        (lambda: linalg.outer(x, x), r"\[outer\] .* two vectors"),
        (lambda: linalg.cross(x, x), r"\[cross\] .* 3 elements"),
        (lambda: linalg.matrix_power(x, 2), r"\[matrix_power\] shape \(2, 3, 4\)"),
        (lambda: linalg.pinv(tensor(numbers((3,)))), r"\[pinv\] shape"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(TypeError, match=r"\[vector_norm\] not defined for int64"):
        linalg.vector_norm(tensor([1, 2]))


# --- gradients --------------------------------------------------------------------------------------------

EYE = np.eye(3)


def hermitian(x: Any) -> Any:
    return (x + native.conj(linalg.matrix_transpose(x))) * 0.5


def definite(x: Any) -> Any:
    return x @ native.conj(linalg.matrix_transpose(x)) + tensor(EYE * 2)


def svd_without_phases(x: Any) -> Any:
    u, s, vh = linalg.svd(x, full_matrices=False)
    return native.abs(u), s, native.abs(vh), u @ vh


def eigh_without_phases(x: Any) -> Any:
    values, vectors = linalg.eigh(hermitian(x))
    return values, native.abs(vectors)


def eig_without_phases(x: Any) -> Any:
    values, vectors = linalg.eig(x)
    return values, native.abs(vectors), vectors @ linalg.inv(vectors)


Case = tuple[str, Callable[..., Any], tuple[tuple[int, ...], ...]]
GRADIENTS: list[Case] = [
    ("lu_factor", lambda x: linalg.lu_factor(x).LU, ((2, 3, 3),)),
    ("lu_factor", lambda x: linalg.lu(x)[1:], ((2, 4),)),
    ("lu_factor", lambda x: linalg.lu(x)[1:], ((4, 2),)),
    ("eig", eig_without_phases, ((2, 3, 3),)),
    ("cholesky", lambda x: linalg.cholesky(definite(x)), ((2, 3, 3),)),
    ("cholesky", lambda x: linalg.cholesky(definite(x), upper=True), ((3, 3),)),
    ("solve", linalg.solve, ((2, 3, 3), (3, 2))),
    ("solve", linalg.solve, ((2, 3, 3), (3,))),
    ("solve_triangular", lambda a, b: linalg.solve_triangular(a, b, upper=True), ((2, 3, 3), (3, 2))),
    ("solve_triangular", lambda a, b: linalg.solve_triangular(a, b, upper=False), ((3, 3), (2, 3, 1))),
    ("inv", linalg.inv, ((2, 3, 3),)),
    ("det", linalg.det, ((2, 3, 3),)),
    ("slogdet", linalg.slogdet, ((2, 3, 3),)),
    ("qr", linalg.qr, ((2, 4, 3),)),
    ("qr", linalg.qr, ((2, 2, 4),)),
    ("qr", lambda x: linalg.qr(x, mode="complete"), ((3, 3),)),
    ("qr", lambda x: linalg.qr(x, mode="complete"), ((2, 3),)),
    ("svd", svd_without_phases, ((2, 4, 3),)),
    ("svd", svd_without_phases, ((2, 4),)),
    ("svd", lambda x: linalg.svd(x).S, ((3, 4),)),
    ("svdvals", linalg.svdvals, ((2, 4, 3),)),
    ("eigh", eigh_without_phases, ((2, 3, 3),)),
    ("eigvalsh", lambda x: linalg.eigvalsh(hermitian(x)), ((2, 3, 3),)),
    ("pinv", linalg.pinv, ((2, 4, 3),)),
    ("pinv", linalg.pinv, ((2, 4),)),
    ("pinv", lambda a, b: linalg.pinv(a @ b), ((4, 2), (2, 3))),
    ("matrix_power", lambda x: linalg.matrix_power(x, -3), ((3, 3),)),
    ("matrix_norm", linalg.matrix_norm, ((2, 3, 4),)),
    ("matrix_norm", lambda x: linalg.matrix_norm(x, ord="nuc"), ((3, 2),)),
    ("matrix_norm", lambda x: linalg.matrix_norm(x, ord=-2), ((3, 2),)),
    ("vector_norm", lambda x: linalg.vector_norm(x, ord=3, axis=0), ((3, 2),)),
    ("cross", linalg.cross, ((2, 3), (3,))),
    ("outer", linalg.outer, ((2,), (3,))),
    ("trace", lambda x: linalg.trace(x, offset=1), ((2, 3, 4),)),
    ("diagonal", lambda x: linalg.diagonal(x, offset=-1), ((2, 3, 4),)),
]


def test_every_operation_of_the_family_has_a_gradient_case() -> None:
    family = {op["name"] for op in native.ops() if op["family"] == "linalg"}
    assert family - {name for name, _, _ in GRADIENTS} == set()


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize(
    ("function", "shapes"), [pytest.param(f, s, id=f"{name}-{i}") for i, (name, f, s) in enumerate(GRADIENTS)]
)
def test_gradients_and_their_gradients(
    function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], dtype: str
) -> None:
    inputs = [tensor(numbers(shape, dtype, i), requires_grad=True) for i, shape in enumerate(shapes)]
    assert autograd.gradcheck(function, inputs)
    assert autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda x: linalg.det(x), torch.linalg.det),
        (lambda x: linalg.inv(x), torch.linalg.inv),
        (lambda x: linalg.slogdet(x)[1], lambda x: torch.linalg.slogdet(x)[1]),
        (lambda x: linalg.pinv(x), torch.linalg.pinv),
        (
            lambda x: linalg.cholesky(definite(x)),
            lambda x: torch.linalg.cholesky(x @ x.mH + torch.eye(3) * 2),
        ),
        (lambda x: linalg.svdvals(x), torch.linalg.svdvals),
        (lambda x: linalg.qr(x)[1], lambda x: torch.linalg.qr(x)[1]),
        (
            lambda x: native.abs(linalg.eigh(hermitian(x))[1]),
            lambda x: torch.linalg.eigh((x + x.mH) / 2)[1].abs(),
        ),
        (lambda x: linalg.matrix_norm(x, ord="nuc"), lambda x: torch.linalg.matrix_norm(x, ord="nuc")),
    ],
)
def test_gradients_are_those_of_pytorch(ours: Any, theirs: Any, dtype: str) -> None:
    array = numbers((2, 3, 3), dtype, 3)
    x, y = tensor(array, requires_grad=True), torch.tensor(array, requires_grad=True)
    found, expected = ours(x), theirs(y)
    weight = numbers(tuple(expected.shape), str(expected.dtype).removeprefix("torch."), 4)
    (gradient,) = autograd.grad(found, x, tensor(weight))
    (reference,) = torch.autograd.grad(expected, y, torch.tensor(weight))
    np.testing.assert_allclose(np.asarray(gradient), reference.numpy(), rtol=1e-8, atol=1e-8)


def test_determinant_of_a_singular_matrix_has_the_cofactors_as_gradient() -> None:
    x = numbers((3, 2)) @ numbers((2, 3), seed=1)
    x[:, 2] = 0
    leaf = tensor(x, requires_grad=True)
    (found,) = autograd.grad(linalg.det(leaf), leaf)
    cofactors = np.array(
        [
            [(-1) ** (i + j) * np.linalg.det(np.delete(np.delete(x, i, 0), j, 1)) for j in range(3)]
            for i in range(3)
        ]
    )
    np.testing.assert_allclose(np.asarray(found), cofactors, atol=1e-12)
    zero = tensor(np.zeros((3, 3)), requires_grad=True)
    (found,) = autograd.grad(linalg.det(zero), zero)
    assert not np.asarray(found).any()


def test_norms_of_zeros_have_the_gradient_zero() -> None:
    for norm in (linalg.vector_norm, linalg.matrix_norm):
        x = tensor(np.zeros((2, 2)), requires_grad=True)
        (found,) = autograd.grad(norm(x), x)
        assert not np.asarray(found).any()


def test_vectors_that_a_matrix_does_not_determine_have_no_gradient() -> None:
    x = tensor(numbers((4, 2)), requires_grad=True)
    with pytest.raises(RuntimeError, match="use mode='reduced'"):
        autograd.grad(native.sum(linalg.qr(x, mode="complete").R), x)
    with pytest.raises(RuntimeError, match="use full_matrices=False"):
        autograd.grad(native.sum(linalg.svd(x).U), x)
