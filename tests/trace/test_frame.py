"""A trace as a table and back, and the cell that is blamed when it cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given

from accelera import ShapeError, Trace, TraceFormatError
from accelera.trace._internal import content_hash
from tests.trace.examples import described_traces, step_by_step

SEED_ROWS = {
    "tensor_id": ["Q_0", "K_0", "Q_0", "V_0"],
    "size_mb": [16, 8, 16, 8],
    "stride": [1, 1, 1, 1],
    "op": ["attention"] * 4,
    "eviction_score": [0.12, 0.08, 0.32, 0.08],
}
"""The example of seed 003, less its reuse distances 0, 0, 1, 0."""


def test_the_seeds_example() -> None:
    frame = Trace.from_pandas(pd.DataFrame(SEED_ROWS), model_type="Transformer").to_pandas()
    assert frame["reuse_distance"].isna().tolist() == [True, True, False, True]
    assert frame["reuse_distance"][2] == 1
    assert frame["reuse_distance_bytes"][2] == 8 << 20
    assert frame["tensor_id"].tolist() == SEED_ROWS["tensor_id"]
    assert frame["size_mb"].tolist() == SEED_ROWS["size_mb"]
    assert frame["op"].tolist() == SEED_ROWS["op"]
    assert frame["eviction_score"].tolist() == SEED_ROWS["eviction_score"]
    assert set(frame["model_type"]) == {"Transformer"}


def test_columns() -> None:
    frame = step_by_step().to_pandas()
    assert list(frame.columns) == [
        "tensor_id",
        "size_mb",
        "reuse_distance",
        "reuse_distance_bytes",
        "stride",
        "op",
        "model_type",
        "buffer",
        "size_bytes",
        "kind",
        "step",
        "name",
        "role",
        "dtype",
        "flops",
        "seconds",
    ]
    assert frame["kind"].tolist() == ["read", "write", "read", "read", "free", "write"]
    assert frame["tensor_id"].tolist() == ["a", "b#1", "a", 'b,"x"', "b#1", "b#3"]
    assert frame["size_mb"].tolist() == [size / 2**20 for size in frame["size_bytes"]]


@given(described_traces())
def test_back_again(trace: Trace) -> None:
    again = Trace.from_pandas(trace.to_pandas())
    for name in ("buffer", "kind", "step", "stride", "size_bytes"):
        np.testing.assert_array_equal(getattr(again, name), getattr(trace, name))
    assert (again.names, again.roles, again.dtypes) == (trace.names, trace.roles, trace.dtypes)
    used = np.unique(trace.step)
    assert [again.ops[step] for step in used] == [trace.ops[step] for step in used]
    np.testing.assert_array_equal(again.flops[used], trace.flops[used])
    np.testing.assert_array_equal(again.seconds[used], trace.seconds[used])


def test_scores_are_passed_through() -> None:
    trace = step_by_step()
    frame = trace.to_pandas(scores=np.arange(5.0))
    np.testing.assert_array_equal(frame["eviction_score"], [0, 1, 2, 3, np.nan, 4])
    scored = Trace.from_pandas(frame)
    assert scored.scores is not None
    np.testing.assert_array_equal(scored.scores, np.arange(5.0))
    pd.testing.assert_frame_equal(scored.to_pandas(), frame)
    assert content_hash(scored) != content_hash(Trace.from_pandas(trace.to_pandas()))


def test_scores_of_another_trace() -> None:
    with pytest.raises(ShapeError, match=r"scores has shape \(3,\) for 5 accesses"):
        step_by_step().to_pandas(scores=[1, 2, 3])


def test_numbers_may_be_given_as_texts_and_sizes_in_parts_of_a_megabyte() -> None:
    trace = Trace.from_pandas(
        pd.DataFrame({"tensor_id": [7, 8], "size_mb": ["0.5", "2"], "step": ["0", "1"]})
    )
    assert trace.size_bytes.tolist() == [1 << 19, 1 << 21]
    assert trace.names == ("7", "8")


def good(**changes: Any) -> pd.DataFrame:
    rows = {
        "tensor_id": ["a", "b", "a"],
        "size_bytes": [1, 2, 1],
        "step": [0, 1, 1],
        "kind": ["read", "write", "free"],
        "op": ["x", "y", "y"],
        "role": ["weight", "", "weight"],
        "seconds": [1.0, np.nan, np.nan],
        **changes,
    }
    return pd.DataFrame({column: values for column, values in rows.items() if values is not None})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tensor_id": ["a", None, "a"]}, "row 1, column tensor_id: an empty cell is not a tensor's name"),
        ({"tensor_id": ["a", "", "a"]}, "row 1, column tensor_id: '' is not a tensor's name"),
        ({"size_bytes": [1, "two", 1]}, "row 1, column size_bytes: 'two' is not a number"),
        ({"size_bytes": [1, 2.5, 1]}, "row 1, column size_bytes: 2.5 is not a whole number"),
        ({"size_bytes": [1, np.nan, 1]}, "row 1, column size_bytes: an empty cell is not a whole number"),
        ({"size_bytes": [1, -2, 1]}, "row 1, column size_bytes: -2 is not a size of at least 0"),
        ({"size_bytes": [1, 2, 3]}, "row 2, column size_bytes: the buffer had 1 bytes before and has 3"),
        ({"size_bytes": None, "size_mb": [1, np.inf, 1]}, "row 1, column size_mb: inf is not a size"),
        ({"size_bytes": None, "size_mb": [1, 2, 3]}, "row 2, column size_mb: the buffer had 1048576"),
        ({"size_bytes": None}, "no column size_mb, which says how large it is"),
        ({"tensor_id": None}, "no column tensor_id, which says which tensor is accessed; columns: size_"),
        ({"kind": ["read", "peek", "free"]}, "row 1, column kind: 'peek' is not one of read, write, rel"),
        ({"kind": ["read", None, "free"]}, "row 1, column kind: an empty cell is not one of"),
        ({"step": [0, -1, 1]}, "row 1, column step: -1 is not an index"),
        ({"step": [3, 1, 1]}, "row 1, column step: an access of step 1 comes after one of step 3"),
        ({"step": [0, 2**31, 2**31]}, "row 1, column step: 2147483648 is not an index"),
        ({"op": ["x", "y", "z"]}, "row 2, column op: 'z', but 'y' before for the same step"),
        ({"seconds": [1, 2, 3.0]}, "row 2, column seconds: 3.0, but 2.0 before for the same step"),
        ({"seconds": [1, "soon", 1]}, "row 1, column seconds: 'soon' is not a number"),
        ({"role": ["weight", "", "tile"]}, "row 2, column role: 'tile', but 'weight' before for the same t"),
        ({"role": ["tile", "hat", "tile"]}, "row 1, column role: 'hat' is not one of weight, activation"),
        ({"flops": [1, -2, -2]}, "row 1, column flops: -2 is not a finite number from 0"),
        ({"seconds": [1, np.inf, np.inf]}, "row 1, column seconds: inf is not a finite number from 0"),
        (
            {"eviction_score": [0.5, None, 1]},
            "row 1, column eviction_score: an empty cell is not a finite score",
        ),
        ({"tensor_id": ["a", ["b"], "a"]}, "row 1, column tensor_id: ['b'] is not a text or a number"),
    ],
)
def test_a_bad_cell_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(TraceFormatError) as raised:
        Trace.from_pandas(good(**changes))
    assert said in str(raised.value)


def test_the_good_rows_are_good() -> None:
    assert Trace.from_pandas(good()).access_count == 2
