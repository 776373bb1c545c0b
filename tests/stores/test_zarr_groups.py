"""Results inside a Zarr group have its format, and its consolidated metadata are brought up to date."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from accelera import MatrixEngine

ENGINE = MatrixEngine("cpu", enable_progress=False)


def group_with(folder: Path, zarr_format: Any, inner: str, *, consolidated: bool) -> Path:
    """Make a group with two arrays, in a group inside it if ``inner`` names one."""
    path = folder / "g.zarr"
    root = zarr.open_group(str(path), mode="w", zarr_format=zarr_format)
    group = root.create_group(inner) if inner else root
    for name, value in (("speed", 3.0), ("depth", 1.0)):
        named: dict[str, Any] = {"dimension_names": ("y", "x")} if zarr_format == 3 else {}
        if zarr_format == 2:
            named["attributes"] = {"_ARRAY_DIMENSIONS": ["y", "x"]}
        group.create_array(name, shape=(20, 30), chunks=(9, 9), dtype="f4", **named)[:] = value
    if consolidated:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            zarr.consolidate_metadata(str(path), zarr_format=zarr_format)
    return path


VALUES = [np.full((20, 30), 8, "f4"), np.full((7, 5), 8, "f8"), np.full(4, 8, "i4")]


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("name", ["speed", "new.zarr"])
@pytest.mark.parametrize("inner", ["", "ocean"])
@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_readers_of_the_group_see_the_result(
    zarr_format: Any, consolidated: bool, inner: str, name: str, values: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    path = group_with(tmp_path, zarr_format, inner, consolidated=consolidated)
    inside = "/".join(filter(None, (inner, name)))
    ENGINE.copy(values, path / inside)
    for use_consolidated in (None, False):
        root = zarr.open_group(str(path), mode="r", use_consolidated=use_consolidated)
        array = root[inside]
        assert array.metadata.zarr_format == zarr_format
        np.testing.assert_array_equal(array[:], values)
        other = "/".join(filter(None, (inner, "depth")))
        assert (root[other][:] == 1).all()
    if name == "speed" and values.ndim == 2:
        axes: Any = array.metadata.dimension_names if zarr_format == 3 else array.attrs["_ARRAY_DIMENSIONS"]
        assert list(axes) == ["y", "x"]


@pytest.mark.parametrize("codec", ["zstd", "gzip:6", "blosc-lz4", "blosc-zstd:3", None])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_compressed_results(zarr_format: Any, codec: str | None, tmp_path: Path) -> None:
    path = group_with(tmp_path, zarr_format, "", consolidated=True)
    values = np.arange(600, dtype="f4").reshape(20, 30)
    from accelera.stores._internal import create_store

    with create_store(path / "speed", values.shape, values.dtype, codec=codec) as output:
        output.write((slice(0, 20), slice(0, 30)), values)
        output.commit()
    array = zarr.open_group(str(path), mode="r")["speed"]
    assert array.metadata.zarr_format == zarr_format
    np.testing.assert_array_equal(array[:], values)


def test_an_array_in_no_group_has_format_3(tmp_path: Path) -> None:
    ENGINE.copy(np.ones((4, 4)), tmp_path / "a.zarr")
    assert zarr.open_array(str(tmp_path / "a.zarr")).metadata.zarr_format == 3
