"""The constants that a function finds in modules: as they are here, and whether another process has the same.

A function of a module travels by its name. Where the program has set ``module.DEPTH = 5`` since it was
imported, a process that imports it anew would quietly use another depth.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import pathlib
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Mapping
from typing import Any, Final, final

from accelera.execution.kernel import Kernel

Constants = Mapping[tuple[str, str], str]
"""In words, by module and dotted name within it."""

_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, range, pathlib.PurePath)
_NAMED: Final = (type, types.FunctionType, types.BuiltinFunctionType)
_MOST_TEXT: Final = 200
_SAMPLE_BYTES: Final = 64 << 10


def constants_of(function: Callable[..., Any]) -> Constants:
    """Return the constants that ``function``, and what it calls outside of libraries, reads from modules."""
    search = _Search(function)
    search.look_at(function)
    return search.found


def difference(constants: Constants) -> str | None:
    """Return, in words, one that is another in this process; None when all are the same."""
    for (module, name), there in constants.items():
        try:
            here = _in_words(functools.reduce(getattr, name.split("."), importlib.import_module(module)))
        except (ImportError, AttributeError):
            here = "missing"
        if here != there:
            return f"{module}.{name} is {here} there and {there} here"
    return None


@final
class _Search:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.found: dict[tuple[str, str], str] = {}
        self._package = _package(getattr(function, "__module__", None))
        self._seen: set[int] = set()

    def look_at(self, value: Any) -> None:
        """Find what the functions in ``value`` read."""
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, Kernel):
            self.look_at(value.function)
        elif isinstance(value, functools.partial):
            for each in (value.func, *value.args, *value.keywords.values()):
                self.look_at(each)
        elif isinstance(value, types.MethodType):
            self.look_at(value.__func__)
        elif isinstance(value, types.FunctionType) and not self._is_of_a_library(value):
            self._read(value)

    def _read(self, function: types.FunctionType) -> None:
        names = _names(function.__code__)
        by_name = _is_found_by_name(function)
        for name in names & function.__globals__.keys():
            value = function.__globals__[name]
            if by_name:
                self._note(function.__module__, name, value)
            self._look_inside(value, names)
            self.look_at(value)
        for cell in function.__closure__ or ():
            for value in _content(cell):
                self._look_inside(value, names)
                self.look_at(value)

    def _look_inside(self, owner: Any, names: frozenset[str]) -> None:
        """Note what modules and classes are asked for, as far as the names tell."""
        if isinstance(owner, types.ModuleType):
            module, prefix = owner.__name__, ""
        elif isinstance(owner, type) and _is_found_by_name(owner):
            module, prefix = owner.__module__, f"{owner.__qualname__}."
        else:
            return
        for name in names & vars(owner).keys():
            value = vars(owner)[name]
            self._note(module, prefix + name, value)
            if isinstance(value, types.ModuleType) and id(value) not in self._seen:
                self._seen.add(id(value))
                self._look_inside(value, names)
            self.look_at(value)

    def _note(self, module: str, name: str, value: Any) -> None:
        words = _in_words(value)
        if words is not None and module != "__main__":
            self.found[module, name] = words

    def _is_of_a_library(self, function: types.FunctionType) -> bool:
        file = function.__code__.co_filename
        return _package(function.__module__) != self._package and file.startswith(_libraries())


def _in_words(value: Any) -> str | None:
    """Return what ``value`` is, the same in every process; None when it is no constant."""
    if isinstance(value, _PLAIN):
        return _short(repr(value))
    if isinstance(value, _NAMED):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, types.ModuleType):
        return value.__name__
    if isinstance(value, re.Pattern):
        return _short(f"{value.pattern!r} {value.flags}")
    if type(value).__module__ == "numpy":
        return _short(_of_numpy(value))
    if isinstance(value, tuple | frozenset):
        parts = [_in_words(each) for each in value]
        inner = sorted(map(str, parts)) if isinstance(value, frozenset) else parts
        return None if None in parts else _short(f"{type(value).__name__} {inner}")
    return None


def _short(text: str) -> str:
    if len(text) <= _MOST_TEXT:
        return text
    return f"{text[:40]}… {hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


def _of_numpy(value: Any) -> str:
    """Return a scalar or a function of NumPy in words, an array by its first and last elements."""
    if type(value).__name__ != "ndarray":
        return repr(value)
    return f"{value.dtype} {value.shape} {_ends(value.reshape(-1))}"


def _ends(flat: Any) -> str:
    count = max(1, _SAMPLE_BYTES // max(1, flat.itemsize))
    digest = hashlib.blake2b(flat[:count].tobytes(), digest_size=16)
    digest.update(flat[-count:].tobytes())
    return digest.hexdigest()


@functools.lru_cache(maxsize=512)
def _names(code: types.CodeType) -> frozenset[str]:
    inner = [_names(each) for each in code.co_consts if isinstance(each, types.CodeType)]
    return frozenset(code.co_names).union(*inner)


def _is_found_by_name(value: Any) -> bool:
    """Whether ``value`` travels by the name of its module and its own."""
    if value.__module__ == "__main__":
        return False
    try:
        module = sys.modules[value.__module__]
        return functools.reduce(getattr, value.__qualname__.split("."), module) is value
    except (KeyError, AttributeError):
        return False


def _content(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]


@functools.cache
def _libraries() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
