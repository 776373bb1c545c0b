"""Observation of the Python code that runs while a function is captured."""

from __future__ import annotations

import contextvars
import dis
import functools
import gc
import random
import sys
import types
from typing import Any

from accelera.tensora.state_guard import ABSENT
from accelera.tensora.state_walk import StateWalk

_OUTPUT_PACKAGES = frozenset({"logging", "warnings", "traceback", "linecache", "tokenize"})
"""Packages whose state decides what is printed, not what is computed."""
_MACHINERY = frozenset({"importlib", "_frozen_importlib", "_frozen_importlib_external", "contextlib", "abc"})
_SOURCES_OF_CHANGE = frozenset(
    {
        "time", "posix", "nt", "_io", "_socket", "select", "_ssl", "_uuid", "_sqlite3", "_signal", "mmap",
        "gc", "_thread", "_queue", "_multiprocessing", "_posixsubprocess", "_ctypes",
    }
)  # fmt: skip
"""Modules of C whose functions depend on more than their arguments, or wait for other threads."""
_HARMLESS = frozenset({"fspath", "write", "flush", "isatty", "fileno", "getvalue", "allocate_lock"})
_CONTEXTS = frozenset({"getcontext", "setcontext", "localcontext"})
_UNKNOWN_NAMES = frozenset({"__dict__", "__getattribute__", "attrgetter", "methodcaller"})
_BY_NAME = (getattr, hasattr, setattr, delattr, vars, dir)
_GLOBAL_OPERATIONS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "STORE_NAME", "DELETE_GLOBAL"})


class CallObserver:
    """Profile function that records the state that the running code names, before the code uses it.

    As a context manager it observes the calls of this thread.
    """

    def __init__(self, walk: StateWalk) -> None:
        self._walk = walk
        self._codes: dict[types.CodeType, bool] = {}
        """Whether calls of C functions by this code count; for code that has run."""
        self._inner: set[types.CodeType] = set()
        """Code of functions that the running functions define."""
        self.impure: list[str] = []
        """Names of calls whose results a replay cannot know."""
        self._before: Any = None
        self._collects_garbage = False

    def __enter__(self) -> CallObserver:
        # A collection would run finalizers and callbacks of unrelated objects among the observed calls.
        self._collects_garbage = gc.isenabled()
        gc.disable()
        self._before = sys.getprofile()
        sys.setprofile(self)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        if hasattr(self._before, "enable"):  # cProfile
            self._before.enable()
        elif self._before is not None:
            sys.setprofile(self._before)
        if self._collects_garbage:
            gc.enable()

    def __call__(self, frame: types.FrameType, event: str, argument: Any) -> None:
        """Observe one event of the interpreter."""
        if event == "call":
            if frame.f_code not in self._codes:
                self._codes[frame.f_code] = self._enter(frame)
        elif event == "c_call" and self._codes.get(frame.f_code, False):
            self._call(argument)

    def _enter(self, frame: types.FrameType) -> bool:
        """Record the state that code names which runs for the first time; return whether its calls count."""
        code = frame.f_code
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in _MACHINERY or package in _OUTPUT_PACKAGES:
            return False
        is_library = package == "accelera"
        if is_library:
            # The library keeps its state in modules and optimizers, whose options each step reads itself.
            self._walk.add_names(name for name in code.co_names if name != "param_groups")
            return False
        self._inner.update(each for each in code.co_consts if isinstance(each, types.CodeType))
        if code.co_freevars and code not in self._walk.codes and code not in self._inner:
            for function in gc.get_referrers(code):
                if isinstance(function, types.FunctionType):
                    self._walk.visit(function, function.__qualname__)
        self._walk.add_names(code.co_names)
        if _UNKNOWN_NAMES.intersection(code.co_names) or _matches_classes(code):
            self._walk.add_all_names()
        self._visit_globals(code, frame.f_globals)
        return True

    def _visit_globals(self, code: types.CodeType, namespace: dict[str, Any]) -> None:
        for name in _global_names(code):
            self._walk.visit_item(namespace, name, name)
            value = namespace.get(name, ABSENT)
            if isinstance(value, types.ModuleType):
                self._walk.visit_module(value, code.co_names, name)
        for name in _imported_names(code):
            module = sys.modules.get(name)
            if module is not None:
                self._walk.visit_module(module, code.co_names, name)

    def _call(self, function: Any) -> None:
        owner = getattr(function, "__self__", None)
        name = function.__name__
        if function in _BY_NAME or (isinstance(owner, str) and name in ("format", "format_map")):
            self._walk.add_all_names()
        elif function in (globals, locals, input):
            self.impure.append(f"{name}()")
        elif isinstance(owner, random.Random):
            self.impure.append(f"random.{name}()")
        elif isinstance(owner, contextvars.ContextVar):
            self.impure.append(f"the context variable {owner.name}")
        elif (
            isinstance(owner, type) and owner.__module__ == "datetime" and name in ("now", "utcnow", "today")
        ):
            self.impure.append(f"{owner.__name__}.{name}()")
        else:
            module = getattr(function, "__module__", None) or type(owner).__module__
            is_context = module == "decimal" and name in _CONTEXTS
            if is_context or (module in _SOURCES_OF_CHANGE and name not in _HARMLESS):
                self.impure.append(f"{module}.{name}()")


@functools.lru_cache(maxsize=4096)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """Return the names of global variables that code reads or writes."""
    return tuple(
        dict.fromkeys(
            str(each.argval) for each in dis.get_instructions(code) if each.opname in _GLOBAL_OPERATIONS
        )
    )


@functools.lru_cache(maxsize=4096)
def _matches_classes(code: types.CodeType) -> bool:
    """Return whether code reads attributes by patterns."""
    return any(each.opname == "MATCH_CLASS" for each in dis.get_instructions(code))


@functools.lru_cache(maxsize=4096)
def _imported_names(code: types.CodeType) -> tuple[str, ...]:
    """Return the names of modules that code imports."""
    return tuple(str(each.argval) for each in dis.get_instructions(code) if each.opname == "IMPORT_NAME")
