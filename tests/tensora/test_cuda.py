"""Tensors on a CUDA device: a real one, or the emulator's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.tensora.test_op_table import CASES, TOLERANCE, accepts, numbers, tensors



@pytest.fixture(autouse=True)
def fusion() -> None:
    """Once, as users have it."""


DTYPES = ("float32", "float16", "complex64", "int32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "sample"), CASES)
def test_values_are_those_of_the_cpu(name: str, sample: Any, dtype: str, device: str) -> None:
    if not accepts(sample, dtype):
        return
    given = tensors(sample.inputs(dtype), dtype, sample)
    try:
        wanted = sample.call(*given)
    except TypeError:
        return
    found = sample.call(*(x.to(device) for x in given))
    assert found.device == device
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(
        numbers(found), numbers(wanted), rtol=TOLERANCE.get(dtype, 0), atol=TOLERANCE.get(dtype, 0)
    )
