"""Side effects and captured constants of a function: whether another process would compute the same.

A function of a module travels by its name. Where the program has set ``module.DEPTH = 5`` since it was
imported, a process that imports it again would quietly use another depth.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib
import pathlib
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, final

from accelera.execution.kernel import Kernel

_IMMUTABLE: Final = (
    *(type(None), bool, int, float, complex, str, bytes, range, type, types.ModuleType),
    *(types.BuiltinFunctionType, re.Pattern, pathlib.PurePath),
)
_WRITES: Final = {"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR"}
_OUTER_WRITES: Final = {"STORE_DEREF", "DELETE_DEREF"}


def has_no_side_effects(function: Callable[..., Any]) -> bool:
    """Return whether all that ``function`` refers to is constant, as far as can be seen.

    Lists, dictionaries, arrays that can be written to, and other objects that a function closes over, has as
    defaults or attributes, or finds among its module's globals may be where it puts its results, so a
    function with any of them does not keep to itself, nor does one that sets attributes; one declared pure
    does. What other modules hold, and what their functions do, is not looked at.
    """
    if isinstance(function, Kernel) and function.pure:
        return True
    return _is_constant(function, set())


def _is_constant(value: Any, seen: set[int]) -> bool:
    if id(value) in seen:
        return True
    seen.add(id(value))
    if isinstance(value, Kernel):
        return value.pure or _is_constant(value.function, seen)
    if isinstance(value, functools.partial):
        return _are_constant([value.func, *value.args, *value.keywords.values()], seen)
    if isinstance(value, tuple | frozenset):
        return _are_constant(value, seen)
    if isinstance(value, types.BuiltinFunctionType):
        return isinstance(value.__self__, types.ModuleType | type | None)
    if isinstance(value, types.FunctionType):
        return _is_constant_function(value, seen)
    return isinstance(value, _IMMUTABLE) or _is_fixed_numpy(value)


def _is_fixed_numpy(value: Any) -> bool:
    """Return whether it is a number, function or type of NumPy, or an array that nobody can write to here."""
    return type(value).__module__ == "numpy" and not getattr(
        getattr(value, "flags", None), "writeable", False
    )


def _are_constant(values: Iterable[Any], seen: set[int]) -> bool:
    return all(_is_constant(value, seen) for value in values)


def _is_constant_function(function: types.FunctionType, seen: set[int]) -> bool:
    writes, names = _writes_and_globals(function.__code__)
    if writes:
        return False
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    outer = [function.__globals__[name] for name in names if name in function.__globals__]
    own = [
        *(function.__defaults__ or ()),
        *(function.__kwdefaults__ or {}).values(),
        *vars(function).values(),
    ]
    return _are_constant([*cells, *outer, *own], seen)


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


@functools.lru_cache(maxsize=512)
def _writes_and_globals(code: types.CodeType) -> tuple[bool, frozenset[str]]:
    """Return whether ``code`` sets attributes or what is not its own, and the globals that it may read."""
    writes, names = False, set()
    for step in dis.get_instructions(code):
        outer = step.opname in _OUTER_WRITES and step.argval in code.co_freevars
        writes |= outer or step.opname in _WRITES
        if step.opname in {"LOAD_GLOBAL", "LOAD_NAME"}:
            names.add(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner_writes, inner_names = _writes_and_globals(constant)
            writes |= inner_writes
            names |= inner_names
    return writes, frozenset(names)


Constants = Mapping[tuple[str, str], str]
"""In words, by module and dotted name within it."""

_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, range, pathlib.PurePath)
_NAMED: Final = (type, types.FunctionType, types.BuiltinFunctionType)
_MOST_TEXT: Final = 200
_SAMPLE_BYTES: Final = 64 << 10


def captured_constants(function: Callable[..., Any]) -> Constants:
    """Return the constants that ``function``, and what it calls outside of libraries, reads from modules."""
    search = _ConstantSearch(function)
    search.look_at(function)
    return search.found


def difference(constants: Constants) -> str | None:
    """Return, in words, one that is another in this process; None when all are the same."""
    for (module, name), there in constants.items():
        try:
            here = _constant_text(functools.reduce(getattr, name.split("."), importlib.import_module(module)))
        except (ImportError, AttributeError):
            here = "missing"
        if here != there:
            return f"{module}.{name} is {here} there and {there} here"
    return None


@final
class _ConstantSearch:
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
        names = _referenced_names(function.__code__)
        by_name = _is_found_by_name(function)
        for name in names & function.__globals__.keys():
            value = function.__globals__[name]
            if by_name:
                self._note(function.__module__, name, value)
            self._look_inside(value, names)
            self.look_at(value)
        for cell in function.__closure__ or ():
            for value in _cell_content(cell):
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
        words = _constant_text(value)
        if words is not None and module != "__main__":
            self.found[module, name] = words

    def _is_of_a_library(self, function: types.FunctionType) -> bool:
        file = function.__code__.co_filename
        return _package(function.__module__) != self._package and file.startswith(_libraries())


def _constant_text(value: Any) -> str | None:
    """Return a text for the constant ``value`` that is equal in every process; None if it is no constant."""
    if isinstance(value, _PLAIN):
        return _abbreviate(repr(value))
    if isinstance(value, _NAMED):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, types.ModuleType):
        return value.__name__
    if isinstance(value, re.Pattern):
        return _abbreviate(f"{value.pattern!r} {value.flags}")
    if type(value).__module__ == "numpy":
        return _abbreviate(_numpy_text(value))
    if isinstance(value, tuple | frozenset):
        parts = [_constant_text(each) for each in value]
        inner = sorted(map(str, parts)) if isinstance(value, frozenset) else parts
        return None if None in parts else _abbreviate(f"{type(value).__name__} {inner}")
    return None


def _abbreviate(text: str) -> str:
    if len(text) <= _MOST_TEXT:
        return text
    return f"{text[:40]}… {hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


def _numpy_text(value: Any) -> str:
    """Return a scalar or a function of NumPy in words, an array by its first and last elements."""
    if type(value).__name__ != "ndarray":
        return repr(value)
    return f"{value.dtype} {value.shape} {_ends_digest(value.reshape(-1))}"


def _ends_digest(flat: Any) -> str:
    count = max(1, _SAMPLE_BYTES // max(1, flat.itemsize))
    digest = hashlib.blake2b(flat[:count].tobytes(), digest_size=16)
    digest.update(flat[-count:].tobytes())
    return digest.hexdigest()


@functools.lru_cache(maxsize=512)
def _referenced_names(code: types.CodeType) -> frozenset[str]:
    inner = [_referenced_names(each) for each in code.co_consts if isinstance(each, types.CodeType)]
    return frozenset(code.co_names).union(*inner)


def _is_found_by_name(value: Any) -> bool:
    """Return whether pickle finds ``value`` by the name of its module and its qualified name."""
    if value.__module__ == "__main__":
        return False
    try:
        module = sys.modules[value.__module__]
        return functools.reduce(getattr, value.__qualname__.split("."), module) is value
    except (KeyError, AttributeError):
        return False


def _cell_content(cell: types.CellType) -> list[Any]:
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
