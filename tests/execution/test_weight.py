"""How many bytes a task holds, as far as that shows: a look at a task never harms a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from accelera.execution import ExecutionStrategy, StrategyManager
from accelera.execution.strategy.memory_limit import MOST_LOOKS, bytes_of
from accelera.testing import FakeGpu


class Unwilling:
    @property
    def nbytes(self) -> int:
        raise RuntimeError("CUDA out of memory, or so")


class Counting(dict[Any, Any]):
    looks = 0

    @property
    def nbytes(self) -> None:
        type(self).looks += 1


def endless() -> list[Any]:
    within: list[Any] = []
    within.append(within)
    return within


def test_arrays_and_byte_strings_show() -> None:
    array = np.zeros(100)
    assert bytes_of(array) == 800
    assert bytes_of(torch.zeros(10, dtype=torch.float64)) == 80
    assert bytes_of([array, b"1234", {"key": (array, bytearray(6))}]) == 800 + 4 + 806
    assert bytes_of([array] * 1000) == 800 * 1000
    assert bytes_of(object()) == bytes_of([]) == bytes_of(7) == 0


@pytest.mark.parametrize(
    "make", [Unwilling, endless, lambda: torch.eye(3).to_sparse(), lambda: [Unwilling()]]
)
def test_what_cannot_be_looked_at_has_none(make: Any) -> None:
    task = make()
    assert bytes_of(task) == 0
    manager = StrategyManager(None, FakeGpu(), ExecutionStrategy.GpuOnly, learn=False)
    assert manager.execute([task] * 3, id).outputs == [id(task)] * 3


def test_little_is_looked_at_however_deep_a_task_is() -> None:
    task: Any = Counting()
    for _ in range(20):
        task = [task] * 50
    Counting.looks = 0
    bytes_of(task)
    assert Counting.looks <= MOST_LOOKS
