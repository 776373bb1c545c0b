"""Repetition of elements and slices, compared with NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import accelera.tensora as ts


@given(st.lists(st.integers(0, 5), min_size=0, max_size=6), st.integers(0, 1))
def test_counts_of_each_element(counts, axis):
    x = np.arange(len(counts) * 3, dtype=np.int64).reshape(
        (len(counts), 3) if axis == 0 else (3, len(counts))
    )
    result = ts.repeat(ts.asarray(x), ts.asarray(np.array(counts, np.int64)), axis=axis)
    np.testing.assert_array_equal(result.numpy(), np.repeat(x, counts, axis=axis))


@pytest.mark.parametrize("counts", [[7, -5], [-1], [2**62] * 4 + [5], [2**63 - 1, 1]])
def test_counts_that_cannot_be(counts):
    with pytest.raises(ValueError, match="repeat"):
        ts.repeat(ts.arange(len(counts)), ts.asarray(counts))
