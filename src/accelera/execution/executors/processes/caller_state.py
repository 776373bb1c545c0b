"""Settings of the thread and process that call, as worker processes apply them to the tasks."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeVar, final

from accelera.execution.executors.processes.pickling import dumps
from accelera.execution.executors.processes.torch_settings import TorchSettings
from accelera.execution.executors.processes.warning_filters import (
    SentFilter,
    current_filters,
    set_filters,
)
from accelera.execution.hardware.cpu_share import usable_cores
from accelera.execution.tasks.torch_modes import torch_modes

Returned = TypeVar("Returned")

_DECIMAL_VARIABLE: Final = "decimal_context"
"""Name of the context variable behind ``decimal.getcontext``, which no module has."""
_DECIMAL_FIELDS: Final = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp", "traps")
_NUMPY_ERRORS: Final[dict[str, Any]] = {
    "divide": "warn",
    "over": "warn",
    "under": "ignore",
    "invalid": "warn",
}
_NUMPY_PRINT_OPTIONS: Final[dict[str, Any]] = {
    "edgeitems": 3,
    "threshold": 1000,
    "floatmode": "maxprec",
    "precision": 8,
    "suppress": False,
    "linewidth": 75,
    "nanstr": "nan",
    "infstr": "inf",
    "sign": "-",
    "formatter": None,
    "legacy": False,
}


@final
class CallerState(NamedTuple):
    """Context variables, limits, warning filters and log levels of the thread and process that call.

    Values that cannot be pickled are left out: a worker has the default.
    """

    variables: list[tuple[bytes, bytes]]
    """Context variables that are set, and their values; pickled one by one."""
    decimal_context: bytes | None
    """Of the thread; None where it is the default."""
    numpy_options: bytes | None
    """How NumPy handles floating-point errors, its error callback and its print options; None: by default."""
    torch_modes: bytes | None
    """Constructors and arguments of the modes that are set; None without any."""
    torch_settings: TorchSettings
    recursion_limit: int
    int_digits: int | None
    """The most digits of an integer in text; None where Python has no such limit."""
    warning_filters: list[SentFilter]
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
            _packed(modes) if (modes := torch_modes()) else None,
            TorchSettings.here(),
            sys.getrecursionlimit(),
            getattr(sys, "get_int_max_str_digits", lambda: None)(),
            current_filters(),
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
        """Apply ``state`` to this process and to the context of ``run``."""
        with imports_as_in_caller():
            state.torch_settings.apply(usable_cores())
        sys.setrecursionlimit(state.recursion_limit)
        if state.int_digits is not None and hasattr(sys, "set_int_max_str_digits"):
            sys.set_int_max_str_digits(state.int_digits)
        set_filters(state.warning_filters)
        self._set_log_levels(state)
        self._modes = [] if state.torch_modes is None else pickle.loads(state.torch_modes)
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


@contextlib.contextmanager
def imports_as_in_caller() -> Iterator[None]:
    """Import modules without their warnings and log handlers: the caller has shown those, and has these."""
    before = _log_handlers()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    for logger, handler in _log_handlers() - before:
        logger.removeHandler(handler)


def _log_handlers() -> set[tuple[logging.Logger, logging.Handler]]:
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    return {
        (each, handler) for each in loggers if isinstance(each, logging.Logger) for handler in each.handlers
    }


def _packed(value: Any) -> bytes | None:
    """Return ``value`` pickled; None where that is impossible."""
    try:
        return dumps(value)
    except Exception:
        return None


def _set_variables() -> list[tuple[bytes, bytes]]:
    variables = []
    for variable, value in contextvars.copy_context().items():
        if variable.name != _DECIMAL_VARIABLE:
            packed = _packed(variable), _packed(value)
            if packed[0] is not None and packed[1] is not None:
                variables.append((packed[0], packed[1]))
    return variables


def _decimal_context() -> bytes | None:
    decimal: Any = sys.modules.get("decimal")
    if not hasattr(decimal, "getcontext"):
        return None
    here, default = decimal.getcontext(), decimal.DefaultContext
    are_equal = all(getattr(here, name) == getattr(default, name) for name in _DECIMAL_FIELDS)
    return None if are_equal else _packed(here)


def _numpy_options() -> bytes | None:
    numpy: Any = sys.modules.get("numpy")
    if not hasattr(numpy, "get_printoptions"):
        return None
    errors, callback, options = numpy.geterr(), numpy.geterrcall(), numpy.get_printoptions()
    changed = {name: options[name] for name, value in _NUMPY_PRINT_OPTIONS.items() if options[name] != value}
    if errors == _NUMPY_ERRORS and callback is None and not changed:
        return None
    return _packed((errors, callback, changed)) or _packed((errors, None, {}))


def _log_levels() -> dict[str, tuple[int, bool]]:
    loggers: dict[str, object] = {"": logging.root, **logging.root.manager.loggerDict}
    return {
        name: (each.level, each.disabled)
        for name, each in loggers.items()
        if isinstance(each, logging.Logger) and (each.level != logging.NOTSET or each.disabled)
    }


def _set_log_level(name: str, level: int, *, disabled: bool) -> None:
    logger = logging.getLogger(name)
    if logger.level != level:
        logger.setLevel(level)
    logger.disabled = disabled


def _set_thread_state(state: CallerState) -> None:
    """Set in the current context what belongs to a thread or context."""
    for packed_variable, packed_value in state.variables:
        with contextlib.suppress(Exception):  # a variable that this process cannot import keeps its default
            variable = pickle.loads(packed_variable)
            variable.set(pickle.loads(packed_value))
    if state.decimal_context is not None:
        import decimal

        decimal.setcontext(pickle.loads(state.decimal_context))
    if state.numpy_options is not None or "numpy" in sys.modules:
        _set_numpy_options(state.numpy_options)


def _set_numpy_options(packed: bytes | None) -> None:
    import numpy as np

    errors, callback, changed = (_NUMPY_ERRORS, None, {}) if packed is None else pickle.loads(packed)
    np.seterr(**errors)
    np.seterrcall(callback)
    np.set_printoptions(**{**_NUMPY_PRINT_OPTIONS, **changed})
