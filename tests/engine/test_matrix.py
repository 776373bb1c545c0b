import operator

import ml_dtypes
import numpy as np
import pytest
import torch

import accelera as acc
from accelera.errors import DeviceError, DTypeError, ShapeError
from accelera.matrix import Matrix

A = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
B = np.array([[2, 1, 4], [8, 5, 7]], dtype=np.float32)


def test_front_doors():
    assert acc.Matrix is Matrix is acc.engine.Matrix


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (A, torch.float32),
        (A.astype(np.float64), torch.float64),
        (torch.ones(2, 3, dtype=torch.int16), torch.int16),
        ([[1.0, 2.0]], torch.float32),
        ([1, 2, 3], torch.int64),
        (np.ones(2, ml_dtypes.bfloat16), torch.bfloat16),
        (np.ones(2, np.complex128), torch.complex128),
        (np.float64(3.5), torch.float64),
    ],
)
def test_data_of_any_kind_keeps_its_type(data, dtype):
    matrix = Matrix(data)
    assert matrix.dtype == dtype
    assert matrix.device == matrix.storage_device == torch.device("cpu")
    assert matrix.memory_size() == np.asarray(data).size * dtype.itemsize
    np.testing.assert_array_equal(matrix.numpy(), np.asarray(data))


def test_wrapping_shares_memory_and_cloning_does_not():
    array, tensor = A.copy(), torch.zeros(2)
    assert np.shares_memory(Matrix(array).numpy(), array)
    assert Matrix(tensor).tensor().data_ptr() == tensor.data_ptr()
    assert np.shares_memory(Matrix(array)[1:].T.numpy(), array)
    assert not np.shares_memory(Matrix(array).clone().numpy(), array)
    assert not np.shares_memory(Matrix(array, dtype=torch.float64).numpy(), array)


def test_a_read_only_memory_map_is_wrapped_without_reading_it(tmp_path):
    np.save(tmp_path / "a.npy", A)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert np.shares_memory(Matrix(mapped).numpy(), mapped)


def test_bfloat16_goes_both_ways_without_a_copy():
    array = np.array([1.5, -2], ml_dtypes.bfloat16)
    matrix = Matrix(array)
    assert matrix.numpy().dtype == array.dtype
    assert np.shares_memory(matrix.numpy(), array)


@pytest.mark.parametrize(
    "data", ["text", None, object(), [[1], [2, 3]], ["a"], np.array(["a"]), np.array([1, 2], np.longdouble)]
)
def test_what_is_no_matrix_is_refused(data):
    with pytest.raises(DTypeError, match=r"\[Matrix\]"):
        Matrix(data)


def test_reversed_and_foreign_order_arrays():
    np.testing.assert_array_equal(Matrix(A[:, ::-1]).numpy(), A[:, ::-1])
    with pytest.raises(DTypeError, match="astype"):
        Matrix(A.astype(">f4"))


@pytest.mark.parametrize("dtype", [torch.float64, np.float64, "float64"])
def test_dtypes_of_torch_numpy_and_names(dtype):
    assert Matrix(A, dtype=dtype).dtype == torch.float64


def test_constructors():
    assert Matrix.zeros((2, 3)).numpy().tolist() == [[0] * 3] * 2
    assert Matrix.ones((2, 1), dtype=torch.int8).numpy().tolist() == [[1], [1]]
    assert Matrix.eye(2).numpy().tolist() == [[1, 0], [0, 1]]
    assert Matrix.eye(2, 3).shape == (2, 3)
    uniform, normal = Matrix.random((1000,)), Matrix.randn((1000,), dtype=torch.float64)
    assert 0 <= uniform.min() < 0.1 < 0.9 < uniform.max() < 1
    assert abs(normal.mean()) < 0.2
    assert normal.dtype == torch.float64
    torch.manual_seed(7)
    first = Matrix.randn((3,))
    torch.manual_seed(7)
    assert first.numpy().tolist() == Matrix.randn((3,)).numpy().tolist()
    assert Matrix.from_numpy(A).shape == Matrix.from_tensor(torch.from_numpy(A)).shape == (2, 3)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize(
    "other",
    [B, torch.from_numpy(B), Matrix(B), B.tolist(), B[:1], 3, 2.5],
    ids=lambda other: type(other).__name__,
)
def test_operators_agree_with_numpy_on_either_side(name, other):
    function = getattr(operator, name)
    plain = np.asarray(other, dtype=np.float32)
    result = function(Matrix(A), other)
    assert isinstance(result, Matrix)
    np.testing.assert_allclose(result.numpy(), function(A, plain))
    if not isinstance(other, torch.Tensor) or name in ("add", "sub", "mul", "truediv"):
        swapped = function(other, Matrix(A))
        assert isinstance(swapped, Matrix)
        np.testing.assert_allclose(swapped.numpy(), function(plain, A))


def test_scalars_do_not_change_the_type():
    half = Matrix.ones((2,), dtype=torch.float16)
    assert (half * 2.0).dtype == (2.0 * half).dtype == (1 / half).dtype == torch.float16
    assert (Matrix([1, 2]) + 1).dtype == torch.int64
    assert (Matrix([1, 2]) + Matrix([0.5, 1])).dtype == torch.float32


def test_shapes_that_do_not_broadcast_are_named():
    with pytest.raises(ShapeError, match=r"\(2, 3\) and B of shape \(2, 2\) do not broadcast"):
        Matrix(A) + Matrix.ones((2, 2))


def test_strangers_are_not_combined():
    with pytest.raises(TypeError):
        Matrix(A) + object()
    with pytest.raises(TypeError):
        Matrix(A) @ 3


def test_reductions():
    matrix = Matrix(A)
    assert (matrix.sum(), matrix.mean(), matrix.max(), matrix.min()) == (21, 3.5, 6, 1)
    assert matrix.sum(0).numpy().tolist() == [5, 7, 9]
    assert matrix.max(1, keepdim=True).numpy().tolist() == [[3], [6]]
    assert matrix.sum(keepdim=True).shape == (1, 1)
    assert Matrix([1, 2]).mean() == 1.5
    assert Matrix([1, 2]).sum() == 3


def test_views_and_assignment():
    matrix = Matrix(A.copy())
    np.testing.assert_array_equal(matrix.T.numpy(), A.T)
    np.testing.assert_array_equal(matrix[0, 1:].numpy(), A[0, 1:])
    np.testing.assert_array_equal((-matrix).numpy(), -A)
    matrix[0] = Matrix([9.0, 9.0, 9.0])
    assert matrix.numpy()[0].tolist() == [9, 9, 9]
    assert [row.sum() for row in matrix] == [27, 15]
    assert len(matrix) == matrix.ndim == 2
    assert Matrix.zeros((4, 2, 3)).T.shape == (4, 3, 2)


def test_as_an_array_and_in_print():
    assert np.asarray(Matrix(A)).dtype == np.float32
    assert np.array(Matrix(A), dtype=np.float64).dtype == np.float64
    np.testing.assert_allclose(np.sqrt(Matrix(A)), np.sqrt(A))
    assert repr(Matrix(A)) == "Matrix(shape=(2, 3), dtype=torch.float32, device=cpu)"


def test_comparisons_are_elementwise_so_a_matrix_is_no_key():
    with pytest.raises(TypeError, match="unhashable"):
        {Matrix(A): 1}
    assert bool(Matrix([1.0]) == Matrix([1.0]))


def test_gradients_are_not_followed():
    weights = torch.ones(2, requires_grad=True)
    assert not (Matrix(weights) * 2).tensor().requires_grad


@pytest.mark.skipif(torch.accelerator.is_available(), reason="what a machine without accelerator does")
def test_without_an_accelerator_the_cpu_is_the_device():
    matrix = Matrix(A)
    assert matrix.to_gpu() is matrix
    assert matrix.to_cpu() is matrix
    assert matrix.device.type == "cpu"
    with pytest.raises(
        DeviceError, match=r"'cuda:0' is not on this machine, which has a CPU and no accelerator"
    ):
        matrix.to_gpu("cuda:0")
    with pytest.raises(DeviceError, match="cuda:3"):
        Matrix.zeros((2, 2), device="cuda:3")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs an accelerator")
def test_moves_between_cpu_and_accelerator():
    matrix = Matrix(A)
    assert matrix.to_gpu().device.type == torch.accelerator.current_accelerator().type
    assert matrix.storage_device.type == "cpu"
    np.testing.assert_array_equal((matrix + Matrix(A)).numpy(), A + A)
    assert matrix.to_cpu().device.type == "cpu"
    assert Matrix(matrix.to_gpu().tensor()).device.type == "cpu", "data starts on the CPU"


def test_a_torch_built_for_cuda_without_a_gpu_has_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyPI's usual torch for Linux answers with what it was built for."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 0)
    matrix = Matrix(A)
    assert matrix.to_gpu().device.type == "cpu"
    with pytest.raises(DeviceError, match="has a CPU and no accelerator"):
        matrix.to_gpu("cuda")
