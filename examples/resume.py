"""A run that is stopped on the way, and another that finishes it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from accelera import BudgetExceededError, MatrixEngine
from accelera.engine import Progress, RunObserver


class PullThePlug(RunObserver):
    """Stops the run when three tiles of the result are computed, as Ctrl-C would."""

    def on_progress(self, progress: Progress) -> None:
        """Called after every step."""
        if progress.done_tiles == 3:
            raise KeyboardInterrupt


def smallest_budget(engine: MatrixEngine, a: Path, b: Path, c: Path) -> int:
    """Return the least bytes that will do, so that there are many tiles."""
    try:
        engine.plan(a, b, out=c, budget=1)
    except BudgetExceededError as refused:
        return refused.needed_bytes
    raise AssertionError("no product fits nothing")


random = np.random.default_rng(2)
engine = MatrixEngine("cpu")
with tempfile.TemporaryDirectory() as name:
    a, b, c = (Path(name) / f"{letter}.npy" for letter in "abc")
    np.save(a, random.standard_normal((640, 512), dtype=np.float32))
    np.save(b, random.standard_normal((512, 576), dtype=np.float32))
    budget = smallest_budget(engine, a, b, c) + 200_000

    try:
        engine.matmul(a, b, out=c, budget=budget, observers=[PullThePlug()])
    except KeyboardInterrupt:
        print("stopped; left behind:", sorted(path.name for path in c.parent.glob("c.npy*")))
    assert not c.exists()

    engine.matmul(a, b, out=c, budget=budget, resume=True)
    report = engine.last_report
    print(f"finished: {report.steps_skipped} steps were done before, {report.steps_run} now")
    assert report.steps_skipped > 0
    assert np.allclose(np.load(c), np.load(a).astype(np.float64) @ np.load(b), rtol=1e-4, atol=1e-3)
