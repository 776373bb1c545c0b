"""Results never delete the members of a group, and lazy chunks are never broadcast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accelera import MatrixEngine
from accelera.errors import AcceleraError, ShapeError, StoreError

zarr = pytest.importorskip("zarr")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("members", [0, 2])
def test_result_named_like_a_group_is_refused(tmp_path: Path, zarr_format: int, members: int) -> None:
    path = tmp_path / "fields.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    for number in range(members):
        group.create_array(f"field{number}", shape=(6, 5), dtype="f4")[:] = number
    before = sorted(each.relative_to(path) for each in path.rglob("*"))
    with pytest.raises(StoreError, match="not a Zarr array"):
        MatrixEngine("cpu").copy(np.ones((2, 3)), path)
    assert sorted(each.relative_to(path) for each in path.rglob("*")) == before


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_result_over_an_array_replaces_it(tmp_path: Path, zarr_format: int) -> None:
    path = tmp_path / "old.zarr"
    zarr.create_array(path, shape=(6, 5), dtype="f4", zarr_format=zarr_format)
    MatrixEngine("cpu").copy(np.ones((2, 3)), path)
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[:], np.ones((2, 3)))


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"node_type": "group"}'])
def test_result_over_unreadable_metadata_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.zarr"
    path.mkdir()
    (path / "zarr.json").write_bytes(content)
    with pytest.raises(StoreError, match="not a Zarr array"):
        MatrixEngine("cpu").copy(np.ones((2, 3)), path)


@pytest.mark.parametrize(
    "shrink",
    [
        lambda block: block[:1],
        lambda block: block[:, :1],
        lambda block: block[:1, :1],
        lambda block: block[0],
        lambda block: block[0, 0],
        lambda block: block[None],
    ],
)
def test_dask_chunk_of_another_shape_is_refused(shrink: Any) -> None:
    dask_array = pytest.importorskip("dask.array")
    announced = dask_array.from_array(np.arange(40.0).reshape(8, 5), chunks=(4, 5))
    lazy = announced.map_blocks(shrink, dtype="f8", chunks=announced.chunks, meta=np.empty((0, 0)))
    with pytest.raises(AcceleraError, match="shape") as caught:
        MatrixEngine("cpu").sum(lazy)
    assert isinstance(caught.value, (ShapeError, StoreError))
