import io

import numpy as np
import pytest
from rich.console import Console

import accelera as acc
from accelera.engine.report import ProgressObserver, progress_observer

A = np.ones((40, 30), np.float32)


def screen():
    return Console(file=io.StringIO(), force_terminal=True, width=120)


def run(observer):
    engine = acc.MatrixEngine(auto_detect_memory=False, chunk_size=4, chunking_strategy="row")
    return engine.matmul(A, A.T, observers=[observer])


def test_a_long_run_draws_tiles_and_bytes():
    console = screen()
    result = run(ProgressObserver(console, patience_s=0))
    drawn = console.file.getvalue()
    assert "matmul" in drawn
    assert "tiles" in drawn
    np.testing.assert_array_equal(result.numpy(), A @ A.T)


def test_a_short_run_draws_nothing():
    console = screen()
    run(ProgressObserver(console, patience_s=float("inf")))
    assert console.file.getvalue() == ""


def test_the_bar_is_gone_when_a_run_fails():
    class Stop(acc.engine.RunObserver):
        def on_progress(self, progress):
            raise KeyboardInterrupt

    bar = ProgressObserver(screen(), patience_s=0)
    engine = acc.MatrixEngine(auto_detect_memory=False, chunk_size=4)
    with pytest.raises(KeyboardInterrupt):
        engine.matmul(A, A.T, observers=[bar, Stop()])
    assert bar._display is None


@pytest.mark.parametrize(
    ("variable", "terminal", "enabled", "drawn"),
    [
        ("auto", False, True, False),
        ("auto", True, True, True),
        ("auto", True, False, False),
        ("never", True, True, False),
        ("always", False, True, True),
        ("always", False, False, False),
    ],
)
def test_who_gets_a_bar(monkeypatch, variable, terminal, enabled, drawn):
    monkeypatch.setenv("ACCELERA_PROGRESS", variable)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    assert (progress_observer(enabled) is not None) is drawn


def test_one_observer_serves_several_runs():
    console = screen()
    bar = ProgressObserver(console, patience_s=0)
    run(bar)
    before = len(console.file.getvalue())
    run(bar)
    assert len(console.file.getvalue()) > before
