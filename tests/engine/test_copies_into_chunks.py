"""A result into an existing Zarr array writes each chunk about once, whatever its shape."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from accelera import BudgetExceededError, MatrixEngine

ENGINE = MatrixEngine("cpu", enable_progress=False)
SHAPE = (3000, 12)
CHUNKS = [(3000, 1), (3000, 12), (250, 12), (750, 5), (400, 3)]


@pytest.mark.parametrize("operation", ["copy", "expression"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("chunks", CHUNKS)
def test_each_chunk_is_written_about_once(
    chunks: tuple[int, int], order: Any, operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: Counter[str] = Counter()
    original = zarr.storage.LocalStore.set

    async def counting(self: Any, key: str, value: Any, *rest: Any, **more: Any) -> Any:
        written[key] += 1
        return await original(self, key, value, *rest, **more)

    array = np.random.default_rng(0).standard_normal(SHAPE).astype("f4")
    np.save(tmp_path / "a.npy", np.asarray(array, order=order))
    target = zarr.create_array(str(tmp_path / "z.zarr"), shape=SHAPE, chunks=chunks, dtype="f4")
    monkeypatch.setattr(zarr.storage.LocalStore, "set", counting)

    def run(budget: int) -> None:
        if operation == "copy":
            ENGINE.copy(tmp_path / "a.npy", target, budget=budget)
        else:
            ENGINE.evaluate(ENGINE.array(tmp_path / "a.npy") + 0, target, budget=budget)

    with pytest.raises(BudgetExceededError) as refused:
        run(1)
    written.clear()
    run(int(refused.value.needed_bytes * 1.1))
    count = -(-SHAPE[0] // chunks[0]) * -(-SHAPE[1] // chunks[1])
    assert count <= sum(written.values()) <= 1.5 * count
    np.testing.assert_array_equal(target[:], array)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shards", [(1000, 100), (2000, 50), (500, 200)])
def test_shards_are_written_once(
    shards: tuple[int, int], order: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (2000, 200)
    array = np.random.default_rng(1).standard_normal(shape).astype("f4")
    np.save(tmp_path / "a.npy", np.asarray(array, order=order))
    target = zarr.create_array(
        str(tmp_path / "z.zarr"), shape=shape, chunks=(100, 50), shards=shards, dtype="f4"
    )
    written: Counter[str] = Counter()
    original = zarr.storage.LocalStore.set

    async def counting(self: Any, key: str, value: Any, *rest: Any, **more: Any) -> Any:
        written[key] += 1
        return await original(self, key, value, *rest, **more)

    monkeypatch.setattr(zarr.storage.LocalStore, "set", counting)
    ENGINE.copy(tmp_path / "a.npy", target, budget="64MiB")
    count = -(-shape[0] // shards[0]) * -(-shape[1] // shards[1])
    assert sum(written.values()) == count
    np.testing.assert_array_equal(target[:], array)
