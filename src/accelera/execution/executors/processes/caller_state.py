"""What the caller of a batch has set for itself, as its worker processes set it for the tasks."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import pickle
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, final

from accelera.execution.executors.processes.pickling import dumps
from accelera.execution.tasks.run import torch_modes

Returned = TypeVar("Returned")


@final
class CallerState(NamedTuple):
    """Context variables, limits, warning filters and log levels of the thread and process that call.

    Whatever cannot be pickled is left out: a worker has its default.
    """

    variables: list[tuple[bytes, bytes]]
    """Context variables that are set, and their values; pickled one by one."""
    decimal_context: bytes | None
    """Of the thread; None where ``decimal`` is not in use."""
    numpy_options: bytes | None
    """How NumPy handles floating-point errors, its error callback and its print options."""
    torch_modes: bytes
    """Constructors and arguments of the modes that are set."""
    recursion_limit: int
    int_digits: int | None
    """The most digits of an integer in text; None where Python has no such limit."""
    warning_filters: list[bytes]
    log_levels: dict[str, tuple[int, bool]]
    """Level of each logger that has one, and whether it is disabled; the root's name is empty."""
    log_disable: int
    """What ``logging.disable`` was called with."""
    captured: tuple[bool, bool]
    """Whether ``sys.stdout`` and ``sys.stderr`` are others than those the process began with."""

    @classmethod
    def here(cls) -> CallerState:
        """Return that of this thread, now."""
        return cls(
            _set_variables(),
            _decimal_context(),
            _numpy_options(),
            dumps(torch_modes()),
            sys.getrecursionlimit(),
            getattr(sys, "get_int_max_str_digits", lambda: None)(),
            [packed for each in warnings.filters if (packed := _packed(each)) is not None],
            _log_levels(),
            logging.root.manager.disable,
            (sys.stdout is not sys.__stdout__, sys.stderr is not sys.__stderr__),
        )


@final
class WorkerContext:
    """A context in which a worker runs tasks."""

    def __init__(self) -> None:
        self._context = contextvars.Context()
        self._modes: list[tuple[Any, tuple[Any, ...]]] = []
        self._levels: dict[str, tuple[int, bool]] = {}

    def enter(self, state: CallerState) -> None:
        """Make ``state`` that of this process and of what ``run`` calls from now on."""
        sys.setrecursionlimit(state.recursion_limit)
        if state.int_digits is not None and hasattr(sys, "set_int_max_str_digits"):
            sys.set_int_max_str_digits(state.int_digits)
        _set_warning_filters(_unpacked(state.warning_filters))
        self._set_log_levels(state)
        self._modes = pickle.loads(state.torch_modes)
        self._context = contextvars.Context()
        self._context.run(_set_thread_state, state)

    def run(self, do: Callable[[], Returned]) -> Returned:
        """Return ``do()``, called in a copy of the context."""
        return self._context.copy().run(self._run, do)

    def _run(self, do: Callable[[], Returned]) -> Returned:
        with contextlib.ExitStack() as modes:
            for make, arguments in self._modes:
                modes.enter_context(make(*arguments))
            return do()

    def _set_log_levels(self, state: CallerState) -> None:
        for name in self._levels.keys() - state.log_levels.keys():
            _set_log_level(name, logging.NOTSET, disabled=False)
        for name, (level, disabled) in state.log_levels.items():
            _set_log_level(name, level, disabled=disabled)
        self._levels = state.log_levels
        logging.disable(state.log_disable)


def _packed(value: Any) -> bytes | None:
    """Return ``value`` pickled; None where that is impossible."""
    try:
        return dumps(value)
    except Exception:
        return None


def _unpacked(packed: list[bytes]) -> list[Any]:
    """Return the values that can be unpickled here."""
    values = []
    for each in packed:
        with contextlib.suppress(Exception):
            values.append(pickle.loads(each))
    return values


def _set_variables() -> list[tuple[bytes, bytes]]:
    found = []
    for variable, value in contextvars.copy_context().items():
        packed = _packed(variable), _packed(value)
        if packed[0] is not None and packed[1] is not None:
            found.append((packed[0], packed[1]))
    return found


def _decimal_context() -> bytes | None:
    decimal: Any = sys.modules.get("decimal")
    return _packed(decimal.getcontext()) if hasattr(decimal, "getcontext") else None


def _numpy_options() -> bytes | None:
    numpy: Any = sys.modules.get("numpy")
    if not hasattr(numpy, "get_printoptions"):
        return None
    errors, options = numpy.geterr(), numpy.get_printoptions()
    return _packed((errors, numpy.geterrcall(), options)) or _packed((errors, None, {}))


def _log_levels() -> dict[str, tuple[int, bool]]:
    loggers: dict[str, object] = {"": logging.root, **logging.root.manager.loggerDict}
    return {
        name: (each.level, each.disabled)
        for name, each in loggers.items()
        if isinstance(each, logging.Logger) and (each.level != logging.NOTSET or each.disabled)
    }


def _set_log_level(name: str, level: int, *, disabled: bool) -> None:
    logger = logging.getLogger(name)
    logger.setLevel(level)
    logger.disabled = disabled


def _set_warning_filters(filters: list[Any]) -> None:
    """Replace the filters; where nothing changes, warnings that were shown once are not shown again."""
    if list(warnings.filters) != filters:
        warnings.resetwarnings()
        warnings.filters[:] = filters  # type: ignore[index]


def _set_thread_state(state: CallerState) -> None:
    """Set in the current context what belongs to a thread or context."""
    for packed_variable, packed_value in state.variables:
        with contextlib.suppress(Exception):  # what is not found here keeps its default
            variable = pickle.loads(packed_variable)
            variable.set(pickle.loads(packed_value))
    if state.decimal_context is not None:
        import decimal

        decimal.setcontext(pickle.loads(state.decimal_context))
    if state.numpy_options is not None:
        _set_numpy_options(*pickle.loads(state.numpy_options))


def _set_numpy_options(errors: Any, callback: Any, options: Any) -> None:
    import numpy as np

    np.seterr(**errors)
    np.seterrcall(callback)
    np.set_printoptions(**options)
