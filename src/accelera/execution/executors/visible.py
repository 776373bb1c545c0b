"""Whether a function could change something that its caller would miss if it ran in another process."""

from __future__ import annotations

import dis
import functools
import pathlib
import re
import types
from collections.abc import Callable, Iterable
from typing import Any, Final

from accelera.execution.kernel import Kernel

_PLAIN: Final = (
    *(type(None), bool, int, float, complex, str, bytes, range, type, types.ModuleType),
    *(types.BuiltinFunctionType, re.Pattern, pathlib.PurePath),
)
_WRITES: Final = {"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR"}
_OUTER_WRITES: Final = {"STORE_DEREF", "DELETE_DEREF"}


def keeps_to_itself(function: Callable[..., Any]) -> bool:
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
    return isinstance(value, _PLAIN) or _is_fixed_numpy(value)


def _is_fixed_numpy(value: Any) -> bool:
    """Return whether it is a number, function or type of NumPy, or an array that nobody can write to here."""
    return type(value).__module__ == "numpy" and not getattr(
        getattr(value, "flags", None), "writeable", False
    )


def _are_constant(values: Iterable[Any], seen: set[int]) -> bool:
    return all(_is_constant(value, seen) for value in values)


def _is_constant_function(function: types.FunctionType, seen: set[int]) -> bool:
    writes, names = _read(function.__code__)
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
def _read(code: types.CodeType) -> tuple[bool, frozenset[str]]:
    """Return whether ``code`` sets attributes or what is not its own, and the globals that it may read."""
    writes, names = False, set()
    for step in dis.get_instructions(code):
        outer = step.opname in _OUTER_WRITES and step.argval in code.co_freevars
        writes |= outer or step.opname in _WRITES
        if step.opname in {"LOAD_GLOBAL", "LOAD_NAME"}:
            names.add(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner_writes, inner_names = _read(constant)
            writes |= inner_writes
            names |= inner_names
    return writes, frozenset(names)
