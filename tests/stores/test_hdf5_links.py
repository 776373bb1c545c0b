"""HDF5 datasets that are stored in other files are read when the caller allows it; damage is a StoreError."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from accelera import StoreError, open_store

VALUES = np.arange(48.0).reshape(6, 8)


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    VALUES.tofile(tmp_path / "raw.bin")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["group/numbers"] = VALUES
    path = tmp_path / "given.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("raw", VALUES.shape, "f8", external=[(tmp_path / "raw.bin", 0, VALUES.nbytes)])
        file["link"] = h5py.ExternalLink(tmp_path / "other.h5", "/group/numbers")
        file["folder"] = h5py.ExternalLink(tmp_path / "other.h5", "/group")
        layout = h5py.VirtualLayout(VALUES.shape, "f8")
        layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "group/numbers", VALUES.shape)
        file.create_virtual_dataset("virtual", layout)
        file["soft"] = h5py.SoftLink("/link")
        file["own"] = VALUES
        file["alias"] = h5py.SoftLink("/own")
    return path


@pytest.mark.parametrize("key", ["raw", "link", "virtual", "folder/numbers", "soft"])
def test_data_in_other_files_needs_permission(linked: Path, key: str) -> None:
    with pytest.raises(StoreError, match="external_files=True"):
        open_store(linked, key=key)
    with open_store(linked, key=key, external_files=True) as store:
        np.testing.assert_array_equal(store.to_numpy(), VALUES)


@pytest.mark.parametrize("key", ["own", "alias"])
def test_data_in_the_file_needs_no_permission(linked: Path, key: str) -> None:
    np.testing.assert_array_equal(open_store(linked, key=key).to_numpy(), VALUES)


def test_damaged_file_raises_store_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["weights/first"] = VALUES
    content = path.read_bytes()
    for position in range(0, len(content), 13):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x5A]) + content[position + 1 :])
        try:
            open_store(path).close()
        except StoreError:
            continue
