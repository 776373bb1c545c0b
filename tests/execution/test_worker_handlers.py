"""Streams and handlers of the caller that receive output of workers: they run batches, and they fail."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from accelera.execution import ProcessesExecutor, StrategyManager
from tests.execution.stand_ins import run_schedules

LONGEST_S = 60.0
NAME = "program.handlers"


def write_output(kind: str, task: int) -> int:
    if kind == "log":
        logging.getLogger(NAME).warning("task %d", task)
    elif kind == "warning":
        warnings.warn(f"task {task}", UserWarning, stacklevel=1)
    else:
        print("task", task, file=getattr(sys, kind))
    return 2 * task


def talk(kind: str) -> Callable[[int], int]:
    return lambda task: write_output(kind, task)


class Receiver(logging.Handler, io.TextIOBase):
    """A log handler, stream and display of warnings that calls ``react`` once for each event."""

    def __init__(self, react: Callable[[], object]) -> None:
        super().__init__()
        self._react = react
        self._is_reacting = False
        self.received: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.receive(record.getMessage())

    def write(self, text: str) -> int:
        self.receive(text)
        return len(text)

    def show(self, message: Warning | str, *rest: Any, **options: Any) -> None:
        self.receive(str(message))

    def receive(self, text: str) -> None:
        self.received += text.split("\n")
        if not self._is_reacting:
            self._is_reacting = True
            try:
                self._react()
            finally:
                self._is_reacting = False


@contextlib.contextmanager
def connected(kind: str, receiver: Receiver) -> Iterator[None]:
    logger = logging.getLogger(NAME)
    with contextlib.ExitStack() as stack:
        if kind == "log":
            stack.callback(setattr, logger, "propagate", logger.propagate)
            stack.callback(logger.removeHandler, receiver)
            logger.addHandler(receiver)
            logger.propagate = False
        elif kind == "warning":
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("always")
            warnings.showwarning = receiver.show
        else:
            stack.enter_context(
                contextlib.redirect_stdout(receiver)
                if kind == "stdout"
                else contextlib.redirect_stderr(receiver)
            )
        yield


def run_batch(manager: StrategyManager, way: str, function: Callable[[int], int], count: int) -> list[Any]:
    if way == "stream":
        return [output for _, output in manager.stream(range(count), function)]
    if way == "map":
        return list(manager.map(function, range(count)))
    if way == "cancel":
        return manager.execute(range(count), function, cancel=threading.Event()).outputs
    if way == "timeout":
        return manager.execute(range(count), function, timeout=600).outputs
    return manager.execute(range(count), function).outputs


@pytest.mark.parametrize("kind", ["log", "stdout", "stderr", "warning"])
@pytest.mark.parametrize("outer", ["execute", "timeout", "stream"])
@pytest.mark.parametrize("inner", ["execute", "cancel", "stream", "map"])
@pytest.mark.parametrize("workers", [1, 2])
def test_handlers_run_batches_on_the_same_executor(kind: str, outer: str, inner: str, workers: int) -> None:
    """The tasks of the inner batch talk to the same handler, whose lock its thread holds."""
    count = 5

    def schedule(seed: int) -> None:
        with ProcessesExecutor(workers) as executor:
            manager = StrategyManager.cpu_only(executor)
            reactions: list[list[Any]] = []
            receiver = Receiver(lambda: reactions.append(run_batch(manager, inner, talk(kind), 3)))
            with connected(kind, receiver):
                assert run_batch(manager, outer, talk(kind), count) == [2 * task for task in range(count)]
            assert reactions
            assert reactions == [[0, 2, 4]] * len(reactions)
            assert receiver.received.count("task 4") == 1
            assert receiver.received.count("task 0") >= 2

    run_schedules([0], schedule, LONGEST_S)


def test_two_executors_and_handlers_run_batches_in_each_other() -> None:
    def schedule(seed: int) -> None:
        with ProcessesExecutor(1) as one, ProcessesExecutor(1) as other:
            managers = StrategyManager.cpu_only(one), StrategyManager.cpu_only(other)
            text = Receiver(lambda: managers[0].execute(range(3), talk("log")))
            records = Receiver(lambda: managers[1].execute(range(3), talk("stdout")))
            with connected("stdout", text), connected("log", records):
                for manager in managers:
                    assert manager.execute(range(4), talk("log")).outputs == [0, 2, 4, 6]
                    assert manager.execute(range(4), talk("stdout")).outputs == [0, 2, 4, 6]

    run_schedules([0], schedule, LONGEST_S)


INNER: list[Callable[[], Any]] = []
"""The batch that unpickling an output runs, in the process of the caller."""


class RunsWhenUnpickled:
    def __reduce__(self) -> tuple[Any, ...]:
        return run_inner, ()


def run_inner() -> Any:
    return INNER[-1]()


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_and_unpickling_run_batches_on_the_same_executor(workers: int) -> None:
    def schedule(seed: int) -> None:
        with ProcessesExecutor(workers) as executor:
            manager = StrategyManager.cpu_only(executor)
            INNER[:] = [lambda: manager.execute([1, 2], abs).outputs]
            inner: list[list[int]] = []
            outputs = manager.execute(
                range(3),
                lambda task: RunsWhenUnpickled(),
                progress=lambda done, of: inner.append(run_inner()),
            ).outputs
            assert outputs == [[1, 2]] * 3
            assert inner == [[1, 2]] * len(inner)

    run_schedules([0], schedule, LONGEST_S)


def fails() -> None:
    raise BrokenPipeError("no reader")


@pytest.mark.parametrize("kind", ["log", "stdout", "stderr", "warning"])
@pytest.mark.parametrize("on_error", ["raise", "collect", "skip"])
@pytest.mark.parametrize("is_reported", [True, False])
def test_failing_handlers_lose_no_results(
    kind: str, on_error: Any, is_reported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stderr" if kind != "stderr" else "__stderr__", errors)
    monkeypatch.setattr(logging, "raiseExceptions", is_reported)
    with ProcessesExecutor(2) as executor:
        manager = StrategyManager.cpu_only(executor)
        with connected(kind, Receiver(fails)):
            result = manager.execute(range(20), talk(kind), on_error=on_error)
    assert result.outputs == [2 * task for task in range(20)]
    assert not result.errors
    assert errors.getvalue().count("BrokenPipeError: no reader") == is_reported
    assert errors.getvalue().count("The batch goes on") == is_reported


@pytest.mark.parametrize("kind", ["log", "stdout"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interruptions_of_handlers_reach_the_caller(kind: str, error: type[BaseException]) -> None:
    def interrupts() -> None:
        raise error

    with ProcessesExecutor(2) as executor:
        manager = StrategyManager.cpu_only(executor)
        with connected(kind, Receiver(interrupts)), pytest.raises(error):
            manager.execute(range(20), talk(kind))
        assert manager.execute(range(3), abs).outputs == [0, 1, 2]
