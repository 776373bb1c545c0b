"""Packages that load a module when one of its names is first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import lazy_loader

from accelera._extras import is_stand_in, stand_in

if TYPE_CHECKING:
    from inspect import Signature


class LazyModule:
    """A module that is imported when an attribute of it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package that loads its names on first use.

    The stub of ``file``, with the suffix ``.pyi``, imports each name from the module of ``package`` that
    defines it; type checkers read the same lines. A name whose module needs a package that is not installed
    gives a placeholder that raises BackendMissingError when it is used. Placeholders are not kept, so that a
    later installation takes effect.
    """
    load, _, names = lazy_loader.attach_stub(package, file)
    module = f"{package}._internal" if file.endswith("_internal.py") else package

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = load(name)
        except ImportError as error:
            # A module that can be imported directly translates the error of the missing package itself.
            cause = error.__cause__
            return stand_in(name, cause if isinstance(cause, ModuleNotFoundError) else error)
        if is_stand_in(value) or module != package:
            vars(sys.modules[package]).pop(name, None)  # where the loader keeps it
        if module != package:
            setattr(sys.modules[module], name, value)
        return value

    return __getattr__, lambda: sorted(names), names


def make_callable(package: str, function: str) -> None:
    """Let a package that shares its name with its main ``function`` be called as that function is."""

    class CallablePackage(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(self, function)(*args, **kwargs)

        @property
        def __signature__(self) -> Signature:
            """Signature of the function, which help() and editors show."""
            import inspect

            return inspect.signature(getattr(self, function))

        def __reduce__(self) -> tuple[Any, ...]:
            """Travel by name, as other modules do, with functions that call it."""
            return importlib.import_module, (self.__name__,)

    sys.modules[package].__class__ = CallablePackage
