"""A whole batch through one lane: ``execute_batch`` of seed 002 for executors that are lanes as well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from accelera.execution.executors.contract import Lane
from accelera.execution.watching.watch import Watch
from accelera.execution.work.batch import Batch
from accelera.execution.work.forgetting import taken_breach, taken_failures


def outputs_of(lane: Lane, tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
    """Return the outputs of all tasks, in their order.

    Raises what the first task that failed raised, or what ended the lane; whatever ends it, nothing further
    is begun.
    """
    batch = Batch(tasks, function, Watch())
    try:
        lane.work(batch, caller=True)
    finally:
        batch.close()
    if batch.broken is not None:
        raise taken_breach(batch)
    if batch.failures:
        raise taken_failures(batch)[0].error
    return batch.outputs
