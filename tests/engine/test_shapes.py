import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accelera.engine.operands import broadcast_shape, matmul_shape
from accelera.errors import ShapeError

SHAPES = st.lists(st.integers(0, 3), max_size=4).map(tuple)


@given(SHAPES, SHAPES)
def test_matmul_shapes_are_torchs(a, b):
    try:
        expected = tuple(torch.matmul(torch.empty(a), torch.empty(b)).shape)
    except RuntimeError:
        with pytest.raises(ShapeError) as caught:
            matmul_shape(a, b)
        assert f"{a} and {b}" in str(caught.value)
    else:
        assert matmul_shape(a, b) == expected


@given(SHAPES, SHAPES)
def test_broadcast_shapes_are_torchs(a, b):
    try:
        expected = tuple(torch.broadcast_shapes(a, b))
    except RuntimeError:
        with pytest.raises(ShapeError) as caught:
            broadcast_shape("add", a, b)
        assert f"A of shape {a} and B of shape {b}" in str(caught.value)
    else:
        assert broadcast_shape("add", a, b) == expected
