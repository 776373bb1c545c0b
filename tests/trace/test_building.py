"""Columns that cannot be a trace's are refused with the place, the value and the rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from accelera import Trace
from accelera.errors import ShapeError


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("kinds", [0, -1], "event 1, kinds: -1 is not a kind from 0 to 5"),
        ("kinds", [0, 6], "event 1, kinds: 6 is not a kind from 0 to 5"),
        ("steps", [0, -1], "event 1, steps: -1 is not an index from 0"),
        ("steps", [1, 0], "event 1, steps: an access of step 0 comes after one of step 1"),
        ("roles", ["weight", "hat"], "roles: 'hat' is none of weight, activation"),
        ("flops", [1, -2], "flops of step 1 is -2, not a finite number from 0"),
        ("flops", [1, np.nan], "flops of step 1 is nan, not a finite number from 0"),
        ("seconds", [np.inf, 1], "seconds of step 0 is inf, not a finite number from 0"),
    ],
)
def test_a_bad_value_is_named(column: str, values: list[Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Trace.from_arrays([3, 5], 8, **dict[str, Any]({column: values}))


def test_unknown_seconds_are_fine() -> None:
    assert np.isnan(Trace.from_arrays([3, 5], 8, seconds=[np.nan, 0]).seconds).tolist() == [True, False]


@pytest.mark.parametrize("column", ["sizes_bytes", "kinds", "steps", "strides", "names", "flops"])
def test_columns_of_another_length(column: str) -> None:
    arguments: dict[str, Any] = {"sizes_bytes": 8, column: [1]}
    with pytest.raises(ShapeError):
        Trace.from_arrays([3, 5], **arguments)
