"""A field of records, whose elements lie no whole number of elements apart, is an array like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from accelera import Matrix, MatrixEngine

ENGINE = MatrixEngine("cpu", enable_progress=False)
SHAPE = (40, 6)
TYPES = ["f8", "f4", "i4", "c8", ">f8"]
LAYOUTS: dict[str, Any] = {
    "packed": lambda kind: np.dtype([("flag", "i2"), ("value", kind), ("last", "i1")]),
    "aligned": lambda kind: np.dtype([("flag", "i2"), ("value", kind)], align=True),
    "nested": lambda kind: np.dtype([("a", "u1"), ("value", kind), ("b", "f4", (3,))]),
}


def records_of(kind: str, layout: str) -> np.ndarray[Any, Any]:
    records = np.zeros(SHAPE, LAYOUTS[layout](kind))
    records["value"] = np.arange(240).reshape(SHAPE) % 13
    return records


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "product": lambda x: ENGINE.matmul(x, np.ones((6, 2), np.result_type(x).newbyteorder("="))),
    "copy": lambda x: ENGINE.copy(x),
    "sum": lambda x: ENGINE.sum(x),
    "expression": lambda x: ENGINE.evaluate(ENGINE.array(x) * 2 + x),
    "matrix": lambda x: Matrix(x),
    "transpose": lambda x: ENGINE.copy(x.T),
    "backwards": lambda x: ENGINE.copy(x[::-1, ::2]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operand(operation: str, kind: str, layout: str) -> None:
    field = records_of(kind, layout)["value"]
    copied_field = field.astype(field.dtype.newbyteorder("="))
    expected, actual = (np.asarray(OPERATIONS[operation](each)) for each in (copied_field, field))
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", TYPES)
def test_a_result_changes_the_field_alone(kind: str, layout: str) -> None:
    records = records_of(kind, layout)
    before = records.copy()
    values = np.full(SHAPE, 9, np.dtype(kind).newbyteorder("="))
    ENGINE.copy(values, records["value"])
    assert (records["value"] == 9).all()
    for name in records.dtype.names or ():
        if name != "value":
            np.testing.assert_array_equal(records[name], before[name])
