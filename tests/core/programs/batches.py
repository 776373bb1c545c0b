"""Batches of work on threads and processes, with the core alone."""

import numpy as np

from accelera import StrategyManager
from accelera.execution import ProcessesExecutor, ThreadsExecutor

SHIFT = 3


def work(seed: int) -> np.ndarray:
    return np.full(20_000, seed + SHIFT)


assert len(StrategyManager.auto().execute(range(9), work).outputs) == 9
for manager in (StrategyManager.cpu_only(), StrategyManager.cpu_only(ThreadsExecutor(2))):
    assert [each[0] for each in manager.execute(range(20), work).outputs] == list(range(3, 23))
with ProcessesExecutor(2) as executor:
    found = StrategyManager.cpu_only(executor).execute(range(20), work)
assert [each[0] for each in found.outputs] == list(range(3, 23))
