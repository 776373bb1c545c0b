"""Intercepted products that are computed on a GPU, here a fake one, where every race shows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import accelera as acc
from accelera.interceptor import stats
from tests.gpus import gpu_of


@pytest.mark.parametrize(
    ("dtype", "fallbacks"),
    [("float32", 0), ("complex64", 0), ("int64", 1), ("uint8", 1)],
)
@pytest.mark.parametrize("given", [False, True], ids=["new result", "out="])
def test_products_of_the_cpu_go_to_the_device(dtype: str, fallbacks: int, given: bool) -> None:
    """Integers, of which torch multiplies none there, are computed on the CPU, and that is told."""
    numbers = np.random.default_rng(2).integers(0, 9, (700, 700)).astype(dtype)
    a = torch.from_numpy(numbers)
    with acc.intercepted(), gpu_of("fake", memory="512MiB"):
        stats(reset=True)
        with acc.intercepted(budget="64MiB", min_size=256, memory_threshold=0, device="cuda:0"):
            found = torch.mm(a, a, out=torch.empty_like(a)) if given else a @ a
        seen = stats()
    np.testing.assert_array_equal(found.numpy(), numbers @ numbers)
    (counts,) = seen.by_op.values()
    assert (counts.calls, counts.chunked, sum(counts.fallbacks.values())) == (1, 1, fallbacks)
