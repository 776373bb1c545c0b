"""A Matrix among NumPy's functions, DLPack and torch: one decision, kept everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from accelera.engine import Matrix, lazy
from accelera.errors import AcceleraError, DTypeError, ShapeError

A = np.arange(1.0, 13.0).reshape(3, 4)
B = np.arange(3.0, 15.0).reshape(3, 4)[::-1].copy()

BINARY = [
    np.add,
    np.subtract,
    np.multiply,
    np.true_divide,
    np.power,
    np.equal,
    np.not_equal,
    np.less,
    np.less_equal,
    np.greater,
    np.greater_equal,
    np.maximum,
    np.hypot,
]
OPERATORS: dict[Any, Any] = {
    np.add: lambda x, y: x + y,
    np.subtract: lambda x, y: x - y,
    np.multiply: lambda x, y: x * y,
    np.true_divide: lambda x, y: x / y,
    np.power: lambda x, y: x**y,
    np.equal: lambda x, y: x == y,
    np.not_equal: lambda x, y: x != y,
    np.less: lambda x, y: x < y,
    np.less_equal: lambda x, y: x <= y,
    np.greater: lambda x, y: x > y,
    np.greater_equal: lambda x, y: x >= y,
}


@pytest.mark.parametrize("ufunc", BINARY, ids=lambda each: each.__name__)
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
def test_functions_and_operators_agree_in_type_and_value(ufunc: Any, dtype: str) -> None:
    a, b = A.astype(dtype), B.astype(dtype)
    pairs = [(Matrix(a), b), (a, Matrix(b)), (Matrix(a), Matrix(b)), (Matrix(a), 2), (2, Matrix(b))]
    pairs += [(Matrix(a), np.float32(2)), (np.float64(2), Matrix(b))] if dtype == "f4" else []
    for x, y in pairs:
        found = ufunc(x, y)
        assert isinstance(found, Matrix)
        wanted = ufunc(np.asarray(x), np.asarray(y))
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-6)
        if ufunc in OPERATORS:
            operated = OPERATORS[ufunc](x, y)
            assert isinstance(operated, Matrix)
            assert operated.dtype == found.dtype
            np.testing.assert_array_equal(np.asarray(operated), np.asarray(found))


def test_products_agree_in_type_and_value() -> None:
    m = Matrix(B.T.copy())
    for found in (np.matmul(A, m), A @ m, Matrix(A) @ m, Matrix(A) @ B.T, np.matmul(Matrix(A), B.T)):
        assert isinstance(found, Matrix)
        np.testing.assert_allclose(found.numpy(), A @ B.T)
    for found in (np.dot(A, m), np.matmul(A, m, out=np.empty((3, 3)))):
        np.testing.assert_allclose(np.asarray(found), A @ B.T)
    for left in (np.matmul, lambda x, y: x @ y):
        with pytest.raises(ShapeError):
            left(A, Matrix(A))


@pytest.mark.parametrize("name", ["mean", "sum", "min", "max", "std", "var", "prod", "argmax", "argmin"])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(name: str, axis: int | None, keepdims: bool) -> None:
    found = getattr(np, name)(Matrix(A), axis=axis, keepdims=keepdims)
    wanted = getattr(np, name)(A, axis=axis, keepdims=keepdims)
    assert isinstance(found, Matrix) == isinstance(wanted, np.ndarray)
    np.testing.assert_allclose(np.asarray(found), wanted)
    if name.startswith("arg"):
        own = getattr(Matrix(A), name)(axis, keepdims)
        np.testing.assert_array_equal(np.asarray(own), wanted)


def test_other_functions_of_numpy() -> None:
    m = Matrix(A)
    for found, wanted in (
        (np.sqrt(m), np.sqrt(A)),
        (np.concatenate([m, B]), np.concatenate([A, B])),
        (np.where(m > 5, m, 0), np.where(A > 5, A, 0)),
        (np.reshape(m, (4, 3)), A.reshape(4, 3)),
        (np.transpose(m), A.T),
        (np.clip(m, 2, 5), A.clip(2, 5)),
        (np.cumsum(m, axis=1), A.cumsum(axis=1)),
        (np.add.reduce(m, axis=0), A.sum(axis=0)),
        (np.linalg.inv(m[:, :3] + np.eye(3)), np.linalg.inv(A[:, :3] + np.eye(3))),
    ):
        assert isinstance(found, Matrix)
        np.testing.assert_allclose(found.numpy(), wanted)
    assert all(isinstance(each, Matrix) for each in np.linalg.qr(m))
    assert all(isinstance(each, Matrix) for each in np.divmod(m, 3))
    assert np.allclose(m, A)
    assert np.shape(m) == (3, 4)
    assert isinstance(np.linalg.norm(m), float)
    out = np.empty((3, 4))
    assert np.multiply(m, 2, out=out) is out
    np.testing.assert_array_equal(out, A * 2)
    shared = A.copy()
    target: Any = Matrix(shared)
    assert np.add(A, 1, out=target) is target
    np.testing.assert_array_equal(shared, A + 1)


def test_expressions_stay_expressions() -> None:
    expr = lazy(A)
    for found in (Matrix(A) + expr, expr + Matrix(A), np.add(Matrix(A), expr), Matrix(A).T @ expr):
        assert type(found).__module__ == "accelera.engine.expression"


def test_memory_is_shared_through_dlpack() -> None:
    m = Matrix(A.copy())
    assert torch.as_tensor(m).data_ptr() == m.tensor().data_ptr()
    assert torch.from_dlpack(m).data_ptr() == m.tensor().data_ptr()
    assert np.shares_memory(np.from_dlpack(m), m.numpy())
    assert m.__dlpack_device__() == np.empty(0).__dlpack_device__()
    assert np.shares_memory(np.asarray(m), m.numpy())
    copied = torch.tensor(m) if hasattr(torch, "from_dlpack") else None
    assert copied is None or copied.data_ptr() != m.tensor().data_ptr()
    z = Matrix(A.astype("c8") * 1j)
    np.testing.assert_array_equal(np.from_dlpack(Matrix.wrap(z.tensor().conj())), A * -1j)


def test_shapes_types_and_places() -> None:
    m = Matrix(A.astype("f4"))
    assert m.size == 12
    for shape in ((4, 3), (2, 6), (-1,), (12, 1)):
        np.testing.assert_array_equal(m.reshape(*shape).numpy(), A.reshape(*shape))
        np.testing.assert_array_equal(m.reshape(shape).numpy(), A.reshape(shape))
    assert np.shares_memory(m.reshape(4, 3).numpy(), m.numpy())
    wrong: Any
    for wrong in ((5, 3), (-2, 3), ("x",)):
        with pytest.raises(ShapeError):
            m.reshape(wrong)
    for dtype in ("i8", np.float64, torch.complex64, "bfloat16"):
        assert m.astype(dtype).numpy().dtype == np.asarray(m.astype(dtype)).dtype
    assert m.astype("i8").dtype == torch.int64
    with pytest.raises(AcceleraError):
        m.astype("S3")
    z = A * (1 + 2j)
    np.testing.assert_array_equal(Matrix(z).conj().numpy(), z.conj())
    conjugate: Any = np.conjugate(Matrix(z))
    np.testing.assert_array_equal(conjugate.numpy(), z.conj())
    assert Matrix(A).conj().dtype == torch.float64
    np.testing.assert_allclose((m**2).numpy(), A**2)
    np.testing.assert_allclose((2**m).numpy(), 2**A, rtol=1e-6)
    np.testing.assert_allclose((m**m).numpy(), A**A, rtol=1e-5)
    assert Matrix([3.0, 7.0, 7.0]).argmax() == 1
    assert Matrix([[3.0, 1.0], [1.0, 1.0]]).argmin(0).numpy().tolist() == [1, 0]


def test_masked_elements_and_sparse_matrices_are_no_matrix() -> None:
    import scipy.sparse

    with pytest.raises(DTypeError, match="mask"):
        Matrix(np.ma.masked_greater(A, 3))
    with pytest.raises(DTypeError):
        Matrix(scipy.sparse.csr_array(A))
    assert Matrix(np.ma.array(A)).shape == (3, 4)
