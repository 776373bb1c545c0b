import io
import logging
import sys
import types
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import accelera as acc
from accelera._progress import LogBar, TerminalBar, open_bar, with_progress
from accelera.engine.report import ProgressObserver, progress_observer

A = np.ones((40, 30), np.float32)


def screen():
    return Console(file=io.StringIO(), force_terminal=True, width=120)


def bar_on(console):
    return lambda name: TerminalBar(name, console)


def run(observer):
    engine = acc.MatrixEngine(auto_detect_memory=False, chunk_size=4, chunking_strategy="row")
    return engine.matmul(A, A.T, observers=[observer])


def test_a_long_run_draws_tiles_and_bytes():
    console = screen()
    result = run(ProgressObserver(bar_on(console), patience_s=0))
    drawn = console.file.getvalue()
    assert "matmul" in drawn
    assert "tiles" in drawn
    np.testing.assert_array_equal(result.numpy(), A @ A.T)


def test_a_short_run_draws_nothing():
    console = screen()
    run(ProgressObserver(bar_on(console), patience_s=float("inf")))
    assert console.file.getvalue() == ""


def test_the_bar_is_gone_when_a_run_fails():
    class Stop(acc.engine.RunObserver):
        def on_progress(self, progress):
            raise KeyboardInterrupt

    bar = ProgressObserver(bar_on(screen()), patience_s=0)
    engine = acc.MatrixEngine(auto_detect_memory=False, chunk_size=4)
    with pytest.raises(KeyboardInterrupt):
        engine.matmul(A, A.T, observers=[bar, Stop()])
    assert bar._bar is None


@pytest.mark.parametrize(
    ("variable", "terminal", "enabled", "drawn"),
    [
        ("auto", False, True, False),
        ("auto", True, True, True),
        ("auto", True, False, False),
        ("never", True, True, False),
        ("always", False, True, True),
        ("always", False, False, False),
        ("log", False, True, True),
    ],
)
def test_who_gets_a_bar(monkeypatch, variable, terminal, enabled, drawn):
    monkeypatch.setenv("ACCELERA_PROGRESS", variable)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    assert (progress_observer(enabled) is not None) is drawn


def test_one_observer_serves_several_runs():
    console = screen()
    bar = ProgressObserver(bar_on(console), patience_s=0)
    run(bar)
    before = len(console.file.getvalue())
    run(bar)
    assert len(console.file.getvalue()) > before


@pytest.fixture
def notebook(monkeypatch):
    """Messages to the browser of a kernel without widgets: (formats, display id, is an update)."""
    messages = []

    def publish_display_data(formats, *, transient, update):
        messages.append((formats, transient["display_id"], update))

    shell = types.SimpleNamespace(kernel=object())
    display: Any = types.ModuleType("IPython.display")
    display.publish_display_data = publish_display_data
    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython, ipython.display = lambda: shell, display
    modules = {"IPython": ipython, "IPython.display": display, "ipykernel": types.ModuleType("ipykernel")}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setenv("ACCELERA_PROGRESS", "auto")
    monkeypatch.setattr("accelera._progress._FRAME_S", 0.0)
    return messages


def test_notebook_shows_one_output_and_empties_it(notebook):
    result = run(ProgressObserver(patience_s=0))
    np.testing.assert_array_equal(result.numpy(), A @ A.T)
    formats, identities, updates = zip(*notebook, strict=True)
    assert updates == (False, *[True] * (len(updates) - 1))
    assert len(set(identities)) == 1
    assert "matmul: " in formats[0]["text/plain"]
    assert "<progress" in formats[0]["text/html"]
    assert formats[-1] == {"text/plain": "", "text/html": ""}


def test_notebook_bar_shows_rate_and_escapes_text(notebook):
    bar = open_bar("<b>")
    bar.update(1, 4, "reading")
    bar.close()
    assert notebook[0][0]["text/plain"].startswith("<b>: 25%, 1 of 4 steps, reading, ")
    assert notebook[0][0]["text/plain"].endswith(" left")
    assert "&lt;b&gt;" in notebook[0][0]["text/html"]


def test_bar_of_unknown_total_shows_the_phase(notebook):
    bar = open_bar("planning GPT2")
    bar.update(0, 0, "dry run")
    assert notebook[0][0]["text/plain"].startswith("planning GPT2, dry run, ")


def test_log_lines_report_progress(monkeypatch, caplog):
    monkeypatch.setenv("ACCELERA_PROGRESS", "log")
    monkeypatch.setattr("accelera._progress.LOG_INTERVAL_S", 0.0)
    with caplog.at_level(logging.INFO, logger="accelera.progress"):
        assert list(with_progress("abc", 3, "sweep", enabled=True)) == ["a", "b", "c"]
    assert isinstance(open_bar("sweep"), LogBar)
    messages = [record.getMessage() for record in caplog.records]
    assert messages[1].startswith("sweep: 33%, 1 of 3 steps, ")


def test_disabled_progress_yields_the_items(monkeypatch):
    monkeypatch.setenv("ACCELERA_PROGRESS", "never")
    assert list(with_progress(range(3), 3, "sweep", enabled=True)) == [0, 1, 2]
