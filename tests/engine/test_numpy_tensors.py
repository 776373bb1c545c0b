"""The stand-in for torch over NumPy follows torch's rules: element types, shapes and values."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from accelera.engine import numpy_tensors
from accelera.engine.tensors import to_numpy

NAMES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)
BINARY = ("add", "sub", "mul", "true_divide", "pow", "eq", "ne", "lt", "le", "gt", "ge")
KINDS = st.sampled_from(NAMES)
SHAPES = st.sampled_from([(), (1,), (3,), (2, 1), (2, 3)])
numbers = st.one_of(
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from([-2.5, 0.5, 3.0]),
    st.sampled_from([1j, 2 - 1j]),
)


@st.composite
def arrays(draw, shapes=SHAPES, names=KINDS):
    name, shape = draw(names), draw(shapes)
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    values = draw(st.lists(st.integers(1, 6), min_size=6, max_size=6))
    made = np.array(values[: int(np.prod(shape))]).reshape(shape).astype(dtype)
    return np.asarray(made + dtype.type(1j)) if dtype.kind == "c" else made


def both(array):
    """Return an array as torch's tensor and as the stand-in's; a number as it is."""
    if not isinstance(array, np.ndarray):
        return array, array
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16), numpy_tensors.from_numpy(array)
    return torch.from_numpy(array), numpy_tensors.from_numpy(array)


def refused(function, *operands):
    """Return what torch makes of operands; None when it takes no such types."""
    try:
        return function(*operands)
    except RuntimeError:
        return None


def same(found, expected):
    theirs = to_numpy(expected)
    assert found.shape == tuple(expected.shape)
    assert found.dtype == theirs.dtype
    wide = np.complex128 if theirs.dtype.kind == "c" else np.float64
    tolerance = 1e-2 if theirs.dtype.itemsize == 2 and theirs.dtype.kind in "fV" else 1e-5
    np.testing.assert_allclose(found.array.astype(wide), theirs.astype(wide), rtol=tolerance, atol=tolerance)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", BINARY)
@given(arrays(), st.one_of(arrays(), numbers), st.booleans())
def test_two_operands_as_in_torch(name, first, second, swapped):
    pairs = [both(first), both(second)]
    if swapped and not isinstance(second, np.ndarray):  # as Matrix does with a number on the left
        pairs[1] = torch.as_tensor(second), numpy_tensors.as_tensor(second)
    theirs, ours = zip(*(reversed(pairs) if swapped else pairs), strict=True)
    expected = refused(getattr(torch, name), *theirs)
    assume(expected is not None and expected.dtype != torch.complex32)
    same(getattr(numpy_tensors, name)(*ours), expected)


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin"])
@given(arrays(), st.booleans(), st.booleans())
def test_reductions_as_in_torch(name, array, keepdim, whole):
    theirs, ours = both(array)
    axes = tuple(range(array.ndim)) if whole else tuple(range(array.ndim))[:1]
    expected = refused(lambda: getattr(torch, name)(theirs, dim=axes, keepdim=keepdim))
    assume(expected is not None)
    same(getattr(numpy_tensors, name)(ours, dim=axes, keepdim=keepdim), expected)


@given(
    st.data(), st.sampled_from(NAMES[1:]), st.sampled_from([((2, 3), (3, 2)), ((3,), (3, 1)), ((2,), (2,))])
)
def test_products_as_in_torch(data, name, shapes):
    a, b = (data.draw(arrays(st.just(shape), st.just(name))) for shape in shapes)
    same(numpy_tensors.matmul(both(a)[1], both(b)[1]), torch.matmul(both(a)[0], both(b)[0]))


@given(arrays(st.just((2, 3))))
def test_methods_as_in_torch(array):
    theirs, ours = both(array)
    same(ours.reshape((3, -1)), theirs.reshape((3, -1)))
    same(ours.conj(), theirs.conj())
    if array.dtype != ml_dtypes.bfloat16:
        np.testing.assert_array_equal(np.from_dlpack(ours), array)


@pytest.mark.parametrize("data", [[1.5], [1, 2], [True], [1j], [[1], [2]], 3, 2.5])
def test_lists_and_numbers_as_in_torch(data):
    same(numpy_tensors.tensor(data), torch.tensor(data))


@pytest.mark.parametrize("data", [["a"], [[1], [2, 3]], [object()]])
def test_what_torch_refuses_is_refused(data):
    with pytest.raises((TypeError, ValueError)):
        numpy_tensors.tensor(data)
