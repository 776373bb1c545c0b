"""A law that every batch of these tests is held to, whatever carries it out."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from accelera.execution import ExecutionResult, manager
from accelera.execution.request import build_result
from accelera.execution.tasks.batch import Batch


@pytest.fixture(autouse=True)
def every_task_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold results to this: each task that was done or failed counts for one device.

    For more than one where it was done twice; and a batch that was stopped may leave somebody at a task.
    """

    def counted(batch: Batch, *more: Any) -> ExecutionResult[Any]:
        try:
            result = build_result(batch, *more)
        except BaseException:
            del batch  # the traceback must not keep it
            raise
        settled = len(batch.outputs) - batch.left
        tasks = sum(share.tasks for share in result.per_device.values())
        assert tasks >= settled
        assert tasks == settled or batch.may_abandon_threads or batch.fallback == "all"
        return result

    monkeypatch.setattr(manager, "build_result", counted)


@pytest.fixture
def own_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the logs of leases apart from those of other tests that run at the same time."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
