"""Modules of the program that were reloaded or changed after worker processes had imported them.

A function of a module is sent by name, and a worker finds it in the module as it was when the worker imported
it. Once one of the modules behind a function has changed here, all of them are sent by value.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from opcode import opmap
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple, final

import cloudpickle

from accelera.fork_locks import lock_held_at_forks

_NUMBERS_AND_TEXT: Final = (bool, int, float, complex, str, bytes, type(None))
_CONSTANTS: Final = (*_NUMBERS_AND_TEXT, tuple, frozenset)


@final
class SentModule(NamedTuple):
    """A module as it was when something of it was first sent."""

    definitions: dict[str, tuple[object, object]]
    """Functions, classes and constants by name, each with its code."""
    referred_modules: list[ModuleType]


_SENT: Final[dict[str, SentModule]] = {}
_SENT_LOCK: Final = lock_held_at_forks()
_REGISTRY_LOCK: Final = threading.RLock()
"""Not a plain lock: pickling runs code of the user, which may start a batch."""


def modules_by_value(function: Callable[..., Any]) -> tuple[ModuleType, ...]:
    """Return the modules of the program behind ``function`` if one has changed since they were first sent.

    These are the modules that it and, through each other, its modules refer to.
    """
    found: dict[str, ModuleType] = {}
    has_changed = False
    waiting = _modules_of([function, *_operands(function)])
    with _SENT_LOCK:
        while waiting:
            module = waiting.pop()
            if module.__name__ in found or not _belongs_to_program(module):
                continue
            found[module.__name__] = module
            sent = _SENT.get(module.__name__)
            if sent is None:
                sent = _SENT[module.__name__] = SentModule(_definitions(module), _referred_modules(module))
            if _has_changed(module, sent.definitions):
                has_changed = True
                waiting += _referred_modules(module)
            else:
                waiting += sent.referred_modules
    return tuple(found.values()) if has_changed else ()


@contextlib.contextmanager
def pickled_by_value(modules: tuple[ModuleType, ...]) -> Iterator[None]:
    """Let pickles made meanwhile hold the functions and classes of ``modules`` with their code."""
    if not modules:
        yield
        return
    with _REGISTRY_LOCK:
        ours = [each for each in modules if each.__name__ not in cloudpickle.list_registry_pickle_by_value()]
        for each in ours:
            cloudpickle.register_pickle_by_value(each)
        try:
            yield
        finally:
            for each in ours:
                cloudpickle.unregister_pickle_by_value(each)


def _operands(function: Any) -> Iterator[Any]:
    """Yield what ``function`` holds or names."""
    if isinstance(function, functools.partial):
        for each in (function.func, *function.args, *function.keywords.values()):
            yield each
            yield from _operands(each)
    elif isinstance(function, MethodType):
        yield function.__self__
        yield from _operands(function.__func__)
    elif isinstance(function, FunctionType):
        for name in _names_in(function.__code__):
            if name in function.__globals__:
                yield function.__globals__[name]
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # not filled yet
                yield cell.cell_contents


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _modules_of(values: list[Any]) -> list[ModuleType]:
    """Return the modules that define ``values`` or their classes."""
    modules = []
    for value in values:
        if isinstance(value, ModuleType):
            modules.append(value)
            continue
        defined = value if isinstance(value, (type, FunctionType)) else type(value)
        module = sys.modules.get(getattr(defined, "__module__", None) or "")
        if isinstance(module, ModuleType):
            modules.append(module)
    return modules


def _referred_modules(module: ModuleType) -> list[ModuleType]:
    referred = {each.__name__: each for each in _modules_of(list(vars(module).values()))}
    return [each for each in referred.values() if _belongs_to_program(each)]


def _belongs_to_program(module: ModuleType) -> bool:
    """Return whether a module is the user's: no installed package, and not the main script."""
    name, file = module.__name__, getattr(module, "__file__", None)
    if not isinstance(file, str) or sys.modules.get(name) is not module or module is sys.modules["__main__"]:
        return False
    return name.partition(".")[0] != "accelera" and not file.startswith(_library_folders())


@functools.cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def _definitions(module: ModuleType) -> dict[str, tuple[object, object]]:
    """Return the definitions and constants of ``module`` by name, each with its code."""
    return {name: (value, _code_of(value)) for name, value in vars(module).items() if _is_definition(value)}


def _is_definition(value: object) -> bool:
    return isinstance(value, _CONSTANTS) or (callable(value) and not isinstance(value, ModuleType))


def _code_of(value: object) -> object:
    """Return the code of a function or of the methods of a class, which may be replaced in place."""
    if isinstance(value, FunctionType):
        return value.__code__
    if isinstance(value, type):
        return [each.__code__ for each in vars(value).values() if isinstance(each, FunctionType)]
    return None


def _has_changed(module: ModuleType, sent: dict[str, tuple[object, object]]) -> bool:
    now = vars(module)
    for name, (value, code) in sent.items():
        current = now.get(name, module)
        if current is value and _code_of(current) == code:
            continue
        if not isinstance(value, _CONSTANTS):
            return True
        if not _are_equal(current, value) and not _is_assigned(module, name):
            return True
    return False


def _are_equal(first: object, second: object) -> bool:
    """Return whether both are the same number or text; what is in tuples may not be comparable."""
    return type(first) is type(second) and isinstance(first, _NUMBERS_AND_TEXT) and first == second


def _is_assigned(module: ModuleType, name: str) -> bool:
    """Return whether functions of ``module`` assign to its global ``name``: state that workers have too."""
    return name.startswith("__") or any(name in _assigned_names(code) for code in _codes_in(module))


def _codes_in(module: ModuleType) -> Iterator[CodeType]:
    for value in vars(module).values():
        members = vars(value).values() if isinstance(value, type) else (value,)
        for each in members:
            if isinstance(each, FunctionType):
                yield from _nested_codes(each.__code__)


def _nested_codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested_codes(constant)


def _assigned_names(code: CodeType) -> set[str]:
    import dis

    if opmap["STORE_GLOBAL"] not in code.co_code[::2]:
        return set()
    return {each.argval for each in dis.get_instructions(code) if each.opname == "STORE_GLOBAL"}
