"""Extents and strides whose products exceed 64 bits are refused; views have their true size."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest

import accelera.tensora as ts
from tests.children import answer_of

EXTENTS = (0, 1, 2, 2**31, 2**32, 2**54, 2**61, 2**63 - 1)
MAKERS: dict[str, Any] = {
    "empty": ts.empty,
    "zeros": ts.zeros,
    "ones": ts.ones,
    "full": lambda shape: ts.full(shape, 3.0),
    "broadcast": lambda shape: ts.broadcast_to(ts.zeros((1,)), shape),
    "reshape": lambda shape: ts.reshape(ts.zeros((0,)), shape),
    "random": lambda shape: ts.random.rand(*shape),
}


def main() -> None:
    wrong = []
    for name, make in MAKERS.items():
        for shape in itertools.product(EXTENTS, repeat=2):
            if name not in ("broadcast", "reshape") and 1 < math.prod(shape) < 2**45:
                continue  # the memory may be there
            try:
                x = make(shape)
            except (MemoryError, ValueError, TypeError, OverflowError):
                continue
            if x.shape != shape or x.size != math.prod(shape):
                wrong.append([name, *shape])
    print(json.dumps(wrong))


def test_impossible_sizes_are_refused() -> None:
    assert answer_of("-m", "tests.tensora.test_sizes") == []


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [((22,), (1,), 0), ((5,), (6,), 0), ((3,), (1,), -2), ((1,), (1,), 23), ((5,), (2**61,), 0),
     ((2, 3), (1,), 0), ((2,), (-1,), 0)],
)  # fmt: skip
def test_strides_outside_of_the_tensor_are_refused(shape: Any, strides: Any, offset: int) -> None:
    x = ts.arange(21, dtype=ts.float64)
    with pytest.raises(ValueError, match=r"as_strided|tensora"):
        ts.as_strided(x, shape, strides, offset)
    with pytest.raises(ValueError, match=r"as_strided|tensora"):
        ts.as_strided_scatter(x, ts.ones(shape[:1]), shape, strides, offset)


def test_strides_inside_of_the_tensor_are_taken() -> None:
    x = ts.arange(21, dtype=ts.float64)
    assert ts.as_strided(x, (3, 2), (7, -1), 1).tolist() == [[1, 0], [8, 7], [15, 14]]
    assert ts.as_strided(x, (0, 5), (99, 99), 99).shape == (0, 5)


if __name__ == "__main__":
    main()
