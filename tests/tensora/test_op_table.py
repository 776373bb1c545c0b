"""What the library asks of every entry of its op table. An entry without samples fails here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from accelera.tensora import autograd
from accelera.tensora.core import native
from tests.tensora.more_samples import MORE
from tests.tensora.op_samples import SAMPLES, WRITTEN_ELSEWHERE, Sample
from tests.tensora.window_samples import WINDOW_SAMPLES

SAMPLES |= WINDOW_SAMPLES | MORE
OPS = {op["name"]: op for op in native.ops() if op["family"] != "user"}
CASES = [
    pytest.param(name, each, id=f"{name}-{i}")
    for name, samples in SAMPLES.items()
    for i, each in enumerate(samples)
]
FLOATS = ("float32", "float64", "float16", "bfloat16")
OTHERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")
TOLERANCE = {
    "float64": 1e-12,
    "complex128": 1e-12,
    "float32": 2e-5,
    "complex64": 3e-5,
    "float16": 4e-3,
    "bfloat16": 3e-2,
}
LOOSE_AT_SPECIAL_VALUES = """
clip lerp heaviside remainder floor_divide logaddexp lgamma digamma polygamma zeta frexp_exponent complex
sign angle fmax fmin maximum minimum relu xlogy sigmoid addcmul
"""
"""NumPy's own choices differ by version, or the sign of a zero is free."""


def tensors(arrays: list[Any], dtype: str, sample: Sample) -> list[Any]:
    made = [native.asarray(each) for each in arrays]
    wanted = getattr(native.dtype, dtype)
    return [x if i in sample.fixed else native.cast(x, wanted) for i, x in enumerate(made)]


def numbers(tensor: Any) -> Any:
    """The elements in NumPy; halves as float32."""
    if tensor.dtype.name in ("float16", "bfloat16"):
        tensor = native.cast(tensor, native.dtype.float32)
    return np.array(tensor.detach().tolist(), dtype=tensor.dtype.name).reshape(tuple(tensor.shape))


def in_double(x: Any) -> Any:
    return x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)


def test_every_entry_has_samples() -> None:
    assert OPS.keys() - SAMPLES.keys() - WRITTEN_ELSEWHERE.keys() - LINALG == set()
    assert SAMPLES.keys() - OPS.keys() == set()


LINALG = {name for name, op in OPS.items() if op["family"] in ("linalg", "search", "creation")}
"""Tested in test_linalg.py, test_searching.py and test_random.py, with references of their own."""


def accepts(sample: Sample, dtype: str) -> bool:
    if dtype.startswith("complex"):
        return sample.complexes
    return dtype in FLOATS or sample.integers


@pytest.mark.parametrize("dtype", [*FLOATS, "complex64", "complex128", *OTHERS])
@pytest.mark.parametrize(("name", "sample"), CASES)
def test_values_are_those_of_numpy(name: str, sample: Sample, dtype: str) -> None:
    if not accepts(sample, dtype):
        return
    arrays = sample.inputs(dtype)
    given = tensors(arrays, dtype, sample)
    try:
        found = sample.call(*given)
    except TypeError as error:
        if "not defined for" in str(error) and dtype in str(error):
            return
        raise
    inexact = found.dtype.name.startswith(("float", "bfloat", "complex"))
    if name == "nextafter":
        if dtype in ("float16", "bfloat16"):
            return  # NumPy has no neighbours of theirs
        exact = [numbers(x) for x in given]
    else:
        exact = [in_double(numbers(x)) if inexact and x.dtype.name != "bool" else numbers(x) for x in given]
    if inexact and not any(i in sample.fixed for i in range(len(exact))):
        exact = [each.astype(np.float64) if each.dtype == bool else each for each in exact]
    with np.errstate(all="ignore"):
        expected = np.asarray(sample.reference(*exact))
    assert tuple(found.shape) == expected.shape
    tolerance = TOLERANCE.get(dtype, 2e-5)
    np.testing.assert_allclose(
        numbers(found).astype(expected.dtype), expected, rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize(("name", "sample"), CASES)
def test_views_give_what_copies_give(name: str, sample: Sample) -> None:
    for dtype in ("float64", "int32"):
        if not accepts(sample, dtype):
            continue
        given = tensors(sample.inputs(dtype), dtype, sample)
        try:
            expected = numbers(sample.call(*given))
        except TypeError:
            continue
        strided = [x if i in sample.fixed else spread(x) for i, x in enumerate(given)]
        np.testing.assert_array_equal(numbers(sample.call(*strided)), expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("name", "sample"), CASES)
def test_the_bits_of_an_element_do_not_depend_on_its_place(name: str, sample: Sample, dtype: str) -> None:
    if OPS[name]["family"] != "elementwise" or not accepts(sample, dtype):
        return
    wide = [np.resize(each, 83) for each in sample.inputs(dtype)]
    given = tensors(wide, dtype, sample)
    try:
        expected = numbers(sample.call(*given))
    except TypeError as error:
        if "not defined for" in str(error):
            return
        raise
    for begin in (1, 3, 29, 66, 82):
        part = sample.call(*[each[begin:] for each in given])
        np.testing.assert_array_equal(numbers(part), expected[begin:])


def spread(x: Any) -> Any:
    """The same elements, in a tensor whose axes lie in the other order, every second element used."""
    order = tuple(range(x.ndim))[::-1]
    wide = native.full((*[2 * n for n in x.shape[::-1]],), 0, x.dtype)
    view = native.permute(wide[(slice(None, None, 2),) * x.ndim], order)
    view[...] = x
    return view


@pytest.mark.parametrize(("name", "sample"), CASES)
def test_nan_and_infinity_go_through_as_in_numpy(name: str, sample: Sample) -> None:
    if OPS[name]["family"] != "elementwise" or name == "cast":
        return
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0])
    n = len(sample.shapes) - len(sample.fixed)
    grid = np.meshgrid(*[special] * n, indexing="ij")
    arrays = [np.ones(grid[0].shape, bool)] * len(sample.fixed) + list(grid)
    try:
        found = numbers(sample.call(*[native.asarray(each) for each in arrays]))
    except TypeError:
        return
    with np.errstate(all="ignore"):
        expected = np.asarray(sample.reference(*arrays))
    if name in LOOSE_AT_SPECIAL_VALUES.split():
        np.testing.assert_array_equal(np.isnan(found).any(), np.isnan(expected).any())
        return
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(("name", "sample"), CASES)
def test_of_no_elements(name: str, sample: Sample) -> None:
    if OPS[name]["family"] not in ("elementwise", "reduction", "scan") or name in ("where", "max", "min"):
        return
    shapes = [(0, *shape[1:]) if len(shape) == len(sample.shapes[0]) else shape for shape in sample.shapes]
    dtype = "complex128" if name == "imag" else "float64" if accepts(sample, "float64") else "int64"
    for kind in (dtype, "int64"):
        given = [native.full(shape, 1, getattr(native.dtype, kind)) for shape in shapes]
        try:
            found = sample.call(*given)
        except TypeError:
            continue
        expected = np.asarray(sample.reference(*[np.ones(shape, kind) for shape in shapes]))
        assert tuple(found.shape) == expected.shape
        return
    pytest.fail(f"{name} takes neither floats nor integers")


GRADIENTS = [case for case in CASES if OPS[case.values[0]]["differentiable"]]


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize(("name", "sample"), GRADIENTS)
def test_gradients_are_those_of_differences(name: str, sample: Sample, dtype: str) -> None:
    if not accepts(sample, dtype) or (name == "imag" and dtype == "float64"):
        return
    given = tensors(sample.inputs(dtype), dtype, sample)
    for i, x in enumerate(given):
        x.requires_grad = i not in sample.fixed
    autograd.gradcheck(sample.call, given)
    autograd.gradgradcheck(sample.call, given)


def test_the_gradient_that_is_not_there_is_said_to_be_missing() -> None:
    x = native.asarray([1.0, 2.0])
    x.requires_grad = True
    y = native.sum(native.signbit(x))
    assert not y.requires_grad
    with pytest.raises(RuntimeError, match="was not computed from any tensor with requires_grad=True"):
        autograd.backward(y)
